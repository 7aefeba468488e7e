//! Deadlines of connections.

use std::time::{Duration, Instant};

/// The times without progress after which a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the connection's start until its first complete message.
    pub handshake: Duration,
    /// From a message's first byte until its last, for each started mebibyte of it: this bounds the
    /// time for which an incomplete message holds memory.
    pub message: Duration,
    /// Without progress in sending replies while some are queued.
    pub send: Duration,
    /// Without a message while none is in flight; unlimited if `None`, as clients may leave a
    /// mounted file system unused for days.
    pub idle: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            handshake: Duration::from_secs(30),
            message: Duration::from_secs(30),
            // A virtual machine that is suspended or being migrated reads no replies meanwhile.
            send: Duration::from_secs(300),
            idle: None,
        }
    }
}

impl Timeouts {
    /// The time for which a connection keeps buffers that only a busy one needs: their pages cost
    /// as much to get as half a megabyte to copy.
    const BUFFER_RETENTION: Duration = Duration::from_millis(500);

    /// Returns the interval at which a receiving lane checks the time: short enough for each
    /// deadline.
    pub(crate) fn tick(&self) -> Duration {
        let shortest = [
            self.handshake,
            self.message,
            self.idle.unwrap_or(Duration::MAX),
        ];
        let shortest = shortest
            .into_iter()
            .fold(Timeouts::BUFFER_RETENTION, Duration::min);
        shortest.max(Duration::from_millis(1))
    }
}

/// The receive deadlines of a connection.
pub(crate) struct Deadlines {
    timeouts: Timeouts,
    /// The time of the last complete message, or of the connection's start before the first one.
    last_message: Instant,
    /// Whether a message was received at all.
    handshake_done: bool,
    /// The start time of a partly received message.
    message_began: Option<Instant>,
}

impl Deadlines {
    pub(crate) fn new(timeouts: Timeouts) -> Deadlines {
        Deadlines {
            timeouts,
            last_message: Instant::now(),
            handshake_done: false,
            message_began: None,
        }
    }

    /// Notes that complete messages arrived, and whether the next one is partly received.
    pub(crate) fn received(&mut self, partial: bool) {
        self.handshake_done = true;
        self.message_began = None;
        self.incomplete(partial);
    }

    /// Notes that no complete message arrived since the last call, and whether one is partly
    /// received.
    pub(crate) fn incomplete(&mut self, partial: bool) {
        if partial && self.message_began.is_none() {
            self.message_began = Some(Instant::now());
        }
    }

    /// Restarts the deadline of a partly received message after the server itself could not receive
    /// for a while.
    pub(crate) fn restart_message(&mut self) {
        if let Some(began) = &mut self.message_began {
            *began = Instant::now();
        }
    }

    /// Notes that no request of the peer is in progress.
    pub(crate) fn set_idle(&mut self, now: Instant) {
        self.last_message = now;
    }

    /// Returns the time left from `now` on for more of a message of `len` bytes, 0 if unknown, and
    /// the reason for the limit; `None` if unlimited.
    pub(crate) fn time_left(&self, now: Instant, len: usize) -> Option<(Duration, &'static str)> {
        let Timeouts {
            handshake,
            message,
            idle,
            ..
        } = self.timeouts;
        let (due, why) = match self.message_began {
            Some(began) => {
                let mebibytes = u32::try_from(len >> 20)
                    .unwrap_or(u32::MAX)
                    .saturating_add(1);
                (
                    began + message.saturating_mul(mebibytes),
                    "a message took too long to arrive",
                )
            }
            None if !self.handshake_done => {
                (self.last_message + handshake, "no message arrived in time")
            }
            None => (
                self.last_message + idle?,
                "the connection was idle for too long",
            ),
        };
        Some((due.saturating_duration_since(now), why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_phase_has_its_own_deadline() {
        let timeouts = Timeouts {
            handshake: 2 * SECOND,
            message: 3 * SECOND,
            send: SECOND,
            idle: Some(100 * SECOND),
        };
        let mut deadlines = Deadlines::new(timeouts);
        let start = deadlines.last_message;
        let left = |deadlines: &Deadlines, after: Duration, len| {
            deadlines
                .time_left(start + after, len)
                .map(|(left, _)| left)
        };
        assert_eq!(left(&deadlines, SECOND, 0), Some(SECOND));
        assert_eq!(left(&deadlines, 5 * SECOND, 0), Some(Duration::ZERO));
        deadlines.incomplete(true);
        let began = deadlines.message_began.expect("it has begun");
        let left_of =
            |deadlines: &Deadlines, len| deadlines.time_left(began, len).map(|(left, _)| left);
        assert_eq!(left_of(&deadlines, 100), Some(3 * SECOND));
        assert_eq!(left_of(&deadlines, 4 << 20), Some(15 * SECOND));
        // More bytes of the same message do not move the deadline.
        deadlines.incomplete(true);
        assert_eq!(deadlines.message_began, Some(began));
        deadlines.received(false);
        deadlines.set_idle(start + SECOND);
        assert_eq!(left(&deadlines, 2 * SECOND, 0), Some(99 * SECOND));
    }

    #[test]
    fn an_idle_client_has_all_the_time_there_is() {
        let mut deadlines = Deadlines::new(Timeouts::default());
        deadlines.received(false);
        assert_eq!(
            deadlines.time_left(deadlines.last_message + 1000 * SECOND, 0),
            None
        );
    }
}
