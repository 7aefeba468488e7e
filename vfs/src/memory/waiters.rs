//! Connections that wait for memory: clients take turns, and the connections of a client are woken
//! in FIFO order.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, MutexGuard};

use super::State;
use crate::PeerKey;

/// The memory that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// This many more bytes of requests.
    Request(usize),
    /// A reply of this many bytes.
    Reply(usize),
    /// Replies of the client within its share.
    WithinShare,
}

/// A waiting connection.
pub(super) struct Waiter {
    need: Need,
    woken: AtomicBool,
    freed: Condvar,
}

impl Waiter {
    pub(super) fn new(need: Need) -> Arc<Waiter> {
        Arc::new(Waiter {
            need,
            woken: AtomicBool::new(false),
            freed: Condvar::new(),
        })
    }

    /// Waits until woken, for `time` at most.
    pub(super) fn wait(&self, state: &mut MutexGuard<'_, State>, time: Duration) {
        self.freed.wait_while_for(state, |_| !self.is_woken(), time);
    }

    pub(super) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed)
    }

    /// Marks it as woken. The caller holds the budget's lock.
    fn mark(&self) {
        self.woken.store(true, Ordering::Relaxed);
    }

    /// Wakes the thread after [`Waiter::mark`]. The caller does not hold the budget's lock, which
    /// the thread takes first.
    pub(super) fn notify(&self) {
        self.freed.notify_one();
    }
}

/// The connections that wait for memory of a budget.
#[derive(Default)]
pub(super) struct Waiters {
    by_client: HashMap<PeerKey, VecDeque<Arc<Waiter>>>,
    /// The clients in `by_client`, the next one first.
    next_clients: VecDeque<PeerKey>,
}

impl Waiters {
    /// The number of clients examined at a time, which bounds the cost of a change of one
    /// reservation.
    const MAX_EXAMINED: usize = 8;

    pub(super) fn is_empty(&self) -> bool {
        self.next_clients.is_empty()
    }

    pub(super) fn push(&mut self, client: PeerKey, waiter: Arc<Waiter>) {
        let queue = self.by_client.entry(client).or_default();
        if queue.is_empty() {
            self.next_clients.push_back(client);
        }
        queue.push_back(waiter);
    }

    /// Removes a connection that no longer waits.
    pub(super) fn remove(&mut self, client: PeerKey, waiter: &Arc<Waiter>) {
        let Some(queue) = self.by_client.get_mut(&client) else {
            return;
        };
        queue.retain(|one| !Arc::ptr_eq(one, waiter));
        if queue.is_empty() {
            self.by_client.remove(&client);
            self.next_clients.retain(|&one| one != client);
        }
    }

    /// Removes and returns the connections that may proceed: the first one of each client whose
    /// turn it is, if `allows` finds room for it.
    pub(super) fn take(&mut self, allows: impl Fn(PeerKey, Need) -> bool) -> Vec<Arc<Waiter>> {
        let mut taken = Vec::new();
        for _ in 0..self.next_clients.len().min(Waiters::MAX_EXAMINED) {
            let Some(client) = self.next_clients.pop_front() else {
                break;
            };
            let Some(queue) = self.by_client.get_mut(&client) else {
                continue;
            };
            if queue
                .front()
                .is_some_and(|first| allows(client, first.need))
            {
                taken.extend(queue.pop_front());
            }
            match queue.is_empty() {
                true => drop(self.by_client.remove(&client)),
                false => self.next_clients.push_back(client),
            }
        }
        taken.iter().for_each(|waiter| waiter.mark());
        taken
    }

    /// Returns the number of waiting connections of `client`.
    #[cfg(test)]
    pub(super) fn len(&self, client: PeerKey) -> usize {
        self.by_client.get(&client).map_or(0, VecDeque::len)
    }

    /// Removes and returns all connections.
    pub(super) fn take_all(&mut self) -> Vec<Arc<Waiter>> {
        self.next_clients.clear();
        let all: Vec<_> = self
            .by_client
            .drain()
            .flat_map(|(_, queue)| queue)
            .collect();
        all.iter().for_each(|waiter| waiter.mark());
        all
    }
}
