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

/// A connection to a 9P server. Shared by all who use it; it ends when the last of them drops it.
pub type Pipe = pipe::Pipe<Client>;

/// A reply as it came, in the memory it was received into. That memory is used again when the reply is
/// dropped.
pub type Reply = pipe::Reply<Client>;

/// A request in flight. Dropping it forgets its reply.
pub type Ticket<'a> = pipe::Ticket<'a, Client>;

/// A read in flight, and the memory that its payload may come to.
pub(super) type Landing<'p, 'm> = pipe::Landing<'p, 'm, Client>;

/// How a reply has come.
pub(super) type Came = pipe::Came<Client>;

/// What was agreed on.
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
    /// Begins a session over `link`: agrees on a dialect, at best `dialect`, and on the size of messages,
    /// at most `msize`. Payloads travel as the link has it best.
    pub fn open(
        link: impl Link + 'static,
        dialect: Dialect,
        msize: u32,
    ) -> std::result::Result<Arc<Pipe>, ConnectError> {
        let payloads = link.payloads();
        let client = Client::new(dialect, msize);
        Pipe::open_with(link, client, payloads, Silence::default())
    }

    /// [`Pipe::open`] as `client` offers, to a server that may not answer, and payloads travel as `payloads` says.
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

    /// What is spoken.
    pub fn dialect(&self) -> Dialect {
        self.reading().dialect
    }

    /// Whether the server may be asked to hand open files over.
    pub fn takes_files(&self) -> bool {
        self.reading().takes_files
    }

    /// The largest message, bytes.
    pub fn msize(&self) -> u32 {
        self.reading().msize
    }

    /// The most bytes that one read asks for, or one write sends.
    pub fn payload(&self) -> u32 {
        self.reading().payload
    }

    /// A number for a new fid, which is the caller's to establish, and then to [`Pipe::clunk`] or, if the
    /// server never knew it, to [`Pipe::forget`].
    pub fn fid(&self) -> Result<Fid> {
        self.with(Client::new_fid)
    }

    /// A fid that the server does not know.
    pub fn forget(&self, fid: Fid) {
        self.with(|client| client.forget_fid(fid));
    }

    /// Gives a fid up without waiting for what the server says of it. With `soon` it is told at once, else
    /// along with the next request, or when some have gathered.
    pub fn clunk(&self, fid: Fid, soon: bool) {
        self.aside(fid, soon);
    }

    /// Puts a request in the queue. It leaves when somebody waits, or when the queue is long enough.
    ///
    /// Errs if the dialect lacks it (`EOPNOTSUPP`), it is too long (`EMSGSIZE`), too many are in flight
    /// (`ENOBUFS`), or the connection has failed.
    pub fn submit(&self, request: &Tmessage<'_>) -> Result<Ticket<'_>> {
        self.submit_shaped(request, false)
    }

    /// [`Pipe::submit`] of a write whose payload the caller has for as long as it waits, by [`Pipe::wait_lent`]: nobody else need
    /// keep it. Not to a file that is open to append.
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
        };
        self.submit_as(shape, |client, queue| {
            let (tag, payload) = client.request(request, queue)?;
            Ok((tag.0.into(), payload))
        })
    }

    /// Submits and waits.
    pub fn call(&self, request: &Tmessage<'_>) -> Result<Reply> {
        let ticket = self.submit(request)?;
        self.wait(ticket)
    }

    /// [`Pipe::call`] as part of a call that may be cancelled: then the server is asked to, and what it
    /// answers counts: the reply, or `EINTR`. `WOULD_BLOCK` below full patience.
    pub fn call_in(&self, cx: &Cx<'_>, request: &Tmessage<'_>) -> Result<Reply> {
        cx.may_wait()?;
        cx.call.check()?;
        let ticket = self.submit(request)?;
        self.wait_in(cx, ticket)
    }

    /// [`Pipe::call_in`] for what may take as long as others please: a lock that they have.
    pub(super) fn call_long(&self, cx: &Cx<'_>, request: &Tmessage<'_>) -> Result<Reply> {
        cx.may_wait()?;
        cx.call.check()?;
        let ticket = self.submit(request)?;
        self.wait_long(cx, ticket)
    }
}

impl Reply {
    /// The message. Never an error's.
    pub fn message(&self) -> Result<Rmessage<'_>> {
        // Cannot fail: it was decoded when it came.
        let decoded = Rmessage::decode(self.reading.dialect, self.bytes());
        decoded.map(|(_, message)| message).map_err(|_| Errno::EIO)
    }

    /// The file that was handed over with it.
    pub fn take_file(&mut self) -> Option<OwnedFd> {
        self.file.take()
    }

    /// The payload of an Rread or Rreaddir, which it must be.
    pub fn data(&self) -> &[u8] {
        &self.bytes()[DATA_HEAD..]
    }
}
