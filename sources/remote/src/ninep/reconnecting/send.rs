//! The direction to the server.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;
use std::time::Instant;

use p9::message::HEADER;
use p9::recovery::RequestAction;
use transports::Link;
use vfs::copies::count_copied;

use super::link::{ReconnectingLink, UnsentRequest, UnsentRequests};

impl ReconnectingLink {
    /// Sends `pieces`. Their last `lent` bytes are a payload that the sender keeps until the reply.
    pub(super) fn send_pieces(
        &self,
        pieces: &[IoSlice<'_>],
        lent: usize,
        wait: bool,
    ) -> io::Result<usize> {
        let mut runs = self.unsent.lock();
        let UnsentRequests {
            requests: all,
            stuck_since: stuck,
        } = &mut *runs;
        self.note(all, pieces, lent)?;
        let mut done = 0;
        while let Some(run) = all.front_mut() {
            if let Some((epoch, link)) = &run.connection
                && self.state().epoch == *epoch
            {
                match link.send_vectored(&slice(pieces, done, run.len), wait) {
                    Ok(sent) => {
                        *stuck = None;
                        done += sent;
                        run.len -= sent;
                        if run.len > 0 {
                            return Ok(done);
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock && done == 0 => {
                        if stuck.get_or_insert_with(Instant::now).elapsed() < self.timeo {
                            return Err(error);
                        }
                        self.disconnected(*epoch, &"the server does not receive requests");
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(done),
                    // The request will be sent again.
                    Err(error) => self.disconnected(*epoch, &error),
                }
            }
            done += run.len;
            *stuck = None;
            all.pop_front();
        }
        Ok(done)
    }

    /// Records the messages that previous calls have not. The `lent` bytes are the end of the last.
    fn note(
        &self,
        runs: &mut VecDeque<UnsentRequest>,
        pieces: &[IoSlice<'_>],
        lent: usize,
    ) -> io::Result<()> {
        let total: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut at: usize = runs.iter().map(|run| run.len).sum();
        while at < total {
            let whole = |len: usize| match at + len <= total {
                true => Ok(len),
                false => Err(io::Error::new(
                    ErrorKind::InvalidInput,
                    "an incomplete message",
                )),
            };
            let mut size = [0; 4];
            for_each_part(pieces, at, whole(HEADER)?.min(4), |part, behind| {
                size[behind..behind + part.len()].copy_from_slice(part);
            });
            let len = whole((u32::from_le_bytes(size) as usize).max(HEADER))?;
            let lent = if at + len == total { lent } else { 0 };
            let copied = len.saturating_sub(lent);
            let mut state = self.state();
            let mut message = state.record.buffer();
            count_copied(copied);
            message.reserve_exact(copied);
            for_each_part(pieces, at, copied, |part, _| {
                message.extend_from_slice(part)
            });
            let up = state.is_connected;
            let action = match lent {
                0 => state.record.on_request(message, up),
                _ => state.record.on_lent_write(message, up),
            };
            let via = match action.map_err(|what| io::Error::new(ErrorKind::InvalidInput, what))? {
                RequestAction::Send => Some((state.epoch, state.link.clone())),
                RequestAction::Wait => None,
                RequestAction::Answer(answer) => {
                    state.local_replies.extend(answer);
                    self.wake_all();
                    None
                }
            };
            drop(state);
            at += len;
            let which = |via: &Option<(u64, Arc<dyn Link>)>| via.as_ref().map(|via| via.0);
            match runs.back_mut() {
                Some(run) if which(&run.connection) == which(&via) => run.len += len,
                _ => runs.push_back(UnsentRequest {
                    len,
                    connection: via,
                }),
            }
        }
        Ok(())
    }
}

/// Returns `len` bytes of the concatenated `pieces`, from `from` on.
fn slice<'a>(pieces: &'a [IoSlice<'a>], from: usize, len: usize) -> Vec<IoSlice<'a>> {
    let mut parts = Vec::with_capacity(pieces.len());
    for_each_part(pieces, from, len, |part, _| parts.push(IoSlice::new(part)));
    parts
}

/// Calls `each` with the parts of the range, and the number of bytes before each part.
fn for_each_part<'a>(
    pieces: &'a [IoSlice<'a>],
    from: usize,
    len: usize,
    mut each: impl FnMut(&'a [u8], usize),
) {
    let (mut skip, mut behind) = (from, 0);
    for piece in pieces {
        let start = skip.min(piece.len());
        skip -= start;
        let end = piece.len().min(start + len - behind);
        if start < end {
            each(&piece[start..end], behind);
            behind += end - start;
        }
    }
}
