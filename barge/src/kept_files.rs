//! Descriptors that one process keeps for the successor of another: those of open files without a
//! name, which no process finds again, and of devices. They arrive as packets over a socket.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fuse::server::FileKeeper;
use rustix::fs::{AtFlags, FileType, StatxFlags};
use serde::{Deserialize, Serialize};

use crate::child::message;

/// A packet about a descriptor that is kept for a node.
#[derive(Serialize, Deserialize)]
pub(crate) enum KeepFile {
    /// The passed descriptor is kept.
    Keep(u64),
    /// It is closed.
    Release(u64),
}

/// The number of descriptors that this process keeps for another one, and its limit.
#[derive(Clone)]
pub(crate) struct KeptLimit {
    count: Arc<AtomicUsize>,
    most: usize,
    /// Whether the log has that the limit is reached.
    is_logged: Arc<AtomicBool>,
}

impl KeptLimit {
    /// The maximum number of descriptors.
    const MOST: usize = 4096;

    /// Returns the limit for one of `count` processes: an equal share of [`KeptLimit::MOST`], or of
    /// a quarter of this process's limit of open files.
    pub(crate) fn for_one_of(count: usize) -> KeptLimit {
        let quarter = usize::try_from(sys::limits::descriptors() / 4).unwrap_or(KeptLimit::MOST);
        KeptLimit {
            count: Arc::default(),
            most: quarter.min(KeptLimit::MOST) / count.max(1),
            is_logged: Arc::default(),
        }
    }

    /// Counts a descriptor. Closes it and returns `None` beyond the limit.
    pub(crate) fn keep(&self, fd: OwnedFd) -> Option<KeptDescriptor> {
        let count = self.count.clone();
        let before = count.fetch_add(1, Ordering::Relaxed);
        let kept = KeptDescriptor { fd, count };
        if before < self.most {
            return Some(kept);
        }
        if !self.is_logged.swap(true, Ordering::Relaxed) {
            let most = self.most;
            tracing::warn!("more than {most} descriptors are to be kept: some are lost at a crash");
        }
        None
    }
}

/// A descriptor that counts until it is dropped.
pub(crate) struct KeptDescriptor {
    fd: OwnedFd,
    count: Arc<AtomicUsize>,
}

impl KeptDescriptor {
    /// Returns a duplicate, which no child process inherits.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }
}

impl Drop for KeptDescriptor {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Open files without a name, by their nodes. Those beyond the limit are not kept.
pub(crate) struct KeptFiles {
    files: BTreeMap<u64, KeptDescriptor>,
    limit: KeptLimit,
}

impl KeptFiles {
    pub(crate) fn new(limit: KeptLimit) -> KeptFiles {
        KeptFiles {
            files: BTreeMap::new(),
            limit,
        }
    }

    /// Applies a packet that has arrived with this descriptor.
    pub(crate) fn apply(&mut self, packet: &KeepFile, file: Option<OwnedFd>) {
        match (packet, file) {
            (KeepFile::Keep(node), Some(file)) if is_regular(&file) => {
                if let Some(kept) = self.limit.keep(file) {
                    self.files.insert(*node, kept);
                }
            }
            (KeepFile::Keep(_), _) => {}
            (KeepFile::Release(node), _) => drop(self.files.remove(node)),
        }
    }

    /// Returns the descriptors in the order of their nodes.
    pub(crate) fn all(&self) -> impl Iterator<Item = &KeptDescriptor> {
        self.files.values()
    }

    pub(crate) fn clear(&mut self) {
        self.files.clear();
    }
}

/// Returns whether a descriptor is of a regular file. One of a socket could be the other end of the
/// keeper's own: the keeper would wait for its end forever.
fn is_regular(file: &OwnedFd) -> bool {
    // A file server is not queried.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(file, c"", flags, StatxFlags::TYPE)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile)
}

/// Another process that keeps files. They have arrived there once they are in the socket.
pub(crate) struct Keeper(OwnedFd);

impl Keeper {
    /// Returns the keeper at the other end of `socket`.
    pub(crate) fn new(socket: OwnedFd) -> Keeper {
        Keeper(socket)
    }
}

impl FileKeeper for Keeper {
    fn keep(&self, nodeid: u64, file: BorrowedFd<'_>) {
        // The other process may have ended, and then so does this one.
        let _ = message::send(self.0.as_fd(), &KeepFile::Keep(nodeid), Some(file));
    }

    fn release(&self, nodeid: u64) {
        let _ = message::send(self.0.as_fd(), &KeepFile::Release(nodeid), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> OwnedFd {
        tempfile::tempfile().expect("a file").into()
    }

    #[test]
    fn only_regular_files_are_kept() {
        assert!(is_regular(&file()));
        let (here, there) = message::pair().expect("a pair");
        assert!(!is_regular(&here) && !is_regular(&there));
        let root = std::fs::File::open("/").expect("opened");
        assert!(!is_regular(&root.into()));
    }

    #[test]
    fn all_files_of_a_process_have_one_limit() {
        let limit = KeptLimit {
            most: 3,
            ..KeptLimit::for_one_of(1)
        };
        let mut first = KeptFiles::new(limit.clone());
        let mut second = KeptFiles::new(limit.clone());
        let keep = |files: &mut KeptFiles, node| {
            files.apply(&KeepFile::Keep(node), Some(file()));
            files.all().count()
        };
        assert_eq!([1, 2].map(|node| keep(&mut first, node)), [1, 2]);
        assert_eq!([1, 2].map(|node| keep(&mut second, node)), [1, 1]);
        first.apply(&KeepFile::Release(1), None);
        assert_eq!(keep(&mut second, 2), 2);
        first.clear();
        assert!(limit.keep(file()).is_some());
        drop(second);
        assert_eq!(limit.count.load(Ordering::Relaxed), 0);
    }
}
