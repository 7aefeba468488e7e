//! Directory listings: the upper entries, and the lower ones that are not hidden. Entries are
//! sorted by a hash of their names, which is their cookie: a listing can be continued after copies,
//! creations and removals.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use vfs::{
    Account, AttrMask, Charge, Cx, DirEntry, DirSink, Entry, Errno, Kind, Name, Node, NodeId,
    OpenFlags, Quota, ReaddirMode, Result, siphash,
};

use super::as_process;
use super::node::{OverlayNode, State};
use super::xattrs::is_whiteout;

/// The entries of a directory.
struct Listing {
    /// Sorted by cookie.
    entries: Vec<(u64, ListedEntry)>,
    /// The quota charges for a slot in the cache and for the bytes; `None` if it is not cached.
    charges: Option<[Charge; 2]>,
}

struct ListedEntry {
    name: Box<[u8]>,
    id: NodeId,
    kind: Kind,
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
    fn get(&self, key: Key) -> Option<Arc<Listing>> {
        let mut kept = self.cached();
        let at = kept.iter().position(|(of, _)| *of == key)?;
        let found = kept.remove(at)?;
        let listing = found.1.clone();
        kept.push_front(found);
        Some(listing)
    }

    /// Caches `listing`, charged to `account`, if there is room or room can be made.
    fn insert(&self, key: Key, mut listing: Listing, account: &Account) -> Arc<Listing> {
        let mut kept = self.cached();
        kept.retain(|((id, ..), _)| *id != key.0);
        let bytes = listing.bytes();
        listing.charges = loop {
            let place = self.slots.take(account, 1);
            let charges = place.and_then(|place| Ok([place, self.bytes.take(account, bytes)?]));
            let full = match charges {
                Ok(charges) => break Some(charges),
                Err(full) => full,
            };
            let may_go = |(_, listing): &(Key, Arc<Listing>)| {
                !full.is_per_client() || listing.account() == Some(account)
            };
            match kept.iter().rposition(may_go) {
                Some(oldest) => drop(kept.remove(oldest)),
                None => break None,
            }
        };
        let keeps = listing.charges.is_some();
        let listing = Arc::new(listing);
        if keeps {
            kept.push_front((key, listing.clone()));
        }
        listing
    }

    fn cached(&self) -> MutexGuard<'_, VecDeque<(Key, Arc<Listing>)>> {
        self.cached.lock()
    }
}

/// The state of a directory: its number, the count of changes made here, and the upper's change
/// counter.
type Key = (NodeId, u64, u64);

impl OverlayNode {
    /// Implements [`vfs::File::readdir`].
    pub(super) fn list(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        // A partial listing would leave a trace.
        cx.check_may_block()?;
        let _names = self.tree.names_shared(cx)?;
        self.list_locked(cx, cookie, plus, sink)
    }

    /// Lists the directory; the caller holds the names.
    pub(super) fn list_locked(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let listing = self.listing(&as_process(cx))?;
        let first = listing.entries.partition_point(|(at, _)| *at <= cookie);
        let this = self.this();
        for (at, item) in &listing.entries[first..] {
            let entry = match plus {
                ReaddirMode::Names => None,
                ReaddirMode::Entries => match this.find(&as_process(cx), Name::new(&item.name)?) {
                    Ok(found) => Some(found.entry()),
                    Err(errno) if errno.is_signal() => return Err(errno),
                    Err(_) => None,
                },
            };
            let told = sink.entry(DirEntry {
                name: &item.name,
                id: item.id,
                kind: Some(item.kind),
                cookie: *at,
                entry,
            });
            if !told {
                break;
            }
        }
        Ok(())
    }

    fn listing(&self, cx: &Cx<'_>) -> Result<Arc<Listing>> {
        let epoch = self.epoch();
        let change = self.real()?.attr(cx, AttrMask::TIMES)?.change;
        let key = (self.id, epoch, change);
        let listings = &self.tree.listings;
        match listings.get(key) {
            Some(listing) => Ok(listing),
            None => Ok(listings.insert(key, self.read_merged(cx)?, cx.call.account())),
        }
    }

    fn read_merged(&self, cx: &Cx<'_>) -> Result<Listing> {
        let State { upper, lower, .. } = self.state();
        let mut hidden = HashSet::new();
        let mut items = Vec::new();
        if let Some(upper) = &upper {
            for (name, entry) in entries(&**upper, cx)? {
                if !is_whiteout(&entry.attr) {
                    // The number that a look-up returns, for it may have been a lower file.
                    let this = self.this();
                    let found = this.found_upper(cx, entry, Name::new(&name)?)?;
                    items.push((name.clone(), found.node.id, found.node.kind));
                }
                hidden.insert(name);
            }
        }
        if let Some(lower) = &lower {
            for (name, entry) in entries(&**lower, cx)? {
                if !hidden.contains(&name) {
                    let id = self.lower_id(&entry.attr, Name::new(&name)?);
                    items.push((name, id, entry.node.kind()));
                }
            }
        }
        Ok(Listing::new(items))
    }
}

impl Listing {
    fn new(items: Vec<(Box<[u8]>, NodeId, Kind)>) -> Listing {
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
        self.charges.as_ref().map(|[place, _]| place.account())
    }
}

/// Returns all entries of a directory of either tree.
fn entries(dir: &dyn Node, cx: &Cx<'_>) -> Result<Vec<(Box<[u8]>, Entry)>> {
    let mut all: Vec<(Box<[u8]>, Option<Entry>)> = Vec::new();
    let mut take = |entry: DirEntry<'_>| {
        all.push((entry.name.into(), entry.entry));
        true
    };
    let listing = dir.open(cx, OpenFlags::READ)?;
    listing.readdir(cx, 0, ReaddirMode::Entries, &mut take)?;
    let looked = |(name, entry): (Box<[u8]>, Option<Entry>)| match entry {
        Some(entry) => Some(Ok((name, entry))),
        None => match Name::new(&name).and_then(|name| dir.lookup(cx, name)) {
            Ok(entry) => Some(Ok((name, entry))),
            Err(Errno::ENOENT) => None,
            Err(errno) => Some(Err(errno)),
        },
    };
    all.into_iter().filter_map(looked).collect()
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
