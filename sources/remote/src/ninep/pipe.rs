//! 9P over a pipe.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use p9::client::{Client, Received};
use p9::message::{DATA_HEAD, HEADER};
use p9::{Dialect, Fid, Rmessage, Tag, Tmessage};
use transports::{Link, Payloads};
use vfs::{Cx, Errno, Result};
use wire::Malformed;

use super::greet::greet;
use crate::pipe::{self, Apart, Half, Shape};
use crate::{ConnectError, Silence};

/// A connection to a 9P server, shared by its users and closed when the last of them drops it.
pub type Pipe = pipe::Pipe<Client>;

/// A reply in the memory it was received into, which is reused after the reply is dropped.
pub type Reply = pipe::Reply<Client>;

/// A request in flight. Dropping it discards its reply.
pub type Ticket<'a> = pipe::Ticket<'a, Client>;

/// A read in flight, and memory for its payload.
pub(super) type Landing<'p, 'm> = pipe::Landing<'p, 'm, Client>;

/// The outcome of a request.
pub(super) type Came = pipe::Came<Client>;

/// The negotiated parameters.
#[derive(Clone, Copy)]
pub struct Agreed {
    dialect: Dialect,
    msize: u32,
    payload: u32,
    takes_files: bool,
}

impl Half for Client {
    const NAME: &'static str = "9P";
    const HEADER: usize = HEADER;
    const DATA_HEAD: usize = DATA_HEAD;
    /// 9P has no duplicate request cache, and its servers answer every request.
    const RESENDS_AFTER_TIMEOUT: bool = false;
    type Head = ();
    type Aside = Fid;
    type Reading = Agreed;

    fn reading(&self) -> Agreed {
        Agreed {
            dialect: self.dialect(),
            msize: self.msize(),
            payload: self.payload(),
            takes_files: Client::takes_files(self),
        }
    }

    fn takes_files(&self) -> bool {
        Client::takes_files(self)
    }

    #[inline]
    fn frame(&self, head: &[u8]) -> std::result::Result<Option<usize>, Malformed> {
        Client::frame(self, head)
    }

    fn apart(&self, head: &[u8]) -> Option<Apart> {
        let (tag, len) = Client::apart(self, head)?;
        Some(Apart {
            number: tag.0.into(),
            head: DATA_HEAD,
            len,
            behind: 0,
        })
    }

    fn landed(&mut self, number: usize, _: &[u8]) {
        Client::landed(self, tag(number));
    }

    fn lost(&mut self, number: usize) {
        Client::lost(self, tag(number));
    }

    #[inline]
    fn receive(
        &mut self,
        message: &[u8],
        _: &mut Vec<u8>,
    ) -> std::result::Result<pipe::Received, Malformed> {
        Ok(match Client::receive(self, message)? {
            Received::Answer { tag, result } => pipe::Received::Answer {
                number: tag.0.into(),
                result,
            },
            Received::TooLate => pipe::Received::Nothing,
        })
    }

    #[inline]
    fn release(&mut self, number: usize) {
        Client::release(self, tag(number));
    }

    fn cancel(&mut self, number: usize, to: &mut Vec<u8>) -> bool {
        Client::cancel(self, tag(number), to)
    }

    fn aside(&mut self, &fid: &Fid, to: &mut Vec<u8>) -> Result<usize> {
        let (tag, _) = self.request(&Tmessage::Clunk { fid }, to)?;
        Ok(tag.0.into())
    }
}

fn tag(number: usize) -> Tag {
    Tag(number as u16)
}

impl Pipe {
    /// Begins a session over `link`: negotiates a dialect, at best `dialect`, and a message size,
    /// at most `msize`. Payloads travel as the link prefers.
    pub fn open(
        link: impl Link + 'static,
        dialect: Dialect,
        msize: u32,
    ) -> std::result::Result<Arc<Pipe>, ConnectError> {
        let payloads = link.payloads();
        let client = Client::new(dialect, msize);
        Pipe::open_with(link, client, payloads, Silence::default())
    }

    /// Does [`Pipe::open`] with the offer of `client`, the timeouts of `silence`, and payloads as
    /// `payloads` says.
    pub fn open_with(
        link: impl Link + 'static,
        mut client: Client,
        payloads: Payloads,
        silence: Silence,
    ) -> std::result::Result<Arc<Pipe>, ConnectError> {
        greet(&link, &mut client, silence.timeo)?;
        let most = client.msize() as usize;
        Pipe::over(Box::new(link), client, most, payloads, silence)
    }

