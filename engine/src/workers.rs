//! Threads for what would block, shared by all lanes.
//!
//! The pool grows while there is more to do than idle threads, up to its bound, and shrinks when there is
//! nothing. One thread always stays, or requests would wait for ever when no other can be had. No lane has
//! more than half of the pool at once: a client whose requests all hang leaves the others theirs.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
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
    /// How many of them wait for work, those included that are about to start.
    idle: usize,
    /// Whether it was told that no more could be had.
    told: bool,
    /// Whether nobody has work for any.
    closed: bool,
}

struct Timer {
    due: Instant,
    request: Weak<dyn Run>,
}

impl Workers {
    /// How long a worker waits for work before it ends.
    const IDLE: Duration = Duration::from_secs(10);

    pub(crate) fn new(max: usize) -> io::Result<Arc<Workers>> {
        let workers = Arc::new(Workers {
            queue: Mutex::default(),
            work: Condvar::new(),
            max: max.max(2),
        });
        workers.hire(&mut workers.queue())?;
        Ok(workers)
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

    /// Nobody has work for them any more: they end.
    pub(crate) fn close(&self) {
        self.queue().closed = true;
        self.work.notify_all();
    }

    /// Sees to it that there is somebody for each request, and to watch the time.
    fn staff(self: &Arc<Self>, queue: &mut Queue) {
        if queue.idle > 0 {
            self.work.notify_one();
        }
        let wanted = queue.ready.len() + usize::from(!queue.timers.is_empty());
        if wanted <= queue.idle || queue.threads >= self.max {
            return;
        }
        match self.hire(queue) {
            Err(error) if !std::mem::replace(&mut queue.told, true) => {
                let have = queue.threads;
                tracing::warn!("no more workers than {have}, requests may have to wait: {error}");
            }
            _ => {}
        }
    }

    fn hire(self: &Arc<Self>, queue: &mut Queue) -> io::Result<()> {
        let workers = self.clone();
        std::thread::Builder::new()
            .name("barge-worker".into())
            .spawn(move || workers.work())?;
        queue.threads += 1;
        queue.idle += 1;
        Ok(())
    }

    fn work(self: Arc<Self>) {
        self.queue().idle -= 1;
        let mut out = Outbox::default();
        while let Some(request) = self.next() {
            request.run(&mut out);
            out.clear();
        }
    }

    fn next(self: &Arc<Self>) -> Option<Arc<dyn Run>> {
        let mut queue = self.queue();
        let mut needless = false;
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
                if !queue.timers.is_empty() {
                    self.staff(&mut queue);
                }
                return Some(request);
            }
            if needless || queue.closed {
                queue.threads -= 1;
                return None;
            }
            let rest = match queue.timers.peek() {
                Some(Reverse(timer)) => timer.due - now,
                None if queue.threads > 1 => Workers::IDLE,
                None => Duration::MAX,
            };
            queue.idle += 1;
            let (back, slept) = self
                .work
                .wait_timeout(queue, rest)
                .expect("no panic holds it");
            queue = back;
            queue.idle -= 1;
            needless = slept.timed_out() && queue.timers.is_empty() && queue.threads > 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_worker_stays_until_nobody_has_work_any_more() {
        struct Done(std::sync::mpsc::Sender<()>);
        impl Run for Done {
            fn run(self: Arc<Self>, _: &mut Outbox) {
                self.0.send(()).expect("awaited");
            }

            fn wake(self: Arc<Self>) {}
        }
        let workers = Workers::new(2).expect("a thread");
        let (done, all) = std::sync::mpsc::channel();
        for _ in 0..10 {
            workers.run(Arc::new(Done(done.clone())));
        }
        assert_eq!(all.iter().take(10).count(), 10);
        assert!((1..=2).contains(&workers.queue().threads));
        workers.close();
        while workers.queue().threads > 0 {
            std::thread::yield_now();
        }
    }
}
