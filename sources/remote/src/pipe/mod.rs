//! A connection to a server, with many requests in flight, whatever the protocol.
//!
//! Requests are encoded into one queue and leave together when somebody waits, so many go in one system
//! call. There is no thread of its own: of the threads that wait for replies, one receives (the
//! leader) and gives the others theirs; when it has its own, another takes over. A thread that is alone
//! sends once and receives once for each round trip, and one that keeps several requests in flight
//! ([`Pipe::submit`], [`Pipe::wait`]) does so for many at a time.
//!
//! A server that answers what it may not ends the connection: everyone who waits, or asks later, gets
//! the same errno, and the reason is told once ([`Pipe::failure`], and a log line).
//!
//! What is queued leaves by `send`; replies come by `input`, and `wait` says who takes them; `silence` gives up what is not
//! answered. `cancel` and `asides` ask for what nobody waits for; `land` is for payloads that shall come to
//! where they are wanted, `again` for those that are sent again from where they are; `listen` is for who wants to hear what a
//! server asks by itself; `state` is all that changes; a [`Half`] knows the protocol.
//!
//! What it lacks on purpose: how a session begins, reconnecting.
//!
//! Lock order: the pipe's one mutex, never held across a system call but for wake-ups. The two roles
//! that move bytes (sending, receiving) are taken and given back under it.

mod again;
mod asides;
mod cancel;
mod half;
mod input;
mod land;
mod listen;
mod send;
mod silence;
mod state;
mod wait;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use transports::{Link, Payloads};
use vfs::copies::copied;
use vfs::{Cx, Errno, Result};

pub(crate) use self::again::Again;
use self::asides::Asides;
pub(crate) use self::half::{Apart, Half, Received};
use self::input::Input;
pub(crate) use self::input::Reply;
pub(crate) use self::land::Landing;
pub(crate) use self::listen::rung;
use self::silence::Clock;
pub(crate) use self::state::Came;
use self::state::{Guard, State, Who};
use crate::tender::Tender;
use crate::{ConnectError, Silence};

/// A connection. Shared by all who use it; it ends when the last of them drops it.
pub struct Pipe<H: Half> {
    link: Box<dyn Link>,
    payloads: Payloads,
    reading: H::Reading,
    /// How long the server may take nothing that is sent.
    timeo: Duration,
    state: Mutex<State<H>>,
    /// Rung when the sending role is free and somebody waits for it.
    may_send: Condvar,
    /// Readable when who waits to send shall look again.
    wake: OwnedFd,
    tender: Tender,
    this: Weak<Pipe<H>>,
}

/// A request in flight. Dropping it forgets its reply.
#[must_use = "a reply that nobody waits for is forgotten"]
pub struct Ticket<'a, H: Half> {
    pipe: &'a Pipe<H>,
    number: usize,
}

impl<H: Half> fmt::Debug for Ticket<'_, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ticket").field(&self.number).finish()
    }
}

impl<H: Half> Drop for Ticket<'_, H> {
    fn drop(&mut self) {
        let mut state = self.pipe.state();
        let slot = &mut state.slots[self.number];
        if slot.reply.take().is_some() {
            state.half.release(self.number);
        } else {
            slot.who = Who::Nobody;
        }
    }
}

/// A request in flight that keeps its connection.
pub(crate) struct Kept<H: Half> {
    pub(crate) pipe: Arc<Pipe<H>>,
    number: Option<usize>,
}

impl<H: Half> Ticket<'_, H> {
    /// Of its own.
    pub(crate) fn keep(self) -> Option<Kept<H>> {
        let pipe = self.pipe.this.upgrade()?;
        let number = Some(self.number);
        std::mem::forget(self);
        Some(Kept { pipe, number })
    }
}

impl<H: Half> Kept<H> {
    /// [`Pipe::wait_landing`] for this alone, which may land in `memory`.
    pub(crate) fn wait_landing(mut self, cx: &Cx<'_>, memory: &mut [u8]) -> Result<Came<H>> {
        let ticket = self.ticket().ok_or(Errno::EIO)?;
        ticket.pipe.wait_one(cx, Landing::new(ticket, memory))
    }

    fn ticket(&mut self) -> Option<Ticket<'_, H>> {
        let number = self.number.take()?;
        let pipe = &*self.pipe;
        Some(Ticket { pipe, number })
    }
}

impl<H: Half> Drop for Kept<H> {
    fn drop(&mut self) {
        drop(self.ticket());
    }
}

/// What is to be known of a request before it is encoded.
#[derive(Clone, Copy, Default)]
pub(crate) struct Shape {
    /// About how long its reply may be at most, if it has a payload.
    pub(crate) reply: usize,
    /// How many bytes of payload follow what is encoded.
    pub(crate) payload: usize,
    /// How many zeros follow these.
    pub(crate) zeros: usize,
    /// Whether the caller has the payload until he has the reply, and can be asked for it again.
    pub(crate) lent: bool,
}

impl Shape {
    /// Replies from this size on are received one by one: see [`Input::recv`].
    const LARGE: usize = 32 << 10;
}

impl<H: Half> Pipe<H> {
    /// Requests queued beyond this leave although nobody waits yet: the server can begin on them.
    const BATCH: usize = 64 << 10;

