//! Timeouts of unanswered requests. A request that is cancelled, or on a soft connection, is given
//! up. Any other ends the connection if its protocol sends requests again over a new one.

use std::time::{Duration, Instant};

use vfs::Errno;

use super::state::{Slot, State, Waiter};
use super::{ClientCodec, Connection};
use crate::timeouts::Timeouts;

/// The state of the timeouts.
pub(super) struct TimeoutState {
    /// The time of the last check.
    last_check: Instant,
    /// Whether the server has sent anything since.
    pub(super) received: bool,
    pub(super) timeouts: Timeouts,
}

impl TimeoutState {
    pub(super) fn new(silence: Timeouts) -> TimeoutState {
        TimeoutState {
            last_check: Instant::now(),
            received: false,
            timeouts: silence,
        }
    }
}

impl<H: ClientCodec> Connection<H> {
    /// Changes whether unanswered calls fail. The connection is soft during session setup, so that
    /// connecting ends.
    pub(crate) fn set_soft(&self, soft: bool) {
        self.state().timeout_state.timeouts.soft = soft;
    }

    /// How long the server may be silent before a cancelled request is given up: longer than the
    /// server takes to answer a cancellation, and no longer than a user waits for the end of a
    /// program.
    const GRACE: Duration = Duration::from_secs(1);

    /// The shortest time between two checks in which no thread has received.
    const UNATTENDED_AFTER: Duration = transports::RECV_INTERVAL.saturating_mul(3);

    /// Ends requests that have timed out, or the connection, at most once per tick.
    pub(super) fn check_timeouts(&self, state: &mut State<H>) {
        let now = Instant::now();
        let since = now - state.timeout_state.last_check;
        if since < transports::RECV_INTERVAL {
            return;
        }
        state.timeout_state.last_check = now;
        let unattended = since >= Connection::<H>::UNATTENDED_AFTER;
        let heard = std::mem::take(&mut state.timeout_state.received);
        let silence = state.timeout_state.timeouts;
        let mut overdue = false;
        for slot in &mut state.slots {
            if slot.has_waiter() {
                if unattended {
                    // Its reply may have arrived, and no thread has received it.
                    slot.first_check = None;
                }
                overdue |= slot.check_timeout(now, heard, silence, Connection::<H>::GRACE);
            }
        }
        if overdue {
            self.fail(state, Timeouts::ERRNO, &"a request is not answered");
        }
    }
}

impl<H: ClientCodec> Slot<H> {
    fn has_waiter(&self) -> bool {
        self.waiter == Waiter::Ticket && self.in_flight && self.given_up.is_none()
    }

    /// Gives the request up if its time is over, and returns whether it has to be sent again over
    /// another connection.
    fn check_timeout(
        &mut self,
        now: Instant,
        heard: bool,
        silence: Timeouts,
        grace: Duration,
    ) -> bool {
        if heard {
            self.cancelled = self.cancelled.map(|_| now);
        }
        let since = |at: Option<Instant>| at.map_or(Duration::ZERO, |at| now - at);
        if since(self.cancelled) >= grace {
            self.given_up = Some(Errno::EINTR);
        } else if silence.soft && since(self.first_check) >= silence.timeo {
            self.given_up = Some(Timeouts::ERRNO);
        }
        let hard = H::RESENDS_AFTER_TIMEOUT && !silence.soft;
        let overdue = hard && since(self.first_check) >= silence.resend_after(self.timeouts);
        // The first check starts the timeout, so that sending a request does not read the clock.
        self.first_check.get_or_insert(now);
        if let (Some(_), Some(wakeup)) = (self.given_up, &self.wakeup) {
            wakeup.notify_all();
        }
        overdue && self.given_up.is_none()
    }
}
