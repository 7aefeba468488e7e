//! 9P over a connection.

use std::sync::Arc;

use p9::client::{Client, Received};
use p9::message::{DATA_HEAD, HEADER};
use p9::{Dialect, Fid, Rmessage, Tag, Tmessage};
use transports::{Link, Payloads};
use vfs::fd::OwnedFd;
use vfs::{Cx, Errno, Result};
use wire::Malformed;

use super::negotiate::negotiate;
use crate::connection::{self, ClientCodec, PayloadLayout, Shape};
use crate::{ConnectError, Timeouts};

/// A connection to a 9P server, shared by its users and closed when the last of them drops it.
pub type Connection = connection::Connection<Client>;

/// A reply in the memory it was received into, which is reused after the reply is dropped.
pub type Reply = connection::Reply<Client>;

/// A request in flight. Dropping it discards its reply.
pub type Ticket<'a> = connection::Ticket<'a, Client>;

/// A read in flight, and memory for its payload.
pub(super) type DirectReceive<'p, 'm> = connection::DirectReceive<'p, 'm, Client>;

/// The outcome of a request.
pub(super) type Outcome = connection::Outcome<Client>;

/// The negotiated parameters.
#[derive(Clone, Copy)]
pub struct Negotiated {
    dialect: Dialect,
    msize: u32,
    payload: u32,
    fd_passing: bool,
}

impl ClientCodec for Client {
    const NAME: &'static str = "9P";
    const HEADER: usize = HEADER;
    const DATA_HEAD: usize = DATA_HEAD;
    /// 9P has no duplicate request cache, and its servers answer every request.
    const RESENDS_AFTER_TIMEOUT: bool = false;
    type Head = ();
    type Background = Fid;
    type DecodeParams = Negotiated;

    fn decode_params(&self) -> Negotiated {
        Negotiated {
            dialect: self.dialect(),
            msize: self.msize(),
            payload: self.payload(),
            fd_passing: Client::has_fd_passing(self),
        }
    }

    fn accepts_fds(&self) -> bool {
        Client::has_fd_passing(self)
    }

    #[inline]
    fn frame(&self, head: &[u8]) -> std::result::Result<Option<usize>, Malformed> {
        Client::frame(self, head)
    }

    fn payload_layout(&self, head: &[u8]) -> Option<PayloadLayout> {
        let (tag, len) = Client::separate_payload(self, head)?;
        Some(PayloadLayout {
            number: tag.0.into(),
            head: DATA_HEAD,
            len,
            padding: 0,
        })
    }

    fn payload_received(&mut self, number: usize, _: &[u8]) {
        Client::complete_read(self, tag(number));
    }

    fn lost(&mut self, number: usize) {
        Client::forget(self, tag(number));
    }

    #[inline]
    fn receive(
        &mut self,
        message: &[u8],
        _: &mut Vec<u8>,
    ) -> std::result::Result<connection::Received, Malformed> {
        Ok(match Client::receive(self, message)? {
            Received::Answer { tag, result } => connection::Received::Reply {
                number: tag.0.into(),
                result,
            },
            Received::TooLate => connection::Received::Nothing,
        })
    }

    #[inline]
    fn release(&mut self, number: usize) {
        Client::release(self, tag(number));
    }

    fn abandon(&mut self, number: usize) -> Option<Fid> {
        Client::abandon(self, tag(number))
    }

    fn cancel(&mut self, number: usize, to: &mut Vec<u8>) -> bool {
        Client::cancel(self, tag(number), to)
    }

    fn encode_background(&mut self, &fid: &Fid, to: &mut Vec<u8>) -> Result<usize> {
        let (tag, _) = self.request(&Tmessage::Clunk { fid }, to)?;
        Ok(tag.0.into())
    }
}

fn tag(number: usize) -> Tag {
    Tag(number as u16)
}

impl Connection {
    /// Begins a session over `link`: negotiates a dialect, at best `dialect`, and a message size,
    /// at most `msize`. Payloads travel as the link prefers.
    pub fn open(
        link: impl Link + 'static,
        dialect: Dialect,
        msize: u32,
    ) -> std::result::Result<Arc<Connection>, ConnectError> {
        let payloads = link.payloads();
        let client = Client::new(dialect, msize);
        Connection::open_with(link, client, payloads, Timeouts::default())
    }

