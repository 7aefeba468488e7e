//! Blocking LOCK calls.

use std::task::Waker;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use vfs::lock::{Owner, Wait};
use vfs::{Account, Errno, Patience};

use super::{LockError, LockRequest};
use crate::nlm::Status;
use crate::server::{CallError, RequestContext};

/// The maximum delay of a reply: Linux reports a server that does not answer for three and a half
/// minutes.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// The waiting LOCKs of all clients.
#[derive(Default)]
pub(in crate::server) struct Waiting(Mutex<Vec<Waiter>>);

struct Waiter {
    /// The connection and the XID of the call.
    call_id: (u64, u32),
    owner: Owner,
    peer: Account,
    since: Duration,
    cancelled: bool,
    waker: Waker,
}

impl Waiting {
    /// The maximum number of waiting LOCKs: a few for each of many clients.
    const MAX_WAITERS: usize = 4096;

    /// The maximum number of waiting LOCKs of one peer.
    const MAX_OF_A_PEER: usize = 1024;

    /// Cancels the waiting LOCK of `owner`; a process waits for one lock at a time.
    pub(super) fn cancel(&self, owner: &Owner) {
        self.cancel_matching(|waiter| waiter.owner == *owner);
    }

    /// Cancels all waiting LOCKs of a client.
    pub(super) fn cancel_all_of(&self, client: u64) {
        self.cancel_matching(|waiter| waiter.owner.client == client);
    }

    fn cancel_matching(&self, which: impl Fn(&Waiter) -> bool) {
        let mut woken = Vec::new();
        for waiter in self.lock().iter_mut().filter(|waiter| which(waiter)) {
            waiter.cancelled = true;
            woken.push(waiter.waker.clone());
        }
        woken.into_iter().for_each(Waker::wake);
    }

    fn remove(&self, name: (u64, u32), waker: &Waker) {
        self.lock()
            .retain(|waiter| waiter.call_id != name || !waiter.waker.will_wake(waker));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waiter>> {
        self.0.lock()
    }
}

/// The state of a LOCK that cannot be granted at once.
enum QueueState {
    /// It may wait for this long.
    Waits(Duration),
    /// It has waited for the maximum time, or too many are waiting.
    TimedOut,
    /// It is a retransmission, and the first transmission is waiting.
    Retransmission,
}

impl RequestContext<'_> {
    /// Acquires the lock, waiting if necessary.
    pub(super) fn wait_for(&self, request: &LockRequest) -> Result<Status, CallError> {
        let waker = self.call.waker();
        // Tried without waiting first, but after earlier waiters. If it is granted, a LOCK that has
        // waited leaves the lock table's queue as well.
        let tried = match self
            .try_lock(request, Wait::TryFair)
            .or_else(LockError::status)?
        {
            Status::Granted if self.is_cancelled(waker) => {
                self.unlock_range(request).or_else(LockError::status)?;
                Status::Denied
            }
            tried => tried,
        };
        if tried != Status::Denied || self.is_cancelled(waker) {
            if let Some(waker) = waker {
                self.server.waiting.remove(self.call_id(), waker);
            }
            return Ok(tried);
        }
        if self.patience < Patience::Full {
            return Err(CallError::retry(Errno::WOULD_BLOCK).expect("it is too early"));
        }
        let Some(waker) = waker else {
            return Ok(Status::Blocked);
        };
        let left = match self.queue(request, waker) {
            QueueState::Waits(left) => left,
            QueueState::TimedOut => {
                self.server.waiting.remove(self.call_id(), waker);
                return Ok(Status::Blocked);
            }
            QueueState::Retransmission => return Err(CallError::Unanswered),
        };
        match self.try_lock(request, Wait::Yes) {
            Err(LockError::Later(stop)) => {
                let retry = self.call.take_wake_within();
                self.call
                    .wake_within(retry.map_or(left, |retry| retry.min(left)));
                Err(stop)
            }
            done => {
                self.server.waiting.remove(self.call_id(), waker);
                done.or_else(LockError::status)
            }
        }
    }

    fn queue(&self, request: &LockRequest, waker: &Waker) -> QueueState {
        let (now, peer) = ((self.server.options.clock)(), self.call.account());
        let mut waiting = self.server.waiting.lock();
        let found = waiting
            .iter()
            .find(|waiter| waiter.call_id == self.call_id());
        match found {
            Some(waiter) if !waiter.waker.will_wake(waker) => QueueState::Retransmission,
            Some(waiter) => match (waiter.since + MAX_WAIT).checked_sub(now) {
                Some(left) if !left.is_zero() => QueueState::Waits(left),
                _ => QueueState::TimedOut,
            },
            None if waiting.len() >= Waiting::MAX_WAITERS => QueueState::TimedOut,
            None if waiting.iter().filter(|one| one.peer == *peer).count()
                >= Waiting::MAX_OF_A_PEER =>
            {
                QueueState::TimedOut
            }
            None => {
                waiting.push(Waiter {
                    call_id: self.call_id(),
                    owner: request.lock.owner.clone(),
                    peer: peer.clone(),
                    since: now,
                    cancelled: false,
                    waker: waker.clone(),
                });
                QueueState::Waits(MAX_WAIT)
            }
        }
    }

    fn is_cancelled(&self, waker: Option<&Waker>) -> bool {
        let waiting = self.server.waiting.lock();
        let mine = waiting.iter().find(|waiter| {
            waiter.call_id == self.call_id()
                && waker.is_some_and(|waker| waiter.waker.will_wake(waker))
        });
        mine.is_some_and(|waiter| waiter.cancelled)
    }

    fn call_id(&self) -> (u64, u32) {
        (self.connection, self.xid)
    }
}
