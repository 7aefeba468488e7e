//! What has been received: whole replies share the memory they arrived in.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use transports::{Link, Poller};
use vfs::copies::copied;

use super::{Apart, Half};

/// A reply as it came, in the memory it was received into. That memory is used again when the reply is
/// dropped.
pub struct Reply<H: Half> {
    chunk: Arc<Vec<u8>>,
    start: usize,
    end: usize,
    pub(crate) reading: H::Reading,
    /// What was handed over with it.
    pub(crate) file: Option<OwnedFd>,
}

impl<H: Half> Reply<H> {
    /// The whole message.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.chunk[self.start..self.end]
    }
}

impl<H: Half> fmt::Debug for Reply<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply(\"{}\")", self.bytes().escape_ascii())
    }
}

/// The receiving end of a connection. One thread has it at a time.
pub(super) struct Input<H: Half> {
    /// What is received into; replies before `start` share it.
    current: Arc<Vec<u8>>,
    /// Where the first message begins that has not come whole, or was not taken yet.
    start: usize,
    /// Where what has come ends.
    end: usize,
    /// To be received into next, once no reply shares them any more.
    spare: Vec<Arc<Vec<u8>>>,
    size: usize,
    reading: H::Reading,
    /// Whether files are taken that are handed over with replies.
    takes_files: bool,
    /// One that was, and where what came with it ends: it is the message's that has its byte before that.
    file: Option<(usize, OwnedFd)>,
    poller: Poller,
}

impl<H: Half> Input<H> {
    /// What is received at once at most, unless a message is larger: some 60 replies of 4 KiB.
    const SIZE: usize = 256 << 10;

    /// What is kept to be received into, bytes: as many replies as large can be held at a time without
    /// new memory for each.
    const KEEP: usize = 32 << 20;

    /// From here on a message is received to its end and not beyond: what begins behind it would have to be
    /// copied to where it has room.
    const LARGE: usize = 16 << 10;

    /// For messages of up to `most` bytes.
    pub(super) fn new(most: usize, half: &H) -> Input<H> {
        let size = Input::<H>::SIZE.max(most);
        Input {
            current: Arc::new(vec![0; size]),
            start: 0,
            end: 0,
            spare: Vec::new(),
            size,
            reading: half.reading(),
            takes_files: half.takes_files(),
            file: None,
            poller: Poller::new(Poller::usual()),
        }
    }

    /// What has come and was not taken.
    #[inline]
    pub(super) fn pending(&self) -> &[u8] {
        &self.current[self.start..self.end]
    }

    /// Takes the next `len` bytes as a reply.
    #[inline]
    pub(super) fn take(&mut self, len: usize) -> Reply<H> {
        let start = self.start;
        let file = self.pass(len);
        Reply {
            chunk: self.current.clone(),
            start,
            end: self.start,
            reading: self.reading,
            file,
        }
    }

    /// Passes over the next `len` bytes.
    pub(super) fn skip(&mut self, len: usize) {
        drop(self.pass(len));
    }

    #[inline]
    fn pass(&mut self, len: usize) -> Option<OwnedFd> {
        self.start += len;
        let file = self.file.take_if(|(end, _)| *end <= self.start)?;
        Some(file.1)
    }

    /// What has come of a message that is not whole will come again from its beginning.
    pub(super) fn restart(&mut self) {
        self.end = self.start;
        self.file = None;
    }

