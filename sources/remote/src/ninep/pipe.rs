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
//! What it lacks on purpose: reconnecting, time limits, and any knowledge of what fids point at.
//!
//! Lock order: the pipe's one mutex, never held across a system call but for wake-ups. The two roles
//! that move bytes (sending, receiving) are taken and given back under it.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::task::{Wake, Waker};

use p9::client::{Client, Received};
use p9::{Dialect, Fid, Put, Tag, Tmessage};
use rustix::event::{EventfdFlags, eventfd};
use transports::Link;
use vfs::{Call, Cx, Errno, Result};

use super::input::{Input, Reply};
use crate::ConnectError;

/// A connection. Shared by all who use it; it ends when the last of them drops it.
pub struct Pipe {
    pub(super) link: Box<dyn Link>,
    dialect: Dialect,
    msize: u32,
    payload: u32,
    state: Mutex<State>,
    /// Rung when the sending role is free and somebody waits for it.
    pub(super) may_send: Condvar,
    /// Readable when who waits to send shall look again.
    pub(super) wake: OwnedFd,
    this: Weak<Pipe>,
}

pub(super) struct State {
    client: Client,
    /// By tag.
    slots: Vec<Slot>,
    /// Requests that have not left.
    pub(super) queue: Vec<u8>,
    /// The queue's other memory.
    pub(super) spare: Vec<u8>,
    /// Whether a thread has the sending role.
    pub(super) sending: bool,
    /// How many threads wait for it.
    pub(super) senders: usize,
    /// Whether who sends waits for room, and nobody receives.
    pub(super) stuck: bool,
    /// The receiving role, unless a thread has it.
    pub(super) input: Option<Input>,
    /// Who waits for a reply, and could receive.
    followers: Vec<Tag>,
    /// How many large replies are awaited, and about how large.
    large: (usize, usize),
    clunks: Clunks,
    failed: Option<(Errno, String)>,
}

/// Fids that are given up without anyone waiting.
#[derive(Default)]
struct Clunks {
    /// Those whose Tclunk is not answered.
    in_flight: usize,
    /// Of these, those queued since anything left.
    queued: usize,
    /// Those that shall follow.
    waiting: Vec<Fid>,
}

impl Clunks {
    /// The most Tclunks in flight that nobody waits for: their replies lie in our receive buffer while
    /// nobody receives, 7 bytes each plus what the system adds.
    const IN_FLIGHT: usize = 256;

    /// So many may wait for the next request to take them along.
    const QUEUED: usize = 32;
}

