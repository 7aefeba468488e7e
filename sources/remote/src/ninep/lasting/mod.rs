//! A link to a 9P server that outlasts its connections.
//!
//! What goes through it is noted ([`p9::recovery`]). When the connection is lost, who receives makes another, says
//! again what the session has, and what was in flight is sent again; who speaks through the link sees none of it but
//! the time it takes. Meanwhile requests are taken and wait, and who cancels is answered at once.
//!
//! A request is copied, to be sent again; but not the payload of a write that its sender has until it is answered, who is told to
//! send it again himself (`pipe::Again`).
//!
//! It is used by the client half here, and by whoever stands between another client and a server.
//!
//! `send` is one way, `receive` the other, `renew` makes connections; `relay` is for another client.
//!
//! Lock order: the runs of what is sent, or what is known of the message that comes; then the state. Nothing waits for
//! a peer under the state's lock.

mod receive;
mod relay;
mod renew;
mod send;

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use p9::Tag;
use p9::recovery::Record;
use rustix::event::{EventfdFlags, eventfd};
use transports::{Interest, Link, Origin, Payloads, Ready};

use self::receive::Incoming;
pub use self::relay::relay;
use self::send::Runs;
use crate::{Retry, Silence};

/// Makes a connection.
pub type Dial = Box<dyn Fn() -> io::Result<Box<dyn Link>> + Send + Sync>;

/// See the module. What is given to [`Link::send`] has to be whole messages, or the rest of what was given before.
pub struct LastingLink {
    dial: Dial,
    retry: Retry,
    /// How long a server may take nothing, or not answer what it is told when it has come again.
    timeo: Duration,
    peer: String,
    payloads: Payloads,
    state: Mutex<State>,
    /// The state is another than it was.
    changed: Condvar,
    /// Readable when who waits for the server shall look at the state.
    bell: OwnedFd,
    runs: Mutex<Runs>,
    incoming: Mutex<Incoming>,
}

struct State {
    record: Record,
    link: Arc<dyn Link>,
    /// Of connections, the how manieth.
    epoch: u64,
    up: bool,
    /// Whole messages that are not the server's.
    answers: VecDeque<u8>,
    /// What was lent to us and went to a server that is lost.
    again: Vec<Tag>,
    /// What the server said while it was told what was in flight.
    early: VecDeque<u8>,
    outage: Option<Outage>,
    /// Why there will be no connection any more.
    failed: Option<String>,
    ended: bool,
}

/// A time without a server.
struct Outage {
    since: Instant,
    next: Instant,
    pause: Duration,
}

impl LastingLink {
    /// Goes on with `link`, on which nothing has been said, and then with what `dial` makes.
    pub fn new(link: Box<dyn Link>, dial: Dial, retry: Retry) -> io::Result<LastingLink> {
        Ok(LastingLink {
            dial,
            retry,
            timeo: Silence::default().timeo,
            peer: link.peer().to_owned(),
            payloads: link.payloads(),
            state: Mutex::new(State {
                record: Record::default(),
                link: link.into(),
                epoch: 0,
                up: true,
                answers: VecDeque::new(),
                again: Vec::new(),
                early: VecDeque::new(),
                outage: None,
                failed: None,
                ended: false,
            }),
            changed: Condvar::new(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            runs: Mutex::default(),
            incoming: Mutex::default(),
        })
    }

    /// The same, to a server that loses its connection when it takes nothing for `timeo`.
    pub fn patient(self, timeo: Duration) -> LastingLink {
        LastingLink { timeo, ..self }
    }

    /// The connection of `epoch` is of no use any more.
    fn lost(&self, epoch: u64, why: &dyn fmt::Display) {
        let mut state = self.state();
        if state.epoch != epoch || !state.up {
            return;
        }
        state.record.lost();
        state.up = false;
        state.epoch += 1;
        state.link.hang_up();
        if state.ended {
            return;
        }
        let wanted = self.retry != Retry::For(Duration::ZERO);
        if wanted && state.record.is_recoverable() {
            tracing::warn!("9P connection to {}: {why}; connecting again", self.peer);
            let now = Instant::now();
            state.outage = Some(Outage {
                since: now,
                next: now,
                pause: Outage::FIRST,
            });
        } else {
            state.failed = Some(why.to_string());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(POISON)
    }

    /// Has who waits look at the state.
    fn ring(&self) {
        self.changed.notify_all();
        // Fails only when the counter is full, and then it is set.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn hush(&self) {
        let mut count = [0; 8];
        // Whether or not it had been rung.
        let _ = rustix::io::read(&self.bell, &mut count);
    }
}

const POISON: &str = "no panic holds it";

impl Link for LastingLink {
    fn recv(&self, buf: &mut [u8], wait: bool) -> io::Result<usize> {
        self.receive(buf, wait, None)
    }

    /// What is said while a connection is made anew comes without files.
    fn recv_handed(
        &self,
        buf: &mut [u8],
        wait: bool,
        file: &mut Option<OwnedFd>,
    ) -> io::Result<usize> {
        self.receive(buf, wait, Some(file))
    }

    fn send(&self, bytes: &[u8], wait: bool) -> io::Result<usize> {
        self.send_pieces(&[IoSlice::new(bytes)], 0, wait)
    }

    fn send_vectored(&self, pieces: &[IoSlice<'_>], wait: bool) -> io::Result<usize> {
        self.send_pieces(pieces, 0, wait)
    }

    fn send_lent(&self, messages: &[u8], payload: &[u8], wait: bool) -> io::Result<usize> {
        let pieces = [IoSlice::new(messages), IoSlice::new(payload)];
        self.send_pieces(&pieces, payload.len(), wait)
    }

    /// Without a server everything can be sent.
    fn wait(
        &self,
        interest: Interest,
        wake: BorrowedFd<'_>,
        time: Option<Duration>,
    ) -> io::Result<Ready> {
        let state = self.state();
        let quiet = state.answers.is_empty() && state.again.is_empty() && state.early.is_empty();
        let read = interest.read && !quiet;
        let write = interest.write && !state.up;
        if read || write {
            return Ok(Ready {
                read,
                write,
                ..Ready::default()
            });
        }
        let link = state.link.clone();
        drop(state);
        link.wait(interest, wake, time)
    }

    fn end_input(&self) {
        self.hang_up();
    }

    fn hang_up(&self) {
        let mut state = self.state();
        state.ended = true;
        state.link.hang_up();
        drop(state);
        self.ring();
    }

    fn payloads(&self) -> Payloads {
        self.payloads
    }

    fn peer(&self) -> &str {
        &self.peer
    }

    fn origin(&self) -> Origin {
        Origin::Inherited
    }
}
