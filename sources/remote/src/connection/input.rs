//! The receive buffer: whole replies share its memory.

use std::fmt;
use std::io;
use std::sync::Arc;

use transports::{Link, Poller};
use vfs::copies::count_copied;
use vfs::fd::OwnedFd;

use super::{ClientCodec, PayloadLayout};

/// A reply in the memory it was received into, which is reused after the reply is dropped.
pub struct Reply<H: ClientCodec> {
    chunk: Arc<Vec<u8>>,
    start: usize,
    end: usize,
    pub(crate) decode_params: H::DecodeParams,
    /// The file descriptor passed with the reply.
    pub(crate) file: Option<OwnedFd>,
}

impl<H: ClientCodec> Reply<H> {
    /// The whole message.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.chunk[self.start..self.end]
    }
}

impl<H: ClientCodec> fmt::Debug for Reply<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply(\"{}\")", self.bytes().escape_ascii())
    }
}

/// The receiving end of a connection, held by one thread at a time.
pub(super) struct Input<H: ClientCodec> {
    /// The buffer for receiving, which replies before `start` share.
    current: Arc<Vec<u8>>,
    /// The start of the first message that is incomplete or has not been taken.
    start: usize,
    /// The end of the received bytes.
    end: usize,
    /// Buffers to reuse when no reply shares them any more.
    spare: Vec<Arc<Vec<u8>>>,
    size: usize,
    decode_params: H::DecodeParams,
    /// Whether file descriptors passed with replies are accepted.
    accepts_fds: bool,
    /// A passed file descriptor, and the end of the bytes received with it. It belongs to the
    /// message with the byte before that end.
    file: Option<(usize, OwnedFd)>,
    poller: Poller,
}

impl<H: ClientCodec> Input<H> {
    /// The most that is received at once, unless a message is larger: some 60 replies of 4 KiB.
    const SIZE: usize = 256 << 10;

    /// The most memory to keep for reuse, in bytes. Most large payloads are received elsewhere.
    const MAX_SPARE: usize = 2 << 20;

    /// The size from which a message is received up to its end and no further: the start of the
    /// next message would have to be copied to where it has room.
    const LARGE: usize = 16 << 10;

    /// Creates a buffer for messages of up to `most` bytes.
    pub(super) fn new(most: usize, codec: &H) -> Input<H> {
        let size = Input::<H>::SIZE.max(most);
        Input {
            current: Arc::new(vec![0; size]),
            start: 0,
            end: 0,
            spare: Vec::new(),
            size,
            decode_params: codec.decode_params(),
            accepts_fds: codec.accepts_fds(),
            file: None,
            poller: Poller::new(Poller::default_max()),
        }
    }

    /// The received bytes that have not been taken.
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
            decode_params: self.decode_params,
            file,
        }
    }

    /// Skips the next `len` bytes.
    pub(super) fn skip(&mut self, len: usize) {
        drop(self.pass(len));
    }

    #[inline]
    fn pass(&mut self, len: usize) -> Option<OwnedFd> {
        self.start += len;
        let file = self.file.take_if(|(end, _)| *end <= self.start)?;
        Some(file.1)
    }

    /// Discards the incomplete message, which the link will deliver again from its beginning.
    pub(super) fn restart(&mut self) {
        self.end = self.start;
        self.file = None;
    }

    /// Receives more bytes and returns their number, 0 if the server has closed the connection.
    /// `frame_len` is the length of the incomplete message, if known; `next` is the expected length
    /// of the next message, if that is large; with `apart`, its payload may belong elsewhere, so no
    /// more than a head is received.
    pub(super) fn recv(
        &mut self,
        link: &dyn Link,
        frame_len: Option<usize>,
        next: Option<usize>,
        apart: bool,
        wait: bool,
    ) -> io::Result<usize> {
        let come = self.end - self.start;
        let missing = frame_len.map(|len| len - come);
        let limit = match missing {
            _ if apart && come < H::DATA_HEAD => H::DATA_HEAD - come,
            Some(missing) if missing >= Input::<H>::LARGE => missing,
            None if come == 0 => next.unwrap_or(self.size),
            _ => self.size,
        };
        self.make_room(frame_len.unwrap_or(H::HEADER));
        let end = self.end;
        let space = Arc::get_mut(&mut self.current).expect("no reply shares it")[end..].as_mut();
        let limit = space.len().min(limit);
        let space = &mut space[..limit];
        let mut file = None;
        let mut recv = |wait| match self.accepts_fds {
            true => link.recv_with_file(space, wait, &mut file),
            false => link.recv(space, wait),
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

    /// Receives the payload and padding of a message whose head is pending, into `into`. Returns
    /// `false` if the server closes the connection first. The head stays pending. After
    /// `WouldBlock` the received part follows the head in the buffer; after other errors the buffer
    /// is unchanged.
    pub(super) fn receive_payload(
        &mut self,
        link: &dyn Link,
        apart: PayloadLayout,
        into: &mut [u8],
    ) -> io::Result<bool> {
        let mut rest = [0; PayloadLayout::MAX_PADDING];
        let rest = &mut rest[..apart.padding];
        let (len, whole) = (into.len(), into.len() + rest.len());
        let come_before = {
            // The message is incomplete, or it would have been taken as a whole.
            let come = &self.pending()[apart.head..];
            let (payload, behind) = come.split_at(come.len().min(len));
            count_copied(payload.len());
            into[..payload.len()].copy_from_slice(payload);
            rest[..behind.len()].copy_from_slice(behind);
            come.len()
        };
        let mut come = come_before;
        while come < whole {
            let space = match come.checked_sub(len) {
                None => &mut into[come..],
                Some(behind) => &mut rest[behind..],
            };
            match self.poller.wait(|wait| link.recv(space, wait)) {
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

    /// Appends `bytes` to the received bytes, which leave room for them.
    fn put_back(&mut self, bytes: &[u8]) {
        count_copied(bytes.len());
        let current = Arc::get_mut(&mut self.current).expect("no reply shares it");
        current[self.end..][..bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// Makes `current` unshared, with room for a message of `len` bytes at `start`.
    fn make_room(&mut self, len: usize) {
        let (start, end) = (self.start, self.end);
        let alone = Arc::get_mut(&mut self.current).is_some();
        if alone && start < end && start + len <= self.size {
            return;
        }
        count_copied(end - start);
        if alone {
            let chunk = Arc::get_mut(&mut self.current).expect("no reply shares it");
            chunk.copy_within(start..end, 0);
        } else {
            let mut next = self.free_chunk();
            let chunk = Arc::get_mut(&mut next).expect("no reply shares it");
            chunk[..end - start].copy_from_slice(&self.current[start..end]);
            let shared = std::mem::replace(&mut self.current, next);
            if self.spare.len() < Input::<H>::MAX_SPARE / self.size {
                self.spare.push(shared);
            }
        }
        (self.start, self.end) = (0, end - start);
        if let Some((end, _)) = &mut self.file {
            *end -= start;
        }
    }

    fn free_chunk(&mut self) -> Arc<Vec<u8>> {
        // The oldest are the most likely to be free.
        for at in 0..self.spare.len() {
            if Arc::get_mut(&mut self.spare[at]).is_some() {
                return self.spare.swap_remove(at);
            }
        }
        Arc::new(vec![0; self.size])
    }
}