    /// The negotiated dialect.
    pub fn dialect(&self) -> Dialect {
        self.reading().dialect
    }

    /// Whether open file descriptors may be requested.
    pub fn takes_files(&self) -> bool {
        self.reading().takes_files
    }

    /// The negotiated msize, in bytes.
    pub fn msize(&self) -> u32 {
        self.reading().msize
    }

    /// The most payload of one read or write, in bytes.
    pub fn payload(&self) -> u32 {
        self.reading().payload
    }

    /// Allocates a number for a new fid. The caller establishes the fid and ends it with
    /// [`Pipe::clunk`], or with [`Pipe::forget`] if the server never knew it.
    pub fn fid(&self) -> Result<Fid> {
        self.with(Client::new_fid)
    }

    /// Frees the number of a fid that the server does not know.
    pub fn forget(&self, fid: Fid) {
        self.with(|client| client.forget_fid(fid));
    }

    /// Clunks a fid without waiting for the reply. With `soon` the request is sent at once, else
    /// with the next request or when enough are queued.
    pub fn clunk(&self, fid: Fid, soon: bool) {
        self.aside(fid, soon);
    }

    /// Queues a request, which is sent when a caller waits, or when the queue is long enough.
    ///
    /// Returns `EOPNOTSUPP` if the dialect lacks the request, `EMSGSIZE` if it is too long,
    /// `ENOBUFS` if too many are in flight, or the connection's error if it has failed.
    pub fn submit(&self, request: &Tmessage<'_>) -> Result<Ticket<'_>> {
        self.submit_shaped(request, false)
    }

    /// Does [`Pipe::submit`] for a write whose payload the caller keeps until [`Pipe::wait_lent`]
    /// returns, so that the link need not copy it. Not for files open for appending.
    pub(super) fn lend(&self, write: &Tmessage<'_>) -> Result<Ticket<'_>> {
        self.submit_shaped(write, true)
    }

    fn submit_shaped(&self, request: &Tmessage<'_>, lent: bool) -> Result<Ticket<'_>> {
        let (reply, payload) = match request {
            Tmessage::Read { count, .. } | Tmessage::Readdir { count, .. } => {
                (DATA_HEAD + *count as usize, 0)
            }
            Tmessage::Write { data, .. } => (0, data.0.len()),
            _ => (0, 0),
        };
        let zeros = 0;
        let shape = Shape {
            reply,
            payload,
            zeros,
            lent,
            timeouts: 0,
        };
        self.submit_as(shape, |client, queue| {
            let (tag, payload) = client.request(request, queue)?;
            Ok((tag.0.into(), payload))
        })
    }

    /// Submits a request and waits for its reply.
    pub fn call(&self, request: &Tmessage<'_>) -> Result<Reply> {
        let ticket = self.submit(request)?;
        self.wait(ticket)
    }

    /// Does [`Pipe::call`] for a call that may be cancelled. The pipe then asks the server to
    /// cancel the request and returns the server's answer: the reply, or `EINTR`. Returns
    /// `WOULD_BLOCK` below full patience.
    pub fn call_in(&self, cx: &Cx<'_>, request: &Tmessage<'_>) -> Result<Reply> {
        cx.may_wait()?;
        cx.call.check()?;
        let ticket = self.submit(request)?;
        self.wait_in(cx, ticket)
    }

    /// Does [`Pipe::call_in`] without a timeout, for a lock that others may hold.
    pub(super) fn call_long(&self, cx: &Cx<'_>, request: &Tmessage<'_>) -> Result<Reply> {
        cx.may_wait()?;
        cx.call.check()?;
        let ticket = self.submit(request)?;
        self.wait_long(cx, ticket)
    }
}

impl Reply {
    /// Decodes the message, which is never an error.
    pub fn message(&self) -> Result<Rmessage<'_>> {
        // Cannot fail: the message was decoded when it arrived.
        let decoded = Rmessage::decode(self.reading.dialect, self.bytes());
        decoded.map(|(_, message)| message).map_err(|_| Errno::EIO)
    }

    /// The file descriptor passed with the reply.
    pub fn take_file(&mut self) -> Option<OwnedFd> {
        self.file.take()
    }

    /// The payload of the reply, which must be an Rread or Rreaddir.
    pub fn data(&self) -> &[u8] {
        &self.bytes()[DATA_HEAD..]
    }
}
