//! Files that the client's kernel reads and writes by itself (`FUSE_PASSTHROUGH`, Linux 6.9).
//!
//! Linux insists that all who have a file open at a time go one way: all past the server, by one backing, or none
//! (`fs/fuse/iomode.c`); who goes another gets `EIO`. So who opens it first decides, and that holds until the last has closed it.
//!
//! Lock order: a shard of the table of ways, held for a look-up only and never with another lock.

use std::collections::hash_map::Entry as Slot;
use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::shards::{Life, Shards};

/// The client's kernel, as whoever drives a session reaches it. Every method may be called from many threads at once.
pub trait Backings: Send + Sync {
    /// Has the client read and write `file` by itself, and says by which number; nothing if it does not.
    fn open(&self, file: BorrowedFd<'_>) -> Option<NonZeroU32>;

    /// No more will be opened by `number`.
    fn close(&self, number: NonZeroU32);
}

/// Which way the files go that are open, by their nodes.
pub(super) struct Ways {
    backings: Arc<dyn Backings>,
    table: Shards<Way>,
}

/// The way of a file, and how many have it open.
pub(super) struct Way {
    backing: Option<NonZeroU32>,
    opens: usize,
}

/// One who has a file open. The way ends with the last.
pub(super) struct Going {
    ways: Arc<Ways>,
    life: Life,
    nodeid: u64,
    backing: Option<NonZeroU32>,
}

impl Ways {
    pub(super) fn new(backings: Arc<dyn Backings>) -> Ways {
        Ways {
            backings,
            table: Shards::new(),
        }
    }

    /// The way of who opens the node: the one that others go, or what `open` makes of it. Nothing if the life is over.
    pub(super) fn go(
        self: &Arc<Ways>,
        life: Life,
        nodeid: u64,
        open: impl FnOnce(&dyn Backings) -> Option<NonZeroU32>,
    ) -> Option<Going> {
        let going = |backing| Going {
            ways: self.clone(),
            life,
            nodeid,
            backing,
        };
        if let Some(way) = self.table.of(life, nodeid)?.table.get_mut(&nodeid) {
            way.opens += 1;
            return Some(going(way.backing));
        }
        let ours = open(&*self.backings);
        let kept = self.table.of(life, nodeid).map(|mut part| {
            let way = part.table.entry(nodeid).or_insert(Way {
                backing: ours,
                opens: 0,
            });
            way.opens += 1;
            way.backing
        });
        if let Some(ours) = ours
            && kept != Some(Some(ours))
        {
            // Another was faster, or all is over.
            self.backings.close(ours);
        }
        kept.map(going)
    }

    /// A life begins, in which nothing is open.
    pub(super) fn begin(&self, life: Life) {
        let past = self.table.begin(life);
        past.iter()
            .flat_map(|shard| shard.values())
            .filter_map(|way| way.backing)
            .for_each(|backing| self.backings.close(backing));
    }
}

impl Going {
    /// By which number the client reads and writes the file by itself, if it does.
    pub(super) fn backing(&self) -> Option<NonZeroU32> {
        self.backing
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        let Some(mut part) = self.ways.table.of(self.life, self.nodeid) else {
            return;
        };
        let Slot::Occupied(mut slot) = part.table.entry(self.nodeid) else {
            return;
        };
        slot.get_mut().opens -= 1;
        let last = (slot.get().opens == 0).then(|| slot.remove());
        drop(part);
        if let Some(Way {
            backing: Some(backing),
            ..
        }) = last
        {
            self.ways.backings.close(backing);
        }
    }
}
