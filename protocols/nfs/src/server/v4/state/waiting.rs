//! Lock owners that wait: which of them, and for what file, so that they are told when it is worth asking again (RFC
//! 8881 section 20.11).
//!
//! They have no place in a queue: whoever asks first gets the lock. A client that is not told, or gives up, asks, or
//! does not ask, as it likes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vfs::Call;
use vfs::lock::Lock;

use crate::v4::ClientId;

use super::State;
use super::client::{Client, ClientRef, Minor};
use super::gone::NodeKey;
use super::table::lock;

/// A client's lock owners that wait, by file and name.
pub(super) type Waiting<N> = HashMap<(NodeKey, Arc<[u8]>), Waits<N>>;

/// How a lock owner waits.
pub(super) struct Waits<N> {
    pub(super) node: N,
    /// What the lock table wakes, and what for: one place there for each owner and file.
    parked: Parked,
    /// Nobody tells when what is in its way goes: it may ask again each second.
    unseen: bool,
}

/// Where a lock owner stands in the lock table: what is woken, and the lock that it waits for. Who no longer waits is
/// taken out there, or it would be there until that lock is free.
#[derive(Clone)]
pub struct Parked {
    /// What is woken.
    pub call: Arc<Call>,
    /// The lock.
    pub lock: Lock,
}

/// A lock owner that is to be told.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// Whose.
    pub client: ClientId,
    /// Of which file.
    pub key: NodeKey,
    /// Its name.
    pub owner: Arc<[u8]>,
}

/// The most lock owners of a client that are told.
const MOST: usize = 1024;

impl<F, N: Clone> State<F, N> {
    /// Whether `client` may be told of locks: then an OPEN says so (`OPEN4_RESULT_MAY_NOTIFY_LOCK`).
    pub fn may_tell(&self, client: &ClientRef<F, N>) -> bool {
        client.0.minor == Minor::V41 && client.0.backchannels.load(Ordering::Acquire) > 0
    }

    /// `waiter` waits for `lock` of `node`: by the call that the lock table wakes, the one that it waits by already or what
    /// `make` makes. Nothing if there are too many, or if it waits for another lock, of which [`State::waits_no_longer`]
    /// is to be said before.
    pub fn wait_for_lock(
        &self,
        waiter: &Waiter,
        node: &N,
        lock_of_it: &Lock,
        make: impl FnOnce() -> Call,
    ) -> Option<Arc<Call>> {
        let client = self.clients.get(&waiter.client)?;
        let mut holdings = lock(&client.holdings);
        let place = (waiter.key, waiter.owner.clone());
        if let Some(waits) = holdings.waiting.get(&place) {
            let parked = &waits.parked;
            return (parked.lock == *lock_of_it).then(|| parked.call.clone());
        }
        if holdings.gone || holdings.waiting.len() >= MOST {
            return None;
        }
        let call = Arc::new(make());
        let waits = Waits {
            node: node.clone(),
            parked: Parked {
                call: call.clone(),
                lock: lock_of_it.clone(),
            },
            unseen: false,
        };
        holdings.waiting.insert(place, waits);
        Some(call)
    }

    /// Nobody will tell when what is in the way of `waiter` goes.
    pub fn waits_unseen(&self, waiter: &Waiter) {
        if let Some(client) = self.clients.get(&waiter.client) {
            let place = (waiter.key, waiter.owner.clone());
            if let Some(waits) = lock(&client.holdings).waiting.get_mut(&place) {
                waits.unseen = true;
            }
        }
    }

    /// `waiter` waits no longer: where it stood in the lock table, if it did wait.
    pub fn waits_no_longer(&self, waiter: &Waiter) -> Option<Parked> {
        let client = self.clients.get(&waiter.client)?;
        let mut holdings = lock(&client.holdings);
        if holdings.waiting.is_empty() {
            return None;
        }
        let waits = holdings
            .waiting
            .remove(&(waiter.key, waiter.owner.clone()))?;
        Some(waits.parked)
    }

    /// The lock table has woken `waiter`: it is to be told, if it still waits.
    pub fn woken(&self, waiter: &Waiter) {
        let Some(client) = self.clients.get(&waiter.client) else {
            return;
        };
        let mut holdings = lock(&client.holdings);
        let place = (waiter.key, waiter.owner.clone());
        if let Some(waits) = holdings.waiting.remove(&place) {
            holdings.to_tell.push_back((waits.node, place.1));
        }
    }

    /// Has those told that wait for what nobody sees go. Whether there is anybody to tell.
    pub(super) fn tell_unseen(&self, client: &Client<F, N>) -> bool {
        let mut holdings = lock(&client.holdings);
        let all = holdings.waiting.iter();
        let unseen: Vec<_> = all
            .filter(|(_, waits)| waits.unseen)
            .map(|((_, owner), waits)| (waits.node.clone(), owner.clone()))
            .take(MOST.saturating_sub(holdings.to_tell.len()))
            .collect();
        holdings.to_tell.extend(unseen);
        !holdings.to_tell.is_empty()
    }
}
