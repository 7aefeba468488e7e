//! Whether to look again before going to sleep: a wake-up costs far more than a look, if the
//! next message comes soon.

use std::io::{self, ErrorKind};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// An end of a connection's own idea of how long looking again pays: it grows while messages come just
/// after it slept and shrinks while they do not come at all. Where others want the processor it does
/// not pay, unless it is they who asked for it: then the next message is there when they have had it.
///
/// Of all the pollers of the process, no more look at once than leave a processor for others.
pub struct Poller {
    max: Duration,
    window: Duration,
    /// How many times to wait without looking before, and how many the next time.
    rest: u32,
    next_rest: u32,
}

impl Poller {
    const FIRST: Duration = Duration::from_micros(5);

    /// Giving way takes longer only if someone took the processor. Who did may have been the one that asks next.
    const GAVE_WAY: Duration = Duration::from_micros(8);

    /// How often not to look after that; twice as often each time, until looking has paid.
    const REST: u32 = 16;
    const LONGEST_REST: u32 = 4096;

    /// One that looks for at most `max` before it sleeps; zero is not at all.
    pub fn new(max: Duration) -> Poller {
        Poller {
            max,
            window: max.min(Poller::FIRST),
            rest: 0,
            next_rest: Poller::REST,
        }
    }

    /// What suits this machine: about as long as a wake-up across processors takes, if there is more
    /// than one.
    pub fn usual() -> Duration {
        Duration::from_micros(if SPARE.limit > 0 { 50 } else { 0 })
    }

    /// Tries `recv(false)`, which must not wait, until it gives something but `WouldBlock` or the
    /// window is over, and then has `recv(true)` wait.
    #[inline]
    pub fn wait<T>(&mut self, recv: impl FnMut(bool) -> io::Result<T>) -> io::Result<T> {
        self.wait_sparing(&SPARE, std::thread::yield_now, recv)
    }

    fn wait_sparing<T>(
        &mut self,
        spare: &Spare,
        give_way: impl Fn(),
        mut recv: impl FnMut(bool) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.max.is_zero() || self.rest > 0 {
            self.rest = self.rest.saturating_sub(1);
            return recv(true);
        }
        let began = Instant::now();
        if !self.window.is_zero()
            && let Some(_taken) = spare.take()
        {
            let (mut now, mut gave_way) = (began, false);
            while now - began < self.window || gave_way {
                match recv(false) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    done => {
                        self.next_rest = Poller::REST;
                        return done;
                    }
                }
                if gave_way {
                    self.rest = self.next_rest;
                    self.next_rest = (self.next_rest * 2).min(Poller::LONGEST_REST);
                    break;
                }
                let before = Instant::now();
                give_way();
                now = Instant::now();
                gave_way = now - before > Poller::GAVE_WAY;
            }
        }
        let received = recv(true);
        self.window = if began.elapsed() <= self.max {
            (self.window * 2).clamp(Poller::FIRST, self.max)
        } else {
            // Halving, not zeroing: one pause between two bursts should not undo what was learned.
            if self.window > Poller::FIRST {
                self.window / 2
            } else {
                Duration::ZERO
            }
        };
        received
    }
}

static SPARE: LazyLock<Spare> =
    LazyLock::new(|| Spare::new(std::thread::available_parallelism().map_or(1, usize::from)));

/// Grants processors to those that poll.
struct Spare {
    limit: usize,
    taken: AtomicUsize,
}

impl Spare {
    fn new(processors: usize) -> Spare {
        Spare {
            limit: processors.saturating_sub(1),
            taken: AtomicUsize::new(0),
        }
    }

    fn take(&self) -> Option<Taken<'_>> {
        let taken = Taken(self);
        // The guard is there first, so that a take too many is given back with it.
        (self.taken.fetch_add(1, Ordering::Relaxed) < self.limit).then_some(taken)
    }
}

struct Taken<'a>(&'a Spare);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing is there to be had without waiting.
    fn late(wait: bool) -> io::Result<()> {
        match wait {
            true => Ok(()),
            false => Err(ErrorKind::WouldBlock.into()),
        }
    }

    #[test]
    fn the_window_grows_with_early_messages_and_shrinks_to_nothing_without() {
        let spare = Spare::new(2);
        let mut poller = Poller::new(Duration::from_secs(3600));
        poller.window = Duration::ZERO;
        poller.wait_sparing(&spare, || (), late).expect("received");
        assert_eq!(poller.window, Poller::FIRST);
        poller.max = Duration::from_nanos(1);
        for _ in 0..10 {
            poller.window = poller.window.min(Duration::from_micros(1));
            poller.wait_sparing(&spare, || (), late).expect("received");
        }
        assert_eq!(poller.window, Duration::ZERO);
        assert_eq!(spare.taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_gave_way_to_whom_it_waits_for_finds_it_before_it_sleeps() {
        let asked = AtomicUsize::new(0);
        let other = || {
            std::thread::sleep(2 * Poller::GAVE_WAY);
            asked.store(1, Ordering::Relaxed);
        };
        let mut poller = Poller::new(Duration::from_secs(3600));
        poller.window = Duration::from_nanos(1);
        let waited = poller.wait_sparing(&Spare::new(2), other, |wait| {
            match asked.load(Ordering::Relaxed) {
                0 => late(wait).map(|()| wait),
                _ => Ok(wait),
            }
        });
        assert!(!waited.expect("received"));
        assert_eq!(poller.rest, 0);
    }

    #[test]
    fn who_gave_way_to_others_rests() {
        let others = || std::thread::sleep(2 * Poller::GAVE_WAY);
        let mut poller = Poller::new(Duration::from_secs(3600));
        poller
            .wait_sparing(&Spare::new(2), others, late)
            .expect("received");
        assert_eq!(poller.rest, Poller::REST);
    }

    #[test]
    fn one_processor_spares_none() {
        assert!(Spare::new(1).take().is_none());
        let two = Spare::new(2);
        let taken = two.take();
        assert!(taken.is_some() && two.take().is_none());
        drop(taken);
        assert!(two.take().is_some());
    }

    #[test]
    fn polling_off_only_waits() {
        let mut poller = Poller::new(Duration::ZERO);
        let waited = poller
            .wait_sparing(&Spare::new(8), || (), Ok)
            .expect("received");
        assert!(waited);
    }

    #[test]
    fn an_error_ends_the_polling() {
        let mut poller = Poller::new(Duration::from_secs(3600));
        poller.window = poller.max;
        let broken = |_| Err::<(), _>(ErrorKind::BrokenPipe.into());
        let error = poller.wait_sparing(&Spare::new(2), || (), broken).err();
        assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::BrokenPipe));
    }
}
