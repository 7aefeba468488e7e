//! Sinks and payloads, and messages and replies, in memory.

use std::ops::Range;

use vfs::fd::BorrowedFd;
use vfs::{Errno, Fill, Patience, Payload, Result, Sink};
use wire::payload::{SlicePayload, SliceSink};
use wire::{Incoming, Outgoing};

/// A sink of a given size that stores its data, from a read or as a reply.
#[derive(Debug, Default)]
pub struct ReplyBuffer {
    data: Vec<u8>,
    size: usize,
}

impl ReplyBuffer {
    /// Creates a sink for `size` bytes.
    pub fn new(size: usize) -> ReplyBuffer {
        ReplyBuffer {
            data: Vec::new(),
            size,
        }
    }

    /// Returns the data stored.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Returns the data stored.
    pub fn into_data(self) -> Vec<u8> {
        self.data
    }

    fn check(&self, len: usize) {
        let capacity = self.size - self.data.len();
        assert!(len <= capacity, "{len} bytes were put where {capacity} fit");
    }
}

impl Sink for ReplyBuffer {
    fn room(&self) -> usize {
        self.size - self.data.len()
    }

    fn bytes(&mut self, data: &[u8]) {
        self.check(data.len());
        self.data.extend_from_slice(data);
    }

    fn zeros(&mut self, len: usize) {
        self.check(len);
        self.data.resize(self.data.len() + len, 0);
    }

    /// Returns `WOULD_BLOCK` with less than full patience, since it cannot know if the data is
    /// cached.
    fn file(
        &mut self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        patience: Patience,
    ) -> Result<usize> {
        self.check(len);
        if patience < Patience::Full {
            return Err(Errno::WOULD_BLOCK);
        }
        let old = self.data.len();
        self.data.resize(old + len, 0);
        let read = SliceSink::new(&mut self.data[old..]).file(fd, offset, len, patience);
        self.data.truncate(old + read.unwrap_or(0));
        read
    }

    fn lend(&mut self, len: usize, fill: Fill<'_>) -> Option<Result<usize>> {
        self.check(len);
        let old = self.data.len();
        self.data.resize(old + len, 0);
        let filled = fill(&mut self.data[old..]);
        self.data.truncate(old + filled.unwrap_or(0));
        Some(filled)
    }
}

impl Outgoing for ReplyBuffer {
    fn len(&self) -> usize {
        self.data.len()
    }

    fn patch(&mut self, at: usize, data: &[u8]) {
        self.data[at..at + data.len()].copy_from_slice(data);
    }

    fn truncate(&mut self, len: usize) {
        self.data.truncate(len);
    }
}

/// A payload of given bytes, optionally in pieces.
#[derive(Debug)]
pub struct TestPayload<'a> {
    rest: &'a [u8],
    piece: usize,
}

impl<'a> TestPayload<'a> {
    /// Creates a payload of `data` in one piece.
    pub fn new(data: &'a [u8]) -> TestPayload<'a> {
        TestPayload::in_pieces(data, usize::MAX)
    }

    /// Creates a payload of `data` in pieces of `piece` bytes, as from a message in several
    /// buffers.
    pub fn in_pieces(data: &'a [u8], piece: usize) -> TestPayload<'a> {
        assert!(piece > 0, "a piece has at least one byte");
        TestPayload { rest: data, piece }
    }
}

impl Payload for TestPayload<'_> {
    fn len(&self) -> usize {
        self.rest.len()
    }

    fn bytes(&mut self, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        while !self.rest.is_empty() {
            let (piece, rest) = self.rest.split_at(self.piece.min(self.rest.len()));
            take(piece)?;
            self.rest = rest;
        }
        Ok(())
    }

    fn file(&mut self, fd: BorrowedFd<'_>, offset: u64) -> Result<usize> {
        let mut done = 0;
        while !self.rest.is_empty() {
            let piece = &self.rest[..self.piece.min(self.rest.len())];
            match SlicePayload::new(piece).file(fd, offset + done as u64) {
                Ok(wrote) => {
                    done += wrote;
                    self.rest = &self.rest[wrote..];
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

/// A received message.
#[derive(Debug)]
pub struct Message<B> {
    bytes: B,
    /// The number of contiguous bytes; `None` for all.
    contiguous: Option<usize>,
    is_repeated: bool,
}

impl<B: AsRef<[u8]>> Message<B> {
    /// Creates a contiguous message, as from a stream.
    pub fn new(bytes: B) -> Message<B> {
        Message {
            bytes,
            contiguous: None,
            is_repeated: false,
        }
    }

    /// Creates a message of which only the first `together` bytes are contiguous, as in a queue:
    /// the rest is available only as its payload, which may be shorter than the message declares.
    pub fn with_separate_payload(bytes: B, together: usize) -> Message<B> {
        Message {
            bytes,
            contiguous: Some(together),
            is_repeated: false,
        }
    }

    /// Returns the message with this value of [`Incoming::is_repeated`].
    pub fn repeated(self, is_repeated: bool) -> Message<B> {
        Message {
            is_repeated,
            ..self
        }
    }
}

impl<B: AsRef<[u8]>> Incoming for Message<B> {
    fn bytes(&self) -> &[u8] {
        let bytes = self.bytes.as_ref();
        &bytes[..self.contiguous.unwrap_or(bytes.len())]
    }

    fn size(&self) -> usize {
        self.bytes.as_ref().len()
    }

    fn is_repeated(&self) -> bool {
        self.is_repeated
    }

    fn payload(
        &self,
        range: Range<usize>,
        write: &mut dyn FnMut(&mut dyn Payload) -> Result<usize>,
    ) -> Result<usize> {
        let bytes = self.bytes.as_ref();
        let payload = match self.contiguous {
            None => &bytes[range],
            Some(_) => bytes.get(range).ok_or(Errno::EINVAL)?,
        };
        write(&mut TestPayload::new(payload))
    }
}
