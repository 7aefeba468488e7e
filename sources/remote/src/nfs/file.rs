//! Open files.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use ::nfs::client::Stable;
use vfs::{
    Access, AllocateMode, Attr, AttrMask, BreakCallback, CopyMode, Cx, DirSink, Errno, Extent,
    File, Fill, Kind, Lease, LeaseKind, OpenFlags, Patience, Payload, ReaddirMode, Result, SetAttr,
    Sink, Whence,
};

use super::dir::Listing;
use super::hidden::OpenGuard;
use super::node::NfsNode;
use super::uncommitted::Writer;
use super::version::{Open, ProtocolVersion};
use crate::file::{MAX_IN_FLIGHT, in_pieces, seek_without_holes};

/// An open file or directory.
pub(super) struct NfsFile<V: ProtocolVersion> {
    node: Arc<NfsNode<V>>,
    flags: OpenFlags,
    /// `None` for a directory, which needs no open.
    open: Option<Arc<V::Open>>,
    listing: Listing,
    /// Keeps the file from being lost with its last name; `None` if the server does.
    _guard: Option<OpenGuard<V>>,
}

impl<V: ProtocolVersion> NfsFile<V> {
    pub(super) fn new(
        node: Arc<NfsNode<V>>,
        flags: OpenFlags,
        opened: Option<(Arc<V::Open>, OpenGuard<V>)>,
    ) -> Arc<NfsFile<V>> {
        let keeps = |open: &V::Open| node.shared.version.preserves_unlinked(open);
        let (open, guard) = opened.unzip();
        let guard = guard.filter(|_| !open.as_deref().is_some_and(keeps));
        Arc::new(NfsFile {
            node,
            flags,
            open,
            listing: Listing::default(),
            _guard: guard,
        })
    }

    /// [`vfs::Node::open`].
    pub(super) fn open(
        node: Arc<NfsNode<V>>,
        cx: &Cx<'_>,
        flags: OpenFlags,
    ) -> Result<Arc<dyn File>> {
        if node.kind == Kind::Directory {
            return match node.allowed_access(cx, Access::READ)? {
                Access::READ => Ok(NfsFile::new(node, flags, None)),
                _ => Err(Errno::EACCES),
            };
        }
        let guard = OpenGuard::new(&node.shared, node.id);
        let open = node.shared.version.open(cx, node.target(), flags)?;
        let file = NfsFile::new(node, flags, Some((open, guard)));
        if flags.contains(OpenFlags::TRUNC) {
            let set = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            file.node.set_attr_with(cx, file.open.as_deref(), &set)?;
        }
        Ok(file)
    }

    /// Returns the open state, or `EISDIR` for a directory.
    fn opened(&self) -> Result<Open<'_, V>> {
        Ok(Open {
            handle: self.node.handle(),
            state: self.open.as_deref().ok_or(Errno::EISDIR)?,
        })
    }

    /// Returns the open state for writing, or `EBADF` if the file is not open for writing.
    fn writable(&self) -> Result<Open<'_, V>> {
        let open = self.opened()?;
        match self.flags.contains(OpenFlags::WRITE) {
            true => Ok(open),
            false => Err(Errno::EBADF),
        }
    }

    fn version(&self) -> &V {
        &self.node.shared.version
    }

    /// Writes `data`, and returns the number of bytes written from its start, and the error that
    /// stopped it. Several messages are in flight at a time, so bytes after a failure may be
    /// written, too.
    fn write_long(&self, cx: &Cx<'_>, offset: u64, data: &[u8]) -> (usize, Result<()>) {
        let open = match self.writable() {
            Ok(open) => open,
            Err(errno) => return (0, Err(errno)),
        };
        let shared = &self.node.shared;
        let change = match shared.change(cx, self.node.handle()) {
            Ok(change) => change,
            Err(errno) => return (0, Err(errno)),
        };
        let stable = match self.flags {
            flags if flags.contains(OpenFlags::SYNC) => Stable::FileSync,
            flags if flags.contains(OpenFlags::DSYNC) => Stable::DataSync,
            _ if shared.uncommitted.is_full() => Stable::FileSync,
            _ => Stable::Unstable,
        };
        let writer = || Writer {
            caller: cx.caller.clone(),
            open: self.open.as_ref().map_or_else(Weak::new, Arc::downgrade),
        };
        let io = self.version().limits().write.max(1) as usize;
        let mut pieces = data.chunks(io).peekable();
        let mut pending = VecDeque::new();
        let (mut requested, mut written, mut done) = (0, 0, Ok(()));
        loop {
            while done.is_ok()
                && pending.len() < MAX_IN_FLIGHT
                && let Some(piece) = pieces.peek()
            {
                let at = offset + requested as u64;
                let wait = pending.is_empty();
                if !wait && !self.version().has_room(piece.len()) {
                    break;
                }
                match self
                    .version()
                    .begin_write(cx, open, at, stable, piece, wait)
                {
                    Ok(Some(call)) => {
                        pending.push_back((at, *piece, call));
                        requested += piece.len();
                        pieces.next();
                    }
                    Ok(None) => break,
                    Err(errno) => done = Err(errno),
                }
            }
            let Some((at, piece, call)) = pending.pop_front() else {
                return (written, done);
            };
            let ended = self.version().end_write(cx, call, open, at, stable, piece);
            // Every call in flight has to be ended in any case.
            match (ended, &done) {
                (Ok(some), before) => {
                    change.wrote(at, piece, &some, writer);
                    if before.is_ok() {
                        written += some.count as usize;
                        if (some.count as usize) < piece.len() {
                            // Ends with a short write; the caller continues from there.
                            done = Err(Errno::EIO);
                        }
                    }
                }
                (Err(errno), Ok(())) => done = Err(errno),
                (Err(_), Err(_)) => {}
            }
        }
    }

    /// Downcasts the other file of a copy, which must be of this mount.
    fn sibling<'a>(&self, file: &'a dyn File) -> Result<&'a NfsFile<V>> {
        file.as_any()
            .downcast_ref::<NfsFile<V>>()
            .filter(|file| Arc::ptr_eq(&file.node.shared, &self.node.shared))
            .ok_or(Errno::EXDEV)
    }

    fn size(&self, cx: &Cx<'_>) -> Result<u64> {
        Ok(self.attr(cx, AttrMask::SIZE)?.size)
    }
}

