//! An open file or directory.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use vfs::{
    Access, AllocateMode, Attr, AttrMask, BreakCallback, Caller, CopyMode, Cx, DirEntry, DirSink,
    Errno, Extent, File, Kind, Lease, LeaseKind, OpenFlags, Payload, ReaddirMode, Result, SetAttr,
    Sink, Whence,
};

use crate::node::{MemNode, State};
use crate::pages::{MAX_SIZE, PAGE, Pages, Snapshot};
use crate::perm;

/// An open node.
pub(crate) struct OpenFile {
    node: Arc<MemNode>,
    flags: OpenFlags,
}

impl OpenFile {
    pub(crate) fn new(node: Arc<MemNode>, flags: OpenFlags) -> OpenFile {
        OpenFile { node, flags }
    }

    fn writes(&self) -> bool {
        self.flags.contains(OpenFlags::WRITE)
    }

    fn reads(&self) -> bool {
        self.flags.intersects(OpenFlags::READ | OpenFlags::EXEC)
    }

    fn check_reads(&self) -> Result<()> {
        match self.node.kind {
            _ if !self.reads() => Err(Errno::EBADF),
            Kind::Directory => Err(Errno::EISDIR),
            _ => Ok(()),
        }
    }

    fn check_writes(&self) -> Result<()> {
        if self.writes() {
            Ok(())
        } else {
            Err(Errno::EBADF)
        }
    }

    /// Runs `look` on the pages of a regular file; returns `EINVAL` for a directory.
    fn with_pages<T>(&self, look: impl FnOnce(&Pages) -> Result<T>) -> Result<T> {
        look(self.node.read().pages().ok_or(Errno::EINVAL)?)
    }

    /// Updates atime if a read requires it.
    fn update_atime(&self) {
        if self.flags.contains(OpenFlags::NOATIME) {
            return;
        }
        let now = self.node.shared.now();
        if self.node.read().wants_atime(now) {
            self.node.write().meta.atime = now;
        }
    }

    fn snapshot(&self, range: Range<u64>) -> Result<Snapshot> {
        self.with_pages(|pages| Ok(pages.snapshot(range)))
    }

    /// Writes a snapshot at `to_offset`: as much as fits, or for a clone all or nothing.
    fn put_copy(&self, cx: &Cx<'_>, to_offset: u64, from: &Snapshot, how: CopyMode) -> Result<u64> {
        let now = self.node.shared.now();
        let mut state = self.node.write();
        let pages = state.pages_mut().ok_or(Errno::EINVAL)?;
        if how == CopyMode::Clone {
            pages.reserve(to_offset..to_offset + from.len())?;
        }
        let (copied, result) = pages.put_snapshot(to_offset, from);
        if copied == 0 {
            result?;
        }
        state.modified(now);
        state.drop_privileges(cx.caller);
        Ok(copied)
    }
}

impl MemNode {
    /// Implements [`vfs::Node::open`].
    pub(crate) fn open_file(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        vfs::open_by_owner(self, cx, flags, |cx, flags| self.open_as(cx, flags))
    }

    /// Opens the node with the permissions of the caller.
    fn open_as(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        if flags.contains(OpenFlags::TRUNC) {
            let now = self.shared.now();
            let mut state = self.write();
            self.open_flags_allowed(&state, cx.caller, flags)?;
            if let Some(pages) = state.pages_mut() {
                pages.resize(0);
                state.modified(now);
                state.drop_privileges(cx.caller);
            }
        } else {
            self.open_flags_allowed(&self.read(), cx.caller, flags)?;
        }
        Ok(Arc::new(OpenFile::new(self.arc(), flags)))
    }

