//! Which way the contents of a file go: through what the client keeps of it, past that, or past the server as well, where the
//! client's kernel reads and writes the file by itself (`FUSE_PASSTHROUGH`, Linux 6.9).
//!
//! All who have a file open at a time go one way. Linux insists on it for files that it reads by itself (`fs/fuse/iomode.c`): who
//! goes another way gets `EIO`. And what goes past the pages that a client keeps leaves them behind as they were, if they are read
//! meanwhile. So who opens it first decides, and that holds until the last has closed it.
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

/// Which way a file goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Way {
    /// Through what the client keeps of it.
    #[default]
    Kept,
    /// Each request to the server.
    Past,
    /// By the client itself, under this number.
    Backed(NonZeroU32),
}

/// Which way the files go that are open, by their nodes.
pub(super) struct Ways {
    backings: Option<Arc<dyn Backings>>,
    table: Shards<Going>,
}

/// The way of a file, and how many have it open.
struct Going {
    way: Way,
    opens: usize,
}

/// One who has a file open. The way ends with the last.
pub(super) struct Goer {
    ways: Arc<Ways>,
    life: Life,
    nodeid: u64,
    way: Way,
}

impl Ways {
    /// Files that the client may read and write by itself are opened by `backings`.
    pub(super) fn new(backings: Option<Arc<dyn Backings>>) -> Ways {
        Ways {
            backings,
            table: Shards::new(),
        }
    }

    /// Whether the client may read and write files by itself.
    pub(super) fn has_backings(&self) -> bool {
        self.backings.is_some()
    }

    /// The way of who opens the node: the one that others go, or else the one that `choose` finds. Nothing if the life is over.
    pub(super) fn go(
        self: &Arc<Ways>,
        life: Life,
        nodeid: u64,
        choose: impl FnOnce(Option<&dyn Backings>) -> Way,
    ) -> Option<Goer> {
        let goer = |way| Goer {
            ways: self.clone(),
            life,
            nodeid,
            way,
        };
        if let Some(going) = self.table.of(life, nodeid)?.table.get_mut(&nodeid) {
            going.opens += 1;
            return Some(goer(going.way));
        }
        let ours = choose(self.backings.as_deref());
        let kept = self.table.of(life, nodeid).map(|mut part| {
            let new = Going {
                way: ours,
                opens: 0,
            };
            let going = part.table.entry(nodeid).or_insert(new);
            going.opens += 1;
            going.way
        });
        if kept != Some(ours) {
            // Another was faster, or all is over.
            self.end(ours);
        }
        kept.map(goer)
    }

    /// A life begins, in which nothing is open.
    pub(super) fn begin(&self, life: Life) {
        let past = self.table.begin(life);
        past.iter()
            .flat_map(|shard| shard.values())
            .for_each(|going| self.end(going.way));
    }

    fn end(&self, way: Way) {
        if let (Way::Backed(number), Some(backings)) = (way, &self.backings) {
            backings.close(number);
        }
    }
}

impl Goer {
    pub(super) fn way(&self) -> Way {
        self.way
    }
}

impl Drop for Goer {
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
        if let Some(going) = last {
            self.ways.end(going.way);
        }
    }
}