impl<V: ProtocolVersion> File for NfsFile<V> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attr(&self, cx: &Cx<'_>, _want: AttrMask) -> Result<Attr> {
        self.node.get_attr(cx)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        if set.size.is_some() && !self.flags.contains(OpenFlags::WRITE) {
            return Err(Errno::EINVAL);
        }
        self.node.set_attr_with(cx, self.open.as_deref(), set)
    }

    fn read(&self, cx: &Cx<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
        let open = self.opened()?;
        if !self.flags.intersects(OpenFlags::READ | OpenFlags::EXEC) {
            return Err(Errno::EBADF);
        }
        cx.check_may_block()?;
        self.node.shared.recommit_after_reconnect(cx);
        let len = len.min(sink.room());
        let len = len.min(usize::try_from(u64::MAX - offset).unwrap_or(usize::MAX));
        let io = self.version().limits().read.max(1) as usize;
        let mut pending = VecDeque::new();
        let (mut requested, mut got, mut done) = (0, 0, Ok(false));
        loop {
            while done == Ok(false) && requested < len && pending.len() < MAX_IN_FLIGHT {
                let count = io.min(len - requested) as u32;
                let at = offset + requested as u64;
                let wait = pending.is_empty();
                if !wait && !self.version().has_room(count as usize) {
                    break;
                }
                match self.version().begin_read(cx, open, at, count, wait) {
                    Ok(Some(call)) => {
                        pending.push_back((at, count, call));
                        requested += count as usize;
                    }
                    Ok(None) => break,
                    Err(errno) => done = Err(errno),
                }
            }
            let Some((at, count, call)) = pending.pop_front() else {
                return match done {
                    // Returns the data before the error; the next read meets the error again.
                    Err(errno) if got == 0 => Err(errno),
                    _ => Ok(got),
                };
            };
            // Every call in flight has to be ended in any case, even if its data is beyond the end
            // of the file.
            let into: &mut dyn Sink = match done {
                Ok(false) => &mut *sink,
                _ => &mut DiscardSink,
            };
            let ended = self.version().end_read(cx, call, open, at, count, into);
            match (ended, done) {
                (Ok((some, eof)), Ok(false)) => {
                    got += some;
                    done = Ok(eof || some < count as usize);
                }
                (Err(errno), Ok(false)) => done = Err(errno),
                _ => {}
            }
        }
    }

    fn write(&self, cx: &Cx<'_>, offset: u64, data: &mut dyn Payload) -> Result<usize> {
        self.writable()?;
        cx.check_may_block()?;
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::EFBIG);
        }
        let (appending, offset) = match self.flags.contains(OpenFlags::APPEND) {
            false => (None, offset),
            // The lock orders the appends of this mount, not those of other clients.
            true => {
                let appending = self.node.shared.appending.lock();
                (Some(appending), self.size(cx)?)
            }
        };
        let most = self.version().limits().write as usize;
        let done = in_pieces(data, most, |behind, piece| {
            self.write_long(cx, offset + behind as u64, piece)
        });
        drop(appending);
        self.node.shared.commit_early(cx, self.node.handle());
        done
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
        cx.check_may_block()?;
        self.listing.list(&self.node, cx, cookie, plus, sink)
    }

    /// Directory changes are durable when the server replies.
    fn fsync(&self, cx: &Cx<'_>, _datasync: bool) -> Result<()> {
        cx.check_may_block()?;
        self.node.shared.commit(cx, self.node.handle())
    }

    /// The client buffers no writes.
    fn flush(&self, _cx: &Cx<'_>) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, cx: &Cx<'_>, how: AllocateMode, offset: u64, len: u64) -> Result<()> {
        let open = self.writable()?;
        let hole = match how {
            AllocateMode::Extend => false,
            AllocateMode::Punch => true,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        cx.check_may_block()?;
        let change = self.node.shared.change(cx, self.node.handle())?;
        self.version().allocate(cx, open, offset, len, hole)?;
        if hole {
            change.replaced(offset, offset.saturating_add(len));
        }
        Ok(())
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, what: Whence) -> Result<u64> {
        let open = self.opened()?;
        cx.check_may_block()?;
        match self.version().seek(cx, open, offset, what) {
            Ok(found) => found.ok_or(Errno::ENXIO),
            // Reports a file without holes, as the server cannot seek.
            Err(Errno::EOPNOTSUPP) => seek_without_holes(self.size(cx)?, offset, what),
            Err(errno) => Err(errno),
        }
    }

    fn extents(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<()> {
        let size = self.size(cx)?;
        let end = offset.saturating_add(len).min(size);
        let mut at = offset;
        while at < end {
            let data = match self.seek(cx, at, Whence::Data) {
                Err(Errno::ENXIO) => end,
                found => found?.clamp(at, end),
            };
            if data > at && !each(extent(at, data, true)) {
                return Ok(());
            }
            at = data;
            if at == end {
                return Ok(());
            }
            let hole = match self.seek(cx, at, Whence::Hole) {
                // The file has been truncated meanwhile.
                Err(Errno::ENXIO) => return Ok(()),
                found => found?.min(end),
            };
            if hole <= at {
                // The server reports data and a hole at the same offset.
                return Err(Errno::EIO);
            }
            if !each(extent(at, hole, false)) {
                return Ok(());
            }
            at = hole;
        }
        Ok(())
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
        let (from, into) = (self.opened()?, to.writable()?);
        let appends = to.flags.contains(OpenFlags::APPEND);
        if appends || !self.flags.contains(OpenFlags::READ) {
            return Err(Errno::EBADF);
        }
        cx.check_may_block()?;
        let size = self.size(cx)?;
        let rest = size.saturating_sub(offset);
        if how == CopyMode::Clone && len > rest {
            return Err(Errno::EINVAL);
        }
        let len = len.min(rest);
        if len == 0 {
            return Ok(0);
        }
        let change = to.node.shared.change(cx, to.node.handle())?;
        let copied = self
            .version()
            .copy(cx, from, offset, into, to_offset, len, how)?;
        change.replaced(to_offset, to_offset.saturating_add(copied));
        Ok(copied)
    }

    /// NFS does not report what other clients of the server do.
    fn lease(&self, _: &Cx<'_>, _: LeaseKind, _: &BreakCallback) -> Result<Box<dyn Lease>> {
        Err(Errno::EOPNOTSUPP)
    }
}

fn extent(from: u64, to: u64, hole: bool) -> Extent {
    Extent {
        offset: from,
        len: to - from,
        hole,
    }
}

/// A sink that discards its input.
struct DiscardSink;

impl Sink for DiscardSink {
    fn room(&self) -> usize {
        usize::MAX
    }

    fn bytes(&mut self, _: &[u8]) {}

    fn zeros(&mut self, _: usize) {}

    fn file(
        &mut self,
        _: vfs::fd::BorrowedFd<'_>,
        _: u64,
        len: usize,
        _: Patience,
    ) -> Result<usize> {
        Ok(len)
    }

    fn lend(&mut self, _: usize, _: Fill<'_>) -> Option<Result<usize>> {
        None
    }
}
