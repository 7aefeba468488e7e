//! Queues over rings in memory.

use std::any::Any;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use engine::{QueueThread, Queues, Tuning};
use rustix::event::{EventfdFlags, eventfd};
use transports::{Exchange, Outbox, Ring};
use vfs_testkit::Message;
use wire::{Incoming, Outgoing};

use crate::fake::{FakeSession, Rig};

struct Memory {
    state: Mutex<State>,
    changed: Condvar,
    notifier: OwnedFd,
}

impl Default for Memory {
    fn default() -> Memory {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Memory {
            state: Mutex::default(),
            changed: Condvar::new(),
            notifier: eventfd(0, flags).expect("an event"),
        }
    }
}

#[derive(Default)]
struct State {
    available: VecDeque<Vec<u8>>,
    used: Vec<Vec<u8>>,
    /// The number of those that the peer was notified of.
    signalled: usize,
    stopped: bool,
    /// Whether requests can be put back.
    restarts: bool,
    put_back: Vec<Vec<u8>>,
    broken: bool,
    /// Whether notifications are enabled, because no thread pops requests.
    notifications: bool,
    /// How often a thread has resumed popping requests.
    resumed: usize,
    /// Requests that the peer sends in turn, each after a reply.
    next: VecDeque<Vec<u8>>,
}

impl State {
    fn notify_if_enabled(&self, notifier: &OwnedFd) {
        if self.notifications && (self.stopped || !self.available.is_empty()) {
            rustix::io::write(notifier, &1u64.to_ne_bytes()).expect("written");
        }
    }
}

impl Memory {
    fn ask(&self, messages: &[&[u8]]) {
        let mut state = self.state.lock().expect("no panic holds it");
        for message in messages {
            let len = [message.len() as u8 + 1];
            state.available.push_back([&len, *message].concat());
        }
        state.notify_if_enabled(&self.notifier);
        self.changed.notify_all();
    }

    fn stop(&self) {
        let mut state = self.state.lock().expect("no panic holds it");
        state.stopped = true;
        state.notify_if_enabled(&self.notifier);
        self.changed.notify_all();
    }

    /// Waits until the peer was notified of this many replies, and returns them without their
    /// lengths.
    fn replies(&self, count: usize) -> Vec<Vec<u8>> {
        let state = self.state.lock().expect("no panic holds it");
        let state = self
            .changed
            .wait_while(state, |state| state.signalled < count)
            .expect("no panic holds it");
        let signalled = state.used[..state.signalled].iter();
        signalled
            .map(|reply| reply.get(1..).unwrap_or_default().to_vec())
            .collect()
    }
}

struct Pair {
    message: Message<Vec<u8>>,
    reply: Outbox,
}

