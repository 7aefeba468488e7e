//! An open file or directory.

use std::any::Any;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags};
use sys::errno;
use vfs::{
    AllocateMode, Attr, AttrMask, Backing, BreakCallback, CopyMode, Cx, DirSink, Errno, Extent,
    File, Kind, Lease, LeaseKind, Name, Node, OpenFlags, Patience, Payload, ReaddirMode, Result,
    SetAttr, Sink, Whence,
};

use crate::attr::{self, Target};
use crate::descriptors::{Fd, Share};
use crate::dir_cursor::{DirCursor, OpenDir};
use crate::node::HostNode;
use crate::open_files::OpenFile;
use crate::{copy, direct_io, extents};

/// A file or directory that a client has open. It has a descriptor of its own, so it survives
/// unlink, rename and chmod.
pub struct HostFile {
    opened: Arc<OpenFile>,
    flags: OpenFlags,
    cursor: Option<Arc<DirCursor>>,
    /// The share for a descriptor that is never evicted.
    _share: Option<Share>,
}

impl HostFile {
    /// Returns an open file. `raw` are the flags that it was opened with, of which the client
    /// requested `flags`; `share` is its part of the peer's share.
    pub(crate) fn new(
        node: Arc<HostNode>,
        fd: Arc<Fd>,
        flags: OpenFlags,
        raw: OFlags,
        share: Option<Share>,
    ) -> HostFile {
        let cursor = (node.kind() == Kind::Directory).then(Arc::default);
        HostFile {
            opened: OpenFile::new(node, fd, raw),
            flags,
            cursor,
            _share: share,
        }
    }

    /// Returns the descriptor: see [`OpenFile::fd`].
    pub(crate) fn fd(&self, patience: Patience) -> Result<Arc<Fd>> {
        self.opened.fd(patience)
    }

    pub(crate) fn node(&self) -> &Arc<HostNode> {
        self.opened.node()
    }

    /// Returns `to` as a file of the same export, or `EXDEV`.
    pub(crate) fn sibling<'f>(&self, to: &'f dyn File) -> Result<&'f HostFile> {
        let to = to.as_any().downcast_ref::<HostFile>();
        to.filter(|to| Arc::ptr_eq(to.node().tree(), self.node().tree()))
            .ok_or(Errno::EXDEV)
    }

    fn is_not_directory(&self) -> Result<()> {
        match self.cursor {
            None => Ok(()),
            Some(_) => Err(Errno::EISDIR),
        }
    }
}

