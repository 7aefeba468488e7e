//! A connection to a 9P server, with many requests in flight.
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
//! What is queued leaves by `send`; replies come by `input`, and `wait` says who takes them. `greet` is the
//! session's beginning; `cancel` and `clunks` ask for what nobody waits for; `state` is all that changes.
//!
//! What it lacks on purpose: reconnecting, time limits, and any knowledge of what fids point at.
//!
//! Lock order: the pipe's one mutex, never held across a system call but for wake-ups. The two roles
//! that move bytes (sending, receiving) are taken and given back under it.

mod cancel;
mod clunks;
mod greet;
mod input;
mod send;
mod state;
mod wait;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, Weak};

use p9::client::Client;
use p9::{Dialect, Fid, Tag, Tmessage};
use rustix::event::{EventfdFlags, eventfd};
use transports::Link;
use vfs::{Cx, Errno, Result};
use wire::Put;

use self::clunks::Clunks;
use self::greet::greet;
use self::input::Input;
pub use self::input::Reply;
use self::state::{Guard, State, Who};
use crate::ConnectError;

/// A connection. Shared by all who use it; it ends when the last of them drops it.
pub struct Pipe {
    link: Box<dyn Link>,
    dialect: Dialect,
    msize: u32,
    payload: u32,
    state: Mutex<State>,
    /// Rung when the sending role is free and somebody waits for it.
    may_send: Condvar,
    /// Readable when who waits to send shall look again.
    wake: OwnedFd,
    this: Weak<Pipe>,
}

/// A request in flight. Dropping it forgets its reply.
#[must_use = "a reply that nobody waits for is forgotten"]
pub struct Ticket<'a> {
    pipe: &'a Pipe,
    tag: Tag,
}

impl fmt::Debug for Ticket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ticket").field(&self.tag).finish()
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = self.pipe.state();
        let slot = &mut state.slots[usize::from(self.tag.0)];
        if slot.reply.take().is_some() {
            state.client.release(self.tag);
        } else {
            slot.who = Who::Nobody;
        }
    }
}

impl Pipe {
    /// Requests queued beyond this leave although nobody waits yet: the server can begin on them.
    const BATCH: usize = 64 << 10;

    /// Payloads up to this are copied into the queue; larger ones leave from where they are. About where a
    /// copy costs as much as a piece more in a system call.
    const INLINE: usize = 8 << 10;

    /// Replies from this size on are received one by one: see [`Input::recv`].
    const LARGE: u32 = 32 << 10;

    /// Begins a session over `link`: agrees on a dialect, at best `dialect`, and on the size of messages,
    /// at most `msize`.
    pub fn open(
        link: impl Link + 'static,
        dialect: Dialect,
        msize: u32,
    ) -> std::result::Result<Arc<Pipe>, ConnectError> {
        let mut client = Client::new(dialect, msize);
        let mut hello = Vec::new();
        client.hello(&mut hello);
        greet(&link, &mut client, &hello)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
            ConnectError::new(Errno::from_raw(error.raw_os_error()), error.to_string())
        })?;
        let (dialect, msize) = (client.dialect(), client.msize());
        Ok(Arc::new_cyclic(|this| Pipe {
            link: Box::new(link),
            dialect,
            msize,
            payload: client.payload(),
            state: Mutex::new(State {
                client,
                slots: Vec::new(),
                queue: Vec::new(),
                spare: Vec::new(),
                sending: false,
                senders: 0,
                stuck: false,
                input: Some(Input::new(msize, dialect)),
                followers: Vec::new(),
                large: (0, 0),
                clunks: Clunks::default(),
                failed: None,
            }),
            may_send: Condvar::new(),
            wake,
            this: this.clone(),
        }))
    }

    /// What is spoken.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The largest message, bytes.
    pub fn msize(&self) -> u32 {
        self.msize
    }

    /// The most bytes that one read asks for, or one write sends.
    pub fn payload(&self) -> u32 {
        self.payload
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

    /// A number for a new fid, which is the caller's to establish, and then to [`Pipe::clunk`] or, if the
    /// server never knew it, to [`Pipe::forget`].
    pub fn fid(&self) -> Result<Fid> {
        self.state().client.new_fid()
    }

    /// A fid that the server does not know.
    pub fn forget(&self, fid: Fid) {
        self.state().client.forget_fid(fid);
    }

    /// Puts a request in the queue. It leaves when somebody waits, or when the queue is long enough.
    ///
    /// Errs if the dialect lacks it (`EOPNOTSUPP`), it is too long (`EMSGSIZE`), too many are in flight
    /// (`ENOBUFS`), or the connection has failed.
    pub fn submit(&self, request: &Tmessage<'_>) -> Result<Ticket<'_>> {
        let (most, payload) = match request {
            Tmessage::Read { count, .. } | Tmessage::Readdir { count, .. } => (*count, 0),
            Tmessage::Write { data, .. } => (0, data.0.len()),
            _ => (0, 0),
        };
        let mut state = self.state();
        let separate = payload > Pipe::INLINE;
        while separate && state.sending && state.failed.is_none() {
            state.senders += 1;
            state = self.may_send.wait(state).expect(POISON);
            state.senders -= 1;
        }
        state.usable()?;
        let State { client, queue, .. } = &mut *state;
        let (tag, payload) = client.request(request, queue)?;
        state.begin(
            tag,
            Who::Ticket,
            (most >= Pipe::LARGE).then_some(most as usize),
        );
        if separate {
            drop(self.send_with(state, payload));
        } else {
            state.queue.put(payload);
            if state.queue.len() >= Pipe::BATCH {
                drop(self.send_queued(state, true));
            }
        }
        Ok(Ticket { pipe: self, tag })
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

    /// [`Pipe::wait`] as part of a call that may be cancelled.
    pub fn wait_in(&self, cx: &Cx<'_>, ticket: Ticket<'_>) -> Result<Reply> {
        // A call that nobody can run again is one that nobody cancels.
        if cx.call.waker().is_some() {
            self.watch(cx.call, &ticket);
        }
        self.wait(ticket)
    }

    /// Ends the connection. The first reason counts.
    #[cold]
    fn fail(&self, state: &mut State, errno: Errno, why: &dyn fmt::Display) {
        if state.failed.is_some() {
            return;
        }
        let why = error_text(self.link.peer(), why);
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

    fn state(&self) -> Guard<'_> {
        self.state.lock().expect(POISON)
    }
}

/// What std has no constant for in `Errno`: "Connection reset by peer".
const ECONNRESET: Errno = Errno::from_raw(104);

const POISON: &str = "no panic holds it";

fn error_text(peer: &str, why: &dyn fmt::Display) -> String {
    format!("9P connection to {peer}: {why}")
}
