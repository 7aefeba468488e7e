//! A connection to a server with many requests in flight, independent of the protocol.
//!
//! Requests are encoded into one queue and sent together when a caller waits, so that many leave in
//! one system call. There is no dedicated thread: of the threads that wait for replies, one
//! receives (the leader) and distributes the replies; after its own has arrived, another takes
//! over. A single thread needs one send and one receive per round trip, or fewer if it keeps
//! several requests in flight ([`Connection::submit`], [`Connection::wait`]).
//!
//! A protocol violation by the server ends the connection: all waiting and later callers get the
//! same errno, and the reason is kept ([`Connection::failure`]) and logged once.
//!
//! - `send` sends the queue, `input` buffers what is received, `wait` distributes replies.
//! - `timeouts` gives up unanswered requests, or the connection; `cancel` and `background` send
//!   requests whose replies no caller waits for.
//! - `direct_receive` receives payloads into the caller's memory, `resend` reports lent payloads to
//!   send again.
//! - `listen` receives the server's own requests while the connection is idle.
//! - `state` holds all mutable state; a [`ClientCodec`] knows the protocol.
//!
//! Session setup and reconnection are deliberately elsewhere.
//!
//! Lock order: the connection's one mutex, never held across a system call except wake-ups. The
//! sending and receiving roles are taken and returned under it.

mod background;
mod cancel;
mod codec;
mod direct_receive;
mod input;
mod listen;
mod resend;
mod send;
mod state;
mod timeouts;
mod wait;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use transports::{Event, Link, Payloads};
use vfs::copies::count_copied;
use vfs::{Cx, Errno, Result};

use self::background::BackgroundRequests;
pub(crate) use self::codec::{ClientCodec, PayloadLayout, Received};
pub(crate) use self::direct_receive::DirectReceive;
use self::input::Input;
pub(crate) use self::input::Reply;
pub(crate) use self::listen::wait_readable;
pub(crate) use self::resend::ResendRequired;
pub(crate) use self::state::Outcome;
use self::state::{Guard, State, Waiter};
use self::timeouts::TimeoutState;
use crate::deferred::DeferredSender;
use crate::{ConnectError, Timeouts};

/// A connection, shared by its users and closed when the last of them drops it.
pub struct Connection<H: ClientCodec> {
    link: Box<dyn Link>,
    payloads: Payloads,
    decode_params: H::DecodeParams,
    /// The longest time the server may accept no bytes.
    timeo: Duration,
    state: Mutex<State<H>>,
    /// Notified when the sending role is free and a thread waits for it.
    may_send: Condvar,
    /// Wakes the thread that waits for room to send.
    wake: Event,
    deferred_sender: DeferredSender,
    this: Weak<Connection<H>>,
}

/// A request in flight. Dropping it discards its reply.
#[must_use = "a reply that nobody waits for is forgotten"]
pub struct Ticket<'a, H: ClientCodec> {
    connection: &'a Connection<H>,
    number: usize,
}

impl<H: ClientCodec> fmt::Debug for Ticket<'_, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ticket").field(&self.number).finish()
    }
}

impl<H: ClientCodec> Drop for Ticket<'_, H> {
    fn drop(&mut self) {
        let mut state = self.connection.state();
        let slot = &mut state.slots[self.number];
        if slot.reply.take().is_some() {
            state.abandon(self.number);
        } else {
            slot.waiter = Waiter::Abandoned;
        }
    }
}

/// A request in flight that owns a reference to its connection.
pub(crate) struct OwnedTicket<H: ClientCodec> {
    pub(crate) connection: Arc<Connection<H>>,
    number: Option<usize>,
}

impl<H: ClientCodec> Ticket<'_, H> {
    /// Converts the ticket into one that owns a reference to the connection.
    pub(crate) fn into_owned(self) -> Option<OwnedTicket<H>> {
        let connection = self.connection.this.upgrade()?;
        let number = Some(self.number);
        std::mem::forget(self);
        Some(OwnedTicket { connection, number })
    }
}

