//! Open files and directories.

use std::any::Any;
use std::sync::Arc;

use vfs::{
    AllocateMode, Attr, AttrMask, BreakCallback, CopyMode, Cx, DirEntry, DirSink, Errno, Extent,
    File, Lease, LeaseKind, OpenFlags, Patience, Payload, ReaddirMode, Result, SetAttr, Sink,
    Whence,
};

use crate::format::{Format, ListedEntry};
use crate::node::ImageNode;

/// An open node.
pub(crate) struct OpenFile<F: Format> {
    node: Arc<ImageNode<F>>,
    flags: OpenFlags,
}

impl<F: Format> OpenFile<F> {
    pub(crate) fn new(node: Arc<ImageNode<F>>, flags: OpenFlags) -> OpenFile<F> {
        OpenFile { node, flags }
    }

    fn reads(&self) -> bool {
        self.flags.intersects(OpenFlags::READ | OpenFlags::EXEC)
    }

    /// Returns the end of the extent that contains `offset`, and whether it is a hole. `offset` is
    /// before the end of the file.
    fn extent(&self, offset: u64, patience: Patience) -> Result<(u64, bool)> {
        let ImageNode { format, item, .. } = &*self.node;
        format.extent(item, offset, patience)
    }

    fn size(&self) -> Result<u64> {
        match self.node.is_directory() {
            true => Err(Errno::EINVAL),
            false => Ok(self.node.attr().size),
        }
    }
}

impl<F: Format> File for OpenFile<F> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attr(&self, _cx: &Cx<'_>, _want: AttrMask) -> Result<Attr> {
        Ok(self.node.attr())
    }

    fn setattr(&self, _cx: &Cx<'_>, _set: &SetAttr) -> Result<Attr> {
        Err(Errno::EROFS)
    }

    fn read(&self, cx: &Cx<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
        if !self.reads() {
            return Err(Errno::EBADF);
        }
        if self.node.is_directory() {
            return Err(Errno::EISDIR);
        }
        let left = self.node.attr().size.saturating_sub(offset);
        let len = left.min(len.min(sink.room()) as u64);
        if len == 0 {
            return Ok(0);
        }
        let ImageNode { format, item, .. } = &*self.node;
        format.put(item, offset, len, cx.patience, sink)
    }

    fn write(&self, _cx: &Cx<'_>, _offset: u64, _data: &mut dyn Payload) -> Result<usize> {
        Err(Errno::EBADF)
    }

    fn readdir(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        if !self.node.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        if !self.reads() {
            return Err(Errno::EBADF);
        }
        // A partial listing would leave a trace, which `WOULD_BLOCK` forbids.
        let patience = match cx.patience {
            Patience::None => return Err(Errno::WOULD_BLOCK),
            Patience::Brief | Patience::Full => Patience::Full,
        };
        let ImageNode { format, item, .. } = &*self.node;
        format.list(item, cookie, plus, patience, &mut |listed| {
            let ListedEntry {
                name,
                id,
                kind,
                cookie,
                item,
            } = listed;
            let entry = item.map(|item| ImageNode::new(format, item).entry());
            sink.entry(DirEntry {
                name,
                id,
                kind,
                cookie,
                entry,
            })
        })
    }

    fn fsync(&self, _cx: &Cx<'_>, _datasync: bool) -> Result<()> {
        Ok(())
    }

    fn flush(&self, _cx: &Cx<'_>) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, _cx: &Cx<'_>, _how: AllocateMode, _offset: u64, _len: u64) -> Result<()> {
        Err(Errno::EBADF)
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, what: Whence) -> Result<u64> {
        let size = self.size()?;
        let mut at = offset;
        while at < size {
            let (end, hole) = self.extent(at, cx.patience)?;
            if hole == (what == Whence::Hole) {
                return Ok(at);
            }
            at = end;
        }
        match what {
            Whence::Hole if offset < size => Ok(size),
            _ => Err(Errno::ENXIO),
        }
    }

    fn extents(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<()> {
        let end = self.size()?.min(offset.saturating_add(len));
        let mut at = offset;
        while at < end {
            let start = at;
            let (mut to, hole) = self.extent(at, cx.patience)?;
            // Adjacent extents of the same kind are merged.
            while to < end {
                match self.extent(to, cx.patience)? {
                    (next, alike) if alike == hole => to = next,
                    _ => break,
                }
            }
            at = to.min(end);
            let extent = Extent {
                offset: start,
                len: at - start,
                hole,
            };
            if !each(extent) {
                break;
            }
        }
        Ok(())
    }

    fn copy(
        &self,
        _cx: &Cx<'_>,
        _offset: u64,
        _to: &dyn File,
        _to_offset: u64,
        _len: u64,
        _how: CopyMode,
    ) -> Result<u64> {
        Err(Errno::EROFS)
    }

    /// Returns `EOPNOTSUPP`: an image never changes, so a lease is never broken.
    fn lease(&self, _: &Cx<'_>, _: LeaseKind, _: &BreakCallback) -> Result<Box<dyn Lease>> {
        Err(Errno::EOPNOTSUPP)
    }
}
