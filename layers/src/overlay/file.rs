//! An open file or directory.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use vfs::{
    Access, AllocateMode, Attr, AttrMask, BreakCallback, CopyMode, Cx, DirSink, Errno, Extent,
    File, Kind, Lease, LeaseKind, OpenFlags, Payload, ReaddirMode, Result, SetAttr, Sink, Whence,
};

use super::copy;
use super::node::OverlayNode;
use super::tree::as_process;

pub(super) struct OverlayFile {
    node: Arc<OverlayNode>,
    flags: OpenFlags,
    /// The file at the open.
    file: Arc<dyn File>,
    /// Whether it was opened in the upper tree.
    is_upper: bool,
    /// The copy, opened for reading on the first use after a copy-up.
    copy: OnceLock<Arc<dyn File>>,
}

impl OverlayNode {
    /// Opens the topmost node, after a copy-up if `flags` permit changes.
    pub(super) fn open_as(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<OverlayFile>> {
        let writes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC);
        if writes && self.kind == Kind::File && self.upper().is_none() {
            cx.check_may_block()?;
            let mut want = Access::WRITE;
            want.set(Access::READ, flags.contains(OpenFlags::READ));
            let attr = self.real()?.attr(&as_process(cx), AttrMask::STAT)?;
            let is_owner = flags.contains(OpenFlags::OWNER) && attr.uid == cx.caller.uid;
            if !is_owner {
                self.check(cx, want)?;
            }
            let keep = match flags.contains(OpenFlags::TRUNC) {
                true => 0,
                false => u64::MAX,
            };
            self.copy_up(cx, keep)?;
        }
        let upper = self.upper();
        let is_above = upper.is_some();
        let real = upper.map_or_else(|| self.real(), Ok)?;
        let file = real.open(cx, flags)?;
        Ok(Arc::new(OverlayFile::new(
            self.this(),
            flags,
            file,
            is_above,
        )))
    }
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
            is_upper: is_above,
            copy: OnceLock::new(),
        }
    }

    /// Returns the current file: that of the copy if the node was copied up after the open.
    fn current(&self, cx: &Cx<'_>) -> Result<&Arc<dyn File>> {
        if self.is_upper {
            return Ok(&self.file);
        }
        if let Some(copy) = self.copy.get() {
            return Ok(copy);
        }
        let Some(upper) = self.node.upper() else {
            return Ok(&self.file);
        };
        // Permissions were checked at the open, which was for reading only.
        let copy = upper.open(&as_process(cx), OpenFlags::READ)?;
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

    fn attr(&self, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        Ok(self.node.overlay_attr(self.current(cx)?.attr(cx, want)?))
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        if *set == SetAttr::default() {
            return self.attr(cx, AttrMask::STAT);
        }
        if set.size.is_some() && !self.flags.contains(OpenFlags::WRITE) {
            return Err(Errno::EINVAL);
        }
        if self.node.upper().is_none() {
            cx.check_may_block()?;
            let attr = self.file.attr(&as_process(cx), AttrMask::STAT)?;
            self.node.check_set(cx, set, &attr)?;
            self.node.copy_up(cx, u64::MAX)?;
        }
        Ok(self.node.overlay_attr(self.current(cx)?.setattr(cx, set)?))
    }

    fn read(&self, cx: &Cx<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
        // A file opened above checks its own mode; the copy is always open for reading.
        match self.reads() || self.is_upper {
            true => self.current(cx)?.read(cx, offset, len, sink),
            false => Err(Errno::EBADF),
        }
    }

    fn write(&self, cx: &Cx<'_>, offset: u64, data: &mut dyn Payload) -> Result<usize> {
        self.file.write(cx, offset, data)
    }

    fn readdir(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        if self.node.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if !self.reads() {
            return Err(Errno::EBADF);
        }
        self.node.list(cx, cookie, plus, sink)
    }

    fn fsync(&self, cx: &Cx<'_>, datasync: bool) -> Result<()> {
        self.current(cx)?.fsync(cx, datasync)
    }

    fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        self.current(cx)?.flush(cx)
    }

    fn allocate(&self, cx: &Cx<'_>, how: AllocateMode, offset: u64, len: u64) -> Result<()> {
        self.file.allocate(cx, how, offset, len)
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, what: Whence) -> Result<u64> {
        self.current(cx)?.seek(cx, offset, what)
    }

    fn extents(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<()> {
        self.current(cx)?.extents(cx, offset, len, each)
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
        let to = match to.as_any().downcast_ref::<OverlayFile>() {
            Some(to) if Arc::ptr_eq(&to.node.tree, &self.node.tree) => to,
            _ => return Err(Errno::EXDEV),
        };
        let from = self.current(cx)?;
        if self.node.upper().is_some() {
            return from.copy(cx, offset, &**to.current(cx)?, to_offset, len, how);
        }
        // The lower tree is another file system.
        if how == CopyMode::Clone {
            return Err(Errno::EOPNOTSUPP);
        }
        if !self.reads() || !to.flags.contains(OpenFlags::WRITE) {
            return Err(Errno::EBADF);
        }
        cx.check_may_block()?;
        copy::range(cx, &**from, offset, &*to.file, to_offset, len)
    }

    /// Refuses: a lease on the lower file would not be broken by a change of the copy.
    fn lease(&self, _: &Cx<'_>, _: LeaseKind, _: &BreakCallback) -> Result<Box<dyn Lease>> {
        Err(Errno::EOPNOTSUPP)
    }
}