    /// The most that is queued behind what a server has asked: more than all requests of a session with what they are
    /// copied with.
    const UNREAD: usize = 1 << 20;

    /// A pipe over `link`, on which what has to be said first has been said. Messages have up to `most` bytes, and their
    /// payloads travel as `payloads` says.
    pub(crate) fn over(
        link: Box<dyn Link>,
        half: H,
        most: usize,
        payloads: Payloads,
        silence: Silence,
    ) -> std::result::Result<Arc<Pipe<H>>, ConnectError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
            ConnectError::new(Errno::from_raw(error.raw_os_error()), error.to_string())
        })?;
        let reading = half.reading();
        Ok(Arc::new_cyclic(|this| Pipe {
            link,
            payloads,
            reading,
            timeo: silence.timeo,
            state: Mutex::new(State {
                input: Some(Input::new(most, &half)),
                half,
                slots: Vec::new(),
                queue: Vec::new(),
                spare: Vec::new(),
                sending: false,
                senders: 0,
                stuck: false,
                followers: Vec::new(),
                large: (0, 0),
                in_flight: 0,
                asides: Asides::default(),
                clock: Clock::new(silence),
                failed: None,
            }),
            may_send: Condvar::new(),
            wake,
            tender: Tender::default(),
            this: this.clone(),
        }))
    }

    /// What it takes to read a reply.
    pub(crate) fn reading(&self) -> H::Reading {
        self.reading
    }

    /// From what size on a payload is worth memory of its own to land in, bytes.
    pub(crate) fn lands_from(&self) -> usize {
        self.payloads.land
    }

    /// Whether `len` more bytes of payload may be on their way ([`Payloads::in_flight`]). Who has nothing on its way need not ask.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.state().in_flight + len <= self.payloads.in_flight
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &str {
        self.link.peer()
    }

    /// Why the connection is of no use any more, if it is.
    pub fn failure(&self) -> Option<String> {
        let state = self.state();
        state.failed.as_ref().map(|(_, why)| why.clone())
    }

    /// Does something with the protocol's own state.
    pub(crate) fn with<T>(&self, what: impl FnOnce(&mut H) -> T) -> T {
        what(&mut self.state().half)
    }

    /// Puts a request in the queue: `encode` writes it but for its payload, which it returns with the request's
    /// number. It leaves when somebody waits, or when the queue is long enough.
    ///
    /// Errs as `encode` does, or if the connection has failed.
    pub(crate) fn submit_as<'p>(
        &self,
        shape: Shape,
        encode: impl FnOnce(&mut H, &mut Vec<u8>) -> Result<(usize, &'p [u8])>,
    ) -> Result<Ticket<'_, H>> {
        let mut state = self.state();
        let separate = shape.payload >= self.payloads.gather;
        while separate && state.sending && state.failed.is_none() {
            state.senders += 1;
            state = self.may_send.wait(state).expect(POISON);
            state.senders -= 1;
        }
        state.usable()?;
        let State { half, queue, .. } = &mut *state;
        let (number, payload) = encode(half, queue)?;
        state.begin(number, Who::Ticket, shape);
        if separate {
            drop(self.send_with(state, payload, shape));
        } else {
            copied(payload.len());
            state.queue.extend_from_slice(payload);
            let len = state.queue.len() + shape.zeros;
            state.queue.resize(len, 0);
            if len >= Pipe::<H>::BATCH {
                drop(self.send_queued(state, true));
            }
        }
        Ok(Ticket { pipe: self, number })
    }

    /// [`Pipe::wait`] as part of a call that may be cancelled: then the server is asked to, and what it
    /// answers counts: the reply, or `EINTR`. If it says nothing at all any more, it is `EINTR`, and what was asked may yet be done.
    pub fn wait_in(&self, cx: &Cx<'_>, ticket: Ticket<'_, H>) -> Result<Reply<H>> {
        self.watch(cx.call, &ticket);
        self.wait(ticket)
    }

    /// [`Pipe::wait_in`] for what was lent ([`Shape::lent`]). Nothing if its server is lost, and it is to be asked again: then what
    /// was asked may be done or not, and what is done of it is done again.
    pub(crate) fn wait_lent(&self, cx: &Cx<'_>, ticket: Ticket<'_, H>) -> Result<Option<Reply<H>>> {
        self.watch(cx.call, &ticket);
        self.wait_whole(ticket)
    }

    /// [`Pipe::wait_in`] for what may take as long as others please.
    pub(crate) fn wait_long(&self, cx: &Cx<'_>, ticket: Ticket<'_, H>) -> Result<Reply<H>> {
        self.state().slots[ticket.number].long = true;
        self.wait_in(cx, ticket)
    }

    /// Ends the connection. The first reason counts.
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
            if let Some(bell) = &slot.bell {
                bell.notify_all();
            }
        }
        self.may_send.notify_all();
        self.wake_sender();
    }

    fn state(&self) -> Guard<'_, H> {
        self.state.lock().expect(POISON)
    }
}

/// What std has no constant for in `Errno`: "Connection reset by peer".
pub(crate) const ECONNRESET: Errno = Errno::from_raw(104);

const POISON: &str = "no panic holds it";

/// What is wrong with a connection.
pub(crate) fn error_text<H: Half>(peer: &str, why: &dyn fmt::Display) -> String {
    format!("{} connection to {peer}: {why}", H::NAME)
}
