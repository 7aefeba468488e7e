//! The client half: what to ask, and what a server's answer may be.
//!
//! A [`Client`] is a connection's state: the dialect and message size agreed on, numbers of fids, and
//! for each tag in flight what its reply may look like. Whoever moves the bytes encodes requests with
//! it, cuts what comes by [`Client::frame`] and gives each message to [`Client::receive`], which checks it
//! whole: after that, decoding it again cannot fail. A server is never trusted: a reply that was not
//! asked for, of another kind, or larger than asked for is [`Malformed`], and the connection cannot be
//! followed any more.
//!
//! Around it: attributes ([`attr`]), entries of directories ([`dir`]), errors ([`error`]) and the flags
//! of requests ([`ask`]), each in the words of the file-system traits; and what any reply must be
//! ([`reply`]).
//!
//! What it lacks on purpose: bytes on their way, threads, clocks, and what to do while a reply is awaited.
//! It takes no lock.

pub mod ask;
pub mod attr;
pub mod dir;
pub mod error;
pub mod reply;

#[cfg(test)]
mod tests;

use vfs::{Errno, Result};
use wire::{Malformed, Put};

use self::reply::{Expected, mismatch, refuses};
use crate::message::{DATA_HEAD, HEADER, Header};
use crate::{Dialect, Fid, Kind, Rmessage, Tag, Tmessage};

/// One connection to a server.
pub struct Client {
    dialect: Dialect,
    msize: u32,
    /// Whether open files are asked for ([`Dialect::HANDING`]): to be offered, or agreed on.
    hands: bool,
    flights: Vec<Flight>,
    free_tags: Vec<u16>,
    next_fid: u32,
    free_fids: Vec<Fid>,
}

/// What a tag is used for.
#[derive(Clone, Copy, Default)]
struct Flight {
    /// What its reply must be, while there is none.
    expected: Option<Expected>,
    /// Whether a Tflush of it is not answered yet.
    flushing: bool,
    /// Whether the caller has not given it back.
    held: bool,
}

/// What a message from the server means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A request is answered: the message is its reply, unless it says what went wrong. `EINTR` if it
    /// was cancelled, and then the message is none of its.
    Answer {
        /// The request's.
        tag: Tag,
        /// Whether it succeeded.
        result: Result<()>,
    },
    /// A cancellation came too late: its request had been answered.
    TooLate,
}

impl Client {
    /// The most requests in flight. The tag of a Tflush is its target's and this much more, so that there
    /// is always one for it.
    pub const MOST_IN_FLIGHT: usize = 0x7fff;

    /// The least message size that is worked with: the largest reply without payload, an Rwalk, has
    /// 217 bytes.
    pub const MIN_MSIZE: u32 = 256;

    /// What of a message is not payload, as Linux reckons it (`P9_IOHDRSZ`): servers refuse more than that
    /// leaves.
    const IO_HEAD: u32 = 24;

    /// A connection on which nothing has been said, to be spoken on in `dialect` and in messages of up to
    /// `msize` bytes, or less of either if the server cannot.
    pub fn new(dialect: Dialect, msize: u32) -> Client {
        Client {
            dialect,
            msize: msize.max(Client::MIN_MSIZE),
            hands: false,
            flights: Vec::new(),
            free_tags: Vec::new(),
            next_fid: 0,
            free_fids: Vec::new(),
        }
    }

    /// The same, which asks for open files themselves, if its connection carries them and 9P2000.L is what is spoken.
    pub fn taking_files(mut self) -> Client {
        self.hands = self.dialect == Dialect::Linux;
        self
    }

    /// The first message: Tversion.
    pub fn hello(&self, to: &mut impl Put) {
        let hello = Tmessage::Version {
            msize: self.msize,
            version: self.dialect.saying(self.hands).as_bytes(),
        };
        hello.encode(self.dialect, Tag::NONE, to);
    }

