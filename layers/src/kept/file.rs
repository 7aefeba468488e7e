//! An open file whose contents may come from a copy.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use vfs::{Attr, CopyHow, Cx, Errno, File, Fill, OpenFlags, Patience, Result, SetAttr, Sink, Want};

use super::Shared;
use super::copy::Copy;
use super::filling::Filling;
use super::table::Entry;
use crate::forward;

/// The attributes that determine a file's version.
pub(super) const ASKED: Want = Want::STAT.union(Want::GENERATION);

/// One open of a regular file.
pub(super) struct KeptFile {
    inner: Arc<dyn File>,
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    flags: OpenFlags,
    /// The entry's epoch at the open.
    epoch: u64,
    /// The origin of its contents: decided once, from attributes read after the open.
    choice: OnceLock<Choice>,
}

/// The origin of a file's contents.
pub(super) enum Choice {
    Source,
    Copy(Arc<Copy>),
    /// The source, while its data fills a copy.
    Filling(Arc<Filling>),
}

impl Drop for KeptFile {
    fn drop(&mut self) {
        let entry = &self.entry;
        if let Some(filling) = self.shared.table.close(entry, writes(self.flags)) {
            self.shared.workers.end(filling);
        }
    }
}

/// Returns whether a file opened with `flags` may be changed through it.
pub(super) fn writes(flags: OpenFlags) -> bool {
    flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC)
}

impl KeptFile {
    /// Wraps `inner`, which was opened with `flags` when `entry` was at `epoch`.
    pub(super) fn new(
        inner: Arc<dyn File>,
        shared: &Arc<Shared>,
        (entry, epoch): (Arc<Entry>, u64),
        flags: OpenFlags,
    ) -> KeptFile {
        let copied = flags.intersects(OpenFlags::READ | OpenFlags::EXEC)
            && !writes(flags)
            && !flags.contains(OpenFlags::DIRECT);
        let choice = OnceLock::new();
        if !copied {
            let _ = choice.set(Choice::Source);
        }
        KeptFile {
            inner,
            shared: shared.clone(),
            entry,
            flags,
            epoch,
            choice,
        }
    }

    /// Returns the file below `file` if that is a `KeptFile`, otherwise `file`.
    pub(super) fn below(file: &dyn File) -> &dyn File {
        match file.as_any().downcast_ref::<KeptFile>() {
            Some(file) => &*file.inner,
            None => file,
        }
    }

    fn decide(&self, cx: &Cx<'_>, attr: &Attr) -> &Choice {
        self.choice.get_or_init(|| {
            let from = (&self.inner, cx.caller);
            self.shared.choose(&self.entry, self.epoch, attr, from)
        })
    }

    /// Returns where to read from at present.
    fn choice(&self, cx: &Cx<'_>) -> Result<&Choice> {
        let choice = match self.choice.get() {
            Some(choice) => choice,
            None => {
                cx.may_wait()?;
                self.decide(cx, &self.inner.attr(cx, ASKED)?)
            }
        };
        Ok(match self.entry.epoch() == self.epoch {
            true => choice,
            false => &Choice::Source,
        })
    }

    fn read_copy(
        &self,
        copy: &Copy,
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
        self.shared.void(self.entry.id);
        let done = done.unwrap_or_default();
        match self.inner.read(cx, offset + done as u64, len - done, sink) {
            Ok(read) => Ok(done + read),
            Err(_) if done > 0 => Ok(done),
            Err(errno) => Err(errno),
        }
    }

    fn read_along(
        &self,
        filling: &Arc<Filling>,
        cx: &Cx<'_>,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let end = offset.saturating_add(len.min(sink.room()) as u64);
        let workers = &self.shared.workers;
        let claim = match workers.takes(len) {
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
        filling.disclaim(claim.start + taken.len() as u64..claim.end);
        if !taken.is_empty() {
            workers.piece(filling, claim.start, taken);
        }
        read
    }
}

impl File for KeptFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attr(&self, cx: &Cx<'_>, want: Want) -> Result<Attr> {
        let attr = self.inner.attr(cx, want)?;
        if want.contains(ASKED) && cx.patience == Patience::Full {
            self.decide(cx, &attr);
        }
        if want.contains(Want::STAT) {
            self.entry.meet(&attr);
        }
        Ok(attr)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        let attr = self.inner.setattr(cx, set)?;
        self.entry.meet(&attr);
        Ok(attr)
    }

    fn read(&self, cx: &Cx<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
        let choice = match self.choice(cx) {
            Err(errno @ (Errno::WOULD_BLOCK | Errno::PARKED | Errno::EINTR)) => return Err(errno),
            Err(_) => &Choice::Source,
            Ok(choice) => choice,
        };
        match choice {
            Choice::Copy(copy) => self.read_copy(copy, cx, offset, len.min(sink.room()), sink),
            Choice::Filling(filling) => self.read_along(filling, cx, offset, len, sink),
            Choice::Source => self.inner.read(cx, offset, len, sink),
        }
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
        let to = KeptFile::below(to);
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
