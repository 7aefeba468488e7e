//! Share reservations: the opens of each node, and their deny modes (RFC 7530 section 9.9, RFC 8881
//! section 9.7).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use concurrency::Shards;
use parking_lot::MutexGuard;

use crate::v4::ClientId;

use super::client_state::Share;
use super::released::NodeKey;

/// All reservations, sharded by node, with a mutex per shard. No operation takes time in proportion
/// to the reservations of a node: a client may have tens of thousands.
pub(super) struct Shares {
    shards: Shards<HashMap<NodeKey, Reservations>, SHARDS>,
    last: AtomicU64,
    max: usize,
    count: AtomicUsize,
}

/// The reason why a reservation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// This client has the node open with a conflicting mode.
    Conflict(ClientId),
    /// There are too many reservations.
    Full,
}

/// More than the number of threads that open files at once.
const SHARDS: usize = 64;

/// The access and deny modes of a reservation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Modes(u8);

/// The reservations of one node.
#[derive(Default)]
struct Reservations {
    /// The client of each reservation, by modes and number.
    by_modes: BTreeMap<(Modes, u64), ClientId>,
    /// The reservations of OPENs in progress, by number: no more than there are threads.
    pending: HashMap<u64, PendingReservation>,
    /// The reservations of opens: one for each owner.
    confirmed: BTreeMap<OpenOwnerKey, (Modes, u64)>,
}

/// A client, and the name of one of its open owners.
type OpenOwnerKey = (ClientId, Arc<[u8]>);

struct PendingReservation {
    opener: OpenOwnerKey,
    modes: Modes,
}

impl Shares {
    /// Creates a table of at most `most` reservations.
    pub(super) fn new(most: usize) -> Shares {
        Shares {
            max: most,
            count: AtomicUsize::new(0),
            shards: Shards::default(),
            last: AtomicU64::new(0),
        }
    }

    /// Makes a reservation for an OPEN in progress, and returns its number. An owner's deny mode
    /// also applies to its own further opens (RFC 7530 section 9.9).
    pub(super) fn reserve(
        &self,
        key: NodeKey,
        client: ClientId,
        owner: &Arc<[u8]>,
        access: Share,
        deny: Share,
    ) -> Result<u64, Refused> {
        let mut part = self.shard(&key);
        let modes = Modes::new(access, deny);
        if let Some(all) = part.get(&key)
            && let Some(other) = all.conflicting(modes)
        {
            return Err(Refused::Conflict(other));
        }
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        if count >= self.max {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Err(Refused::Full);
        }
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let opener = (client, owner.clone());
        let all = part.entry(key).or_default();
        all.by_modes.insert((modes, number), client);
        all.pending
            .insert(number, PendingReservation { opener, modes });
        Ok(number)
    }

    /// Removes the reservation of an OPEN that has failed.
    pub(super) fn cancel(&self, key: NodeKey, number: u64) {
        self.change(key, |all| {
            if let Some(pending) = all.pending.remove(&number) {
                all.by_modes.remove(&(pending.modes, number));
            }
        });
    }

    /// Merges the reservation of a successful OPEN into its owner's. Returns `false` if the
    /// reservation was removed meanwhile.
    pub(super) fn confirm(&self, key: NodeKey, number: u64) -> bool {
        self.change(key, |all| {
            let Some(PendingReservation { opener, modes }) = all.pending.remove(&number) else {
                return false;
            };
            all.by_modes.remove(&(modes, number));
            let before = all.confirmed.get(&opener).map(|(before, _)| *before);
            all.confirm(
                opener,
                before.map_or(modes, |before| before.with(modes)),
                number,
            );
            true
        })
    }

    /// Replaces the access and deny modes of an open.
    pub(super) fn set(
        &self,
        key: NodeKey,
        client: ClientId,
        owner: &Arc<[u8]>,
        access: Share,
        deny: Share,
    ) {
        self.change(key, |all| {
            let opener = (client, owner.clone());
            if let Some(&(_, number)) = all.confirmed.get(&opener) {
                all.confirm(opener, Modes::new(access, deny), number);
            }
        });
    }

    /// Removes the reservation of an open.
    pub(super) fn remove(&self, key: NodeKey, client: ClientId, owner: &Arc<[u8]>) {
        self.change(key, |all| {
            if let Some(reserved) = all.confirmed.remove(&(client, owner.clone())) {
                all.by_modes.remove(&reserved);
            }
        });
    }

