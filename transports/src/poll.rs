//! Adaptive polling before sleeping: a wake-up costs far more than a poll, if the next message
//! arrives soon and a processor is idle.
//!
//! A poller spins and does not yield: where processors are short, each sched_yield(2) lasts as long
//! as the time slices of the others. Two observations stop polling by all pollers of the process,
//! so that each wait sleeps at once:
//!
//! - Each millisecond one of them asks the kernel whether more threads run than there are
//!   processors. While that is often so, a poller occupies the processor that its peer waits for.
//! - A long gap between two polls shows that the thread lost its own processor. The count misses
//!   that if the process is restricted to some of the machine's processors.

use std::io::{self, ErrorKind};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The polling time of one end of a connection: the window grows while messages arrive just after
/// the thread slept and shrinks while none arrive.
///
/// The number of concurrent pollers of the process is limited so that a processor is left for
/// others, and none polls for a while after one of them lost its processor.
pub struct Poller {
    max: Duration,
    window: Duration,
    /// The number of consecutive long windows that ended just before a message.
    misses: u32,
}

impl Poller {
    const FIRST_WINDOW: Duration = Duration::from_micros(5);

    /// The number of misses after which the peer is assumed to wait for the processor on which this
    /// thread spins: then messages arrive only when it sleeps. That happens without a loss of the
    /// processor.
    const MAX_MISSES: u32 = 4;

    /// Creates a poller that polls for at most `max` before it sleeps; zero disables polling.
    pub fn new(max: Duration) -> Poller {
        Poller {
            max,
            window: max.min(Poller::FIRST_WINDOW),
            misses: 0,
        }
    }

    /// Returns the default for this machine: about the time of a wake-up across processors, if
    /// there is more than one.
    pub fn default_max() -> Duration {
        Duration::from_micros(if PROCESSORS.limit > 0 { 50 } else { 0 })
    }

    /// Calls `recv(false)`, which must not block, until it returns a result other than `WouldBlock`
    /// or the window ends, and then `recv(true)`, which waits.
    #[inline]
    pub fn wait<T>(&mut self, recv: impl FnMut(bool) -> io::Result<T>) -> io::Result<T> {
        self.wait_with(&PROCESSORS, Instant::now, recv)
    }

    #[inline]
    fn wait_with<T>(
        &mut self,
        processors: &Processors,
        now: impl Fn() -> Instant,
        mut recv: impl FnMut(bool) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.max.is_zero() {
            return recv(true);
        }
        let began = now();
        let mut missed = false;
        // Without a window there is no need to check, which may take a system call.
        if !self.window.is_zero() && processors.is_paused(began) {
            return recv(true);
        }
        if !self.window.is_zero()
            && let Some(_taken) = processors.acquire()
        {
            let mut last = began;
            while last - began < self.window {
                match recv(false) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    done => {
                        self.misses = 0;
                        return done;
                    }
                }
                std::hint::spin_loop();
                let at = now();
                let gap = at - last;
                if gap > Processors::PREEMPTION_GAP {
                    processors.record_preemption(at, gap);
                    // A message that arrived meanwhile proves nothing: it would have woken this
                    // thread.
                    return recv(true);
                }
                last = at;
            }
            // A window that still grows is not conclusive.
            missed = self.window >= self.max / 2;
        }
        let received = recv(true);
        let now = now();
        if missed && now - began <= 2 * self.max {
            self.misses += 1;
            if self.misses == Poller::MAX_MISSES {
                self.misses = 0;
                processors.record_preemption(now, self.window);
            }
        }
        self.window = if now - began <= self.max {
            (self.window * 2).clamp(Poller::FIRST_WINDOW, self.max)
        } else {
            // Halved, not zeroed: one pause between two bursts should not undo the adaptation.
            if self.window > Poller::FIRST_WINDOW {
                self.window / 2
            } else {
                Duration::ZERO
            }
        };
        received
    }
}

static PROCESSORS: LazyLock<Processors> = LazyLock::new(|| {
    let mine = std::thread::available_parallelism().map_or(1, usize::from);
    let all = sys::usage::online_processors();
    // If the count is unknown, pollers detect overload by gaps alone.
    let busy = move || sys::usage::running_threads().is_some_and(|running| running > all);
    Processors::new(mine, Box::new(busy))
});

/// The processors of this machine, as shared by pollers.
struct Processors {
    /// The maximum number of concurrent pollers.
    limit: usize,
    polling: AtomicUsize,
    /// The origin of times.
    epoch: Instant,
    /// The time until which processors are assumed to be short, and the last such duration:
    /// nanoseconds.
    paused_until: AtomicU64,
    pause: AtomicU64,
    /// Returns whether more threads of the machine are runnable than it has processors.
    overloaded: Box<dyn Fn() -> bool + Send + Sync>,
    /// The time of the next call of that function: nanoseconds.
    next_check: AtomicU64,
    /// The recent frequency of overload: see [`Processors::STOP_LEVEL`].
    overload_level: AtomicU32,
    /// Whether polling is stopped because of overload.
    stopped: AtomicBool,
}

