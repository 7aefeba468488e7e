//! Opening files and directories.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{Access as RawAccess, Mode, OFlags};
use rustix::io::Errno as Raw;
use sys::errno;
use vfs::{Access, Cx, Errno, Kind, OpenFlags, Patience, Result};

use crate::descriptors::Fd;
use crate::file::HostFile;
use crate::host::Host;
use crate::node::HostNode;
use crate::open_files::OpenFile;
use crate::{identity, lease};

impl HostNode {
    /// Opens the file or directory as the caller. Returns `ELOOP` for a symbolic link, and `ENXIO`
    /// for other types.
    pub(crate) fn open_file(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<HostFile> {
        match self.kind() {
            Kind::File | Kind::Directory => {}
            Kind::Symlink => return Err(Errno::ELOOP),
            _ => return Err(Errno::ENXIO),
        }
        self.device().allow_brief(cx.patience)?;
        let node = self.shared().ok_or(Errno::ESTALE)?;
        let share = OpenFile::share(self.device(), self.kind(), cx)?;
        let fd = self.fd(cx.patience)?;
        self.host().identity.assume(cx)?;
        let (fd, raw) = file(self.host(), self.kind(), fd.as_fd(), flags, cx)?;
        Ok(HostFile::new(node, Arc::new(fd), flags, raw, share))
    }
}

/// Opens the file or directory of `path` with the thread's identity, and returns it with the flags
/// used.
fn file(
    host: &Host,
    kind: Kind,
    path: BorrowedFd<'_>,
    flags: OpenFlags,
    cx: &Cx<'_>,
) -> Result<(Fd, OFlags)> {
    let mut raw = raw_flags(flags)?;
    if flags.contains(OpenFlags::EXEC) {
        if kind == Kind::Directory || access(path, Access::EXEC)?.is_empty() {
            return Err(Errno::EACCES);
        }
        if !flags.contains(OpenFlags::READ) {
            // A caller with execute permission may have the file read for that.
            identity::assume_server()?;
        }
    }
    if kind == Kind::Directory {
        raw |= OFlags::DIRECTORY;
        // Half the cost of opening through /proc, but needs search permission in addition to read.
        match host.open(|| rustix::fs::openat(path, c".", raw, Mode::empty())) {
            Err(Errno::EACCES) => {}
            opened => return opened.map(|fd| (fd, raw)),
        }
    }
    let parks = lease::parks(cx);
    if cx.patience == Patience::Full && !parks {
        // O_NONBLOCK would make the open fail on a leased file instead of waiting.
        raw -= OFlags::NONBLOCK;
    }
    loop {
        match host.open(|| host.proc_fds.reopen(path, raw)) {
            // The file system does not support direct I/O.
            Err(Errno::EINVAL) if raw.contains(OFlags::DIRECT) => raw -= OFlags::DIRECT,
            Err(Errno::EAGAIN) if parks => return lease::wait(cx, || Ok(None)),
            Err(Errno::EAGAIN) if cx.patience < Patience::Full => return Err(Errno::WOULD_BLOCK),
            opened => return opened.map(|fd| (fd, raw)),
        }
    }
}

/// Returns the flags of open(2), without those for creation. Returns `EINVAL` for an open without
/// an access mode.
pub(crate) fn raw_flags(flags: OpenFlags) -> Result<OFlags> {
    let read = flags.intersects(OpenFlags::READ | OpenFlags::EXEC);
    let mut raw = match (read, flags.contains(OpenFlags::WRITE)) {
        (true, true) => OFlags::RDWR,
        (true, false) => OFlags::RDONLY,
        (false, true) => OFlags::WRONLY,
        (false, false) => return Err(Errno::EINVAL),
    };
    for (flag, bit) in [
        (OpenFlags::APPEND, OFlags::APPEND),
        (OpenFlags::TRUNC, OFlags::TRUNC),
        (OpenFlags::DIRECT, OFlags::DIRECT),
        (OpenFlags::DSYNC, OFlags::DSYNC),
        (OpenFlags::SYNC, OFlags::SYNC),
        (OpenFlags::NOATIME, OFlags::NOATIME),
    ] {
        raw.set(bit, flags.contains(flag));
    }
    Ok(raw | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC)
}

/// Returns the part of `want` that the thread's identity has: one call if it has all of it.
pub(crate) fn access(path: BorrowedFd<'_>, want: Access) -> Result<Access> {
    let may = |want: Access| {
        let mut raw = RawAccess::empty();
        raw.set(RawAccess::READ_OK, want.contains(Access::READ));
        raw.set(RawAccess::WRITE_OK, want.contains(Access::WRITE));
        raw.set(RawAccess::EXEC_OK, want.contains(Access::EXEC));
        match sys::path::access(path, raw) {
            Ok(()) => Ok(true),
            Err(Raw::ACCESS | Raw::PERM | Raw::ROFS | Raw::TXTBSY) => Ok(false),
            Err(error) => Err(errno(error)),
        }
    };
    if may(want)? {
        return Ok(want);
    }
    let mut granted = Access::empty();
    if want.bits().count_ones() > 1 {
        for each in want.iter() {
            if may(each)? {
                granted |= each;
            }
        }
    }
    Ok(granted)
}