    /// Removes all reservations of a destroyed client.
    pub(super) fn forget(&self, key: NodeKey, client: ClientId) {
        self.change(key, |all| {
            let its = all.pending.extract_if(|_, one| one.opener.0 == client);
            for (number, pending) in its {
                all.by_modes.remove(&(pending.modes, number));
            }
            let from = all.confirmed.range((client, Arc::default())..);
            let its = from.map(|(opener, _)| opener.clone());
            for opener in its
                .take_while(|opener| opener.0 == client)
                .collect::<Vec<_>>()
            {
                if let Some(reserved) = all.confirmed.remove(&opener) {
                    all.by_modes.remove(&reserved);
                }
            }
        });
    }

    /// Returns a client whose deny mode conflicts with `access`.
    pub(super) fn denier(&self, key: NodeKey, access: Share) -> Option<ClientId> {
        let part = self.shard(&key);
        part.get(&key)?
            .conflicting(Modes::new(access, Share::empty()))
    }

    /// Returns whether the node has a reservation.
    pub(super) fn has(&self, key: NodeKey) -> bool {
        self.shard(&key).contains_key(&key)
    }

    /// Returns the number of reservations.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let parts = self.shards.all().iter().map(|part| {
            let part = part.lock();
            part.values().map(Reservations::checked_len).sum::<usize>()
        });
        let counted = parts.sum();
        assert_eq!(self.count.load(Ordering::SeqCst), counted);
        counted
    }

    /// Returns the number of reservations of a node that a search for conflicts examines.
    #[cfg(test)]
    pub(super) fn examined(&self, key: NodeKey) -> usize {
        let part = self.shard(&key);
        part.get(&key).map_or(0, |all| all.distinct().count())
    }

    /// Changes the reservations of a node, and updates the total.
    fn change<T: Default>(&self, key: NodeKey, how: impl FnOnce(&mut Reservations) -> T) -> T {
        let mut part = self.shard(&key);
        let Some(all) = part.get_mut(&key) else {
            return T::default();
        };
        let before = all.by_modes.len();
        let done = how(all);
        self.count
            .fetch_sub(before - all.by_modes.len(), Ordering::Relaxed);
        if all.by_modes.is_empty() {
            part.remove(&key);
        }
        done
    }

    fn shard(&self, key: &NodeKey) -> MutexGuard<'_, HashMap<NodeKey, Reservations>> {
        self.shards.lock(key)
    }
}

impl Reservations {
    /// Returns the client of a reservation that conflicts with `modes`.
    fn conflicting(&self, modes: Modes) -> Option<ClientId> {
        let mut others = self.distinct();
        others.find_map(|(other, client)| other.conflicts(modes).then_some(client))
    }

    /// Returns one reservation for each existing combination of access and deny modes.
    fn distinct(&self) -> impl Iterator<Item = (Modes, ClientId)> {
        let first = self.by_modes.first_key_value();
        std::iter::successors(first, |((modes, _), _)| {
            self.by_modes.range((modes.next(), 0)..).next()
        })
        .map(|((modes, _), client)| (*modes, *client))
    }

    /// Makes `modes` the reservation of `opener`, replacing its previous one.
    fn confirm(&mut self, opener: OpenOwnerKey, modes: Modes, number: u64) {
        self.by_modes.insert((modes, number), opener.0);
        if let Some(before) = self.confirmed.insert(opener, (modes, number))
            && before != (modes, number)
        {
            self.by_modes.remove(&before);
        }
    }

    #[cfg(test)]
    fn checked_len(&self) -> usize {
        let len = self.by_modes.len();
        assert_eq!(self.pending.len() + self.confirmed.len(), len);
        len
    }
}

impl Modes {
    fn new(access: Share, deny: Share) -> Modes {
        Modes(access.bits() << 2 | deny.bits())
    }

    fn access(self) -> u8 {
        self.0 >> 2
    }

    fn deny(self) -> u8 {
        self.0 & 3
    }

    /// Returns the union of both.
    fn with(self, other: Modes) -> Modes {
        Modes(self.0 | other.0)
    }

    fn conflicts(self, other: Modes) -> bool {
        self.access() & other.deny() != 0 || self.deny() & other.access() != 0
    }

    /// Returns the next value in order.
    fn next(self) -> Modes {
        Modes(self.0 + 1)
    }
}
