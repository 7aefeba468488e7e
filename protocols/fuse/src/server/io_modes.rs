//! The I/O mode of an open file: through the client's page cache, past the cache to the server, or
//! past the server as well, where the client's kernel reads and writes the backing file directly
//! (`FUSE_PASSTHROUGH`, Linux 6.9).
//!
//! All open files of a node share one mode. Linux requires it for passthrough (`fs/fuse/iomode.c`):
//! an open in another mode fails with `EIO`. And I/O past the page cache does not update pages that
//! other open files have cached. So the first open file determines the mode, until the last is
//! closed.
//!
//! A backing file that another process opened permits only that process's access
//! ([`vfs::Backing::restrictions`]). An open that needs more access has to present a descriptor of
//! the same file with that access, or fails.
//!
//! Lock order: a shard of the table of modes, held for a look-up only and never together with
//! another lock.

use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use vfs::{BackingRestrictions, Errno, OpenFlags, Result};

use super::table::{Incarnation, Table};

/// The client's kernel as the driver of a session reaches it. Methods may be called concurrently.
pub trait BackingRegistry: Send + Sync {
    /// Registers `file` for direct I/O by the client and returns its backing id, or `None` if that
    /// fails.
    fn open(&self, file: BorrowedFd<'_>) -> Option<NonZeroU32>;

    /// Unregisters a backing id: no more files will be opened with it.
    fn close(&self, number: NonZeroU32);
}

/// The I/O mode of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum IoMode {
    /// Through the client's page cache.
    #[default]
    Cached,
    /// Each request goes to the server.
    Direct,
    /// The client's kernel uses the backing file with this id.
    Passthrough(NonZeroU32),
}

/// The I/O modes of open files, by node.
pub(super) struct IoModes {
    backings: Option<Arc<dyn BackingRegistry>>,
    nodes: Table<NodeIoMode>,
}

/// The mode of a node's files, and how many are open.
struct NodeIoMode {
    mode: IoMode,
    opens: usize,
    /// The access that the backing file permits, if limited.
    limits: Option<BackingRestrictions>,
}

/// An open file's share in its node's mode, which ends with the last share.
pub(super) struct IoModeRef {
    modes: Arc<IoModes>,
    incarnation: Incarnation,
    nodeid: u64,
    mode: IoMode,
}

impl IoModes {
    /// `backings` registers files for passthrough; without it there is none.
    pub(super) fn new(backings: Option<Arc<dyn BackingRegistry>>) -> IoModes {
        IoModes {
            backings,
            nodes: Table::new(),
        }
    }

    /// Returns whether passthrough is available.
    pub(super) fn has_passthrough(&self) -> bool {
        self.backings.is_some()
    }

    /// Returns whether the client's kernel reads and writes the node's open files itself.
    pub(super) fn is_passed_through(&self, incarnation: Incarnation, nodeid: u64) -> bool {
        let shard = self.nodes.shard(incarnation, nodeid);
        shard.is_some_and(|shard| {
            let node = shard.entries.get(nodeid);
            node.is_some_and(|node| matches!(node.mode, IoMode::Passthrough(_)))
        })
    }

    /// Returns a share in the mode for opening the node with `flags`: the mode of the files that
    /// are already open, or else the one that `choose` returns. Returns `None` if the incarnation
    /// is over, and `EIO` if the existing mode does not permit `flags` and neither does the
    /// descriptor that `own` describes.
    pub(super) fn acquire(
        self: &Arc<IoModes>,
        incarnation: Incarnation,
        nodeid: u64,
        flags: OpenFlags,
        choose: impl Fn(Option<&dyn BackingRegistry>) -> (IoMode, Option<BackingRestrictions>),
        own: impl Fn() -> Option<BackingRestrictions>,
    ) -> Result<Option<IoModeRef>> {
        let (mut ours, mut shown) = (None, None);
        let outcome = loop {
            let Some(mut shard) = self.nodes.shard(incarnation, nodeid) else {
                break Ok(None);
            };
            if let Some(going) = shard.entries.get_mut(nodeid) {
                if going.add_open(flags, shown.flatten()) {
                    break Ok(Some(going.mode));
                }
                if shown.is_some() {
                    break Err(Errno::EIO);
                }
                drop(shard);
                shown = Some(own());
            } else if let Some((way, limits)) = ours {
                let opens = 1;
                shard.entries.insert(
                    nodeid,
                    NodeIoMode {
                        mode: way,
                        opens,
                        limits,
                    },
                );
                break Ok(Some(way));
            } else {
                drop(shard);
                let chosen = choose(self.backings.as_deref());
                (ours, shown) = (Some(chosen), Some(chosen.1));
            }
        };
        if let Some((way, _)) = ours
            && outcome != Ok(Some(way))
        {
            // Another open was faster, or the incarnation is over.
            self.unregister(way);
        }
        Ok(outcome?.map(|way| IoModeRef {
            modes: self.clone(),
            incarnation,
            nodeid,
            mode: way,
        }))
    }

