//! Requests that are not answered: after a while they are given up, if they were cancelled or the pipe is soft.

use std::time::{Duration, Instant};

use vfs::Errno;

use super::state::{Slot, State, Who};
use super::{Half, Pipe};
use crate::silence::Silence;

/// What there is to know of the time.
pub(super) struct Clock {
    /// When it was last looked at requests.
    looked: Instant,
    /// Whether the server has said anything since.
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
    /// Whether calls that are not answered in time fail, other than it was made to: nobody waits for ever to get to know a
    /// server.
    pub(crate) fn be_soft(&self, soft: bool) {
        self.state().clock.silence.soft = soft;
    }

    /// For how long a server may say nothing at all until what was cancelled is given up: longer than who answers takes to.
    const GRACE: Duration = Duration::from_secs(2);

    /// From time to time, looks for those who have waited long enough, and has them told.
    pub(super) fn look_at_time(&self, state: &mut State<H>) {
        let now = Instant::now();
        if now - state.clock.looked < transports::TICK {
            return;
        }
        state.clock.looked = now;
        let heard = std::mem::take(&mut state.clock.heard);
        let silence = state.clock.silence;
        for slot in &mut state.slots {
            if slot.is_waited_for() {
                slot.age(now, heard, silence, Pipe::<H>::GRACE);
            }
        }
    }
}

impl<H: Half> Slot<H> {
    fn is_waited_for(&self) -> bool {
        self.who == Who::Ticket && self.in_flight && self.over.is_none()
    }

    fn age(&mut self, now: Instant, heard: bool, silence: Silence, grace: Duration) {
        if heard {
            self.cancelled = self.cancelled.map(|_| now);
        }
        let since = |at: Option<Instant>| at.map_or(Duration::ZERO, |at| now - at);
        if since(self.cancelled) >= grace {
            self.over = Some(Errno::EINTR);
        } else if silence.soft && !self.long && since(self.seen) >= silence.timeo {
            self.over = Some(Silence::ERRNO);
        }
        // The first look sets the clock: no request pays for one.
        self.seen.get_or_insert(now);
        if let (Some(_), Some(bell)) = (self.over, &self.bell) {
            bell.notify_all();
        }
    }
}
