//! Open files.

use std::any::Any;
use std::os::fd::AsFd;

use vfs::{
    Access, AllocateMode, Attr, AttrMask, BreakCallback, CopyMode, Cx, DirEntry, DirSink, Errno,
    Extent, File, Kind, Lease, LeaseKind, Payload, ReaddirMode, Result, SetAttr, Sink, Whence,
};

use super::node::{read_attr, set_attr};
use super::{MappedNode, permissions, stored};
use crate::file::HostFile;
use crate::node::HostNode;

/// An open file with owner and permissions in extended attributes.
pub struct MappedFile {
    inner: HostFile,
}

impl MappedFile {
    pub(super) fn new(inner: HostFile) -> MappedFile {
        MappedFile { inner }
    }

    /// Removes set-id bits after a change of the contents by a caller other than root.
    pub(super) fn clear_set_id(&self, cx: &Cx<'_>) -> Result<()> {
        if cx.caller.uid == 0 {
            return Ok(());
        }
        let fd = self.inner.fd(cx.patience)?;
        let mut attr = read_attr(self.inner.node(), fd.as_fd(), cx, AttrMask::STAT)?;
        let mode = attr.kind.mode_without_set_id(attr.mode);
        if mode == attr.mode {
            return Ok(());
        }
        attr.mode = mode;
        stored::write_mode(fd.as_fd(), &attr)
    }
}

impl File for MappedFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attr(&self, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        let fd = self.inner.fd(cx.patience)?;
        read_attr(self.inner.node(), fd.as_fd(), cx, want)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        let fd = self.inner.fd(cx.patience)?;
        set_attr(self.inner.node(), fd.as_fd(), cx, set, true, |on_disk| {
            self.inner.setattr(cx, on_disk)
        })
    }

    fn read(&self, cx: &Cx<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
        self.inner.read(cx, offset, len, sink)
    }

    fn write(&self, cx: &Cx<'_>, offset: u64, data: &mut dyn Payload) -> Result<usize> {
        let written = self.inner.write(cx, offset, data)?;
        if written > 0 {
            self.clear_set_id(cx)?;
        }
        Ok(written)
    }

    fn readdir(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let mut plus = plus;
        if plus == ReaddirMode::Entries {
            // Attributes of entries require search permission.
            let attr = self.attr(cx, AttrMask::STAT)?;
            if permissions::access(cx.caller, &attr, Access::EXEC).is_empty() {
                plus = ReaddirMode::Names;
            }
        }
        self.inner
            .readdir(cx, cookie, plus, &mut MappedEntries(sink))
    }

    fn fsync(&self, cx: &Cx<'_>, datasync: bool) -> Result<()> {
        self.inner.fsync(cx, datasync)
    }

    fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        self.inner.flush(cx)
    }

    fn allocate(&self, cx: &Cx<'_>, how: AllocateMode, offset: u64, len: u64) -> Result<()> {
        self.inner.allocate(cx, how, offset, len)?;
        self.clear_set_id(cx)
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, what: Whence) -> Result<u64> {
        self.inner.seek(cx, offset, what)
    }

    fn extents(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<()> {
        self.inner.extents(cx, offset, len, each)
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
        let to = to.as_any().downcast_ref::<MappedFile>();
        let to = to.ok_or(Errno::EXDEV)?;
        let copied = self
            .inner
            .copy(cx, offset, &to.inner, to_offset, len, how)?;
        if copied > 0 {
            to.clear_set_id(cx)?;
        }
        Ok(copied)
    }

    /// Owners and permissions can change there without breaking a lease first.
    fn lease(&self, _: &Cx<'_>, _: LeaseKind, _: &BreakCallback) -> Result<Box<dyn Lease>> {
        Err(Errno::EOPNOTSUPP)
    }
}

/// Converts entries to the stored types and attributes.
struct MappedEntries<'a>(&'a mut dyn DirSink);

impl DirSink for MappedEntries<'_> {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        let mapped = entry.entry.as_ref().and_then(|found| {
            let node = found.node.as_any().downcast_ref::<HostNode>()?.shared()?;
            MappedNode::entry(node, found.attr).ok()
        });
        self.0.entry(DirEntry {
            // A regular file may represent any type.
            kind: match &mapped {
                Some(mapped) => Some(mapped.attr.kind),
                None => entry.kind.filter(|&kind| kind != Kind::File),
            },
            entry: mapped,
            ..entry
        })
    }
}
