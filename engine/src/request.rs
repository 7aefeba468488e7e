//! A request that left its lane: run by workers, parked, woken, cancelled, answered once.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use transports::{Frame, Outbox};
use vfs::{Call, Patience};
use wire::Answer;

use crate::lane::Lane;

pub(crate) struct Request {
    pub(crate) lane: Arc<Lane>,
    pub(crate) id: u64,
    pub(crate) message: Box<[u8]>,
    pub(crate) call: Call,
    state: AtomicU8,
}

/// Waits for a worker, or for its lane to give it one.
const QUEUED: u8 = 0;
/// A worker is at it.
const RUNNING: u8 = 1;
/// A worker is at it, and it has been woken: parking it would lose that.
const WOKEN: u8 = 2;
/// Nobody is at it until it is woken.
const PARKED: u8 = 3;

impl Request {
    pub(crate) fn new(lane: &Arc<Lane>, id: u64, message: &[u8]) -> Arc<Request> {
        Arc::new_cyclic(|request: &Weak<Request>| Request {
            lane: lane.clone(),
            id,
            message: message.into(),
            call: Call::parkable(Waker::from(Arc::new(Wakes(request.clone())))),
            state: AtomicU8::new(QUEUED),
        })
    }

    /// Serves the message, on a worker's thread with its outbox, which is empty.
    pub(crate) fn run(self: &Arc<Self>, out: &mut Outbox) {
        self.state.store(RUNNING, Ordering::SeqCst);
        if self.lane.is_gone() {
            return self.lane.complete(self, out);
        }
        let frame = Frame(&self.message);
        match self
            .lane
            .session
            .serve(&self.call, Patience::Full, &frame, out.begin())
        {
            Ok(Answer::Done) => self.lane.complete(self, out),
            Ok(Answer::Parked) => self.park(),
            Ok(Answer::WouldBlock) => {
                self.lane.fail(&"a request would block where it may wait");
                self.lane.complete(self, out);
            }
            Err(malformed) => {
                self.lane.fail(&malformed);
                self.lane.complete(self, out);
            }
        }
    }

    /// Has it run again if it is parked, or about to be.
    pub(crate) fn wake(self: &Arc<Self>) {
        if self.exchange(PARKED, QUEUED) {
            self.lane.schedule(self.clone());
        } else {
            self.exchange(RUNNING, WOKEN);
        }
    }

    /// Cancels: whatever it waits for ends early.
    pub(crate) fn cancel(self: &Arc<Self>) {
        self.call.cancel();
        self.wake();
    }

    fn park(self: &Arc<Self>) {
        let retry = self.call.take_wake_within();
        self.lane.leave_worker();
        if !self.exchange(RUNNING, PARKED) {
            self.state.store(QUEUED, Ordering::SeqCst);
            self.lane.schedule(self.clone());
        } else if let Some(time) = retry {
            self.lane.workers.wake_after(time, self);
        }
    }

    fn exchange(&self, from: u8, to: u8) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}

/// Whoever keeps a waker keeps no request.
struct Wakes(Weak<Request>);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(request) = self.0.upgrade() {
            request.wake();
        }
    }
}