    /// Receives more, and says how many bytes: 0 when the server has ended. `begun` is the length of the
    /// message that has come in part, if enough of it has; `next` is how long the next one probably is, if
    /// that is large; `apart` says that a payload may have to come elsewhere, so no more is received than stands before it.
    pub(super) fn recv(
        &mut self,
        link: &dyn Link,
        begun: Option<usize>,
        next: Option<usize>,
        apart: bool,
        wait: bool,
    ) -> io::Result<usize> {
        let come = self.end - self.start;
        let missing = begun.map(|len| len - come);
        let limit = match missing {
            _ if apart && come < H::DATA_HEAD => H::DATA_HEAD - come,
            Some(missing) if missing >= Input::<H>::LARGE => missing,
            None if come == 0 => next.unwrap_or(self.size),
            _ => self.size,
        };
        self.make_room(begun.unwrap_or(H::HEADER));
        let end = self.end;
        let room = Arc::get_mut(&mut self.current).expect("no reply shares it")[end..].as_mut();
        let limit = room.len().min(limit);
        let room = &mut room[..limit];
        let mut file = None;
        let mut recv = |wait| match self.takes_files {
            true => link.recv_handed(room, wait, &mut file),
            false => link.recv(room, wait),
        };
        let got = match wait {
            true => self.poller.wait(recv),
            false => recv(false),
        }?;
        self.end += got;
        if let Some(file) = file {
            self.file = Some((self.end, file));
        }
        Ok(got)
    }

    /// Receives the payload of a message whose head has come into `into`, all of it and what stands behind it, and says whether
    /// the server has not ended before; the head is pending yet. After `WouldBlock` what has come of it stands behind the head;
    /// after other errors, as much as before.
    pub(super) fn land(
        &mut self,
        link: &dyn Link,
        apart: Apart,
        into: &mut [u8],
    ) -> io::Result<bool> {
        let mut rest = [0; Apart::MOST_BEHIND];
        let rest = &mut rest[..apart.behind];
        let (len, whole) = (into.len(), into.len() + rest.len());
        let come_before = {
            // Less than all of it, or it would have been taken as a whole.
            let come = &self.pending()[apart.head..];
            let (payload, behind) = come.split_at(come.len().min(len));
            copied(payload.len());
            into[..payload.len()].copy_from_slice(payload);
            rest[..behind.len()].copy_from_slice(behind);
            come.len()
        };
        let mut come = come_before;
        while come < whole {
            let room = match come.checked_sub(len) {
                None => &mut into[come..],
                Some(behind) => &mut rest[behind..],
            };
            match self.poller.wait(|wait| link.recv(room, wait)) {
                Ok(0) => return Ok(false),
                Ok(got) => come += got,
                Err(error) => {
                    if error.kind() == io::ErrorKind::WouldBlock {
                        self.make_room(apart.head + whole);
                        self.put_back(&into[come_before.min(len)..come.min(len)]);
                        self.put_back(
                            &rest[come_before.saturating_sub(len)..come.saturating_sub(len)],
                        );
                    }
                    return Err(error);
                }
            }
        }
        Ok(true)
    }

    /// Adds `bytes` to what has come, where there is room for them.
    fn put_back(&mut self, bytes: &[u8]) {
        copied(bytes.len());
        let current = Arc::get_mut(&mut self.current).expect("no reply shares it");
        current[self.end..][..bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// Makes `current` this thread's alone, with room for a message of `len` bytes from `start` on.
    fn make_room(&mut self, len: usize) {
        let (start, end) = (self.start, self.end);
        let alone = Arc::get_mut(&mut self.current).is_some();
        if alone && start < end && start + len <= self.size {
            return;
        }
        copied(end - start);
        if alone {
            let chunk = Arc::get_mut(&mut self.current).expect("no reply shares it");
            chunk.copy_within(start..end, 0);
        } else {
            let mut next = self.free_chunk();
            let chunk = Arc::get_mut(&mut next).expect("no reply shares it");
            chunk[..end - start].copy_from_slice(&self.current[start..end]);
            let shared = std::mem::replace(&mut self.current, next);
            if self.spare.len() < Input::<H>::KEEP / self.size {
                self.spare.push(shared);
            }
        }
        (self.start, self.end) = (0, end - start);
        if let Some((end, _)) = &mut self.file {
            *end -= start;
        }
    }

    fn free_chunk(&mut self) -> Arc<Vec<u8>> {
        // The oldest are the likeliest.
        for at in 0..self.spare.len() {
            if Arc::get_mut(&mut self.spare[at]).is_some() {
                return self.spare.swap_remove(at);
            }
        }
        Arc::new(vec![0; self.size])
    }
}
