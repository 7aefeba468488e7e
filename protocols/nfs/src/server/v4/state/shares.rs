//! Share reservations: who has which node open, and what each denies the others (RFC 7530 section
//! 9.9, RFC 8881 section 9.7).

use core::hash::BuildHasher;
use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::v4::ClientId;

use super::gone::NodeKey;
use super::holdings::Share;
use super::table::lock;

/// All reservations, in parts with a mutex each, by node.
pub(super) struct Shares {
    hash: RandomState,
    parts: [Mutex<HashMap<NodeKey, Vec<Reservation>>>; PARTS],
    last_pending: AtomicU64,
    most: usize,
    count: AtomicUsize,
}

/// Why a reservation cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// This client has the node open in a way that conflicts.
    By(ClientId),
    /// There are too many.
    Full,
}

/// More than threads open files at once.
const PARTS: usize = 64;

struct Reservation {
    client: ClientId,
    owner: Arc<[u8]>,
    /// Which OPEN it is of, while that is being done; 0 then.
    pending: u64,
    access: Share,
    deny: Share,
}

impl Shares {
    /// No reservations, and never more than `most`.
    pub(super) fn new(most: usize) -> Shares {
        Shares {
            most,
            count: AtomicUsize::new(0),
            hash: RandomState::new(),
            parts: std::array::from_fn(|_| Mutex::default()),
            last_pending: AtomicU64::new(0),
        }
    }

    /// Reserves for an OPEN that is being done, and answers its number. What an owner denies he denies himself, too (RFC
    /// 7530 section 9.9).
    pub(super) fn reserve(
        &self,
        key: NodeKey,
        client: ClientId,
        owner: &Arc<[u8]>,
        access: Share,
        deny: Share,
    ) -> Result<u64, Refused> {
        let mut part = self.part(&key);
        for other in part.get(&key).into_iter().flatten() {
            if other.access.intersects(deny) || other.deny.intersects(access) {
                return Err(Refused::By(other.client));
            }
        }
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        if count >= self.most {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Err(Refused::Full);
        }
        let pending = self.last_pending.fetch_add(1, Ordering::Relaxed) + 1;
        part.entry(key).or_default().push(Reservation {
            client,
            owner: owner.clone(),
            pending,
            access,
            deny,
        });
        Ok(pending)
    }

    /// An OPEN is not done after all.
    pub(super) fn cancel(&self, key: NodeKey, pending: u64) {
        self.retain(key, |reservation| reservation.pending != pending);
    }

    /// An OPEN is done: its reservation becomes part of its owner's. Not if it was forgotten.
    pub(super) fn settle(&self, key: NodeKey, pending: u64) -> bool {
        let mut part = self.part(&key);
        let Some(all) = part.get_mut(&key) else {
            return false;
        };
        let Some(at) = all.iter().position(|one| one.pending == pending) else {
            return false;
        };
        let mut done = all.swap_remove(at);
        done.pending = 0;
        match all
            .iter_mut()
            .find(|one| one.is_settled(done.client, &done.owner))
        {
            Some(settled) => {
                settled.access |= done.access;
                settled.deny |= done.deny;
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
            None => all.push(done),
        }
        true
    }

    /// An open becomes less.
    pub(super) fn set(
        &self,
        key: NodeKey,
        client: ClientId,
        owner: &[u8],
        access: Share,
        deny: Share,
    ) {
        let mut part = self.part(&key);
        let mut all = part.get_mut(&key).into_iter().flatten();
        if let Some(one) = all.find(|one| one.is_settled(client, owner)) {
            (one.access, one.deny) = (access, deny);
        }
    }

    /// An open is no more.
    pub(super) fn remove(&self, key: NodeKey, client: ClientId, owner: &[u8]) {
        self.retain(key, |one| !one.is_settled(client, owner));
    }

    /// Forgets what a client that is no more was about to open.
    pub(super) fn forget(&self, key: NodeKey, client: ClientId) {
        self.retain(key, |one| one.client != client);
    }

    /// A client that denies others `access`.
    pub(super) fn denier(&self, key: NodeKey, access: Share) -> Option<ClientId> {
        let part = self.part(&key);
        let mut all = part.get(&key).into_iter().flatten();
        all.find(|one| one.deny.intersects(access))
            .map(|one| one.client)
    }

    /// How many reservations there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.count.load(Ordering::SeqCst), self.counted());
        self.counted()
    }

    #[cfg(test)]
    fn counted(&self) -> usize {
        let count =
            |part: &Mutex<HashMap<_, Vec<_>>>| lock(part).values().map(Vec::len).sum::<usize>();
        self.parts.iter().map(count).sum()
    }

    fn retain(&self, key: NodeKey, keep: impl Fn(&Reservation) -> bool) {
        let mut part = self.part(&key);
        if let Some(all) = part.get_mut(&key) {
            let before = all.len();
            all.retain(keep);
            self.count.fetch_sub(before - all.len(), Ordering::Relaxed);
            if all.is_empty() {
                part.remove(&key);
            }
        }
    }

    fn part(&self, key: &NodeKey) -> MutexGuard<'_, HashMap<NodeKey, Vec<Reservation>>> {
        lock(&self.parts[self.hash.hash_one(key) as usize % PARTS])
    }
}

impl Reservation {
    fn is(&self, client: ClientId, owner: &[u8]) -> bool {
        self.client == client && *self.owner == *owner
    }

    fn is_settled(&self, client: ClientId, owner: &[u8]) -> bool {
        self.pending == 0 && self.is(client, owner)
    }
}
