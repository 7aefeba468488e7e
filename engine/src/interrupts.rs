//! Interrupted requests of a device: a signal has reached the client's thread that waits for one.
//!
//! The client reports a request's first signal of any kind, and no later one (FUSE_INTERRUPT). A
//! signal that the thread handles ends a wait for a lock, at once, and nothing else. One that ends
//! the thread ends any request. So as long as an interrupted request is in flight, a thread of the
//! device asks from time to time whether its waiter will end ([`ClientThreads`]), and cancels it if
//! so. Most requests are answered before the first question.
//!
//! A request that is served inline is not in flight, and an interrupt may overtake one on its way
//! there. So a request that is not found is looked for again for a second.
//!
//! Lock order: [`Interrupts::active`], then the questions, or a table of requests in flight.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use wire::ClientThreads;

use crate::queue::Queues;

/// The pause before the first question. It doubles for each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest pause, and so the time that a thread lasts after a second signal, which ends it.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// The number of times that a request is not found before it counts as answered.
const MAX_ABSENCES: u32 = 7;

/// Maximum number of interrupted requests. Further interrupts have no effect but on locks: there
/// are as many only if more threads wait than a machine normally has.
const MAX_QUESTIONS: usize = 1 << 16;

/// Maximum number of threads that one question is about.
const MAX_THREADS: usize = 256;

/// The interrupted requests of a device.
pub(crate) struct Interrupts {
    /// Answers the questions; `None` if the client has no threads on this host.
    threads: Option<Arc<dyn ClientThreads>>,
    questions: Mutex<Questions>,
    /// Notified when a question is added.
    added: Condvar,
    /// Held while the thread uses the queues; false once these end.
    active: Mutex<bool>,
}

#[derive(Default)]
struct Questions {
    by_time: BinaryHeap<Reverse<Question>>,
    /// Whether a thread asks them.
    is_asked: bool,
}

/// An interrupted request, ordered by the time of the next question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Question {
    due: Instant,
    id: u64,
    pause: Duration,
    absences: u32,
}

impl Question {
    fn new(id: u64) -> Question {
        Question {
            due: Instant::now() + FIRST_PAUSE,
            id,
            pause: FIRST_PAUSE,
            absences: 0,
        }
    }

    /// Returns the question after this one.
    fn again(self) -> Question {
        let pause = (self.pause * 2).min(MAX_PAUSE);
        Question {
            due: Instant::now() + pause,
            pause,
            ..self
        }
    }

    /// Returns the question after this one, whose request was not found, if it may still begin.
    fn after_absence(self) -> Option<Question> {
        let absences = self.absences + 1;
        (absences < MAX_ABSENCES).then(|| Question {
            absences,
            ..self.again()
        })
    }
}

impl Interrupts {
    pub(crate) fn new(threads: Option<Arc<dyn ClientThreads>>) -> Arc<Interrupts> {
        Arc::new(Interrupts {
            threads,
            questions: Mutex::default(),
            added: Condvar::new(),
            active: Mutex::new(true),
        })
    }

    /// Notes that the request `id` of `queues` is interrupted.
    pub(crate) fn add(self: &Arc<Self>, queues: &Arc<Queues>, id: u64) {
        if self.threads.is_none() {
            return;
        }
        let mut questions = self.questions.lock();
        if questions.by_time.len() >= MAX_QUESTIONS {
            return;
        }
        questions.by_time.push(Reverse(Question::new(id)));
        if questions.is_asked {
            self.added.notify_one();
            return;
        }
        let (interrupts, queues) = (self.clone(), Arc::downgrade(queues));
        let spawned = std::thread::Builder::new()
            .name("barge-signals".into())
            .spawn(move || interrupts.ask(&queues));
        match spawned {
            Ok(_) => questions.is_asked = true,
            // The next interrupt tries again.
            Err(error) => tracing::debug!("cannot start the thread that looks at signals: {error}"),
        }
    }

    /// Stops the use of the queues, which end: nothing must keep their session afterwards.
    pub(crate) fn close(&self) {
        *self.active.lock() = false;
    }

    /// Asks questions until there are none left.
    fn ask(self: Arc<Self>, queues: &Weak<Queues>) {
        loop {
            let Some(due) = self.wait_for_due() else {
                return;
            };
            let mut again = Vec::new();
            let mut waiting = Vec::new();
            let found = self.with(queues, |queues| {
                for question in due {
                    match queues.interrupt(question.id) {
                        Some(thread) => waiting.push((question, thread)),
                        None => again.extend(question.after_absence()),
                    }
                }
            });
            if found.is_none() {
                return;
            }
            for some in waiting.chunks(MAX_THREADS) {
                let threads: Vec<u32> = some.iter().map(|(_, thread)| *thread).collect();
                // Without a lock and the queues: the answer may take time.
                let ending = (self.threads.as_ref()).map(|them| them.are_ending(&threads));
                let ending = ending.unwrap_or_default();
                let is_ending = |at: usize| ending.get(at).copied().unwrap_or(false);
                self.with(queues, |queues| {
                    for (at, (question, _)) in some.iter().enumerate() {
                        if is_ending(at) {
                            queues.cancel(question.id);
                        } else {
                            again.push(question.again());
                        }
                    }
                });
            }
            let again = again.into_iter().map(Reverse);
            self.questions.lock().by_time.extend(again);
        }
    }

    /// Waits until questions are due, and returns them; `None` if there are none left.
    fn wait_for_due(&self) -> Option<Vec<Question>> {
        let mut questions = self.questions.lock();
        loop {
            let now = Instant::now();
            match questions.by_time.peek() {
                Some(&Reverse(next)) if next.due > now => {
                    self.added.wait_until(&mut questions, next.due);
                }
                Some(_) => break,
                None => {
                    questions.is_asked = false;
                    return None;
                }
            }
        }
        let mut due = Vec::new();
        while let Some(&Reverse(next)) = questions.by_time.peek()
            && next.due <= Instant::now()
        {
            due.push(next);
            questions.by_time.pop();
        }
        Some(due)
    }

    /// Calls `what` with the queues, unless they end.
    fn with<T>(&self, queues: &Weak<Queues>, what: impl FnOnce(&Queues) -> T) -> Option<T> {
        let active = self.active.lock();
        let queues = queues.upgrade().filter(|_| *active)?;
        Some(what(&queues))
    }
}