    /// Begins an incarnation without open files.
    pub(super) fn begin(&self, incarnation: Incarnation) {
        let past = self.nodes.begin(incarnation);
        past.iter()
            .flat_map(|shard| shard.iter())
            .for_each(|(_, going)| self.unregister(going.mode));
    }

    fn unregister(&self, way: IoMode) {
        if let (IoMode::Passthrough(number), Some(backings)) = (way, &self.backings) {
            backings.close(number);
        }
    }
}

impl NodeIoMode {
    /// Adds an open file with `flags`, described by `shown`. Returns false if the mode does not
    /// permit `flags`.
    fn add_open(&mut self, flags: OpenFlags, shown: Option<BackingRestrictions>) -> bool {
        if let Some(limits) = &mut self.limits
            && !limits.allows(flags)
        {
            match shown {
                Some(own) if own.file == limits.file && own.allows(flags) => {
                    limits.access |= own.access;
                }
                _ => return false,
            }
        }
        self.opens += 1;
        true
    }
}

impl IoModeRef {
    pub(super) fn mode(&self) -> IoMode {
        self.mode
    }
}

impl Drop for IoModeRef {
    fn drop(&mut self) {
        let Some(mut shard) = self.modes.nodes.shard(self.incarnation, self.nodeid) else {
            return;
        };
        let Some(going) = shard.entries.get_mut(self.nodeid) else {
            return;
        };
        going.opens -= 1;
        let is_last = going.opens == 0;
        let last = is_last.then(|| shard.entries.remove(self.nodeid));
        drop(shard);
        if let Some(going) = last.flatten() {
            self.modes.unregister(going.mode);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: u64 = 7;
    const NUMBER: NonZeroU32 = NonZeroU32::MIN;

    fn ways() -> Arc<IoModes> {
        let ways = Arc::new(IoModes::new(None));
        ways.begin(1);
        ways
    }

    fn limits(access: OpenFlags, ino: u64) -> BackingRestrictions {
        let file = (1, ino);
        BackingRestrictions { access, file }
    }

    /// Opens with `flags`, with a descriptor described by `own`.
    fn open(
        ways: &Arc<IoModes>,
        flags: OpenFlags,
        own: Option<BackingRestrictions>,
    ) -> Result<IoModeRef> {
        let way = || match own {
            Some(_) => IoMode::Passthrough(NUMBER),
            None => IoMode::Cached,
        };
        let goer = ways.acquire(1, NODE, flags, |_| (way(), own), || own)?;
        Ok(goer.expect("it is this incarnation"))
    }

    /// A file that another process opened permits only that process's access.
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
            assert_eq!(goer.mode(), IoMode::Passthrough(NUMBER));
        }
        drop((first, same, more));
        drop(open(&ways, write, None).expect("one is left"));
        drop(both);
        let other = open(&ways, read | write, None).expect("they are gone");
        assert_eq!(other.mode(), IoMode::Cached);
    }

    /// A file that this process opened permits any access.
    #[test]
    fn what_has_no_limits_is_shown_nothing() {
        let ways = ways();
        let choose = |_: Option<&dyn BackingRegistry>| (IoMode::Passthrough(NUMBER), None);
        let go = |flags| {
            let goer = ways.acquire(1, NODE, flags, choose, || unreachable!("nothing is needed"));
            goer.expect("opened").expect("it is this incarnation")
        };
        let (one, other) = (go(OpenFlags::READ), go(OpenFlags::WRITE));
        assert_eq!(
            (one.mode(), other.mode()),
            (IoMode::Passthrough(NUMBER), one.mode())
        );
    }
}