/// What becomes of a reply.
#[derive(Default)]
struct Slot {
    reply: Option<Result<Reply>>,
    who: Who,
    /// Rung for a follower.
    bell: Option<Arc<Condvar>>,
    waits: bool,
    large: bool,
    /// Tells this use of the tag from earlier ones.
    life: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Who {
    /// Somebody has a ticket.
    #[default]
    Ticket,
    /// Nobody cares any more.
    Nobody,
    /// Nobody, and it was a Tclunk.
    Clunk,
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

pub(super) type Guard<'a> = MutexGuard<'a, State>;

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

    /// Gives a fid up without waiting for what the server says of it. With `soon` it is told at once, else
    /// along with the next request, or when some have gathered.
    pub fn clunk(&self, fid: Fid, soon: bool) {
        let mut state = self.state();
        if state.failed.is_some() {
            return;
        }
        state.clunk(fid);
        if soon || state.clunks.queued >= Clunks::QUEUED {
            drop(self.send_queued(state, false));
        }
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

    /// Waits for the reply. Errs as the server says, or if the connection has failed.
    pub fn wait(&self, ticket: Ticket<'_>) -> Result<Reply> {
        assert!(std::ptr::eq(self, ticket.pipe), "a ticket of another pipe");
        let tag = ticket.tag;
        std::mem::forget(ticket);
        let mut state = self.state();
        loop {
            let slot = &mut state.slots[usize::from(tag.0)];
            if let Some(reply) = slot.reply.take() {
                state.client.release(tag);
                return reply;
            }
            if let Some((errno, _)) = state.failed {
                return Err(errno);
            }
            if !state.queue.is_empty() && !state.sending {
                state = self.send_queued(state, true);
            } else if let Some(input) = state.input.take() {
                state = self.lead(state, input, tag);
            } else {
                state = self.follow(state, tag);
            }
        }
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

    fn watch(&self, call: &Call, ticket: &Ticket<'_>) {
        let cancel = Cancel {
            pipe: self.this.clone(),
            tag: ticket.tag,
            life: self.state().slots[usize::from(ticket.tag.0)].life,
        };
        call.wake_on_cancel(&Waker::from(Arc::new(cancel)));
    }

    fn cancel(&self, tag: Tag, life: u64) {
        let mut state = self.state();
        if state.failed.is_some() || state.slots[usize::from(tag.0)].life != life {
            return;
        }
        let State { client, queue, .. } = &mut *state;
        if client.cancel(tag, queue) {
            // Whoever cancels must not wait for a server that does not listen.
            drop(self.send_queued(state, false));
        }
    }

    /// Receives until the reply to `tag` has come, then hands the role on.
    fn lead<'a>(&'a self, mut state: Guard<'a>, mut input: Input, tag: Tag) -> Guard<'a> {
        loop {
            state = self.recv(state, &mut input, true);
            let done = state.slots[usize::from(tag.0)].reply.is_some();
            if done || state.failed.is_some() {
                break;
            }
            // What a canceller could not send. Not patiently: nobody would receive meanwhile.
            state = self.send_queued(state, false);
        }
        self.hand_over(&mut state, input);
        state
    }

    /// Receives once, and gives out what has come whole.
    pub(super) fn recv<'a>(&'a self, state: Guard<'a>, input: &mut Input, wait: bool) -> Guard<'a> {
        // Checked when it came.
        let begun = state.client.frame(input.pending()).unwrap_or(None);
        let next = (state.large.0 > 0).then_some(state.large.1);
        drop(state);
        let got = input.recv(&*self.link, begun, next, wait);
        let mut state = self.state();
        match got {
            Ok(0) => self.fail(&mut state, ECONNRESET, &"the server ended the connection"),
            Ok(_) => self.deliver(&mut state, input),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => self.fail(&mut state, ECONNRESET, &error),
        }
        state
    }

    fn deliver(&self, state: &mut State, input: &mut Input) {
        loop {
            let pending = input.pending();
            let len = match state.client.frame(pending) {
                Ok(Some(len)) if len <= pending.len() => len,
                Ok(_) => return,
                Err(what) => return self.fail(state, Errno::EIO, &what),
            };
            match state.client.receive(&pending[..len]) {
                Ok(Received::Answer { tag, result }) => state.answered(tag, result, input, len),
                Ok(Received::TooLate) => input.skip(len),
                Err(what) => return self.fail(state, Errno::EIO, &what),
            }
        }
    }

    /// Waits until there is a reply to `tag`, or nobody receives.
    fn follow<'a>(&'a self, mut state: Guard<'a>, tag: Tag) -> Guard<'a> {
        state.followers.push(tag);
        let slot = &mut state.slots[usize::from(tag.0)];
        slot.waits = true;
        let bell = slot.bell.get_or_insert_default().clone();
        let mut state = bell
            .wait_while(state, |state| {
                let slot = &state.slots[usize::from(tag.0)];
                slot.reply.is_none() && state.input.is_none() && state.failed.is_none()
            })
            .expect(POISON);
        state.slots[usize::from(tag.0)].waits = false;
        state.followers.retain(|&follower| follower != tag);
        state
    }

    /// Gives the receiving role back, to one who waits if there is any.
    pub(super) fn hand_over(&self, state: &mut State, input: Input) {
        state.input = Some(input);
        let next = state.followers.iter().find_map(|tag| {
            let slot = &state.slots[usize::from(tag.0)];
            slot.bell.as_ref().filter(|_| slot.reply.is_none())
        });
        match next {
            Some(bell) => bell.notify_one(),
            None if state.stuck => self.wake_sender(),
            None => {}
        }
    }

    /// Ends the connection. The first reason counts.
    #[cold]
    pub(super) fn fail(&self, state: &mut State, errno: Errno, why: &dyn fmt::Display) {
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

    pub(super) fn state(&self) -> Guard<'_> {
        self.state.lock().expect(POISON)
    }
}

/// What std has no constant for in `Errno`: "Connection reset by peer".
pub(super) const ECONNRESET: Errno = Errno::from_raw(104);

pub(super) const POISON: &str = "no panic holds it";

impl State {
    pub(super) fn usable(&self) -> Result<()> {
        match self.failed {
            Some((errno, _)) => Err(errno),
            None => Ok(()),
        }
    }

    /// What is queued has left, or is about to.
    pub(super) fn take_queue(&mut self) -> Vec<u8> {
        self.clunks.queued = 0;
        let spare = std::mem::take(&mut self.spare);
        std::mem::replace(&mut self.queue, spare)
    }

    pub(super) fn is_failed(&self) -> bool {
        self.failed.is_some()
    }

    #[inline]
    fn begin(&mut self, tag: Tag, who: Who, large: Option<usize>) {
        let at = usize::from(tag.0);
        if at >= self.slots.len() {
            self.slots.resize_with(at + 1, Slot::default);
        }
        let slot = &mut self.slots[at];
        slot.who = who;
        slot.life += 1;
        slot.large = large.is_some();
        if let Some(large) = large {
            self.large = (self.large.0 + 1, large + p9::message::DATA_HEAD);
        }
    }

    #[inline]
    fn answered(&mut self, tag: Tag, result: Result<()>, input: &mut Input, len: usize) {
        let slot = &mut self.slots[usize::from(tag.0)];
        if slot.large {
            self.large.0 -= 1;
        }
        if slot.who == Who::Ticket {
            slot.reply = Some(match result {
                Ok(()) => Ok(input.take(len)),
                Err(errno) => {
                    input.skip(len);
                    Err(errno)
                }
            });
            if let Some(bell) = slot.bell.as_ref().filter(|_| slot.waits) {
                bell.notify_one();
            }
            return;
        }
        let clunk = slot.who == Who::Clunk;
        input.skip(len);
        self.client.release(tag);
        if clunk {
            self.clunks.in_flight -= 1;
            if let Some(fid) = self.clunks.waiting.pop() {
                self.clunk(fid);
            }
        }
    }

    fn clunk(&mut self, fid: Fid) {
        if self.clunks.in_flight >= Clunks::IN_FLIGHT {
            return self.clunks.waiting.push(fid);
        }
        match self
            .client
            .request(&Tmessage::Clunk { fid }, &mut self.queue)
        {
            Ok((tag, _)) => {
                self.begin(tag, Who::Clunk, None);
                self.clunks.in_flight += 1;
                self.clunks.queued += 1;
            }
            Err(_) => self.clunks.waiting.push(fid),
        }
    }
}

/// Asks the server to cancel a request when its call is cancelled.
struct Cancel {
    pipe: Weak<Pipe>,
    tag: Tag,
    life: u64,
}

impl Wake for Cancel {
    fn wake(self: Arc<Self>) {
        if let Some(pipe) = self.pipe.upgrade() {
            pipe.cancel(self.tag, self.life);
        }
    }
}

/// Tversion and its reply.
fn greet(
    link: &dyn Link,
    client: &mut Client,
    hello: &[u8],
) -> std::result::Result<(), ConnectError> {
    let broken = |error: std::io::Error| {
        let why = error_text(link.peer(), &error);
        ConnectError::new(Errno::from(error), why)
    };
    let refused =
        |what: wire::Malformed| ConnectError::new(Errno::EPROTO, error_text(link.peer(), &what));
    link.send(hello, true).map_err(broken)?;
    // Before anything is agreed on, a message is no longer than this.
    let mut buffer = vec![0; 8192];
    let mut end = 0;
    loop {
        let whole = client.frame(&buffer[..end]).map_err(refused)?;
        match whole {
            Some(len) if len > buffer.len() => {
                let what = format!("expected Rversion, got a message of {len} bytes");
                return Err(refused(wire::Malformed::new(what)));
            }
            Some(len) if len < end => {
                let what = format!("expected nothing behind Rversion, got {} bytes", end - len);
                return Err(refused(wire::Malformed::new(what)));
            }
            Some(len) if len == end => {
                return client.agree(&buffer[..len]).map_err(refused);
            }
            _ => {}
        }
        let room = whole.unwrap_or(buffer.len());
        match link.recv(&mut buffer[end..room], true).map_err(broken)? {
            0 => {
                let what = "the server ended the connection instead of answering Tversion";
                return Err(ConnectError::new(
                    ECONNRESET,
                    error_text(link.peer(), &what),
                ));
            }
            got => end += got,
        }
    }
}

fn error_text(peer: &str, why: &dyn fmt::Display) -> String {
    format!("9P connection to {peer}: {why}")
}
