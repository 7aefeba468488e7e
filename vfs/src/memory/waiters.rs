//! Connections that wait for memory: clients take turns, and the connections of a client are woken
//! in the order in which they came.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, MutexGuard};
use std::time::Duration;

use super::State;
use crate::PeerKey;

/// The memory that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// So many bytes more of requests.
    Request(usize),
    /// A reply of so many bytes.
    Reply(usize),
    /// Replies of the client that take no more than its share.
    Settled,
}

/// A connection that waits.
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

    /// Waits until it is woken, for `time` at most.
    pub(super) fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        time: Duration,
    ) -> MutexGuard<'a, State> {
        let waited = self
            .freed
            .wait_timeout_while(state, time, |_| !self.is_woken());
        waited.expect("no panic holds it").0
    }

    pub(super) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed)
    }

    /// Marks it as woken. The lock of the budget is held.
    fn mark(&self) {
        self.woken.store(true, Ordering::Relaxed);
    }

    /// Wakes it once it is marked. The lock of the budget is free, as it is what it needs first.
    pub(super) fn notify(&self) {
        self.freed.notify_one();
    }
}

/// All that wait for the memory of a budget.
#[derive(Default)]
pub(super) struct Waiters {
    by_client: HashMap<PeerKey, VecDeque<Arc<Waiter>>>,
    /// The clients in `by_client`, the next one first.
    turns: VecDeque<PeerKey>,
}

impl Waiters {
    /// How many clients are looked at each time: a change of one reservation costs no more, however
    /// many clients wait.
    const TURNS: usize = 8;

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    pub(super) fn push(&mut self, client: PeerKey, waiter: Arc<Waiter>) {
        let queue = self.by_client.entry(client).or_default();
        if queue.is_empty() {
            self.turns.push_back(client);
        }
        queue.push_back(waiter);
    }

    /// Removes a connection that waits no longer.
    pub(super) fn remove(&mut self, client: PeerKey, waiter: &Arc<Waiter>) {
        let Some(queue) = self.by_client.get_mut(&client) else {
            return;
        };
        queue.retain(|one| !Arc::ptr_eq(one, waiter));
        if queue.is_empty() {
            self.by_client.remove(&client);
            self.turns.retain(|&one| one != client);
        }
    }

    /// Takes the connections out that may go on: of each client whose turn it is the first one, if
    /// `allows` says that there is room for it.
    pub(super) fn take(&mut self, allows: impl Fn(PeerKey, Need) -> bool) -> Vec<Arc<Waiter>> {
        let mut taken = Vec::new();
        for _ in 0..self.turns.len().min(Waiters::TURNS) {
            let Some(client) = self.turns.pop_front() else {
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
                false => self.turns.push_back(client),
            }
        }
        taken.iter().for_each(|waiter| waiter.mark());
        taken
    }

    /// How many connections of `client` wait.
    #[cfg(test)]
    pub(super) fn len(&self, client: PeerKey) -> usize {
        self.by_client.get(&client).map_or(0, VecDeque::len)
    }

    /// Takes all out.
    pub(super) fn take_all(&mut self) -> Vec<Arc<Waiter>> {
        self.turns.clear();
        let all: Vec<_> = self
            .by_client
            .drain()
            .flat_map(|(_, queue)| queue)
            .collect();
        all.iter().for_each(|waiter| waiter.mark());
        all
    }
}
