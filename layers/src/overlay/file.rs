//! An open file or directory.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use vfs::{
    Allocate, Attr, Broken, CopyHow, Cx, DirSink, Errno, Extent, File, Kind, Lease, LeaseKind,
    OpenFlags, Payload, Plus, Result, Seek, SetAttr, Sink, Want,
};

use super::node::OverlayNode;
use super::{copy, ours};

pub(super) struct OverlayFile {
    node: Arc<OverlayNode>,
    flags: OpenFlags,
    /// The file at the open.
    file: Arc<dyn File>,
    /// Whether it was opened in the upper tree.
    is_above: bool,
    /// The copy, opened for reading on the first use after a copy-up.
    copy: OnceLock<Arc<dyn File>>,
}

impl OverlayFile {
    pub(super) fn new(
        node: Arc<OverlayNode>,
        flags: OpenFlags,
        file: Arc<dyn File>,
        is_above: bool,
    ) -> OverlayFile {
        OverlayFile {
            node,
            flags,
            file,
            is_above,
            copy: OnceLock::new(),
        }
    }

    /// Returns the current file: that of the copy if the node was copied up after the open.
    fn now(&self, cx: &Cx<'_>) -> Result<&Arc<dyn File>> {
        if self.is_above {
            return Ok(&self.file);
        }
        if let Some(copy) = self.copy.get() {
            return Ok(copy);
        }
        let Some(upper) = self.node.upper() else {
            return Ok(&self.file);
        };
        // Permissions were checked at the open, which was for reading only.
        let copy = upper.open(&ours(cx), OpenFlags::READ)?;
        Ok(self.copy.get_or_init(|| copy))
    }

    fn reads(&self) -> bool {
        self.flags.intersects(OpenFlags::READ | OpenFlags::EXEC)
    }
}

impl File for OverlayFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attr(&self, cx: &Cx<'_>, want: Want) -> Result<Attr> {
        Ok(self.node.shown(self.now(cx)?.attr(cx, want)?))
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        if *set == SetAttr::default() {
            return self.attr(cx, Want::STAT);
        }
        if set.size.is_some() && !self.flags.contains(OpenFlags::WRITE) {
            return Err(Errno::EINVAL);
        }
        if self.node.upper().is_none() {
            cx.may_wait()?;
            let attr = self.file.attr(&ours(cx), Want::STAT)?;
            self.node.may_set(cx, set, &attr)?;
            self.node.copy_up(cx, u64::MAX)?;
        }
        Ok(self.node.shown(self.now(cx)?.setattr(cx, set)?))
    }

    fn read(&self, cx: &Cx<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
        // A file opened above checks its own mode; the copy is always open for reading.
        match self.reads() || self.is_above {
            true => self.now(cx)?.read(cx, offset, len, sink),
            false => Err(Errno::EBADF),
        }
    }

    fn write(&self, cx: &Cx<'_>, offset: u64, data: &mut dyn Payload) -> Result<usize> {
        self.file.write(cx, offset, data)
    }

    fn readdir(&self, cx: &Cx<'_>, cookie: u64, plus: Plus, sink: &mut dyn DirSink) -> Result<()> {
        if self.node.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if !self.reads() {
            return Err(Errno::EBADF);
        }
        self.node.list(cx, cookie, plus, sink)
    }

    fn fsync(&self, cx: &Cx<'_>, datasync: bool) -> Result<()> {
        self.now(cx)?.fsync(cx, datasync)
    }

    fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        self.now(cx)?.flush(cx)
    }

    fn allocate(&self, cx: &Cx<'_>, how: Allocate, offset: u64, len: u64) -> Result<()> {
        self.file.allocate(cx, how, offset, len)
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, what: Seek) -> Result<u64> {
        self.now(cx)?.seek(cx, offset, what)
    }

    fn extents(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<()> {
        self.now(cx)?.extents(cx, offset, len, each)
    }

    fn copy(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        to: &dyn File,
        to_offset: u64,
        len: u64,
        how: CopyHow,
    ) -> Result<u64> {
        let to = match to.as_any().downcast_ref::<OverlayFile>() {
            Some(to) if Arc::ptr_eq(&to.node.tree, &self.node.tree) => to,
            _ => return Err(Errno::EXDEV),
        };
        let from = self.now(cx)?;
        if self.node.upper().is_some() {
            return from.copy(cx, offset, &**to.now(cx)?, to_offset, len, how);
        }
        // The lower tree is another file system.
        if how == CopyHow::Clone {
            return Err(Errno::EOPNOTSUPP);
        }
        if !self.reads() || !to.flags.contains(OpenFlags::WRITE) {
            return Err(Errno::EBADF);
        }
        cx.may_wait()?;
        copy::range(cx, &**from, offset, &*to.file, to_offset, len)
    }

    /// Refuses: a lease on the lower file would not be broken by a change of the copy.
    fn lease(&self, _: &Cx<'_>, _: LeaseKind, _: &Broken) -> Result<Box<dyn Lease>> {
        Err(Errno::EOPNOTSUPP)
    }
}
