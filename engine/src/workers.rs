//! Threads for what would block, shared by all lanes.
//!
//! The pool grows while there is work and nobody idle, up to its bound, and shrinks when there is
//! none. No lane has more than half of it at once: a client whose requests all hang leaves
//! the others theirs.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use transports::Outbox;

use crate::request::Run;

pub(crate) struct Workers {
    queue: Mutex<Queue>,
    work: Condvar,
    max: usize,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<Arc<dyn Run>>,
    timers: BinaryHeap<Reverse<Timer>>,
    threads: usize,
    idle: usize,
}

struct Timer {
    due: Instant,
    request: Weak<dyn Run>,
}

impl Workers {
    /// How long a worker waits for work before it ends.
    const IDLE: Duration = Duration::from_secs(10);

    pub(crate) fn new(max: usize) -> Arc<Workers> {
        Arc::new(Workers {
            queue: Mutex::default(),
            work: Condvar::new(),
            max: max.max(2),
        })
    }

    /// How many requests of one lane may run at once.
    pub(crate) fn share(&self) -> usize {
        self.max / 2
    }

    /// Has `request` run.
    pub(crate) fn run(self: &Arc<Self>, request: Arc<dyn Run>) {
        let mut queue = self.queue();
        queue.ready.push_back(request);
        self.staff(&mut queue);
    }

    /// Has `request` woken after `time`, unless it is answered before.
    pub(crate) fn wake_after(self: &Arc<Self>, time: Duration, request: &Arc<dyn Run>) {
        let mut queue = self.queue();
        let due = Instant::now() + time;
        queue.timers.push(Reverse(Timer {
            due,
            request: Arc::downgrade(request),
        }));
        self.staff(&mut queue);
    }

    fn staff(self: &Arc<Self>, queue: &mut Queue) {
        if queue.idle > 0 {
            self.work.notify_one();
            return;
        }
        if queue.threads >= self.max {
            return;
        }
        let workers = self.clone();
        let spawned = std::thread::Builder::new()
            .name("barge-worker".into())
            .spawn(move || workers.work());
        match spawned {
            Ok(_) => queue.threads += 1,
            // One thread is owed, or requests would wait for ever.
            Err(error) if queue.threads == 0 => panic!("cannot start a worker: {error}"),
            Err(_) => {}
        }
    }

    fn work(self: Arc<Self>) {
        let mut out = Outbox::default();
        while let Some(request) = self.next() {
            request.run(&mut out);
            out.clear();
        }
    }

    fn next(&self) -> Option<Arc<dyn Run>> {
        let mut queue = self.queue();
        loop {
            let now = Instant::now();
            while let Some(timer) = queue.timers.pop_if_due(now) {
                if let Some(request) = timer.request.upgrade() {
                    drop(queue);
                    request.wake();
                    queue = self.queue();
                }
            }
            if let Some(request) = queue.ready.pop_front() {
                return Some(request);
            }
            let next_timer = queue.timers.peek().map(|Reverse(timer)| timer.due - now);
            queue.idle += 1;
            let (back, slept) = self
                .work
                .wait_timeout(queue, next_timer.unwrap_or(Workers::IDLE))
                .expect("no panic holds it");
            queue = back;
            queue.idle -= 1;
            if slept.timed_out() && queue.ready.is_empty() && queue.timers.is_empty() {
                queue.threads -= 1;
                return None;
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no panic holds it")
    }
}

trait PopIfDue {
    fn pop_if_due(&mut self, now: Instant) -> Option<Timer>;
}

impl PopIfDue for BinaryHeap<Reverse<Timer>> {
    fn pop_if_due(&mut self, now: Instant) -> Option<Timer> {
        if self.peek()?.0.due > now {
            return None;
        }
        self.pop().map(|Reverse(timer)| timer)
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Timer) -> bool {
        self.due == other.due
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Timer) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Timer) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}
