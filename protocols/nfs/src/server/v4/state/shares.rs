//! Share reservations: who has which node open, and what each denies the others (RFC 7530 section
//! 9.9, RFC 8881 section 9.7).

use core::hash::BuildHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::RandomState;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::v4::ClientId;

use super::gone::NodeKey;
use super::holdings::Share;
use super::table::lock;

/// All reservations, in parts with a mutex each, by node. No operation takes time in proportion to
/// the reservations of a node: a client may have tens of thousands.
pub(super) struct Shares {
    hash: RandomState,
    parts: [Mutex<HashMap<NodeKey, Reservations>>; PARTS],
    last: AtomicU64,
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

/// The access and the denial of a reservation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Modes(u8);

/// The reservations of one node.
#[derive(Default)]
struct Reservations {
    /// The client of each, by its modes and its number.
    by_modes: BTreeMap<(Modes, u64), ClientId>,
    /// Those of OPENs in progress, by number: no more than there are threads.
    pending: HashMap<u64, Pending>,
    /// Those of opens: one for each owner.
    settled: BTreeMap<Opener, (Modes, u64)>,
}

/// A client, and the name of an open owner of it.
type Opener = (ClientId, Arc<[u8]>);

struct Pending {
    opener: Opener,
    modes: Modes,
}

impl Shares {
    /// No reservations, and never more than `most`.
    pub(super) fn new(most: usize) -> Shares {
        Shares {
            most,
            count: AtomicUsize::new(0),
            hash: RandomState::new(),
            parts: std::array::from_fn(|_| Mutex::default()),
            last: AtomicU64::new(0),
        }
    }

    /// Makes a reservation for an OPEN in progress, and returns its number. An owner's own denial
    /// applies to the owner, too (RFC 7530 section 9.9).
    pub(super) fn reserve(
        &self,
        key: NodeKey,
        client: ClientId,
        owner: &Arc<[u8]>,
        access: Share,
        deny: Share,
    ) -> Result<u64, Refused> {
        let mut part = self.part(&key);
        let modes = Modes::new(access, deny);
        if let Some(all) = part.get(&key)
            && let Some(other) = all.conflicting(modes)
        {
            return Err(Refused::By(other));
        }
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        if count >= self.most {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Err(Refused::Full);
        }
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let opener = (client, owner.clone());
        let all = part.entry(key).or_default();
        all.by_modes.insert((modes, number), client);
        all.pending.insert(number, Pending { opener, modes });
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

    /// Makes the reservation of an OPEN that has succeeded part of its owner's. False if it was
    /// forgotten.
    pub(super) fn settle(&self, key: NodeKey, number: u64) -> bool {
        self.change(key, |all| {
            let Some(Pending { opener, modes }) = all.pending.remove(&number) else {
                return false;
            };
            all.by_modes.remove(&(modes, number));
            let before = all.settled.get(&opener).map(|(before, _)| *before);
            all.settle(
                opener,
                before.map_or(modes, |before| before.with(modes)),
                number,
            );
            true
        })
    }

    /// Replaces the access and the denial of an open.
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
            if let Some(&(_, number)) = all.settled.get(&opener) {
                all.settle(opener, Modes::new(access, deny), number);
            }
        });
    }

    /// Removes the reservation of an open.
    pub(super) fn remove(&self, key: NodeKey, client: ClientId, owner: &Arc<[u8]>) {
        self.change(key, |all| {
            if let Some(reserved) = all.settled.remove(&(client, owner.clone())) {
                all.by_modes.remove(&reserved);
            }
        });
    }

    /// Removes all reservations of a client that is no more.
    pub(super) fn forget(&self, key: NodeKey, client: ClientId) {
        self.change(key, |all| {
            let its = all.pending.extract_if(|_, one| one.opener.0 == client);
            for (number, pending) in its {
                all.by_modes.remove(&(pending.modes, number));
            }
            let from = all.settled.range((client, Arc::default())..);
            let its = from.map(|(opener, _)| opener.clone());
            for opener in its
                .take_while(|opener| opener.0 == client)
                .collect::<Vec<_>>()
            {
                if let Some(reserved) = all.settled.remove(&opener) {
                    all.by_modes.remove(&reserved);
                }
            }
        });
    }

    /// A client that denies others `access`.
    pub(super) fn denier(&self, key: NodeKey, access: Share) -> Option<ClientId> {
        let part = self.part(&key);
        part.get(&key)?
            .conflicting(Modes::new(access, Share::empty()))
    }

    /// How many reservations there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let parts = self.parts.iter().map(|part| {
            let part = lock(part);
            part.values().map(Reservations::checked_len).sum::<usize>()
        });
        let counted = parts.sum();
        assert_eq!(self.count.load(Ordering::SeqCst), counted);
        counted
    }

    /// The number of reservations of a node that a conflict is looked for among.
    #[cfg(test)]
    pub(super) fn examined(&self, key: NodeKey) -> usize {
        let part = self.part(&key);
        part.get(&key).map_or(0, |all| all.distinct().count())
    }

    /// Changes the reservations of a node, and counts what that adds or removes.
    fn change<T: Default>(&self, key: NodeKey, how: impl FnOnce(&mut Reservations) -> T) -> T {
        let mut part = self.part(&key);
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

    fn part(&self, key: &NodeKey) -> MutexGuard<'_, HashMap<NodeKey, Reservations>> {
        lock(&self.parts[self.hash.hash_one(key) as usize % PARTS])
    }
}

impl Reservations {
    /// The client of a reservation that conflicts with one of `modes`.
    fn conflicting(&self, modes: Modes) -> Option<ClientId> {
        let mut others = self.distinct();
        others.find_map(|(other, client)| other.conflicts(modes).then_some(client))
    }

    /// One reservation for each combination of access and denial that there is.
    fn distinct(&self) -> impl Iterator<Item = (Modes, ClientId)> {
        let first = self.by_modes.first_key_value();
        std::iter::successors(first, |((modes, _), _)| {
            self.by_modes.range((modes.next(), 0)..).next()
        })
        .map(|((modes, _), client)| (*modes, *client))
    }

    /// Makes `modes` the reservation of `opener`, in place of the one it has, if any.
    fn settle(&mut self, opener: Opener, modes: Modes, number: u64) {
        self.by_modes.insert((modes, number), opener.0);
        if let Some(before) = self.settled.insert(opener, (modes, number))
            && before != (modes, number)
        {
            self.by_modes.remove(&before);
        }
    }

    #[cfg(test)]
    fn checked_len(&self) -> usize {
        let len = self.by_modes.len();
        assert_eq!(self.pending.len() + self.settled.len(), len);
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

    /// Both together.
    fn with(self, other: Modes) -> Modes {
        Modes(self.0 | other.0)
    }

    fn conflicts(self, other: Modes) -> bool {
        self.access() & other.deny() != 0 || self.deny() & other.access() != 0
    }

    /// The one after it in order.
    fn next(self) -> Modes {
        Modes(self.0 + 1)
    }
}