    fn open_flags_allowed(&self, state: &State, caller: &Caller, flags: OpenFlags) -> Result<()> {
        let writes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC);
        match self.kind {
            Kind::File => {}
            Kind::Directory if writes => return Err(Errno::EISDIR),
            Kind::Directory if flags.contains(OpenFlags::EXEC) => return Err(Errno::EACCES),
            Kind::Directory => {}
            Kind::Symlink => return Err(Errno::ELOOP),
            _ => return Err(Errno::ENXIO),
        }
        for (flag, want) in [
            (flags.contains(OpenFlags::READ), Access::READ),
            (writes, Access::WRITE),
            (flags.contains(OpenFlags::EXEC), Access::EXEC),
        ] {
            if flag {
                perm::check(&state.meta, self.kind, caller, want)?;
            }
        }
        if flags.contains(OpenFlags::NOATIME) && !perm::owns(&state.meta, caller) {
            return Err(Errno::EPERM);
        }
        Ok(())
    }
}

impl File for OpenFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attr(&self, _cx: &Cx<'_>, _want: AttrMask) -> Result<Attr> {
        Ok(self.node.read().attr(&self.node))
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        self.node.set(cx.caller, set, Some(self.flags))
    }

    fn read(&self, _cx: &Cx<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
        self.check_reads()?;
        let read = self.with_pages(|pages| Ok(pages.read(offset, len, sink)))?;
        self.update_atime();
        Ok(read)
    }

    fn write(&self, cx: &Cx<'_>, offset: u64, data: &mut dyn Payload) -> Result<usize> {
        self.check_writes()?;
        if data.is_empty() {
            return Ok(0);
        }
        let now = self.node.shared.now();
        let mut state = self.node.write();
        let start = match self.flags.contains(OpenFlags::APPEND) {
            true => state.size(),
            false => offset,
        };
        let pages = state.pages_mut().ok_or(Errno::EINVAL)?;
        let mut at = start;
        let result = data.bytes(&mut |piece| {
            let (wrote, result) = pages.write(at, piece);
            at += wrote as u64;
            result
        });
        if at == start {
            result?;
            return Ok(0);
        }
        state.modified(now);
        state.drop_privileges(cx.caller);
        Ok((at - start) as usize)
    }

    fn readdir(
        &self,
        _cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        /// Entries to collect per lock of the directory: enough to amortize the lock, few enough to
        /// waste little if the sink is soon full.
        const BATCH: usize = 64;
        if self.node.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if !self.reads() {
            return Err(Errno::EBADF);
        }
        let mut cookie = cookie;
        loop {
            let batch = match self.node.read().dir() {
                Some(dir) => dir.entries_after(cookie, BATCH),
                None => return Err(Errno::ENOTDIR),
            };
            let Some(last) = batch.last() else {
                self.update_atime();
                return Ok(());
            };
            cookie = last.cookie;
            for listed in batch {
                let entry = DirEntry {
                    name: &listed.name,
                    id: listed.node.id,
                    kind: Some(listed.node.kind),
                    cookie: listed.cookie,
                    entry: match plus {
                        ReaddirMode::Names => None,
                        ReaddirMode::Entries => Some(listed.node.entry()),
                    },
                };
                if !sink.entry(entry) {
                    self.update_atime();
                    return Ok(());
                }
            }
        }
    }

    fn fsync(&self, _cx: &Cx<'_>, _datasync: bool) -> Result<()> {
        Ok(())
    }

    fn flush(&self, _cx: &Cx<'_>) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, cx: &Cx<'_>, how: AllocateMode, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        self.check_writes()?;
        let end = offset.checked_add(len).filter(|end| *end <= MAX_SIZE);
        let range = offset..end.ok_or(Errno::EFBIG)?;
        let now = self.node.shared.now();
        let mut state = self.node.write();
        let pages = state.pages_mut().ok_or(Errno::ENODEV)?;
        let size = pages.size();
        if matches!(how, AllocateMode::Collapse | AllocateMode::Insert)
            && (!offset.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE))
        {
            return Err(Errno::EINVAL);
        }
        match how {
            AllocateMode::Extend => {
                pages.reserve(range.clone())?;
                pages.extend_to(range.end);
            }
            AllocateMode::KeepSize => pages.reserve(range)?,
            AllocateMode::Punch => pages.punch(range),
            AllocateMode::Zero => {
                pages.zero(range.clone())?;
                pages.extend_to(range.end);
            }
            AllocateMode::ZeroKeepSize => pages.zero(range)?,
            AllocateMode::Collapse if range.end >= size => return Err(Errno::EINVAL),
            AllocateMode::Collapse => pages.collapse(range),
            AllocateMode::Insert if offset >= size => return Err(Errno::EINVAL),
            AllocateMode::Insert if size + len > MAX_SIZE => return Err(Errno::EFBIG),
            AllocateMode::Insert => pages.insert(range),
            AllocateMode::Unshare => pages.unshare(range),
        }
        state.modified(now);
        state.drop_privileges(cx.caller);
        Ok(())
    }

    fn seek(&self, _cx: &Cx<'_>, offset: u64, what: Whence) -> Result<u64> {
        self.with_pages(|pages| match what {
            _ if offset >= pages.size() => Err(Errno::ENXIO),
            Whence::Data => Ok(pages.next_data(offset).ok_or(Errno::ENXIO)?),
            Whence::Hole => Ok(pages.next_hole(offset)),
        })
    }

    fn extents(
        &self,
        _cx: &Cx<'_>,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<()> {
        self.with_pages(|pages| {
            pages.extents(offset..offset.saturating_add(len), each);
            Ok(())
        })
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
        let to = to.as_any().downcast_ref::<OpenFile>();
        let to = to.filter(|to| Arc::ptr_eq(&to.node.shared, &self.node.shared));
        let to = to.ok_or(Errno::EXDEV)?;
        if self.node.kind == Kind::Directory || to.node.kind == Kind::Directory {
            return Err(Errno::EISDIR);
        }
        self.check_reads()?;
        to.check_writes()?;
        if to.flags.contains(OpenFlags::APPEND) {
            return Err(Errno::EBADF);
        }
        let end = offset.checked_add(len).ok_or(Errno::EOVERFLOW)?;
        let to_end = to_offset.checked_add(len).ok_or(Errno::EOVERFLOW)?;
        let same = Arc::ptr_eq(&self.node, &to.node);
        match how {
            CopyMode::Any => {
                if same && offset < to_end && to_offset < end {
                    return Err(Errno::EINVAL);
                }
                let from = self.snapshot(offset..end)?;
                if from.len() == 0 {
                    return Ok(0);
                }
                if to_offset >= MAX_SIZE || from.len() > MAX_SIZE - to_offset {
                    return Err(Errno::EFBIG);
                }
                let copied = to.put_copy(cx, to_offset, &from, how)?;
                self.update_atime();
                Ok(copied)
            }
            CopyMode::Clone => self.clone_range(cx, offset, to, to_offset, len),
        }
    }

    /// Refuses: changes do not look up leases here.
    fn lease(&self, _: &Cx<'_>, _: LeaseKind, _: &BreakCallback) -> Result<Box<dyn Lease>> {
        Err(Errno::EOPNOTSUPP)
    }
}

impl OpenFile {
    /// Implements FICLONERANGE: whole blocks, except at the end of this file; a `len` of 0 means
    /// the rest.
    fn clone_range(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        to: &OpenFile,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let size = self.node.read().size();
        let len = match len {
            0 => size.saturating_sub(offset),
            len => len,
        };
        let end = offset.checked_add(len).filter(|end| *end <= size);
        let end = end.ok_or(Errno::EINVAL)?;
        let to_end = to_offset.checked_add(len).filter(|end| *end <= MAX_SIZE);
        let to_end = to_end.ok_or(Errno::EFBIG)?;
        let same = Arc::ptr_eq(&self.node, &to.node);
        let to_size = to.node.read().size();
        let whole = end.is_multiple_of(PAGE) || end == size && to_end >= to_size;
        if !offset.is_multiple_of(PAGE)
            || !to_offset.is_multiple_of(PAGE)
            || !whole
            || same && offset < to_end && to_offset < end
        {
            return Err(Errno::EINVAL);
        }
        if len == 0 {
            return Ok(0);
        }
        let from = self.snapshot(offset..end)?;
        to.put_copy(cx, to_offset, &from, CopyMode::Clone)
    }
}
