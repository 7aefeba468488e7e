//! An open file over the cache.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vfs::{
    AllocateMode, Attr, AttrMask, Backing, CopyMode, Cx, Extent, File, OpenFlags, Payload, Result,
    SetAttr, Sink, Whence,
};

use super::Mode;
use super::cached::{Cached, Fetched};
use super::pages::Piece;
use super::readahead::Stream;
use super::table::Table;
use super::units::BLOCK;
use crate::forward;
use crate::sync::{Mutex, MutexGuard};

/// An open of a file in the cache.
pub(super) struct CachedFile {
    inner: Arc<dyn File>,
    table: Arc<Table>,
    cached: Arc<Cached>,
    mode: Mode,
    flags: OpenFlags,
    stream: Mutex<Stream>,
    /// The last error reported to this open.
    seen: Mutex<u64>,
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        self.cached.closed(self.mode != Mode::Loose);
        self.cached.request_writeback();
        self.table.release(&self.cached);
    }
}

impl CachedFile {
    /// Wraps `inner`, which was opened with `flags`, over the cached data.
    pub(super) fn new(
        inner: Arc<dyn File>,
        table: Arc<Table>,
        cached: Arc<Cached>,
        (mode, flags): (Mode, OpenFlags),
    ) -> CachedFile {
        let seen = Mutex::new(cached.lock().errors.sample());
        CachedFile {
            inner,
            table,
            cached,
            mode,
            flags,
            stream: Mutex::default(),
            seen,
        }
    }

    /// Returns the file below `file` if that is a `CachedFile`, otherwise `file`.
    pub(super) fn below(file: &dyn File) -> &dyn File {
        match file.as_any().downcast_ref::<CachedFile>() {
            Some(file) => &*file.inner,
            None => file,
        }
    }

    fn stream(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock()
    }

    /// Reports a write-back error, once.
    fn check(&self) -> Result<()> {
        let mut seen = self.seen.lock();
        self.cached.lock().errors.check(&mut seen)
    }

    /// Reads past the cache.
    fn read_below(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        self.cached.flush(cx)?;
        self.inner.read(cx, offset, len, sink)
    }

    /// Writes past the cache.
    fn write_below(&self, cx: &Cx<'_>, offset: u64, data: &mut dyn Payload) -> Result<usize> {
        let append = self.flags.contains(OpenFlags::APPEND);
        // A client that caches writes orders them, too.
        let ordered = self.mode == Mode::Loose && !append;
        let exclusive = (!ordered).then(|| self.cached.exclusive(cx));
        let _exclusive = exclusive.transpose()?;
        let size = self.cached.lock().size;
        let len = data.len();
        let done = self.inner.write(cx, offset, data);
        if append {
            // It is beyond all offsets that were seen here.
            self.cached
                .overwritten(size.unwrap_or(0)..u64::MAX, |_| None);
            return done;
        }
        let end = offset.saturating_add(done.unwrap_or(len).max(1) as u64);
        self.cached.overwritten(offset..end, |size| {
            size.filter(|_| done.is_ok()).map(|size| size.max(end))
        });
        done
    }

    /// Returns whether a read bypasses the cache, for a client that reads ahead and caches itself.
    fn bypasses_cache(&self, range: &Range<u64>) -> bool {
        if self.mode != Mode::Loose {
            return false;
        }
        let mut stream = self.stream();
        stream.read(range, u64::MAX, u64::MAX);
        stream.is_sequential() || range.end - range.start >= BLOCK
    }

    /// Starts the read-ahead that a read of `range` triggers.
    fn read_ahead(&self, cx: &Cx<'_>, range: &Range<u64>, size: u64) {
        if self.mode == Mode::Loose {
            return;
        }
        let most = self.table.core.memory.max_read_ahead();
        let Some(ahead) = self.stream().read(range, size, most) else {
            return;
        };
        self.table.make_room(ahead.end - ahead.start);
        self.cached.read_ahead(&self.inner, cx, ahead);
    }

    /// Returns whether data missing for a read of `range` is fetched with the pages around it, not
    /// in whole blocks.
    fn is_random(&self, range: &Range<u64>) -> bool {
        self.mode == Mode::Loose
            || range.end - range.start < BLOCK && !self.stream().is_sequential()
    }
}

fn put(pieces: &[Piece], sink: &mut dyn Sink) -> usize {
    let each = pieces.iter().map(|piece| {
        sink.bytes(piece.bytes());
        piece.bytes().len()
    });
    each.sum()
}

