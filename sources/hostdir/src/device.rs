//! The file systems below an export's root: the root's own, and those mounted in it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{FileType, OFlags, RawMode, Statx};
use sys::handle::FileHandle;
use vfs::{Errno, Patience, Result};

use crate::descriptors::Fd;
use crate::host::Host;
use crate::identity;
use crate::node_ids::{self, DeviceKey, Prefix};

/// A file system of the host. Lives as long as a node on it, so that an unused one can be
/// unmounted.
pub(crate) struct Device {
    pub(crate) host: Arc<Host>,
    /// `st_dev`.
    pub(crate) dev: u64,
    pub(crate) prefix: Prefix,
    /// The type of the file system (`include/uapi/linux/magic.h`).
    pub(crate) magic: u64,
    class: SpeedClass,
    /// A descriptor on it that is open for reading, if the server may open one.
    readable: Option<Fd>,
    /// Whether its nodes can be opened by kernel handle.
    by_handle: bool,
    /// Whether reads support `RWF_NOWAIT`: 0 unknown, 1 yes, 2 no.
    nowait: AtomicU8,
}

/// File systems with a ctime finer than a clock tick as change counter, from Linux 6.13 on
/// (`FS_MGTIME`).
const FINE_TIMES: [u64; 4] = [
    0xef53,      // ext4
    0x5846_5342, // XFS
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
];

/// overlayfs: it reads merged directories into memory, and their positions are not valid in another
/// open.
const OVERLAY: u64 = 0x794c_7630;

/// The speed class of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpeedClass {
    /// All data are in memory.
    Memory,
    /// Metadata are normally in memory.
    Local,
    /// Another machine or a program serves it.
    Remote,
}

impl Device {
    /// Returns the device of `fd`, whose attributes are `stx`. May open a second descriptor, as the
    /// server itself.
    pub(crate) fn new(host: &Arc<Host>, fd: BorrowedFd<'_>, stx: &Statx) -> Result<Device> {
        let magic = rustix::fs::fstatfs(fd).map_err(sys::errno)?.f_type as u64;
        let key = DeviceKey::of(fd, stx)?;
        let readable = open_readable(host, fd, stx);
        let by_handle = host.by_handle
            && readable
                .as_ref()
                .is_some_and(|readable| can_open_by_handle(readable, fd));
        Ok(Device {
            host: host.clone(),
            dev: key.dev,
            prefix: host.prefix(key)?,
            magic,
            class: SpeedClass::of(magic),
            readable,
            by_handle,
            nowait: AtomicU8::new(0),
        })
    }

    /// Returns the node number of inode `ino`.
    pub(crate) fn id(&self, ino: u64) -> vfs::NodeId {
        node_ids::compose(&self.host.number_key, self.prefix, ino)
    }

    /// Returns whether `id` may be one of its node numbers.
    pub(crate) fn may_have(&self, id: vfs::NodeId) -> bool {
        node_ids::prefix_of(id) == Some(self.prefix)
    }

    /// Returns the descriptor for opening kernel handles, if it supports these.
    pub(crate) fn mount(&self) -> Option<BorrowedFd<'_>> {
        self.readable().filter(|_| self.by_handle)
    }

    /// Returns a descriptor on it that is open for reading, if the server may open one.
    pub(crate) fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.readable.as_ref().map(AsFd::as_fd)
    }

    /// Checks the patience before an operation in memory on an open object.
    pub(crate) fn allow_cached(&self, patience: Patience) -> Result<()> {
        require(self.class.memory(patience))
    }

    /// Checks the patience before an operation that a local file system normally performs in
    /// memory.
    pub(crate) fn allow_brief(&self, patience: Patience) -> Result<()> {
        require(self.class.brief(patience))
    }

    /// Checks the patience before an operation that waits for a disk.
    pub(crate) fn allow_disk_wait(&self, patience: Patience) -> Result<()> {
        require(self.class.long(patience))
    }

    /// Returns whether only cached names may be looked up; otherwise all look-ups are permitted or
    /// fail.
    pub(crate) fn cached_names(&self, patience: Patience) -> Result<bool> {
        self.allow_cached(patience)?;
        Ok(!self.class.brief(patience))
    }

    /// Returns the patience for reading `file`: full if all pages are in memory, less only if the
    /// kernel can tell which are cached.
    pub(crate) fn read_patience(
        &self,
        file: BorrowedFd<'_>,
        patience: Patience,
    ) -> Result<Patience> {
        if self.class == SpeedClass::Memory || patience == Patience::Full {
            return Ok(Patience::Full);
        }
        self.allow_cached(patience)?;
        if self.nowait.load(Ordering::Relaxed) == 0 {
            let answer = if sys::file_io::supports_nowait(file) {
                1
            } else {
                2
            };
            self.nowait.store(answer, Ordering::Relaxed);
        }
        require(self.nowait.load(Ordering::Relaxed) == 1)?;
        Ok(patience)
    }

    /// Returns whether it is known to timestamp each change with this machine's clock, finer than a
    /// clock tick from Linux 6.13 on.
    pub(crate) fn stamps_changes(&self) -> bool {
        FINE_TIMES.contains(&self.magic)
    }

    /// Returns whether I/O on an open file is known not to depend on the caller.
    pub(crate) fn io_is_caller_independent(&self) -> bool {
        sys::caller_independence::io_is_caller_independent(self.magic)
    }

    /// Returns whether a directory entry's cookie is valid in another open of the directory.
    pub(crate) fn has_stable_cookies(&self) -> bool {
        !self.is_remote() && self.magic != OVERLAY
    }

    /// Returns whether all its data are in memory.
    pub(crate) fn is_memory(&self) -> bool {
        self.class == SpeedClass::Memory
    }

    /// Returns whether another machine or a program serves it.
    pub(crate) fn is_remote(&self) -> bool {
        self.class == SpeedClass::Remote
    }
}

