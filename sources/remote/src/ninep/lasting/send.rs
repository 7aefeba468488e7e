//! The way to the server.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;
use std::time::Instant;

use p9::message::HEADER;
use p9::recovery::Asked;
use transports::Link;
use vfs::copies::copied;

use super::{LastingLink, POISON};

/// What is noted, in its order.
#[derive(Default)]
pub(super) struct Runs {
    all: VecDeque<Run>,
    /// Since when the server takes nothing of it.
    stuck: Option<Instant>,
}

/// Bytes of requests that are noted and not taken off their sender's hands yet.
struct Run {
    len: usize,
    /// By what connection they go; nothing if they do not, or go later.
    via: Option<(u64, Arc<dyn Link>)>,
}

impl LastingLink {
    /// Of `pieces` the last `lent` bytes are a payload that whoever sends it has until it is answered.
    pub(super) fn send_pieces(
        &self,
        pieces: &[IoSlice<'_>],
        lent: usize,
        wait: bool,
    ) -> io::Result<usize> {
        let mut runs = self.runs.lock().expect(POISON);
        let Runs { all, stuck } = &mut *runs;
        self.note(all, pieces, lent)?;
        let mut done = 0;
        while let Some(run) = all.front_mut() {
            if let Some((epoch, link)) = &run.via
                && self.state().epoch == *epoch
            {
                match link.send_vectored(&cut(pieces, done, run.len), wait) {
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
                        self.lost(*epoch, &"the server takes nothing");
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(done),
                    // It is among those that are sent again.
                    Err(error) => self.lost(*epoch, &error),
                }
            }
            done += run.len;
            *stuck = None;
            all.pop_front();
        }
        Ok(done)
    }

    /// Takes note of the messages that were not given before. What is `lent` ends the last of them.
    fn note(
        &self,
        runs: &mut VecDeque<Run>,
        pieces: &[IoSlice<'_>],
        lent: usize,
    ) -> io::Result<()> {
        let total: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut at: usize = runs.iter().map(|run| run.len).sum();
        while at < total {
            let whole = |len: usize| match at + len <= total {
                true => Ok(len),
                false => Err(io::Error::new(ErrorKind::InvalidInput, "half a message")),
            };
            let mut size = [0; 4];
            gather(pieces, at, whole(HEADER)?.min(4), |part, behind| {
                size[behind..behind + part.len()].copy_from_slice(part);
            });
            let len = whole((u32::from_le_bytes(size) as usize).max(HEADER))?;
            let lent = if at + len == total { lent } else { 0 };
            let kept = len.saturating_sub(lent);
            let mut state = self.state();
            let mut message = state.record.buffer();
            copied(kept);
            message.reserve_exact(kept);
            gather(pieces, at, kept, |part, _| message.extend_from_slice(part));
            let up = state.up;
            let asked = match lent {
                0 => state.record.asked(message, up),
                _ => state.record.lent(message, up),
            };
            let via = match asked.map_err(|what| io::Error::new(ErrorKind::InvalidInput, what))? {
                Asked::Send => Some((state.epoch, state.link.clone())),
                Asked::Wait => None,
                Asked::Answer(answer) => {
                    state.answers.extend(answer);
                    self.ring();
                    None
                }
            };
            drop(state);
            at += len;
            let which = |via: &Option<(u64, Arc<dyn Link>)>| via.as_ref().map(|via| via.0);
            match runs.back_mut() {
                Some(run) if which(&run.via) == which(&via) => run.len += len,
                _ => runs.push_back(Run { len, via }),
            }
        }
        Ok(())
    }
}

/// Of `pieces` one behind the other, `len` bytes from `from` on.
fn cut<'a>(pieces: &'a [IoSlice<'a>], from: usize, len: usize) -> Vec<IoSlice<'a>> {
    let mut parts = Vec::with_capacity(pieces.len());
    gather(pieces, from, len, |part, _| parts.push(IoSlice::new(part)));
    parts
}

/// Gives `each` the parts, and how many bytes were before.
fn gather<'a>(
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
