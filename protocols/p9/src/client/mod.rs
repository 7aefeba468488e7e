//! The client half: encodes requests and checks replies.
//!
//! A [`Client`] is a connection's state: the dialect and msize agreed on, fid numbers, and the
//! expected reply for each tag in flight. The transport encodes requests with it, splits the
//! incoming bytes with [`Client::frame`] and passes each message to [`Client::receive`], which
//! checks all of it: after that, decoding it again cannot fail. A server is never trusted: a reply
//! that was not requested, of the wrong type, or larger than requested is [`Malformed`], and the
//! connection cannot be used any more.
//!
//! Modules convert attributes ([`attr`]), directory entries ([`dir`]), errors ([`error`]) and
//! requests ([`request`]) from and to the `vfs` types; [`reply`] checks a reply against its
//! request.
//!
//! Deliberately absent: transport of bytes, threads, clocks, and waiting for replies. It takes no
//! lock.

pub mod attr;
pub mod dir;
pub mod error;
pub mod reply;
pub mod request;

#[cfg(test)]
mod tests;

use vfs::{Errno, Result};
use wire::{Malformed, Put};

use self::reply::{ExpectedReply, mismatch, rejects_version};
use crate::message::{DATA_HEAD, HEADER, Header};
use crate::{Dialect, Fid, Kind, Rmessage, Tag, Tmessage};

/// One connection to a server.
pub struct Client {
    dialect: Dialect,
    msize: u32,
    /// Whether passing of open files ([`Dialect::FD_PASSING`]) is offered, and after Rversion
    /// agreed on.
    fd_passing: bool,
    tags: Vec<TagState>,
    free_tags: Vec<u16>,
    next_fid: u32,
    free_fids: Vec<Fid>,
}

/// The state of a tag.
#[derive(Clone, Copy, Default)]
struct TagState {
    /// The expected reply, until it arrives.
    expected: Option<ExpectedReply>,
    /// Whether a Tflush of the tag is in flight.
    flushing: bool,
    /// Whether the caller has not released the tag.
    in_use: bool,
    /// The fid that the answered request has established, until the tag is released.
    established: Option<Fid>,
}

/// The meaning of a message from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A request is answered: the message is its reply, unless `result` is an error. `EINTR` if the
    /// request was cancelled; the message is then the Rflush.
    Answer {
        /// The request's tag.
        tag: Tag,
        /// Whether it succeeded.
        result: Result<()>,
    },
    /// An Rflush whose request had been answered before.
    TooLate,
}

impl Client {
    /// The most requests in flight. A Tflush's tag is its target's with the highest bit set, so
    /// that one is always free for it.
    pub const MAX_IN_FLIGHT: usize = 0x7fff;

    /// The smallest usable msize: the largest reply without payload, an Rwalk, has 217 bytes.
    pub const MIN_MSIZE: u32 = 256;

    /// The bytes of a message that are not payload, as Linux counts them (`P9_IOHDRSZ`): servers
    /// refuse more payload than that leaves.
    const IO_HEADER: u32 = 24;

    /// Returns a new connection that offers `dialect` and messages of up to `msize` bytes; the
    /// server may lower either.
    pub fn new(dialect: Dialect, msize: u32) -> Client {
        Client {
            dialect,
            msize: msize.max(Client::MIN_MSIZE),
            fd_passing: false,
            tags: Vec::new(),
            free_tags: Vec::new(),
            next_fid: 0,
            free_fids: Vec::new(),
        }
    }

    /// Offers passing of open files as well, if the connection can carry descriptors and the
    /// dialect is 9P2000.L.
    pub fn with_fd_passing(mut self) -> Client {
        self.fd_passing = self.dialect == Dialect::Linux;
        self
    }

    /// Encodes the first message, Tversion.
    pub fn version_request(&self, to: &mut impl Put) {
        let hello = Tmessage::Version {
            msize: self.msize,
            version: self.dialect.version_with(self.fd_passing).as_bytes(),
        };
        hello.encode(self.dialect, Tag::NONE, to);
    }

