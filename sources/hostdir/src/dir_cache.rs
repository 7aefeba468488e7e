//! Cached listings of unchanged directories.
//!
//! A file system takes a quarter of a microsecond for each entry that it lists, most of the time
//! that listing a large directory takes. A listing is valid as long as the directory's change
//! counter stays the same. Because a counter may come from a coarse clock, only a directory is
//! cached that had been unchanged for longer than the clock's granularity when its listing began.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use vfs::{AttrMask, Charge, NodeId};

use crate::attr;
use crate::device::Device;

/// The listings of a tree, the most recently used first.
#[derive(Default)]
pub(crate) struct DirCache {
    listings: Mutex<VecDeque<Arc<Listing>>>,
    /// Whether a listing is being recorded: one at a time, so that incomplete listings are bounded
    /// too.
    recording: Arc<AtomicBool>,
}

/// A whole directory, as getdents64(2) returns it from start to end.
pub(crate) struct Listing {
    node: NodeId,
    change: u64,
    entries: Vec<u8>,
    /// Present while it is cached, or an open directory reads it.
    charge: Option<Charge>,
}

/// The state of a directory when its start is read.
pub(crate) enum Lookup {
    /// Its listing is cached.
    Cached(Arc<Listing>),
    /// It is to be listed and recorded.
    Record(Recording),
    /// It is to be listed only.
    Uncached,
}

/// An incomplete listing.
pub(crate) struct Recording {
    listing: Listing,
    /// [`DirCache::recording`], set while this exists.
    flag: Arc<AtomicBool>,
}

/// An upper bound for the granularity of the clocks that timestamp changes.
const MIN_AGE: Duration = Duration::from_secs(2);

/// The largest listing to cache, in bytes: about 30,000 entries.
const MAX_LISTING: usize = 1 << 20;

/// The most bytes of cached listings of a tree.
const MAX_BYTES: usize = 4 << 20;

/// The most cached listings: look-up is linear.
const MAX_LISTINGS: usize = 64;

impl DirCache {
    /// Returns the state of the directory on `device` that `fd` is open on.
    pub(crate) fn look_up(&self, device: &Device, fd: BorrowedFd<'_>) -> Lookup {
        if !device.stamps_changes() {
            return Lookup::Uncached;
        }
        let Ok(now) = attr::read(device, fd, AttrMask::BASIC | AttrMask::TIMES) else {
            return Lookup::Uncached;
        };
        if let Some(listing) = self.get(now.id, now.change) {
            return Lookup::Cached(listing);
        }
        let changed = UNIX_EPOCH + Duration::from_secs(now.ctime.sec.max(0) as u64);
        let age = SystemTime::now().duration_since(changed);
        if age.is_ok_and(|time| time > MIN_AGE) && !self.recording.swap(true, Ordering::Relaxed) {
            return Lookup::Record(Recording {
                listing: Listing {
                    node: now.id,
                    change: now.change,
                    entries: Vec::new(),
                    charge: None,
                },
                flag: self.recording.clone(),
            });
        }
        Lookup::Uncached
    }

    /// Releases all listings, and returns their size in bytes. An open directory that reads one
    /// keeps it.
    pub(crate) fn clear(&self) -> usize {
        let listings = std::mem::take(&mut *self.listings.lock());
        let sizes = listings.iter().map(|listing| listing.entries.capacity());
        sizes.sum()
    }

    fn get(&self, node: NodeId, change: u64) -> Option<Arc<Listing>> {
        let mut listings = self.listings.lock();
        let at = listings.iter().position(|listing| listing.node == node)?;
        let listing = listings.remove(at)?;
        if listing.change != change {
            return None;
        }
        listings.push_front(listing.clone());
        Some(listing)
    }

    fn insert(&self, listing: Listing) {
        let mut listings = self.listings.lock();
        listings.retain(|old| old.node != listing.node);
        listings.push_front(Arc::new(listing));
        let size = |listings: &VecDeque<Arc<Listing>>| -> usize {
            listings
                .iter()
                .map(|listing| listing.entries.capacity())
                .sum()
        };
        while listings.len() > MAX_LISTINGS || size(&listings) > MAX_BYTES {
            listings.pop_back();
        }
    }
}

impl Listing {
    pub(crate) fn entries(&self) -> &[u8] {
        &self.entries
    }

    /// Returns the charge for its memory.
    pub(crate) fn charge(&self) -> Option<&Charge> {
        self.charge.as_ref()
    }
}

impl Recording {
    /// Adds the next entries; returns `None` if the listing becomes too large.
    pub(crate) fn add(mut self, entries: &[u8]) -> Option<Recording> {
        self.listing.entries.extend_from_slice(entries);
        (self.listing.entries.len() <= MAX_LISTING).then_some(self)
    }

    /// Completes the listing, and caches it in `dir_cache` with a charge for its size from
    /// `charge`, if the directory `fd` on `device` has not changed since the start, was not removed
    /// (it has entries), and there is room.
    pub(crate) fn finish(
        mut self,
        dir_cache: &DirCache,
        device: &Device,
        fd: BorrowedFd<'_>,
        charge: impl FnOnce(usize) -> Option<Charge>,
    ) {
        let now = attr::read(device, fd, AttrMask::BASIC | AttrMask::TIMES);
        if now.is_ok_and(|now| now.change == self.listing.change)
            && !self.listing.entries.is_empty()
            && let Some(charge) = charge(self.listing.entries.len())
        {
            let mut entries = std::mem::take(&mut self.listing.entries);
            entries.shrink_to_fit();
            let (node, change) = (self.listing.node, self.listing.change);
            dir_cache.insert(Listing {
                node,
                change,
                entries,
                charge: Some(charge),
            });
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.flag.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(node: NodeId, len: usize) -> Listing {
        Listing {
            node,
            change: node,
            entries: vec![0; len],
            charge: None,
        }
    }

    #[test]
    fn only_as_many_are_kept_as_may_be_and_those_used_last() {
        let listings = DirCache::default();
        for node in 1..=5 {
            listings.insert(listing(node, MAX_LISTING));
            assert!(listings.get(1, 1).is_some());
        }
        assert!(listings.get(2, 2).is_none());
        assert!(listings.get(5, 5).is_some());
        for node in 10..10 + MAX_LISTINGS as u64 {
            listings.insert(listing(node, 1));
        }
        assert!(listings.get(5, 5).is_none());
        assert!(listings.get(10, 10).is_some());
    }

    #[test]
    fn what_changed_is_forgotten() {
        let listings = DirCache::default();
        listings.insert(listing(7, 1));
        assert!(listings.get(7, 8).is_none());
        assert!(listings.get(7, 7).is_none());
    }
}