    /// Takes the reply to [`Client::hello`]: from now on [`Client::dialect`] and [`Client::msize`] hold. `false` if the server knows nothing
    /// of files that are handed over, nor what to make of that: hello is to be said again, without it.
    pub fn agree(&mut self, message: &[u8]) -> std::result::Result<bool, Malformed> {
        if self.hands && refuses(message)? {
            self.hands = false;
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
        // In the order of what they know.
        let offered = Dialect::ALL.iter().position(|&d| d == self.dialect);
        self.hands &= version == Dialect::HANDING.as_bytes();
        let version = match self.hands {
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

    /// Whether open files may be asked for.
    pub fn takes_files(&self) -> bool {
        self.hands
    }

    /// What is spoken.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The largest message.
    pub fn msize(&self) -> u32 {
        self.msize
    }

    /// The most bytes to ask for, or to send, in one message.
    pub fn payload(&self) -> u32 {
        self.msize - Client::IO_HEAD
    }

    /// A number for a new fid, `EMFILE` if all are taken.
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

    /// A fid's number can be used again: the server knows nothing by it. What is clunked or removed is given
    /// up when the reply comes, without this.
    pub fn forget_fid(&mut self, fid: Fid) {
        self.free_fids.push(fid);
    }

    /// Encodes a request but for its payload, which is to follow and is returned. `EMSGSIZE` if it is longer
    /// than was agreed on, `EOPNOTSUPP` if the dialect does not have it, `ENOBUFS` if there are
    /// [`Client::MOST_IN_FLIGHT`] already.
    #[inline]
    pub fn request<'a>(
        &mut self,
        request: &Tmessage<'a>,
        to: &mut impl Put,
    ) -> Result<(Tag, &'a [u8])> {
        let known = request.kind() != Kind::Hand || self.hands;
        if !request.kind().is_in(self.dialect) || !known {
            return Err(Errno::EOPNOTSUPP);
        }
        if request.size(self.dialect) > self.msize as usize {
            return Err(Errno::EMSGSIZE);
        }
        // Those are not the caller's to send.
        if matches!(request, Tmessage::Version { .. } | Tmessage::Flush { .. }) {
            return Err(Errno::EINVAL);
        }
        let tag = self.take_tag(Expected::of(request))?;
        Ok((tag, request.encode_head(self.dialect, tag, to)))
    }

    /// Encodes a Tflush of a request, unless it is answered or being cancelled: then nothing, `false`.
    /// The request counts as in flight until [`Client::receive`] has told what came of it.
    pub fn cancel(&mut self, tag: Tag, to: &mut impl Put) -> bool {
        let Some(flight) = self.flights.get_mut(usize::from(tag.0)) else {
            return false;
        };
        if flight.expected.is_none() || flight.flushing {
            return false;
        }
        flight.flushing = true;
        let flush = Tmessage::Flush { oldtag: tag };
        flush.encode(self.dialect, flush_tag(tag), to);
        true
    }

    /// The length of the message that `head` begins with, or nothing as long as too little has come to
    /// tell.
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

    /// Which request the Rread is for that `head` begins with, and how long its payload is, which may be received apart; nothing
    /// of any other message, of one that [`Client::receive`] would not take, or if less than the message's
    /// [`DATA_HEAD`] has come.
    pub fn apart(&self, head: &[u8]) -> Option<(Tag, usize)> {
        let (head, _) = head.split_first_chunk::<DATA_HEAD>()?;
        let Header { size, number, tag } = Header::decode(head).ok()?;
        let count = u32::from_le_bytes([head[7], head[8], head[9], head[10]]);
        let expected = self.flights.get(usize::from(tag.0))?.expected?;
        let fits = number == Kind::Read.reply()
            && expected.is_read(count)
            && size.checked_sub(count) == Some(DATA_HEAD as u32);
        fits.then_some((tag, count as usize))
    }

    /// Takes an Rread by its tag, whose payload has been received apart: [`Client::apart`] has told of it.
    pub fn landed(&mut self, tag: Tag) {
        if let Some(flight) = self.flights.get_mut(usize::from(tag.0)) {
            flight.expected = None;
            self.free_tag(tag);
        }
    }

    /// Nobody will answer a request: its server is lost, and the caller asks again.
    pub fn lost(&mut self, tag: Tag) {
        self.landed(tag);
    }

    /// Takes a whole message from the server.
    #[inline]
    pub fn receive(&mut self, message: &[u8]) -> std::result::Result<Received, Malformed> {
        let tag = Header::decode(message)?.tag;
        if tag.0 & FLUSH != 0 {
            return self.flushed(tag, message);
        }
        let flight = self.flights.get_mut(usize::from(tag.0));
        let expected = flight.and_then(|flight| flight.expected.take());
        let Some(expected) = expected else {
            return Err(Malformed::new(format!(
                "nothing was asked by tag {}",
                tag.0
            )));
        };
        let (_, reply) = Rmessage::decode(self.dialect, message)?;
        let result = expected.check(&reply)?;
        if expected.fid != Fid::NONE {
            self.forget_fid(expected.fid);
        }
        self.free_tag(tag);
        Ok(Received::Answer { tag, result })
    }

    /// The caller has no more use for a tag: it may be used again as soon as the server has no more use for it
    /// either.
    #[inline]
    pub fn release(&mut self, tag: Tag) {
        if let Some(flight) = self.flights.get_mut(usize::from(tag.0)) {
            flight.held = false;
            self.free_tag(tag);
        }
    }

    fn flushed(&mut self, tag: Tag, message: &[u8]) -> std::result::Result<Received, Malformed> {
        let target = Tag(tag.0 & !FLUSH);
        let flight = match self.flights.get_mut(usize::from(target.0)) {
            Some(flight) if flight.flushing => flight,
            _ => {
                return Err(Malformed::new(format!(
                    "nothing was asked by tag {}",
                    tag.0
                )));
            }
        };
        match Rmessage::decode(self.dialect, message)? {
            (_, Rmessage::Flush {}) => {}
            (_, other) => return Err(mismatch(Kind::Flush, &other)),
        }
        flight.flushing = false;
        let cancelled = flight.expected.take().is_some();
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
    fn take_tag(&mut self, expected: Expected) -> Result<Tag> {
        let tag = match self.free_tags.pop() {
            Some(tag) => tag,
            None if self.flights.len() >= Client::MOST_IN_FLIGHT => return Err(Errno::ENOBUFS),
            None => {
                self.flights.push(Flight::default());
                (self.flights.len() - 1) as u16
            }
        };
        self.flights[usize::from(tag)] = Flight {
            expected: Some(expected),
            flushing: false,
            held: true,
        };
        Ok(Tag(tag))
    }

    #[inline]
    fn free_tag(&mut self, tag: Tag) {
        let flight = self.flights[usize::from(tag.0)];
        if flight.expected.is_none() && !flight.flushing && !flight.held {
            self.free_tags.push(tag.0);
        }
    }
}

/// The bit that a Tflush's tag has and its target's has not.
const FLUSH: u16 = 0x8000;

fn flush_tag(target: Tag) -> Tag {
    Tag(target.0 | FLUSH)
}