impl File for HostFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attr(&self, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        self.node().device().allow_cached(cx.patience)?;
        attr::read(self.node().device(), self.fd(cx.patience)?.as_fd(), want)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        let fd = self.fd(cx.patience)?;
        let leases = &self.node().tree().leases;
        leases.clear(cx, self.node().number(), Some(&fd))?;
        attr::set(self.node().device(), cx, Target::Open(fd.as_fd()), set)
    }

    fn read(&self, cx: &Cx<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
        // The kernel rejects ranges beyond the largest offset; a read there returns no bytes.
        let below = (i64::MAX as u64).saturating_sub(offset);
        if below == 0 {
            return self.is_not_directory().map(|()| 0);
        }
        let len = len
            .min(sink.room())
            .min(usize::try_from(below).unwrap_or(usize::MAX));
        let fd = self.fd(cx.patience)?;
        let fd = fd.as_fd();
        if self.flags.contains(OpenFlags::DIRECT) {
            self.node().device().allow_disk_wait(cx.patience)?;
            return direct_io::read(fd, offset, len, sink);
        }
        let patience = self.node().device().read_patience(fd, cx.patience)?;
        sink.file(fd, offset, len, patience)
    }

    /// Runs as the caller: the kernel decides whether its writes remove set-id bits.
    fn write(&self, cx: &Cx<'_>, offset: u64, data: &mut dyn Payload) -> Result<usize> {
        let waits = OpenFlags::DIRECT | OpenFlags::DSYNC | OpenFlags::SYNC;
        if self.flags.intersects(waits) {
            self.node().device().allow_disk_wait(cx.patience)?;
        } else {
            self.node().device().allow_brief(cx.patience)?;
        }
        let fd = self.fd(cx.patience)?;
        self.node().host().identity.assume(cx)?;
        if self.flags.contains(OpenFlags::DIRECT) {
            return direct_io::write(fd.as_fd(), offset, data);
        }
        data.file(fd.as_fd(), offset)
    }

    /// Serialises its callers: a directory has one position.
    fn readdir(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        self.node().device().allow_brief(cx.patience)?;
        let cursor = self.cursor.as_ref().ok_or(Errno::ENOTDIR)?;
        let fd = self.fd(cx.patience)?;
        let node = self.node();
        let dir = OpenDir {
            device: node.device(),
            fd: fd.as_fd(),
            reopened: self.opened.reopened(),
            cursors: &node.tree().cursors,
            dir_cache: &node.tree().dir_cache,
            look_up: |name: Name<'_>| node.lookup(cx, name),
        };
        cursor.read(&dir, cx, cookie, plus, sink)
    }

    fn fsync(&self, cx: &Cx<'_>, datasync: bool) -> Result<()> {
        self.node().device().allow_disk_wait(cx.patience)?;
        let fd = self.fd(cx.patience)?;
        if datasync {
            rustix::fs::fdatasync(&*fd).map_err(errno)
        } else {
            rustix::fs::fsync(&*fd).map_err(errno)
        }
    }

    /// No operation: writes reach the host at once, and fsync reports its errors.
    fn flush(&self, _cx: &Cx<'_>) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, cx: &Cx<'_>, how: AllocateMode, offset: u64, len: u64) -> Result<()> {
        self.is_not_directory()?;
        self.node().device().allow_disk_wait(cx.patience)?;
        let fd = self.fd(cx.patience)?;
        self.node().host().identity.assume(cx)?;
        let flags = match how {
            AllocateMode::Extend => FallocateFlags::empty(),
            AllocateMode::KeepSize => FallocateFlags::KEEP_SIZE,
            AllocateMode::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            AllocateMode::Zero => FallocateFlags::ZERO_RANGE,
            AllocateMode::ZeroKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
            AllocateMode::Collapse => FallocateFlags::COLLAPSE_RANGE,
            AllocateMode::Insert => FallocateFlags::INSERT_RANGE,
            AllocateMode::Unshare => FallocateFlags::UNSHARE_RANGE,
        };
        rustix::fs::fallocate(&*fd, flags, offset, len).map_err(errno)
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, what: Whence) -> Result<u64> {
        self.is_not_directory()?;
        self.node().device().allow_brief(cx.patience)?;
        extents::seek(self.fd(cx.patience)?.as_fd(), offset, what)
    }

    fn extents(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<()> {
        self.is_not_directory()?;
        self.node().device().allow_brief(cx.patience)?;
        extents::walk(self.fd(cx.patience)?.as_fd(), offset, len, each)
    }

    fn copy(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        to: &dyn File,
        to_offset: u64,
        len: u64,
        how: CopyMode,
    ) -> Result<u64> {
        let to = self.sibling(to)?;
        self.is_not_directory()
            .and_then(|()| to.is_not_directory())?;
        match how {
            CopyMode::Any => {
                if len > copy::MAX_INLINE {
                    cx.check_may_block()?;
                }
                self.node().device().allow_brief(cx.patience)?;
                to.node().device().allow_brief(cx.patience)?;
            }
            CopyMode::Clone if len == 0 => return Ok(0),
            // The ioctl writes out dirty pages first.
            CopyMode::Clone => self.node().device().allow_disk_wait(cx.patience)?,
        }
        let (from_fd, to_fd) = (self.fd(cx.patience)?, to.fd(cx.patience)?);
        let (from_fd, to_fd) = (from_fd.as_fd(), to_fd.as_fd());
        self.node().host().identity.assume(cx)?;
        match how {
            CopyMode::Any => copy::range(cx, from_fd, offset, to_fd, to_offset, len),
            CopyMode::Clone => copy::clone(from_fd, offset, to_fd, to_offset, len),
        }
    }

    fn lease(
        &self,
        cx: &Cx<'_>,
        kind: LeaseKind,
        broken: &BreakCallback,
    ) -> Result<Box<dyn Lease>> {
        let device = self.node().device();
        if !device.stamps_changes() || self.node().kind() != Kind::File {
            return Err(Errno::EOPNOTSUPP);
        }
        device.allow_brief(cx.patience)?;
        let fits = match kind {
            LeaseKind::Read => OpenFlags::READ,
            LeaseKind::Write => OpenFlags::READ | OpenFlags::WRITE,
        };
        if self.flags & (OpenFlags::READ | OpenFlags::WRITE) != fits {
            return Err(Errno::EBADF);
        }
        let fd = self.fd(cx.patience)?;
        let (leases, node) = (&self.node().tree().leases, self.node().number());
        leases.take(device, node, fd, kind, broken)
    }

    fn backing(&self, cx: &Cx<'_>) -> Option<Arc<dyn Backing>> {
        let has_data =
            self.is_not_directory().is_ok() && self.node().device().io_is_caller_independent();
        has_data
            .then(|| self.fd(cx.patience).ok())
            .flatten()
            .map(|fd| fd as _)
    }
}

impl Drop for HostFile {
    fn drop(&mut self) {
        if let Some(cursor) = &self.cursor {
            cursor.close(&self.node().tree().cursors);
        }
        self.opened.close();
    }
}