fn require(yes: bool) -> Result<()> {
    if yes { Ok(()) } else { Err(Errno::WOULD_BLOCK) }
}

impl SpeedClass {
    fn memory(self, patience: Patience) -> bool {
        self != SpeedClass::Remote || patience == Patience::Full
    }

    fn brief(self, patience: Patience) -> bool {
        match self {
            SpeedClass::Memory => true,
            SpeedClass::Local => patience >= Patience::Brief,
            SpeedClass::Remote => patience == Patience::Full,
        }
    }

    fn long(self, patience: Patience) -> bool {
        self == SpeedClass::Memory || patience == Patience::Full
    }

    /// Returns the class of a file system type (`include/uapi/linux/magic.h` unless noted).
    fn of(magic: u64) -> SpeedClass {
        match magic {
            0x0102_1994 // tmpfs
            | 0x8584_58f6 // ramfs
            | 0x9584_58f6 // hugetlbfs
            => SpeedClass::Memory,
            0x6969 // NFS
            | 0xff53_4d42 | 0xfe53_4d42 | 0x517b // CIFS, SMB2, SMB
            | 0x6573_5546 // FUSE, virtiofs
            | 0x0102_1997 // 9P
            | 0x00c3_6400 // Ceph
            | 0x5346_414f | 0x6b41_4653 // AFS
            | 0x7375_7245 // Coda
            | 0x0116_1970 // GFS2
            | 0x7461_636f // OCFS2
            | 0x0bd0_0bd0 // Lustre (its own headers)
            | 0x1983_0326 // BeeGFS (its own headers)
            | 0x4750_4653 // GPFS (its own headers)
            | 0x2003_0528 // OrangeFS (fs/orangefs)
            | 0x786f_4256 // vboxsf (fs/vboxsf)
            => SpeedClass::Remote,
            _ => SpeedClass::Local,
        }
    }
}

/// Opens `fd` for reading, as the server itself, if that has no side effects for its file type.
fn open_readable(host: &Host, fd: BorrowedFd<'_>, stx: &Statx) -> Option<Fd> {
    let flags = match FileType::from_raw_mode(RawMode::from(stx.stx_mode)) {
        FileType::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
        FileType::RegularFile => OFlags::RDONLY | OFlags::NONBLOCK,
        _ => return None,
    };
    identity::assume_server().ok()?;
    host.open(|| host.proc_fds.reopen(fd, flags)).ok()
}

/// Returns whether `fd` has a kernel handle that can be opened.
fn can_open_by_handle(readable: &Fd, fd: BorrowedFd<'_>) -> bool {
    FileHandle::of(fd).is_ok_and(|handle| handle.open(readable.as_fd(), OFlags::PATH).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_answer_only_those_who_wait_and_memory_everybody() {
        let (none, brief, full) = (Patience::None, Patience::Brief, Patience::Full);
        let allowed = |class: SpeedClass, patience| {
            [
                class.memory(patience),
                class.brief(patience),
                class.long(patience),
            ]
        };
        for patience in [none, brief] {
            assert_eq!(allowed(SpeedClass::Remote, patience), [false; 3]);
            assert_eq!(allowed(SpeedClass::Memory, patience), [true; 3]);
        }
        assert_eq!(allowed(SpeedClass::Local, none), [true, false, false]);
        assert_eq!(allowed(SpeedClass::Local, brief), [true, true, false]);
        for class in [SpeedClass::Remote, SpeedClass::Local, SpeedClass::Memory] {
            assert_eq!(allowed(class, full), [true; 3]);
        }
        assert_eq!(SpeedClass::of(0x6573_5546), SpeedClass::Remote);
        assert_eq!(SpeedClass::of(0x0102_1994), SpeedClass::Memory);
        assert_eq!(SpeedClass::of(0xef53), SpeedClass::Local);
    }
}
