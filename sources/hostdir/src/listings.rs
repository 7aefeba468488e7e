//! Listings of directories that rest, kept for whoever lists them next.
//!
//! A file system takes a quarter of a microsecond for each entry that it lists, most of the time that
//! listing a large directory takes. What it said holds for as long as the directory's change counter
//! stays; one that came from a clock is believed only of a directory that had rested for longer than
//! clocks are coarse when its listing began.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vfs::{Account, Charge, NodeId, Want};

use crate::attr;
use crate::node::HostNode;
use crate::tree::Tree;

/// The listings of a tree, those used last in front.
#[derive(Default)]
pub(crate) struct Listings {
    kept: Mutex<VecDeque<Arc<Listing>>>,
    /// Whether somebody is recording: one at a time, so that what is not whole yet is bounded too.
    recording: AtomicBool,
}

/// A whole directory, as getdents64(2) gives it from its start to its end.
pub(crate) struct Listing {
    node: NodeId,
    change: u64,
    entries: Vec<u8>,
    /// There while it is kept, here or by an open directory that reads it.
    charge: Option<Charge>,
}

/// What a directory is found to be when its start is read.
pub(crate) enum Start {
    /// Its listing is known.
    Known(Arc<Listing>),
    /// It is to be listed, and recorded.
    Record(Recording),
    /// It is to be listed.
    Unknown,
}

/// A listing that is not whole yet.
pub(crate) struct Recording {
    listing: Listing,
    tree: Arc<Tree>,
}

/// Clocks that stamp changes are no coarser.
const REST: Duration = Duration::from_secs(2);

/// The largest listing that is kept, bytes: about 30,000 entries.
const LARGEST: usize = 1 << 20;

/// All that are kept of a tree, bytes.
const MOST: usize = 4 << 20;

/// How many may be kept: they are looked through one by one.
const COUNT: usize = 64;

impl Listings {
    /// What is known of directory `node`, which `fd` is open on.
    pub(crate) fn start(node: &HostNode, fd: BorrowedFd<'_>) -> Start {
        let device = node.device();
        if !device.stamps_changes() {
            return Start::Unknown;
        }
        let Ok(now) = attr::read(device, fd, Want::BASIC | Want::TIMES) else {
            return Start::Unknown;
        };
        let listings = &device.tree.listings;
        if let Some(listing) = listings.get(now.id, now.change) {
            return Start::Known(listing);
        }
        let changed = UNIX_EPOCH + Duration::from_secs(now.ctime.sec.max(0) as u64);
        let rested = SystemTime::now().duration_since(changed);
        if rested.is_ok_and(|time| time > REST) && !listings.recording.swap(true, Ordering::Relaxed)
        {
            return Start::Record(Recording {
                listing: Listing {
                    node: now.id,
                    change: now.change,
                    entries: Vec::new(),
                    charge: None,
                },
                tree: device.tree.clone(),
            });
        }
        Start::Unknown
    }

    fn get(&self, node: NodeId, change: u64) -> Option<Arc<Listing>> {
        let mut kept = self.kept.lock().expect("no panic holds it");
        let at = kept.iter().position(|listing| listing.node == node)?;
        let listing = kept.remove(at)?;
        if listing.change != change {
            return None;
        }
        kept.push_front(listing.clone());
        Some(listing)
    }

    fn keep(&self, listing: Listing) {
        let mut kept = self.kept.lock().expect("no panic holds it");
        kept.retain(|old| old.node != listing.node);
        kept.push_front(Arc::new(listing));
        let size = |kept: &VecDeque<Arc<Listing>>| -> usize {
            kept.iter().map(|listing| listing.entries.capacity()).sum()
        };
        while kept.len() > COUNT || size(&kept) > MOST {
            kept.pop_back();
        }
    }
}

impl Listing {
    pub(crate) fn entries(&self) -> &[u8] {
        &self.entries
    }

    /// For its memory.
    pub(crate) fn charge(&self) -> Option<&Charge> {
        self.charge.as_ref()
    }
}

impl Recording {
    /// What comes next; gives itself up if that is too much.
    pub(crate) fn add(mut self, entries: &[u8]) -> Option<Recording> {
        self.listing.entries.extend_from_slice(entries);
        (self.listing.entries.len() <= LARGEST).then_some(self)
    }

    /// The end has come: keeps it on `account`, if the directory `fd` is what it was at the start
    /// and there is room.
    pub(crate) fn finish(mut self, node: &HostNode, fd: BorrowedFd<'_>, account: &Account) {
        let now = attr::read(node.device(), fd, Want::BASIC | Want::TIMES);
        if now.is_ok_and(|now| now.change == self.listing.change)
            && let Ok(charge) = self.tree.streams.take(account, self.listing.entries.len())
        {
            let mut entries = std::mem::take(&mut self.listing.entries);
            entries.shrink_to_fit();
            let (node, change) = (self.listing.node, self.listing.change);
            self.tree.listings.keep(Listing {
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
        self.tree.listings.recording.store(false, Ordering::Relaxed);
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
        let listings = Listings::default();
        for node in 1..=5 {
            listings.keep(listing(node, LARGEST));
            assert!(listings.get(1, 1).is_some());
        }
        assert!(listings.get(2, 2).is_none());
        assert!(listings.get(5, 5).is_some());
        for node in 10..10 + COUNT as u64 {
            listings.keep(listing(node, 1));
        }
        assert!(listings.get(5, 5).is_none());
        assert!(listings.get(10, 10).is_some());
    }

    #[test]
    fn what_changed_is_forgotten() {
        let listings = Listings::default();
        listings.keep(listing(7, 1));
        assert!(listings.get(7, 8).is_none());
        assert!(listings.get(7, 7).is_none());
    }
}