impl<H: ClientCodec> OwnedTicket<H> {
    /// Does [`Connection::wait_direct`] for this request alone, with `memory` for its payload.
    pub(crate) fn wait_direct(mut self, cx: &Cx<'_>, memory: &mut [u8]) -> Result<Outcome<H>> {
        let ticket = self.ticket().ok_or(Errno::EIO)?;
        ticket
            .connection
            .wait_one_direct(cx, DirectReceive::new(ticket, memory))
    }

    fn ticket(&mut self) -> Option<Ticket<'_, H>> {
        let number = self.number.take()?;
        let connection = &*self.connection;
        Some(Ticket { connection, number })
    }
}

impl<H: ClientCodec> Drop for OwnedTicket<H> {
    fn drop(&mut self) {
        drop(self.ticket());
    }
}

/// Properties of a request, stated before it is encoded.
#[derive(Clone, Copy, Default)]
pub(crate) struct Shape {
    /// The approximate maximum length of the reply, if it has a payload.
    pub(crate) reply: usize,
    /// The number of payload bytes after the encoded part.
    pub(crate) payload: usize,
    /// The number of zero bytes after the payload.
    pub(crate) zeros: usize,
    /// Whether the caller keeps the payload until the reply arrives, and can send it again.
    pub(crate) lent: bool,
    /// The number of times that the request has timed out, on earlier connections.
    pub(crate) timeouts: u32,
}

impl Shape {
    /// The size from which replies are received one by one: see [`Input::recv`].
    const LARGE: usize = 32 << 10;
}

impl<H: ClientCodec> Connection<H> {
    /// The queue length from which requests are sent without waiting for a caller, so that the
    /// server can begin on them.
    const BATCH: usize = 64 << 10;

    /// The longest queue while replying to the server's own requests: more than all requests of a
    /// session with their copied payloads.
    const MAX_UNREAD: usize = 1 << 20;

    /// Creates a connection over `link`, on which the session has been set up. Messages have up to
    /// `most` bytes, and `payloads` says how payloads are sent and received.
    pub(crate) fn over(
        link: Box<dyn Link>,
        codec: H,
        most: usize,
        payloads: Payloads,
        silence: Timeouts,
    ) -> std::result::Result<Arc<Connection<H>>, ConnectError> {
        let wake = Event::new().map_err(|error| {
            let why = error.to_string();
            ConnectError::new(Errno::from(error), why)
        })?;
        let reading = codec.decode_params();
        Ok(Arc::new_cyclic(|this| Connection {
            link,
            payloads,
            decode_params: reading,
            timeo: silence.timeo,
            state: Mutex::new(State {
                input: Some(Input::new(most, &codec)),
                codec,
                slots: Vec::new(),
                queue: Vec::new(),
                spare: Vec::new(),
                sending: false,
                senders: 0,
                stuck: false,
                followers: Vec::new(),
                large: (0, 0),
                in_flight: 0,
                background: BackgroundRequests::default(),
                timeout_state: TimeoutState::new(silence),
                failed: None,
            }),
            may_send: Condvar::new(),
            wake,
            deferred_sender: DeferredSender::default(),
            this: this.clone(),
        }))
    }

    /// The parameters for decoding a reply.
    pub(crate) fn decode_params(&self) -> H::DecodeParams {
        self.decode_params
    }

    /// The payload size in bytes from which landing in the caller's memory pays off.
    pub(crate) fn direct_receive_min(&self) -> usize {
        self.payloads.direct_receive
    }