impl Processors {
    /// The gap between two polls from which on another thread had the processor. Timer interrupts
    /// take up to 100 µs of a virtual machine's time, some hundred times a second; time slices of
    /// Linux last about a millisecond and longer.
    const PREEMPTION_GAP: Duration = Duration::from_micros(200);

    /// The multiple of the gap for which polling stops: an occasional lost time slice costs 2 % at
    /// most.
    const PAUSE_FACTOR: u32 = 64;

    /// The maximum of that time. A retry that ends in a lost time slice costs a few thousandths of
    /// it.
    const MAX_PAUSE: Duration = Duration::from_secs(2);

    /// The interval of overload checks, which cost two thousandths of this time.
    const CHECK_INTERVAL: Duration = Duration::from_millis(1);

    /// The level at which polling stops; it resumes at zero. A check of an overloaded machine adds
    /// two, another one subtracts one. On an idle machine one check in eight finds kernel threads
    /// that wait for the processor of a poller until the next tick, often four checks in a row.
    /// With a busy loop each check finds the loop, or every other one if the peer sleeps more than
    /// it works.
    const STOP_LEVEL: u32 = 24;

    fn new(processors: usize, overloaded: Box<dyn Fn() -> bool + Send + Sync>) -> Processors {
        Processors {
            limit: processors.saturating_sub(1),
            polling: AtomicUsize::new(0),
            epoch: Instant::now(),
            paused_until: AtomicU64::new(0),
            pause: AtomicU64::new(0),
            overloaded,
            next_check: AtomicU64::new(0),
            // The first check decides.
            overload_level: AtomicU32::new(1),
            stopped: AtomicBool::new(true),
        }
    }