impl Exchange for Pair {
    fn split(&mut self) -> (&dyn Incoming, &mut dyn Outgoing) {
        (&self.message, &mut self.reply)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl Ring for Memory {
    fn pop(&self, _: &dyn Fn(&[u8]) -> Option<usize>) -> io::Result<Option<Box<dyn Exchange>>> {
        let mut state = self.state.lock().expect("no panic holds it");
        if state.broken {
            return Err(ErrorKind::InvalidData.into());
        }
        let next = state.available.pop_front().filter(|_| !state.stopped);
        Ok(next.map(|message| {
            Box::new(Pair {
                message: Message::new(message),
                reply: Outbox::default(),
            }) as Box<dyn Exchange>
        }))
    }

    fn push_used(&self, exchange: Box<dyn Exchange>) {
        let pair: Box<Pair> = exchange.into_any().downcast().expect("ours");
        let mut state = self.state.lock().expect("no panic holds it");
        state.used.push(pair.reply.bytes().to_vec());
        if let Some(next) = state.next.pop_front() {
            state.available.push_back(next);
            state.notify_if_enabled(&self.notifier);
            drop(state);
            // Gives a stand-in the time to start.
            std::thread::yield_now();
        }
    }

    fn restarts(&self) -> bool {
        self.state.lock().expect("no panic holds it").restarts
    }

    fn put_back(&self, exchange: Box<dyn Exchange>) {
        let pair: Box<Pair> = exchange.into_any().downcast().expect("ours");
        assert!(pair.reply.bytes().is_empty());
        let mut state = self.state.lock().expect("no panic holds it");
        state.put_back.push(pair.message.bytes()[1..].to_vec());
    }

    fn signal(&self) {
        let mut state = self.state.lock().expect("no panic holds it");
        state.signalled = state.used.len();
        self.changed.notify_all();
    }

    fn wait(&self, wait: bool) -> io::Result<bool> {
        let mut state = self.state.lock().expect("no panic holds it");
        loop {
            if state.stopped {
                return Ok(false);
            }
            if !state.available.is_empty() || state.broken {
                return Ok(true);
            }
            if !wait {
                return Err(ErrorKind::WouldBlock.into());
            }
            state = self.changed.wait(state).expect("no panic holds it");
        }
    }

    fn enable_notifications(&self) -> io::Result<bool> {
        let mut state = self.state.lock().expect("no panic holds it");
        state.notifications = true;
        Ok(!state.stopped && !state.available.is_empty())
    }

    fn disable_notifications(&self) -> io::Result<()> {
        let mut state = self.state.lock().expect("no panic holds it");
        state.notifications = false;
        state.resumed += 1;
        let _ = rustix::io::read(&self.notifier, &mut [0; 8]);
        Ok(())
    }

    fn notifier(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }

    fn name(&self) -> &str {
        "memory"
    }
}

/// Creates the queues of a session.
fn queues(rig: &Rig) -> Arc<Queues> {
    rig.fake.sessions.fetch_add(1, Ordering::SeqCst);
    rig.engine.queues(Arc::new(FakeSession(rig.fake.clone())))
}

fn start(queues: &Arc<Queues>) -> (Arc<Memory>, QueueThread) {
    let ring = Arc::new(Memory::default());
    let queue = queues.start(ring.clone(), None);
    (ring, queue.expect("started"))
}

/// Creates a ring and starts its queue.
fn started(rig: &Rig) -> (Arc<Memory>, QueueThread) {
    start(&queues(rig))
}

#[test]
fn what_blocks_stops_nothing_else_of_its_queue() {
    let rig = Rig::new(Tuning::default());
    let (ring, queue) = started(&rig);
    ring.ask(&[b"\x01w", b"\x02p", b"\x03e"]);
    assert_eq!(ring.replies(1), [b"\x03e"]);
    rig.fake.await_reached(2);
    rig.fake.open(2);
    assert_eq!(ring.replies(2)[1], b"\x02p");
    rig.fake.open(1);
    assert_eq!(ring.replies(3)[2], b"\x01w");
    ring.stop();
    queue.cancel_and_join();
}

#[test]
fn a_queue_is_not_read_before_sessions_have_been_resumed() {
    let rig = Rig::new(Tuning::default());
    rig.engine.adopt(Vec::new());
    let (ended, queue) = started(&rig);
    ended.ask(&[b"\x01e"]);
    let (served, other) = started(&rig);
    served.ask(&[b"\x02e"]);
    // A device that could not continue stops its queues before that.
    ended.stop();
    queue.cancel_and_join();
    rig.engine.end_resuming();
    assert_eq!(served.replies(1), [b"\x02e"]);
    served.stop();
    other.cancel_and_join();
    let left = ended.state.lock().expect("no panic holds it");
    assert_eq!((left.available.len(), left.used.len()), (1, 0));
}

#[test]
fn used_requests_are_signalled_in_batches_and_all_in_the_end() {
    let rig = Rig::new(Tuning::default());
    let (ring, queue) = started(&rig);
    let asked: Vec<[u8; 2]> = (0..100).map(|id| [id, b'e']).collect();
    let asked: Vec<&[u8]> = asked.iter().map(|message| &message[..]).collect();
    ring.ask(&asked);
    assert_eq!(ring.replies(100), asked);
    ring.stop();
    queue.cancel_and_join();
}

#[test]
fn a_malformed_request_is_returned_empty_and_the_queue_continues() {
    let rig = Rig::new(Tuning::default());
    let (ring, queue) = started(&rig);
    ring.ask(&[b"\x01x", b"\x02e"]);
    assert_eq!(ring.replies(2), [&b""[..], b"\x02e"]);
    ring.stop();
    queue.cancel_and_join();
}

#[test]
fn a_request_is_cancelled_by_its_name_even_if_others_have_it_too() {
    let rig = Rig::new(Tuning::default());
    let (ring, queue) = started(&rig);
    ring.ask(&[b"\x01p", b"\x02p"]);
    rig.fake.await_reached(1);
    rig.fake.await_reached(2);
    ring.ask(&[b"\x03c\x02"]);
    assert_eq!(ring.replies(2), [b"\x02i".to_vec(), b"\x03c\x02".to_vec()]);
    rig.fake.open(1);
    assert_eq!(ring.replies(3)[2], b"\x01p");
    ring.stop();
    queue.cancel_and_join();
}

#[test]
fn a_cancellation_is_answered_after_what_it_cancels_and_so_is_one_of_that() {
    let rig = Rig::new(Tuning::default());
    let (ring, queue) = started(&rig);
    // It is not notified before its end.
    ring.ask(&[b"\x01w"]);
    rig.fake.await_reached(1);
    ring.ask(&[b"\x02c\x01", b"\x03c\x02", b"\x04c\x09", b"\x05e"]);
    assert_eq!(ring.replies(2), [&b"\x04c\x09"[..], b"\x05e"]);
    rig.fake.open(1);
    assert_eq!(
        ring.replies(5)[2..],
        [&b"\x01w"[..], b"\x02c\x01", b"\x03c\x02"]
    );
    ring.stop();
    queue.cancel_and_join();
}

#[test]
fn a_cancellation_that_waits_is_answered_before_the_queue_ends() {
    let rig = Rig::new(Tuning::default());
    let queues = queues(&rig);
    let ((one, first), (other, second)) = (start(&queues), start(&queues));
    one.ask(&[b"\x01w"]);
    rig.fake.await_reached(1);
    other.ask(&[b"\x02c\x01", b"\x03e"]);
    assert_eq!(other.replies(1), [b"\x03e"]);
    other.stop();
    let waiting = std::thread::spawn(move || second.join());
    rig.fake.open(1);
    waiting.join().expect("no panic");
    assert_eq!(other.replies(2)[1], b"\x02c\x01");
    one.stop();
    first.join();
}

#[test]
fn what_waits_when_a_queue_stops_is_put_back_if_the_ring_starts_again() {
    for restarts in [false, true] {
        let rig = Rig::new(Tuning::default());
        let (ring, queue) = started(&rig);
        ring.state.lock().expect("no panic holds it").restarts = restarts;
        // One is parked, one sleeps in a worker, one is cancelled by its client before the stop.
        ring.ask(&[b"\x01p", b"\x02s", b"\x03p"]);
        for id in 1..=3 {
            rig.fake.await_reached(id);
        }
        ring.ask(&[b"\x04c\x03"]);
        assert_eq!(ring.replies(2), [&b"\x03i"[..], b"\x04c\x03"]);
        ring.stop();
        queue.cancel_and_join();
        let state = ring.state.lock().expect("no panic holds it");
        let mut answered: Vec<_> = state.used[2..].iter().map(|reply| reply[1]).collect();
        answered.sort_unstable();
        match restarts {
            true => {
                assert_eq!(answered, [2]);
                assert_eq!(state.put_back, [b"\x01p"]);
            }
            false => {
                assert_eq!(answered, [1, 2]);
                assert!(state.put_back.is_empty());
            }
        }
    }
}

#[test]
fn a_request_is_cancelled_through_another_queue_of_its_session() {
    let rig = Rig::new(Tuning::default());
    let queues = queues(&rig);
    let ((one, first), (other, second)) = (start(&queues), start(&queues));
    one.ask(&[b"\x01p"]);
    rig.fake.await_reached(1);
    other.ask(&[b"\x02c\x01"]);
    assert_eq!(one.replies(1), [b"\x01i"]);
    assert_eq!(other.replies(1), [b"\x02c\x01"]);
    for (ring, queue) in [(one, first), (other, second)] {
        ring.stop();
        queue.cancel_and_join();
    }
}

#[test]
fn what_goes_through_queues_counts_while_they_are_there_and_after() {
    let rig = Rig::new(Tuning::default());
    let (ring, queue) = started(&rig);
    ring.ask(&[b"\x01e and more", b"\x02p", b"\x02p"]);
    rig.fake.await_reached(2);
    ring.ask(&[b"\x03c\x02"]);
    ring.replies(3);
    ring.ask(&[b"\x04x"]);
    ring.replies(4);
    let (connections, before) = rig.engine.stats();
    assert_eq!(connections, 0);
    assert_eq!((before.requests, before.offloaded), (5, 2));
    assert_eq!(before.received, 12 + 3 + 3 + 4 + 3);
    assert_eq!((before.cancelled, before.sent), (1, 12 + 3 + 4));
    ring.stop();
    queue.cancel_and_join();
    let after = rig.engine.stats().1;
    assert_eq!((after.cancelled, after.sent), (2, before.sent + 3));
}

#[test]
fn a_queue_has_the_name_of_its_listener() {
    let rig = Rig::new(Tuning::default());
    let session = Arc::new(FakeSession(rig.fake.clone()));
    rig.fake.sessions.fetch_add(1, Ordering::SeqCst);
    let (ring, queue) = start(&rig.engine.queues_at(session, "unix:/run/b.sock"));
    ring.ask(&[b"\x01e"]);
    ring.replies(1);
    let lanes = rig.engine.snapshot().lanes;
    let listeners: Vec<_> = lanes.iter().map(|lane| &*lane.listener).collect();
    assert_eq!(listeners, ["unix:/run/b.sock"]);
    ring.stop();
    queue.join();
}

#[test]
fn a_stopped_queue_ends_when_what_is_in_flight_is_answered() {
    let rig = Rig::new(Tuning::default());
    let (ring, queue) = started(&rig);
    ring.ask(&[b"\x01p", b"\x01p", b"\x02p"]);
    rig.fake.await_reached(1);
    rig.fake.await_reached(2);
    ring.stop();
    queue.cancel_and_join();
    let mut replies = ring.replies(3);
    replies.sort();
    assert_eq!(replies, [b"\x01i", b"\x01i", b"\x02i"]);
    rig.fake.await_no_session();
}

#[test]
fn a_stop_ends_what_the_queues_own_thread_is_at() {
    for poll in [Duration::ZERO, Tuning::default().poll] {
        let tuning = Tuning {
            poll,
            ..Tuning::default()
        };
        let rig = Rig::new(tuning);
        let (ring, queue) = started(&rig);
        ring.ask(&[b"\x01s", b"\x02s", b"\x03p"]);
        (1..=3).for_each(|id| rig.fake.await_reached(id));
        ring.stop();
        queue.cancel_and_join();
        let mut replies = ring.replies(3);
        replies.sort();
        assert_eq!(replies, [b"\x01i", b"\x02i", b"\x03i"]);
        rig.fake.await_no_session();
    }
}

#[test]
fn a_stop_ends_what_lasts_in_a_broken_ring() {
    let rig = Rig::new(Tuning::default());
    let (ring, queue) = started(&rig);
    ring.ask(&[b"\x01s"]);
    rig.fake.await_reached(1);
    ring.state.lock().expect("no panic holds it").broken = true;
    ring.stop();
    queue.cancel_and_join();
    assert_eq!(ring.replies(1), [b"\x01i"]);
}

#[test]
fn whoever_is_back_first_has_the_ring() {
    let rig = Rig::new(Tuning::default());
    let (ring, queue) = started(&rig);
    // No stand-in starts: the queue's own thread is back before the next request.
    ring.ask(&[b"\x01s"]);
    rig.fake.await_reached(1);
    rig.fake.open(1);
    assert_eq!(ring.replies(1), [b"\x01s"]);
    // The queue's thread is busy, so is its stand-in, and another one stands in for both.
    ring.ask(&[b"\x02s", b"\x03s"]);
    rig.fake.await_reached(2);
    rig.fake.await_reached(3);
    ring.ask(&[b"\x04e"]);
    assert_eq!(ring.replies(2)[1], b"\x04e");
    // The stand-in is back first, then the queue's own thread.
    for (at, id) in [(2, 3), (4, 2)] {
        rig.fake.open(id);
        assert_eq!(ring.replies(at + 1)[at], [id, b's']);
        ring.ask(&[&[id, b'e']]);
        assert_eq!(ring.replies(at + 2)[at + 1], [id, b'e']);
    }
    ring.stop();
    queue.cancel_and_join();
    assert_eq!(ring.replies(6).len(), 6);
}

#[test]
fn who_asks_again_as_soon_as_there_is_an_answer_calls_nobody_else() {
    const TIMES: usize = 300;
    let rig = Rig::new(Tuning::default());
    let (ring, queue) = started(&rig);
    rig.fake.open(1);
    ring.state.lock().expect("no panic holds it").next =
        vec![b"\x03\x01w".to_vec(); TIMES - 1].into();
    ring.ask(&[b"\x01w"]);
    assert_eq!(ring.replies(TIMES).len(), TIMES);
    ring.stop();
    queue.cancel_and_join();
    let resumed = ring.state.lock().expect("no panic holds it").resumed;
    assert_eq!(resumed, TIMES, "each time its own thread");
}

#[test]
fn a_reset_ends_what_runs_and_what_waits_before_it_is_answered() {
    let rig = Rig::new(Tuning::default());
    let (ring, queue) = started(&rig);
    ring.ask(&[b"\x01s", b"\x02s", b"\x03p"]);
    (1..=3).for_each(|id| rig.fake.await_reached(id));
    ring.ask(&[b"\x04r", b"\x05e"]);
    let mut replies = ring.replies(5);
    assert_eq!(replies.split_off(3), [b"\x04r", b"\x05e"]);
    replies.sort();
    assert_eq!(replies, [b"\x01i", b"\x02i", b"\x03i"]);
    ring.stop();
    queue.cancel_and_join();
}

#[test]
fn more_that_last_than_there_may_be_at_once_are_ended_by_a_stop() {
    let tuning = Tuning {
        workers: 4,
        ..Tuning::default()
    };
    let rig = Rig::new(tuning);
    let (ring, queue) = started(&rig);
    let asked: Vec<[u8; 2]> = (1..=50).map(|id| [id, b's']).collect();
    let asked: Vec<&[u8]> = asked.iter().map(|message| &message[..]).collect();
    ring.ask(&asked);
    rig.fake.await_reached(1);
    rig.fake.await_reached(2);
    ring.ask(&[b"\x64e"]);
    assert_eq!(ring.replies(1), [b"\x64e"]);
    ring.stop();
    queue.cancel_and_join();
    let mut replies = ring.replies(51);
    replies[1..].sort();
    let ended: Vec<[u8; 2]> = (1..=50).map(|id| [id, b'i']).collect();
    assert_eq!(replies[1..], ended);
}

#[test]
fn a_broken_ring_ends_its_queue() {
    let rig = Rig::new(Tuning::default());
    let (ring, queue) = started(&rig);
    ring.state.lock().expect("no panic holds it").broken = true;
    ring.changed.notify_all();
    queue.cancel_and_join();
}