    /// Does [`Connection::open`] with the offer of `client`, `timeouts`, and
    /// payloads as `payloads` says.
    pub fn open_with(
        link: impl Link + 'static,
        mut client: Client,
        payloads: Payloads,
        silence: Timeouts,
    ) -> std::result::Result<Arc<Connection>, ConnectError> {
        negotiate(&link, &mut client, silence.timeo)?;
        let most = client.msize() as usize;
        Connection::over(Box::new(link), client, most, payloads, silence)
    }

    /// The negotiated dialect.
    pub fn dialect(&self) -> Dialect {
        self.decode_params().dialect
    }

    /// Whether open file descriptors may be requested.
    pub fn fd_passing(&self) -> bool {
        self.decode_params().fd_passing
    }

    /// The negotiated msize, in bytes.
    pub fn msize(&self) -> u32 {
        self.decode_params().msize
    }

    /// The most payload of one read or write, in bytes.
    pub fn payload(&self) -> u32 {
        self.decode_params().payload
    }

    /// Allocates a number for a new fid. The caller establishes the fid and ends it with
    /// [`Connection::clunk`], or with [`Connection::forget`] if no request was sent for it. The
    /// number of a fid that the server does not establish is freed when its reply arrives; a fid
    /// whose caller has stopped waiting by then is clunked.
    pub fn fid(&self) -> Result<Fid> {
        self.with(Client::new_fid)
    }

    /// Frees the number of a fid that no request was sent for.
    pub fn forget(&self, fid: Fid) {
        self.with(|client| client.forget_fid(fid));
    }

    /// Clunks a fid without waiting for the reply. With `soon` the request is sent at once, else
    /// with the next request or when enough are queued.
    pub fn clunk(&self, fid: Fid, soon: bool) {
        self.send_background(fid, soon);
    }

    /// Queues a request, which is sent when a caller waits, or when the queue is long enough.
    ///
    /// Returns `EOPNOTSUPP` if the dialect lacks the request, `EMSGSIZE` if it is too long,
    /// `ENOBUFS` if too many are in flight, or the connection's error if it has failed.
    pub fn submit(&self, request: &Tmessage<'_>) -> Result<Ticket<'_>> {
        self.submit_with(request, false)
    }

    /// Does [`Connection::submit`] for a write whose payload the caller keeps until
    /// [`Connection::wait_lent`] returns, so that the link need not copy it. Not for files open for
    /// appending.
    pub(super) fn submit_lent(&self, write: &Tmessage<'_>) -> Result<Ticket<'_>> {
        self.submit_with(write, true)
    }

    fn submit_with(&self, request: &Tmessage<'_>, lent: bool) -> Result<Ticket<'_>> {
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

    /// Does [`Connection::call`] for a call that may be cancelled. The connection then asks the
    /// server to cancel the request and returns the server's answer: the reply, or `EINTR`. Returns
    /// `WOULD_BLOCK` below full patience.
    pub fn call_in(&self, cx: &Cx<'_>, request: &Tmessage<'_>) -> Result<Reply> {
        cx.check_may_block()?;
        cx.call.check_begin()?;
        let ticket = self.submit(request)?;
        let reply = self.wait_in(cx, ticket)?;
        if has_effect(request) {
            cx.call.note_effect();
        }
        Ok(reply)
    }
}

/// Returns whether a request changes the tree, so that the call that it is part of has to be
/// finished.
fn has_effect(request: &Tmessage<'_>) -> bool {
    use Tmessage as T;
    matches!(
        request,
        T::Lcreate { .. }
            | T::Create { .. }
            | T::Mkdir { .. }
            | T::Mknod { .. }
            | T::Symlink { .. }
            | T::Link { .. }
            | T::Rename { .. }
            | T::Renameat { .. }
            | T::Unlinkat { .. }
            | T::Remove { .. }
            | T::Setattr { .. }
            | T::Wstat { .. }
    )
}

impl Reply {
    /// Decodes the message, which is never an error.
    pub fn message(&self) -> Result<Rmessage<'_>> {
        // Cannot fail: the message was decoded when it arrived.
        let decoded = Rmessage::decode(self.decode_params.dialect, self.bytes());
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