    /// Processes the reply to [`Client::version_request`], which determines [`Client::dialect`] and
    /// [`Client::msize`]. Returns `false` if the server rejects the extension for passing files:
    /// the caller sends [`Client::version_request`] again, now without it.
    pub fn negotiate(&mut self, message: &[u8]) -> std::result::Result<bool, Malformed> {
        if self.fd_passing && rejects_version(message)? {
            self.fd_passing = false;
            return Ok(false);
        }
        let (tag, reply) = Rmessage::decode(Dialect::Plan9, message)?;
        let (msize, version) = match reply {
            Rmessage::Version { msize, version } if tag == Tag::NONE => (msize, version),
            Rmessage::Error { text, .. } => {
                let text = text.escape_ascii();
                return Err(Malformed::new(format!("Tversion refused: {text}")));
            }
            other => {
                return Err(Malformed::new(format!(
                    "expected Rversion, got R{} with tag {}",
                    other.kind().name().to_ascii_lowercase(),
                    tag.0
                )));
            }
        };
        if !(Client::MIN_MSIZE..=self.msize).contains(&msize) {
            return Err(Malformed::new(format!(
                "expected a message size from {} to {}, got {msize}",
                Client::MIN_MSIZE,
                self.msize
            )));
        }
        // From the least to the most capable dialect.
        let offered = Dialect::ALL.iter().position(|&d| d == self.dialect);
        self.fd_passing &= version == Dialect::FD_PASSING.as_bytes();
        let version = match self.fd_passing {
            true => self.dialect.version().as_bytes(),
            false => version,
        };
        self.dialect = Dialect::ALL
            .into_iter()
            .take(offered.map_or(0, |at| at + 1))
            .find(|dialect| dialect.version().as_bytes() == version)
            .ok_or_else(|| {
                Malformed::new(format!(
                    "expected version {}, got \"{}\"",
                    self.dialect,
                    version.escape_ascii()
                ))
            })?;
        self.msize = msize;
        Ok(true)
    }

    /// Returns whether open files may be requested.
    pub fn has_fd_passing(&self) -> bool {
        self.fd_passing
    }

    /// Returns the dialect agreed on.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Returns the largest message size in bytes.
    pub fn msize(&self) -> u32 {
        self.msize
    }

    /// Returns the largest payload of a message in bytes.
    pub fn payload(&self) -> u32 {
        self.msize - Client::IO_HEADER
    }

    /// Returns an unused fid number, or `EMFILE` if there is none.
    pub fn new_fid(&mut self) -> Result<Fid> {
        if let Some(fid) = self.free_fids.pop() {
            return Ok(fid);
        }
        if self.next_fid == Fid::NONE.0 {
            return Err(Errno::EMFILE);
        }
        self.next_fid += 1;
        Ok(Fid(self.next_fid - 1))
    }

    /// Frees the number of a new fid that no request was sent for. That of a clunked or removed
    /// fid, and of one that the server has refused to establish, is freed when the reply arrives.
    pub fn forget_fid(&mut self, fid: Fid) {
        self.free_fids.push(fid);
    }

