//! Which way the contents of a file go: through what the client keeps of it, past that, or past the server as well, where the
//! client's kernel reads and writes the file by itself (`FUSE_PASSTHROUGH`, Linux 6.9).
//!
//! All who have a file open at a time go one way. Linux insists on it for files that it reads by itself (`fs/fuse/iomode.c`): who
//! goes another way gets `EIO`. And what goes past the pages that a client keeps leaves them behind as they were, if they are read
//! meanwhile. So who opens it first decides, and that holds until the last has closed it.
//!
//! A file that another process has opened is good for no more than that process could do ([`vfs::Backing::limits`]): who opens to do more
//! shows that it is in the same file that he may, or cannot open it now.
//!
//! Lock order: a shard of the table of ways, held for a look-up only and never with another lock.

use std::collections::hash_map::Entry as Slot;
use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use vfs::{Errno, Limits, OpenFlags, Result};

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
    /// What it is good for, if that is not everything.
    limits: Option<Limits>,
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

    /// The way of who opens the node with `flags`: the one that others go, or else the one that `choose` finds. Nothing if the life is
    /// over; `EIO` if others go a way that is not good for it, and neither is what `own` knows of the file.
    pub(super) fn go(
        self: &Arc<Ways>,
        life: Life,
        nodeid: u64,
        flags: OpenFlags,
        choose: impl Fn(Option<&dyn Backings>) -> (Way, Option<Limits>),
        own: impl Fn() -> Option<Limits>,
    ) -> Result<Option<Goer>> {
        let (mut ours, mut shown) = (None, None);
        let gone = loop {
            let Some(mut part) = self.table.of(life, nodeid) else {
                break Ok(None);
            };
            if let Some(going) = part.table.get_mut(&nodeid) {
                if going.take(flags, shown.flatten()) {
                    break Ok(Some(going.way));
                }
                if shown.is_some() {
                    break Err(Errno::EIO);
                }
                drop(part);
                shown = Some(own());
            } else if let Some((way, limits)) = ours {
                let opens = 1;
                part.table.insert(nodeid, Going { way, opens, limits });
                break Ok(Some(way));
            } else {
                drop(part);
                let chosen = choose(self.backings.as_deref());
                (ours, shown) = (Some(chosen), Some(chosen.1));
            }
        };
        if let Some((way, _)) = ours
            && gone != Ok(Some(way))
        {
            // Another was faster, or all is over.
            self.end(way);
        }
        Ok(gone?.map(|way| Goer {
            ways: self.clone(),
            life,
            nodeid,
            way,
        }))
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

impl Going {
    /// Takes one more along, who opens with `flags` and has shown that file himself, unless it is not good for that.
    fn take(&mut self, flags: OpenFlags, shown: Option<Limits>) -> bool {
        if let Some(limits) = &mut self.limits
            && !limits.allow(flags)
        {
            match shown {
                Some(own) if own.file == limits.file && own.allow(flags) => {
                    limits.access |= own.access;
                }
                _ => return false,
            }
        }
        self.opens += 1;
        true
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

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: u64 = 7;
    const NUMBER: NonZeroU32 = NonZeroU32::MIN;

    fn ways() -> Arc<Ways> {
        let ways = Arc::new(Ways::new(None));
        ways.begin(1);
        ways
    }

    fn limits(access: OpenFlags, ino: u64) -> Limits {
        let file = (1, ino);
        Limits { access, file }
    }

    /// Opens to do `flags`, and can show `own`.
    fn open(ways: &Arc<Ways>, flags: OpenFlags, own: Option<Limits>) -> Result<Goer> {
        let way = || match own {
            Some(_) => Way::Backed(NUMBER),
            None => Way::Kept,
        };
        let goer = ways.go(1, NODE, flags, |_| (way(), own), || own)?;
        Ok(goer.expect("it is this life"))
    }

    /// What another process has opened is good for what that may do.
    #[test]
    fn who_opens_for_more_than_others_have_shows_a_descriptor_for_that() {
        let (read, write) = (OpenFlags::READ, OpenFlags::WRITE);
        let ways = ways();
        let first = open(&ways, read, Some(limits(read, 5))).expect("opened");
        for shown in [
            None,
            Some(limits(read, 5)),
            Some(limits(write, 5)),
            Some(limits(read | write, 6)),
        ] {
            let refused = open(&ways, read | write, shown).err();
            assert_eq!(refused, Some(Errno::EIO), "{shown:?}");
        }
        let same = open(&ways, OpenFlags::EXEC, None).expect("to read it shows nothing");
        let more = open(&ways, write, Some(limits(write, 5))).expect("shown");
        let both = open(&ways, read | write, None).expect("shown by others");
        for goer in [&first, &same, &more, &both] {
            assert_eq!(goer.way(), Way::Backed(NUMBER));
        }
        drop((first, same, more));
        drop(open(&ways, write, None).expect("one is left"));
        drop(both);
        let other = open(&ways, read | write, None).expect("they are gone");
        assert_eq!(other.way(), Way::Kept);
    }

    /// A file of this process's own is good for all.
    #[test]
    fn what_has_no_limits_is_shown_nothing() {
        let ways = ways();
        let choose = |_: Option<&dyn Backings>| (Way::Backed(NUMBER), None);
        let go = |flags| {
            let goer = ways.go(1, NODE, flags, choose, || unreachable!("nothing is needed"));
            goer.expect("opened").expect("it is this life")
        };
        let (one, other) = (go(OpenFlags::READ), go(OpenFlags::WRITE));
        assert_eq!((one.way(), other.way()), (Way::Backed(NUMBER), one.way()));
    }
}
