//! Directory listings, and a cache of recent ones. Entries are sorted by a hash of their names,
//! which is their cookie: a listing can be continued after copies, creations and removals.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use vfs::{Account, Charge, Kind, NodeId, Quota, siphash};

/// The entries of a directory.
pub(super) struct Listing {
    /// Sorted by cookie.
    pub(super) entries: Vec<(u64, ListedEntry)>,
    /// The quota charges for a slot in the cache and for the bytes; `None` if it is not cached.
    charges: Option<[Charge; 2]>,
}

pub(super) struct ListedEntry {
    pub(super) name: Box<[u8]>,
    pub(super) id: NodeId,
    pub(super) kind: Kind,
}

/// A cache of recent listings: a client reads a listing in pieces, and several are read at once. If
/// it is full, the least recently used ones are evicted: the client's own if its share is used up,
/// otherwise those of any client.
pub(super) struct Listings {
    /// The most recently used one is at the front.
    cached: Mutex<VecDeque<(Key, Arc<Listing>)>>,
    slots: Arc<Quota>,
    bytes: Arc<Quota>,
}

/// The maximum number of cached listings.
const MAX_LISTINGS: usize = 64;

/// The maximum size of cached listings in bytes.
const MAX_BYTES: usize = 64 << 20;

impl Default for Listings {
    fn default() -> Listings {
        Listings {
            cached: Mutex::default(),
            slots: Quota::shared(MAX_LISTINGS, 0),
            bytes: Quota::shared(MAX_BYTES, 1),
        }
    }
}

impl Listings {
    pub(super) fn get(&self, key: Key) -> Option<Arc<Listing>> {
        let mut cached = self.cached();
        let at = cached.iter().position(|(of, _)| *of == key)?;
        let found = cached.remove(at)?;
        let listing = found.1.clone();
        cached.push_front(found);
        Some(listing)
    }

    /// Caches `listing`, charged to `account`, if there is room or room can be made.
    pub(super) fn insert(&self, key: Key, mut listing: Listing, account: &Account) -> Arc<Listing> {
        let mut cached = self.cached();
        cached.retain(|((id, ..), _)| *id != key.0);
        let bytes = listing.bytes();
        listing.charges = loop {
            let slot = self.slots.take(account, 1);
            let charges = slot.and_then(|slot| Ok([slot, self.bytes.take(account, bytes)?]));
            let full = match charges {
                Ok(charges) => break Some(charges),
                Err(full) => full,
            };
            let may_go = |(_, listing): &(Key, Arc<Listing>)| {
                !full.is_per_client() || listing.account() == Some(account)
            };
            match cached.iter().rposition(may_go) {
                Some(oldest) => drop(cached.remove(oldest)),
                None => break None,
            }
        };
        let keeps = listing.charges.is_some();
        let listing = Arc::new(listing);
        if keeps {
            cached.push_front((key, listing.clone()));
        }
        listing
    }

    fn cached(&self) -> MutexGuard<'_, VecDeque<(Key, Arc<Listing>)>> {
        self.cached.lock()
    }
}

/// The state of a directory: its number, the count of changes made here, and the upper's change
/// counter.
pub(super) type Key = (NodeId, u64, u64);

impl Listing {
    pub(super) fn new(items: Vec<(Box<[u8]>, NodeId, Kind)>) -> Listing {
        /// Keeps cookies away from values that protocols reserve, and from the sign bit.
        const MASK: u64 = (1 << 61) - 1;
        let mut cookies: HashMap<u64, u64> = HashMap::new();
        let mut listed: Vec<_> = items
            .into_iter()
            .map(|(name, id, kind)| {
                let cookie = siphash::hash(&[0; 16], &name) & MASK;
                (cookie, ListedEntry { name, id, kind })
            })
            .collect();
        listed.sort_unstable_by(|(a, one), (b, other)| (a, &one.name).cmp(&(b, &other.name)));
        for (cookie, _) in &mut listed {
            // Makes cookies of names with the same hash distinct, which is rare, and all of them
            // non-zero.
            let again = cookies.entry(*cookie).or_default();
            *again += 1;
            *cookie += *again;
        }
        listed.sort_by_key(|(cookie, _)| *cookie);
        Listing {
            entries: listed,
            charges: None,
        }
    }

    /// Returns its size in bytes.
    fn bytes(&self) -> usize {
        let names = self.entries.iter().map(|(_, item)| item.name.len());
        names.sum::<usize>() + self.entries.capacity() * size_of::<(u64, ListedEntry)>()
    }

    /// Returns the account that it is charged to.
    fn account(&self) -> Option<&Account> {
        self.charges.as_ref().map(|[slot, _]| slot.account())
    }
}

#[cfg(test)]
mod tests {
    use vfs::PeerKey;
    use vfs::memory::MemoryBudget;

    use super::*;

    const MIB: usize = 1 << 20;

    /// Returns a listing of about `bytes` bytes.
    fn listing(bytes: usize) -> Listing {
        let item = |at: usize| (at.to_string().into_bytes().into(), at as NodeId, Kind::File);
        Listing::new((0..bytes / 48).map(item).collect())
    }

    #[test]
    fn listings_are_bounded_in_bytes_and_for_each_client_and_part_of_the_budget() {
        let budget = MemoryBudget::new(64 * MIB);
        let [one, other] = [1, 2].map(|user| Account::in_budget(&budget, PeerKey::User(user)));
        let listings = Listings::default();
        listings.insert((1, 0, 0), listing(MIB), &other);
        for node in 10..40 {
            listings.insert((node, 0, 0), listing(MIB), &one);
            assert!(listings.get((node, 0, 0)).is_some(), "the newest");
            assert!(
                budget.state_bytes() <= 18 * MIB,
                "{} bytes",
                budget.state_bytes()
            );
        }
        assert!(listings.get((1, 0, 0)).is_some(), "another client's");
        assert!(listings.get((10, 0, 0)).is_none(), "the oldest");
        // A listing that is too large is returned, but not cached.
        listings.insert((50, 0, 0), listing(20 * MIB), &other);
        assert!(listings.get((50, 0, 0)).is_none());
        for node in 100..1000 {
            listings.insert((node, 0, 0), listing(64), &one);
        }
        assert!(listings.cached().len() <= MAX_LISTINGS);
        drop(listings);
        assert_eq!(budget.used(), 0);
    }
}