    fn acquire(&self) -> Option<PollingSlot<'_>> {
        let taken = PollingSlot(self);
        // The guard is created first, so that an excess increment is undone with it.
        (self.polling.fetch_add(1, Ordering::Relaxed) < self.limit).then_some(taken)
    }

    fn nanos(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.epoch).as_nanos() as u64
    }

    #[inline]
    fn is_paused(&self, now: Instant) -> bool {
        let now = self.nanos(now);
        if now < self.paused_until.load(Ordering::Relaxed) {
            return true;
        }
        if now >= self.next_check.load(Ordering::Relaxed) {
            self.check_load(now);
        }
        self.stopped.load(Ordering::Relaxed)
    }

    /// Counts the running threads, and stops or resumes polling.
    #[cold]
    fn check_load(&self, now: u64) {
        let next = now + Processors::CHECK_INTERVAL.as_nanos() as u64;
        self.next_check.store(next, Ordering::Relaxed);
        let overload_level = self.overload_level.load(Ordering::Relaxed);
        let overload_level = match (self.overloaded)() {
            true => (overload_level + 2).min(Processors::STOP_LEVEL),
            false => overload_level.saturating_sub(1),
        };
        self.overload_level.store(overload_level, Ordering::Relaxed);
        match overload_level {
            0 => self.stopped.store(false, Ordering::Relaxed),
            Processors::STOP_LEVEL => self.stopped.store(true, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Records that a poller was without its processor for `gap`. If that happens soon after the
    /// last time, the pause doubles.
    fn record_preemption(&self, now: Instant, gap: Duration) {
        let now = self.nanos(now);
        let until = self.paused_until.load(Ordering::Relaxed);
        let last = self.pause.load(Ordering::Relaxed);
        let least = (gap * Processors::PAUSE_FACTOR).as_nanos() as u64;
        let longest = Processors::MAX_PAUSE.as_nanos() as u64;
        let time = match now {
            // Another poller has detected it at the same time.
            _ if now < until => least.max(last),
            _ if now - until <= last => least.max(2 * last),
            _ => least,
        };
        let time = time.min(longest);
        self.pause.store(time, Ordering::Relaxed);
        self.paused_until.store(now + time, Ordering::Relaxed);
        // The first check after the pause decides.
        self.overload_level.store(1, Ordering::Relaxed);
        self.stopped.store(true, Ordering::Relaxed);
    }
}

struct PollingSlot<'a>(&'a Processors);

impl Drop for PollingSlot<'_> {
    fn drop(&mut self) {
        self.0.polling.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::*;

    const POLL: Duration = Duration::from_micros(1);
    const SLICE: Duration = Duration::from_millis(4);

    /// Creates processors of a machine that is not overloaded.
    fn processors(processors: usize) -> Processors {
        Processors::new(processors, Box::new(|| false))
    }

    /// A machine whose clock advances with each poll, by a scripted time or [`POLL`].
    struct Machine {
        processors: Processors,
        passed: Cell<Duration>,
    }

    impl Machine {
        fn new() -> Machine {
            Machine {
                processors: processors(2),
                passed: Cell::default(),
            }
        }

        /// Creates a machine of two processors on which the returned number of threads run.
        fn with_threads(threads: usize) -> (Machine, Arc<AtomicUsize>) {
            let running = Arc::new(AtomicUsize::new(threads));
            let counted = running.clone();
            let overloaded = move || counted.load(Ordering::Relaxed) > 2;
            let machine = Machine {
                processors: Processors::new(2, Box::new(overloaded)),
                passed: Cell::default(),
            };
            (machine, running)
        }

        fn pass(&self, time: Duration) {
            self.passed.set(self.passed.get() + time);
        }

        /// Waits for a message that arrives `asleep` after the thread sleeps. After the poll
        /// numbered `loses` the processor is lost for a [`SLICE`]. Returns the number of polls.
        fn wait(&self, poller: &mut Poller, loses: Option<usize>, asleep: Duration) -> usize {
            let mut polls = 0;
            let clock = || self.processors.epoch + self.passed.get();
            let waited = poller.wait_with(&self.processors, clock, |wait| {
                if wait {
                    self.pass(asleep);
                    return Ok(());
                }
                polls += 1;
                self.pass(if loses == Some(polls) { SLICE } else { POLL });
                Err(ErrorKind::WouldBlock.into())
            });
            waited.expect("received");
            polls
        }
    }

    fn poller() -> Poller {
        let mut poller = Poller::new(Duration::from_micros(50));
        poller.window = poller.max;
        poller
    }

    #[test]
    fn the_window_grows_with_early_messages_and_shrinks_to_nothing_without() {
        let machine = Machine::new();
        let mut poller = Poller::new(Duration::from_micros(50));
        poller.window = Duration::ZERO;
        let polls = |poller: &mut Poller, asleep| machine.wait(poller, None, asleep);
        let early: Vec<_> = (0..5).map(|_| polls(&mut poller, POLL)).collect();
        assert_eq!(early, [0, 5, 10, 20, 40]);
        let late: Vec<_> = (0..6).map(|_| polls(&mut poller, SLICE)).collect();
        assert_eq!(late, [50, 25, 13, 7, 4, 0]);
        assert_eq!(machine.processors.polling.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_message_that_is_there_is_found_without_sleeping() {
        let machine = Machine::new();
        let clock = || machine.processors.epoch;
        let waited = poller().wait_with(&machine.processors, clock, Ok);
        assert!(!waited.expect("received"));
    }

    #[test]
    fn a_lost_processor_is_followed_by_sleep_for_a_time_that_grows() {
        let machine = Machine::new();
        let mut poller = poller();
        let rest = |poller: &mut Poller| {
            assert_eq!(machine.wait(poller, Some(3), Duration::ZERO), 3);
            let began = machine.passed.get();
            // Messages arrive during the pause, which does not end it.
            while machine.wait(poller, None, SLICE / 8) == 0 {}
            (machine.passed.get() - began).as_millis()
        };
        let rests: Vec<_> = (0..5).map(|_| rest(&mut poller)).collect();
        let expected = [256, 512, 1024, 2000, 2000];
        for (rest, expected) in rests.iter().zip(expected) {
            assert!((expected..expected + 2).contains(rest), "{rests:?}");
        }
        // There was no loss for longer than the last pause.
        machine.pass(Duration::from_secs(3));
        poller.window = poller.max;
        assert!((256..258).contains(&rest(&mut poller)));
    }

    #[test]
    fn a_peer_that_needs_the_same_processor_gets_it() {
        let machine = Machine::new();
        let mut poller = poller();
        let wait = |poller: &mut Poller| machine.wait(poller, None, 8 * POLL);
        let polls: Vec<_> = (0..5).map(|_| wait(&mut poller)).collect();
        assert_eq!(polls, [50, 25, 50, 25, 0]);
        // An occasional message within the window proves that the peer needs no processor.
        machine.pass(Processors::MAX_PAUSE);
        for _ in 0..20 {
            assert!(wait(&mut poller) > 0);
            let clock = || machine.processors.epoch + machine.passed.get();
            let found = poller.wait_with(&machine.processors, clock, Ok);
            assert!(!found.expect("received"));
        }
    }

    #[test]
    fn timer_interrupts_are_no_loss_of_the_processor() {
        let machine = Machine::new();
        let clock = || machine.processors.epoch + machine.passed.get();
        let mut poller = Poller::new(Duration::from_millis(1));
        poller.window = poller.max;
        for _ in 0..50 {
            let mut polls = 0;
            let found = poller.wait_with(&machine.processors, clock, |_| {
                polls += 1;
                machine.pass(if polls == 2 { 100 * POLL } else { POLL });
                match polls < 9 {
                    true => Err(ErrorKind::WouldBlock.into()),
                    false => Ok(()),
                }
            });
            found.expect("found");
            assert_eq!(polls, 9);
            assert!(!machine.processors.is_paused(clock()));
        }
    }

    #[test]
    fn when_one_has_lost_its_processor_no_other_polls() {
        let machine = Machine::new();
        let (mut one, mut other) = (poller(), poller());
        machine.wait(&mut one, Some(1), Duration::ZERO);
        assert_eq!(machine.wait(&mut other, None, Duration::ZERO), 0);
        // Both may have lost it at the same time, which does not extend the pause.
        let now = machine.processors.epoch + machine.passed.get();
        machine.processors.record_preemption(now, SLICE);
        machine.pass(SLICE * Processors::PAUSE_FACTOR);
        assert!(machine.wait(&mut other, None, Duration::ZERO) > 0);
    }

    #[test]
    fn pollers_sleep_on_an_overloaded_machine() {
        let (machine, running) = Machine::with_threads(3);
        let mut poller = poller();
        let mut count = |machine: &Machine, threads, times| -> Vec<bool> {
            running.store(threads, Ordering::Relaxed);
            let mut polls = || {
                poller.window = poller.max;
                machine.wait(&mut poller, None, Processors::CHECK_INTERVAL) > 0
            };
            (0..times).map(|_| polls()).collect()
        };
        // Overload in every other check is enough.
        for _ in 0..24 {
            assert_eq!(count(&machine, 3, 1), [false]);
            assert_eq!(count(&machine, 2, 1), [false]);
        }
        let polled = count(&machine, 2, 40);
        assert!(polled.is_sorted() && !polled[20] && polled[24]);
        // Overload in one check of five, four in a row, is not.
        for _ in 0..10 {
            assert_eq!(count(&machine, 3, 4), [true; 4]);
            assert_eq!(count(&machine, 2, 16), [true; 16]);
        }
        let polled = count(&machine, 3, 24);
        assert!(polled.iter().rev().is_sorted() && polled[10] && !polled[12]);
        assert_eq!(count(&machine, 3, 100), [false; 100]);
    }

    #[test]
    fn a_poller_without_a_window_does_not_count_threads() {
        let mut machine = Machine::new();
        let counts = Arc::new(AtomicUsize::new(0));
        let counted = counts.clone();
        let overloaded = move || counted.fetch_add(1, Ordering::Relaxed) > 0;
        machine.processors = Processors::new(2, Box::new(overloaded));
        let mut poller = poller();
        poller.window = Duration::ZERO;
        for _ in 0..10 {
            assert_eq!(machine.wait(&mut poller, None, SLICE), 0);
        }
        assert_eq!(counts.load(Ordering::Relaxed), 0);
        // An early message opens the window, and the next wait counts.
        machine.wait(&mut poller, None, POLL);
        assert!(machine.wait(&mut poller, None, SLICE) > 0);
        assert_eq!(counts.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn after_a_loss_one_check_decides() {
        let (machine, running) = Machine::with_threads(2);
        let mut poller = poller();
        assert_eq!(machine.wait(&mut poller, Some(3), Duration::ZERO), 3);
        running.store(3, Ordering::Relaxed);
        machine.pass(SLICE * Processors::PAUSE_FACTOR);
        assert_eq!(machine.wait(&mut poller, None, Duration::ZERO), 0);
        running.store(2, Ordering::Relaxed);
        machine.pass(SLICE);
        assert_eq!(machine.wait(&mut poller, None, SLICE), 0);
        machine.pass(SLICE);
        assert_eq!(machine.wait(&mut poller, None, SLICE), 0);
        assert_eq!(machine.wait(&mut poller, Some(3), Duration::ZERO), 3);
        machine.pass(2 * SLICE * Processors::PAUSE_FACTOR);
        assert!(machine.wait(&mut poller, None, Duration::ZERO) > 0);
    }

    #[test]
    fn one_processor_spares_none() {
        assert!(processors(1).acquire().is_none());
        let two = processors(2);
        let taken = two.acquire();
        assert!(taken.is_some() && two.acquire().is_none());
        drop(taken);
        assert!(two.acquire().is_some());
    }

    #[test]
    fn polling_off_only_waits() {
        let mut poller = Poller::new(Duration::ZERO);
        let waited = poller.wait_with(&processors(8), Instant::now, Ok);
        assert!(waited.expect("received"));
    }

    #[test]
    fn an_error_ends_the_polling() {
        let broken = |_| Err::<(), _>(ErrorKind::BrokenPipe.into());
        let error = poller().wait_with(&processors(2), Instant::now, broken);
        assert_eq!(
            error.err().map(|error| error.kind()),
            Some(ErrorKind::BrokenPipe)
        );
    }
}