    /// Returns whether `len` more bytes of payload may be in flight ([`Payloads::in_flight`]). A
    /// caller with none in flight need not ask.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.state().in_flight + len <= self.payloads.in_flight
    }

    /// The address of the server.
    pub fn peer(&self) -> &str {
        self.link.peer()
    }

    /// The reason why the connection has failed, if it has.
    pub fn failure(&self) -> Option<String> {
        let state = self.state();
        state.failed.as_ref().map(|(_, why)| why.clone())
    }

    /// Whether the connection has failed because a request was not answered in time.
    pub(crate) fn has_timed_out(&self) -> bool {
        let state = self.state();
        matches!(state.failed, Some((errno, _)) if errno == Timeouts::ERRNO)
    }

    /// Calls `what` with the protocol's state.
    pub(crate) fn with<T>(&self, what: impl FnOnce(&mut H) -> T) -> T {
        what(&mut self.state().codec)
    }

    /// Queues a request: `encode` writes it without its payload, and returns its number and the
    /// payload. The queue is sent when a caller waits, or when it is long enough.
    ///
    /// Returns the error of `encode`, or the connection's if it has failed.
    pub(crate) fn submit_as<'p>(
        &self,
        shape: Shape,
        encode: impl FnOnce(&mut H, &mut Vec<u8>) -> Result<(usize, &'p [u8])>,
    ) -> Result<Ticket<'_, H>> {
        let mut state = self.state();
        let separate = shape.payload >= self.payloads.gather;
        while separate && state.sending && state.failed.is_none() {
            state.senders += 1;
            self.may_send.wait(&mut state);
            state.senders -= 1;
        }
        state.check_usable()?;
        let State { codec, queue, .. } = &mut *state;
        let (number, payload) = encode(codec, queue)?;
        state.begin(number, Waiter::Ticket, shape);
        if separate {
            drop(self.send_with(state, payload, shape));
        } else {
            count_copied(payload.len());
            state.queue.extend_from_slice(payload);
            let len = state.queue.len() + shape.zeros;
            state.queue.resize(len, 0);
            if len >= Connection::<H>::BATCH {
                drop(self.send_queued(state, true));
            }
        }
        Ok(Ticket {
            connection: self,
            number,
        })
    }

    /// Does [`Connection::wait`] for a call that may be cancelled. The connection then asks the
    /// server to cancel the request and returns the server's answer: the reply, or `EINTR`. If the
    /// server stays silent, it returns `EINTR`, and the request may still be carried out.
    pub fn wait_in(&self, cx: &Cx<'_>, ticket: Ticket<'_, H>) -> Result<Reply<H>> {
        self.cancel_with(cx.call, &ticket);
        self.wait(ticket)
    }

    /// Does [`Connection::wait_in`] for a request with a lent payload ([`Shape::lent`]). Returns
    /// `None` if the server was lost and the request must be sent again; it may have been carried
    /// out already, and then is carried out twice.
    pub(crate) fn wait_lent(&self, cx: &Cx<'_>, ticket: Ticket<'_, H>) -> Result<Option<Reply<H>>> {
        self.cancel_with(cx.call, &ticket);
        self.wait_whole(ticket)
    }

    /// Ends the connection. The first reason is kept.
    #[cold]
    fn fail(&self, state: &mut State<H>, errno: Errno, why: &dyn fmt::Display) {
        if state.failed.is_some() {
            return;
        }
        let why = error_text::<H>(self.link.peer(), why);
        tracing::error!("{why}");
        state.failed = Some((errno, why));
        self.link.hang_up();
        for slot in &state.slots {
            if let Some(wakeup) = &slot.wakeup {
                wakeup.notify_all();
            }
        }
        self.may_send.notify_all();
        self.wake_sender();
    }

    fn state(&self) -> Guard<'_, H> {
        self.state.lock()
    }
}

/// "Connection reset by peer", for which `Errno` has no constant.
pub(crate) const ECONNRESET: Errno = Errno::from_raw(104);

/// Formats the reason of a connection's failure.
pub(crate) fn error_text<H: ClientCodec>(peer: &str, why: &dyn fmt::Display) -> String {
    format!("{} connection to {peer}: {why}", H::NAME)
}