    /// Encodes a request up to its payload, and returns its tag and the payload. Returns `EMSGSIZE`
    /// if it is longer than msize, `EOPNOTSUPP` if the dialect does not have it, `ENOBUFS` if
    /// [`Client::MAX_IN_FLIGHT`] requests are in flight.
    #[inline]
    pub fn request<'a>(
        &mut self,
        request: &Tmessage<'a>,
        to: &mut impl Put,
    ) -> Result<(Tag, &'a [u8])> {
        let known = request.kind() != Kind::Hand || self.fd_passing;
        if !request.kind().is_in(self.dialect) || !known {
            return Err(Errno::EOPNOTSUPP);
        }
        if request.size(self.dialect) > self.msize as usize {
            return Err(Errno::EMSGSIZE);
        }
        // The caller must not send these.
        if matches!(request, Tmessage::Version { .. } | Tmessage::Flush { .. }) {
            return Err(Errno::EINVAL);
        }
        let tag = self.take_tag(ExpectedReply::of(request))?;
        Ok((tag, request.encode_head(self.dialect, tag, to)))
    }

    /// Encodes a Tflush of a request, or returns `false` if the request is answered or being
    /// cancelled. The request counts as in flight until [`Client::receive`] returns its outcome.
    pub fn cancel(&mut self, tag: Tag, to: &mut impl Put) -> bool {
        let Some(tag_state) = self.tags.get_mut(usize::from(tag.0)) else {
            return false;
        };
        if tag_state.expected.is_none() || tag_state.flushing {
            return false;
        }
        tag_state.flushing = true;
        let flush = Tmessage::Flush { oldtag: tag };
        flush.encode(self.dialect, flush_tag(tag), to);
        true
    }

    /// Returns the length of the message that `head` begins with, or `None` if too few bytes have
    /// arrived.
    #[inline]
    pub fn frame(&self, head: &[u8]) -> std::result::Result<Option<usize>, Malformed> {
        let Some(size) = head.first_chunk() else {
            return Ok(None);
        };
        let size = u32::from_le_bytes(*size);
        if size < HEADER as u32 || size > self.msize {
            return Err(Malformed::new(format!(
                "expected a message of {HEADER} to {} bytes, got one of {size}",
                self.msize
            )));
        }
        Ok(Some(size as usize))
    }

    /// Returns the tag and payload length of the Rread that `head` begins with, if its payload may
    /// be received into a separate buffer. Returns `None` for any other message, for one that
    /// [`Client::receive`] would reject, and if fewer than [`DATA_HEAD`] bytes have arrived.
    pub fn separate_payload(&self, head: &[u8]) -> Option<(Tag, usize)> {
        let (head, _) = head.split_first_chunk::<DATA_HEAD>()?;
        let Header { size, number, tag } = Header::decode(head).ok()?;
        let count = u32::from_le_bytes([head[7], head[8], head[9], head[10]]);
        let expected = self.tags.get(usize::from(tag.0))?.expected?;
        let fits = number == Kind::Read.reply()
            && expected.is_read(count)
            && size.checked_sub(count) == Some(DATA_HEAD as u32);
        fits.then_some((tag, count as usize))
    }

    /// Completes an Rread whose payload was received separately, after [`Client::separate_payload`]
    /// returned its tag.
    pub fn complete_read(&mut self, tag: Tag) {
        if let Some(tag_state) = self.tags.get_mut(usize::from(tag.0)) {
            tag_state.expected = None;
            self.free_tag(tag);
        }
    }

    /// Drops a request that will not be answered: its server is lost, and the caller sends it
    /// again.
    pub fn forget(&mut self, tag: Tag) {
        self.complete_read(tag);
    }

    /// Processes a whole message from the server.
    #[inline]
    pub fn receive(&mut self, message: &[u8]) -> std::result::Result<Received, Malformed> {
        let tag = Header::decode(message)?.tag;
        if tag.0 & FLUSH != 0 {
            return self.flushed(tag, message);
        }
        let tag_state = self.tags.get_mut(usize::from(tag.0));
        let expected = tag_state.and_then(|tag_state| tag_state.expected.take());
        let Some(expected) = expected else {
            return Err(Malformed::new(format!("no request has tag {}", tag.0)));
        };
        let (_, reply) = Rmessage::decode(self.dialect, message)?;
        let result = expected.check(&reply)?;
        if expected.fid != Fid::NONE {
            let established =
                expected.establishes && result.is_ok() && !expected.is_partial(&reply);
            if established {
                self.tags[usize::from(tag.0)].established = Some(expected.fid);
            } else {
                self.forget_fid(expected.fid);
            }
        }
        self.free_tag(tag);
        Ok(Received::Answer { tag, result })
    }

    /// Releases the caller's hold on a tag. It is reused as soon as the server has no more use for
    /// it either.
    #[inline]
    pub fn release(&mut self, tag: Tag) {
        if let Some(tag_state) = self.tags.get_mut(usize::from(tag.0)) {
            (tag_state.in_use, tag_state.established) = (false, None);
            self.free_tag(tag);
        }
    }

    /// Does [`Client::release`] for an answered request whose caller has stopped waiting. Returns
    /// the fid that it has established, which nobody knows but the server: the caller clunks it.
    pub fn abandon(&mut self, tag: Tag) -> Option<Fid> {
        let tag_state = self.tags.get_mut(usize::from(tag.0))?;
        let established = tag_state.established.take();
        self.release(tag);
        established
    }

    fn flushed(&mut self, tag: Tag, message: &[u8]) -> std::result::Result<Received, Malformed> {
        let target = Tag(tag.0 & !FLUSH);
        let tag_state = match self.tags.get_mut(usize::from(target.0)) {
            Some(tag_state) if tag_state.flushing => tag_state,
            _ => {
                return Err(Malformed::new(format!("no request has tag {}", tag.0)));
            }
        };
        match Rmessage::decode(self.dialect, message)? {
            (_, Rmessage::Flush {}) => {}
            (_, other) => return Err(mismatch(Kind::Flush, &other)),
        }
        tag_state.flushing = false;
        let cancelled = tag_state.expected.take().is_some();
        self.free_tag(target);
        Ok(if cancelled {
            Received::Answer {
                tag: target,
                result: Err(Errno::EINTR),
            }
        } else {
            Received::TooLate
        })
    }

    #[inline]
    fn take_tag(&mut self, expected: ExpectedReply) -> Result<Tag> {
        let tag = match self.free_tags.pop() {
            Some(tag) => tag,
            None if self.tags.len() >= Client::MAX_IN_FLIGHT => return Err(Errno::ENOBUFS),
            None => {
                self.tags.push(TagState::default());
                (self.tags.len() - 1) as u16
            }
        };
        self.tags[usize::from(tag)] = TagState {
            expected: Some(expected),
            flushing: false,
            in_use: true,
            established: None,
        };
        Ok(Tag(tag))
    }

    #[inline]
    fn free_tag(&mut self, tag: Tag) {
        let tag_state = self.tags[usize::from(tag.0)];
        if tag_state.expected.is_none() && !tag_state.flushing && !tag_state.in_use {
            self.free_tags.push(tag.0);
        }
    }
}

/// The bit by which a Tflush's tag differs from its target's.
const FLUSH: u16 = 0x8000;

fn flush_tag(target: Tag) -> Tag {
    Tag(target.0 | FLUSH)
}
