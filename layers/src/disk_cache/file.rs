//! An open file whose contents may come from a copy.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use vfs::{
    Attr, AttrMask, CopyMode, Cx, Errno, File, Fill, OpenFlags, Patience, Result, SetAttr, Sink,
};

use super::Shared;
use super::cached_copy::CachedCopy;
use super::partial_copy::PartialCopy;
use super::table::Entry;
use crate::forward;

/// The attributes that determine a file's version.
pub(super) const VERSION_ATTRIBUTES: AttrMask = AttrMask::STAT.union(AttrMask::GENERATION);

/// One open of a regular file.
pub(super) struct CachedFile {
    inner: Arc<dyn File>,
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    flags: OpenFlags,
    /// The entry's epoch at the open.
    epoch: u64,
    /// The origin of its contents: decided once, from attributes read after the open.
    source: OnceLock<ReadSource>,
}

/// The origin of a file's contents.
pub(super) enum ReadSource {
    Source,
    Copy(Arc<CachedCopy>),
    /// The source, while its data fills a copy.
    Filling(Arc<PartialCopy>),
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        let entry = &self.entry;
        if let Some(filling) = self.shared.table.close(entry, may_write(self.flags)) {
            self.shared.workers.queue_close(filling);
        }
    }
}

/// Returns whether a file opened with `flags` may be changed through it.
pub(super) fn may_write(flags: OpenFlags) -> bool {
    flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC)
}

impl CachedFile {
    /// Wraps `inner`, which was opened with `flags` when `entry` was at `epoch`.
    pub(super) fn new(
        inner: Arc<dyn File>,
        shared: &Arc<Shared>,
        (entry, epoch): (Arc<Entry>, u64),
        flags: OpenFlags,
    ) -> CachedFile {
        let copied = flags.intersects(OpenFlags::READ | OpenFlags::EXEC)
            && !may_write(flags)
            && !flags.contains(OpenFlags::DIRECT);
        let choice = OnceLock::new();
        if !copied {
            let _ = choice.set(ReadSource::Source);
        }
        CachedFile {
            inner,
            shared: shared.clone(),
            entry,
            flags,
            epoch,
            source: choice,
        }
    }

    /// Returns the file below `file` if that is a `CachedFile`, otherwise `file`.
    pub(super) fn below(file: &dyn File) -> &dyn File {
        match file.as_any().downcast_ref::<CachedFile>() {
            Some(file) => &*file.inner,
            None => file,
        }
    }

    fn choose_source(&self, cx: &Cx<'_>, attr: &Attr) -> &ReadSource {
        self.source.get_or_init(|| {
            let from = (&self.inner, cx.caller);
            self.shared
                .choose_source(&self.entry, self.epoch, attr, from)
        })
    }

    /// Returns where to read from at present.
    fn source(&self, cx: &Cx<'_>) -> Result<&ReadSource> {
        let choice = match self.source.get() {
            Some(choice) => choice,
            None => {
                cx.check_may_block()?;
                self.choose_source(cx, &self.inner.attr(cx, VERSION_ATTRIBUTES)?)
            }
        };
        Ok(match self.entry.epoch() == self.epoch {
            true => choice,
            false => &ReadSource::Source,
        })
    }

    fn read_copy(
        &self,
        copy: &CachedCopy,
        cx: &Cx<'_>,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let done = copy.read(cx, offset, len, sink)?;
        if done.is_some_and(|done| done >= copy.expected(offset, len)) {
            return Ok(done.unwrap_or_default());
        }
        tracing::warn!("a cached copy is damaged: reading the file from its source");
        self.shared.invalidate_and_remove(self.entry.id);
        let done = done.unwrap_or_default();
        match self.inner.read(cx, offset + done as u64, len - done, sink) {
            Ok(read) => Ok(done + read),
            Err(_) if done > 0 => Ok(done),
            Err(errno) => Err(errno),
        }
    }

    fn read_and_fill(
        &self,
        filling: &Arc<PartialCopy>,
        cx: &Cx<'_>,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let end = offset.saturating_add(len.min(sink.room()) as u64);
        let workers = &self.shared.workers;
        let claim = match workers.has_room(len) {
            true => filling.claim(offset..end),
            false => None,
        };
        let Some(claim) = claim else {
            return self.inner.read(cx, offset, len, sink);
        };
        let most = (claim.end - offset) as usize;
        let mut tee = Tee {
            sink,
            taken: Some(Vec::with_capacity(most)),
        };
        let read = self.inner.read(cx, offset, len, &mut tee);
        let skip = (claim.start - offset) as usize;
        let mut taken = tee.taken.filter(|_| read.is_ok()).unwrap_or_default();
        taken.truncate(most);
        taken.drain(..skip.min(taken.len()));
        filling.release(claim.start + taken.len() as u64..claim.end);
        if !taken.is_empty() {
            workers.queue_write(filling, claim.start, taken);
        }
        read
    }
}

impl File for CachedFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attr(&self, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        let attr = self.inner.attr(cx, want)?;
        if want.contains(VERSION_ATTRIBUTES) && cx.patience == Patience::Full {
            self.choose_source(cx, &attr);
        }
        if want.contains(AttrMask::STAT) {
            self.entry.revalidate(&attr);
        }
        Ok(attr)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        let attr = self.inner.setattr(cx, set)?;
        self.entry.revalidate(&attr);
        Ok(attr)
    }

    fn read(&self, cx: &Cx<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
        let choice = match self.source(cx) {
            Err(errno @ (Errno::WOULD_BLOCK | Errno::PARKED | Errno::EINTR)) => return Err(errno),
            Err(_) => &ReadSource::Source,
            Ok(choice) => choice,
        };
        match choice {
            ReadSource::Copy(copy) => self.read_copy(copy, cx, offset, len.min(sink.room()), sink),
            ReadSource::Filling(filling) => self.read_and_fill(filling, cx, offset, len, sink),
            ReadSource::Source => self.inner.read(cx, offset, len, sink),
        }
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
        let to = CachedFile::below(to);
        self.inner.copy(cx, offset, to, to_offset, len, how)
    }

    forward! { wrapped: write readdir fsync flush allocate seek extents lease }
}

/// A sink that also keeps the data it passes on; `None` if the data came as a file descriptor, from
/// which it is faster to read.
struct Tee<'a> {
    sink: &'a mut dyn Sink,
    taken: Option<Vec<u8>>,
}

impl Sink for Tee<'_> {
    fn room(&self) -> usize {
        self.sink.room()
    }

    fn bytes(&mut self, data: &[u8]) {
        if let Some(taken) = &mut self.taken {
            taken.extend_from_slice(data);
        }
        self.sink.bytes(data);
    }

    fn zeros(&mut self, len: usize) {
        if let Some(taken) = &mut self.taken {
            taken.resize(taken.len() + len, 0);
        }
        self.sink.zeros(len);
    }

    fn file(
        &mut self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        patience: Patience,
    ) -> Result<usize> {
        self.taken = None;
        self.sink.file(fd, offset, len, patience)
    }

    fn lend(&mut self, len: usize, fill: Fill<'_>) -> Option<Result<usize>> {
        let Tee { sink, taken } = self;
        sink.lend(len, &mut |memory| {
            let filled = fill(memory)?;
            if let Some(taken) = taken {
                taken.extend_from_slice(memory.get(..filled).unwrap_or_default());
            }
            Ok(filled)
        })
    }
}
