//! Timeouts of unanswered requests. A request that is cancelled, or on a soft pipe, is given up.
//! Any other ends the connection if its protocol sends requests again over a new one.

use std::time::{Duration, Instant};

use vfs::Errno;

use super::state::{Slot, State, Who};
use super::{Half, Pipe};
use crate::silence::Silence;

/// The state of the timeouts.
pub(super) struct Clock {
    /// The time of the last check.
    looked: Instant,
    /// Whether the server has sent anything since.
    pub(super) heard: bool,
    pub(super) silence: Silence,
}

impl Clock {
    pub(super) fn new(silence: Silence) -> Clock {
        Clock {
            looked: Instant::now(),
            heard: false,
            silence,
        }
    }
}

impl<H: Half> Pipe<H> {
    /// Changes whether unanswered calls fail. The pipe is soft during session setup, so that
    /// connecting ends.
    pub(crate) fn be_soft(&self, soft: bool) {
        self.state().clock.silence.soft = soft;
    }

    /// How long the server may be silent before a cancelled request is given up: longer than the
    /// server takes to answer a cancellation.
    const GRACE: Duration = Duration::from_secs(2);

    /// The shortest time between two checks in which no thread has received.
    const UNATTENDED: Duration = transports::TICK.saturating_mul(3);

    /// Ends requests that have timed out, or the connection, at most once per tick.
    pub(super) fn look_at_time(&self, state: &mut State<H>) {
        let now = Instant::now();
        let since = now - state.clock.looked;
        if since < transports::TICK {
            return;
        }
        state.clock.looked = now;
        let unattended = since >= Pipe::<H>::UNATTENDED;
        let heard = std::mem::take(&mut state.clock.heard);
        let silence = state.clock.silence;
        let mut overdue = false;
        for slot in &mut state.slots {
            if slot.is_waited_for() {
                if unattended {
                    // Its reply may have arrived, and no thread has received it.
                    slot.seen = None;
                }
                overdue |= slot.age(now, heard, silence, Pipe::<H>::GRACE);
            }
        }
        if overdue {
            self.fail(state, Silence::ERRNO, &"a request is not answered");
        }
    }
}

impl<H: Half> Slot<H> {
    fn is_waited_for(&self) -> bool {
        self.who == Who::Ticket && self.in_flight && self.over.is_none()
    }

    /// Gives the request up if its time is over, and returns whether it has to be sent again over
    /// another connection.
    fn age(&mut self, now: Instant, heard: bool, silence: Silence, grace: Duration) -> bool {
        if heard {
            self.cancelled = self.cancelled.map(|_| now);
        }
        let since = |at: Option<Instant>| at.map_or(Duration::ZERO, |at| now - at);
        if since(self.cancelled) >= grace {
            self.over = Some(Errno::EINTR);
        } else if silence.soft && !self.long && since(self.seen) >= silence.timeo {
            self.over = Some(Silence::ERRNO);
        }
        let hard = H::RESENDS_AFTER_TIMEOUT && !silence.soft && !self.long;
        let overdue = hard && since(self.seen) >= silence.resend_after(self.timeouts);
        // The first check starts the timeout, so that sending a request does not read the clock.
        self.seen.get_or_insert(now);
        if let (Some(_), Some(bell)) = (self.over, &self.bell) {
            bell.notify_all();
        }
        overdue && self.over.is_none()
    }
}
