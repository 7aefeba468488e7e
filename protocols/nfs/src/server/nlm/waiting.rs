//! Blocking LOCK calls.

use std::task::Waker;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use vfs::lock::{Owner, Wait};
use vfs::{Account, Errno, Patience};

use super::{Asked, Fault};
use crate::nlm::Status;
use crate::server::{Stop, Turn};

/// The maximum delay of a reply: Linux reports a server that does not answer for three and a half
/// minutes.
const HOLD: Duration = Duration::from_secs(120);

/// The waiting LOCKs of all clients.
#[derive(Default)]
pub(in crate::server) struct Waiting(Mutex<Vec<Waiter>>);

struct Waiter {
    /// The connection and the XID of the call.
    name: (u64, u32),
    owner: Owner,
    peer: Account,
    since: Duration,
    cancelled: bool,
    waker: Waker,
}

impl Waiting {
    /// The maximum number of waiting LOCKs: a few for each of many clients.
    const MOST: usize = 4096;

    /// The maximum number of waiting LOCKs of one peer.
    const MOST_OF_A_PEER: usize = 1024;

    /// Cancels the waiting LOCK of `owner`; a process waits for one lock at a time.
    pub(super) fn cancel(&self, owner: &Owner) {
        self.cancel_those(|waiter| waiter.owner == *owner);
    }

    /// Cancels all waiting LOCKs of a client.
    pub(super) fn cancel_all_of(&self, client: u64) {
        self.cancel_those(|waiter| waiter.owner.client == client);
    }

    fn cancel_those(&self, which: impl Fn(&Waiter) -> bool) {
        let mut woken = Vec::new();
        for waiter in self.lock().iter_mut().filter(|waiter| which(waiter)) {
            waiter.cancelled = true;
            woken.push(waiter.waker.clone());
        }
        woken.into_iter().for_each(Waker::wake);
    }

    fn remove(&self, name: (u64, u32), waker: &Waker) {
        self.lock()
            .retain(|waiter| waiter.name != name || !waiter.waker.will_wake(waker));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waiter>> {
        self.0.lock()
    }
}

/// The state of a LOCK that cannot be granted at once.
enum Stand {
    /// It may wait for this long.
    Left(Duration),
    /// It has waited for the maximum time, or too many are waiting.
    Over,
    /// It is a retransmission, and the first transmission is waiting.
    Doubled,
}

impl Turn<'_> {
    /// Acquires the lock, waiting if necessary.
    pub(super) fn wait_for(&self, asked: &Asked) -> Result<Status, Stop> {
        let waker = self.call.waker();
        // Tried without waiting first, but after earlier waiters. If it is granted, a LOCK that has
        // waited leaves the lock table's queue as well.
        let tried = match self.try_lock(asked, Wait::InTurn).or_else(Fault::status)? {
            Status::Granted if self.is_cancelled(waker) => {
                self.give_back(asked).or_else(Fault::status)?;
                Status::Denied
            }
            tried => tried,
        };
        if tried != Status::Denied || self.is_cancelled(waker) {
            if let Some(waker) = waker {
                self.server.waiting.remove(self.name(), waker);
            }
            return Ok(tried);
        }
        if self.patience < Patience::Full {
            return Err(Stop::later(Errno::WOULD_BLOCK).expect("it is too early"));
        }
        let Some(waker) = waker else {
            return Ok(Status::Blocked);
        };
        let left = match self.stand(asked, waker) {
            Stand::Left(left) => left,
            Stand::Over => {
                self.server.waiting.remove(self.name(), waker);
                return Ok(Status::Blocked);
            }
            Stand::Doubled => return Err(Stop::Unanswered),
        };
        match self.try_lock(asked, Wait::Yes) {
            Err(Fault::Later(stop)) => {
                let retry = self.call.take_wake_within();
                self.call
                    .wake_within(retry.map_or(left, |retry| retry.min(left)));
                Err(stop)
            }
            done => {
                self.server.waiting.remove(self.name(), waker);
                done.or_else(Fault::status)
            }
        }
    }

    fn stand(&self, asked: &Asked, waker: &Waker) -> Stand {
        let (now, peer) = ((self.server.options.clock)(), self.call.account());
        let mut waiting = self.server.waiting.lock();
        let found = waiting.iter().find(|waiter| waiter.name == self.name());
        match found {
            Some(waiter) if !waiter.waker.will_wake(waker) => Stand::Doubled,
            Some(waiter) => match (waiter.since + HOLD).checked_sub(now) {
                Some(left) if !left.is_zero() => Stand::Left(left),
                _ => Stand::Over,
            },
            None if waiting.len() >= Waiting::MOST => Stand::Over,
            None if waiting.iter().filter(|one| one.peer == *peer).count()
                >= Waiting::MOST_OF_A_PEER =>
            {
                Stand::Over
            }
            None => {
                waiting.push(Waiter {
                    name: self.name(),
                    owner: asked.lock.owner.clone(),
                    peer: peer.clone(),
                    since: now,
                    cancelled: false,
                    waker: waker.clone(),
                });
                Stand::Left(HOLD)
            }
        }
    }

    fn is_cancelled(&self, waker: Option<&Waker>) -> bool {
        let waiting = self.server.waiting.lock();
        let mine = waiting.iter().find(|waiter| {
            waiter.name == self.name() && waker.is_some_and(|waker| waiter.waker.will_wake(waker))
        });
        mine.is_some_and(|waiter| waiter.cancelled)
    }

    fn name(&self) -> (u64, u32) {
        (self.connection, self.xid)
    }
}