impl File for CachedFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attr(&self, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        self.cached.attr(cx, want, || self.inner.attr(cx, want))
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        self.cached.setattr(cx, set, || self.inner.setattr(cx, set))
    }

    fn read(&self, cx: &Cx<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
        /// The number of attempts, each of which fails if the fetched data is evicted before it is
        /// used.
        const TRIES: usize = 4;
        let may = self.flags.intersects(OpenFlags::READ | OpenFlags::EXEC);
        // Offsets are signed in all file systems.
        if !may || self.flags.contains(OpenFlags::DIRECT) || i64::try_from(offset).is_err() {
            return self.read_below(cx, offset, len, sink);
        }
        let len = len.min(sink.room()) as u64;
        if self.bypasses_cache(&(offset..offset.saturating_add(len))) {
            return self.inner.read(cx, offset, len as usize, sink);
        }
        let (mut read_ahead, mut tries) = (true, 0);
        while tries < TRIES {
            let size = match self.mode {
                // The client above knows it.
                Mode::Loose => u64::MAX,
                Mode::ReadAhead | Mode::Mmap => self.cached.size(&*self.inner, cx)?,
            };
            let range = offset..size.min(offset.saturating_add(len));
            if range.is_empty() {
                return Ok(0);
            }
            let missing = match self.cached.get(range.clone()) {
                Ok(pieces) => {
                    if read_ahead {
                        self.table.core.hits.fetch_add(1, Ordering::Relaxed);
                        self.read_ahead(cx, &range, size);
                    }
                    return Ok(put(&pieces, sink));
                }
                Err(missing) => missing,
            };
            self.cached.may_wait(cx)?;
            if std::mem::take(&mut read_ahead) {
                self.table.core.misses.fetch_add(1, Ordering::Relaxed);
                self.read_ahead(cx, &range, size);
            }
            tries += 1;
            if self.is_random(&range) {
                self.table.make_room(2 * BLOCK);
                let missing = missing.start..range.end;
                match self.cached.fetch_around(&*self.inner, cx, missing, size)? {
                    // The file ends there.
                    Fetched::UpTo(end) if end < range.end => break,
                    Fetched::UpTo(_) => {}
                    Fetched::ByOthers => tries = 0,
                }
                continue;
            }
            let end = range.end.next_multiple_of(BLOCK).min(size);
            let mut rest = missing.start / BLOCK * BLOCK..end;
            self.table.make_room(rest.end - rest.start);
            while rest.start < range.end {
                match self.cached.fetch(&*self.inner, cx, rest.clone())? {
                    Fetched::UpTo(end) => rest.start = end,
                    Fetched::ByOthers => {
                        tries = 0;
                        break;
                    }
                }
            }
        }
        self.read_below(cx, offset, len as usize, sink)
    }

    fn write(&self, cx: &Cx<'_>, offset: u64, data: &mut dyn Payload) -> Result<usize> {
        let past = OpenFlags::DIRECT | OpenFlags::APPEND | OpenFlags::SYNC | OpenFlags::DSYNC;
        let len = data.len();
        let memory = &self.table.core.memory;
        let end = offset.checked_add(len as u64);
        let end = end.filter(|&end| end <= i64::MAX as u64);
        let behind = self.mode == Mode::Mmap
            && self.flags.contains(OpenFlags::WRITE)
            && !self.flags.intersects(past)
            && self.table.may_delay_writes()
            && len > 0
            && len as u64 <= memory.max_dirty() / 2;
        let (Some(end), true) = (end, behind) else {
            return self.write_below(cx, offset, data);
        };
        if !memory.allows_dirty(len) {
            cx.check_may_block()?;
            for file in self.table.core.workers.dirty() {
                file.request_writeback();
            }
            memory.wait_for_less_dirty(cx, len)?;
        }
        self.table.make_room(len as u64);
        let mut at = offset;
        self.cached.write((&self.inner, cx), offset..end, |pages| {
            data.bytes(&mut |piece| {
                pages.write(at, piece);
                at += piece.len() as u64;
                Ok(())
            })
        })?;
        Ok(len)
    }

    fn fsync(&self, cx: &Cx<'_>, datasync: bool) -> Result<()> {
        self.cached.flush(cx)?;
        let durable = self.inner.fsync(cx, datasync);
        self.check().and(durable)
    }

    fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        self.cached.flush(cx)?;
        let done = self.inner.flush(cx);
        self.check().and(done)
    }

    fn allocate(&self, cx: &Cx<'_>, how: AllocateMode, offset: u64, len: u64) -> Result<()> {
        let _exclusive = self.cached.exclusive(cx)?;
        let done = self.inner.allocate(cx, how, offset, len);
        // Some of them shift all data after the range.
        self.cached.overwritten(offset..u64::MAX, |_| None);
        done
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, what: Whence) -> Result<u64> {
        self.cached.flush(cx)?;
        self.inner.seek(cx, offset, what)
    }

    fn extents(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<()> {
        self.cached.flush(cx)?;
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
        self.cached.flush(cx)?;
        let Some(to) = to.as_any().downcast_ref::<CachedFile>() else {
            return self.inner.copy(cx, offset, to, to_offset, len, how);
        };
        let _exclusive = to.cached.exclusive(cx)?;
        let done = self.inner.copy(cx, offset, &*to.inner, to_offset, len, how);
        to.cached.overwritten(to_offset..u64::MAX, |_| None);
        done
    }

    forward! { wrapped: readdir lease }

    /// Dirty data is written first, and what was read is dropped.
    fn backing(&self, cx: &Cx<'_>) -> Option<Arc<dyn Backing>> {
        let backing = self.inner.backing(cx)?;
        let _exclusive = self.cached.exclusive(cx).ok()?;
        self.cached.invalidate();
        Some(backing)
    }
}
