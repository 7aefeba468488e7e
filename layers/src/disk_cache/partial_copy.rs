//! A copy that is being filled, with the data of reads and with fetched data, until it is complete.
//!
//! Its contents always belong to one version: a file that changes gets a new version, and copies of
//! the old one are not looked up again.
//!
//! Lock order: the part's, which the writing thread holds while it writes, then the state's or the
//! source's.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use vfs::{Call, Caller, Cx, Errno, File, Ranges, Result};
use wire::payload::VecSink;

use super::cached_copy::read_chunk;
use super::checksums::{CHUNK, Checksums, Key, chunk_checksum};
use super::store::{Part, Store, as_root};
use super::version::Version;
use crate::full_io;

pub(super) struct PartialCopy {
    pub(super) key: Key,
    pub(super) version: Version,
    store: Arc<Store>,
    /// The open file of the source, until all of its bytes have been read.
    from: Mutex<Option<Arc<Source>>>,
    part: Mutex<Option<Part>>,
    state: Mutex<State>,
}

/// An open file of the source, with the caller that reads it.
struct Source {
    file: Arc<dyn File>,
    caller: Caller,
    /// The number of `Source`s.
    count: Arc<AtomicUsize>,
}

impl Drop for Source {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct State {
    /// Bytes that are being read, or have been.
    claimed: Ranges,
    /// Bytes that are in the copy.
    present: Ranges,
    /// The number of bytes read from the source, written or not.
    read_bytes: u64,
    /// It is in place or abandoned.
    finished: bool,
    /// The file is closed: no more data comes from reads.
    closed: bool,
    fetch: Fetch,
}

/// The state of fetching the ranges that no reader has read.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Fetch {
    #[default]
    NotStarted,
    Running,
    Done,
}

impl PartialCopy {
    /// The maximum number of source files that are open for copies.
    const MAX_OPEN_SOURCES: usize = 128;

    /// The maximum number of ranges to remember; with more of them, reads no longer add data, only
    /// a fetch does.
    const MAX_RANGES: usize = 512;

    /// Bytes to fetch in one call: several messages.
    const FETCH_SIZE: u64 = 4 << 20;

    /// Creates an empty copy. Returns `None` if too many are being filled.
    pub(super) fn new(
        (key, version): (Key, Version),
        store: &Arc<Store>,
        (from, caller): (&Arc<dyn File>, &Caller),
        count: &Arc<AtomicUsize>,
    ) -> Option<Arc<PartialCopy>> {
        if count.fetch_add(1, Ordering::Relaxed) >= PartialCopy::MAX_OPEN_SOURCES {
            count.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let source = Source {
            file: from.clone(),
            caller: caller.clone(),
            count: count.clone(),
        };
        Some(Arc::new(PartialCopy {
            key,
            version,
            store: store.clone(),
            from: Mutex::new(Some(Arc::new(source))),
            part: Mutex::default(),
            state: Mutex::default(),
        }))
    }

    fn source(&self) -> MutexGuard<'_, Option<Arc<Source>>> {
        self.from.lock()
    }

    /// Counts bytes of a claim that were read. Closes the source's file once all have been.
    pub(super) fn count_read(&self, bytes: usize) {
        let mut state = self.state();
        state.read_bytes += bytes as u64;
        let all = state.read_bytes >= self.version.size;
        drop(state);
        if all {
            let source = self.source().take();
            drop(source);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns whether the copy is in place or abandoned.
    pub(super) fn is_finished(&self) -> bool {
        self.state().finished
    }

    /// Abandons the copy.
    pub(super) fn cancel(&self) {
        self.state().finished = true;
    }

    /// Claims the first part of `range` that exists and is not claimed yet, for the caller to read.
    pub(super) fn claim(&self, range: Range<u64>) -> Option<Range<u64>> {
        let end = range.end.min(self.version.size);
        let mut state = self.state();
        if state.finished || range.start >= end || state.claimed.count() >= PartialCopy::MAX_RANGES
        {
            return None;
        }
        let gaps = state.claimed.gaps(range.start, end - 1);
        let &(from, to) = gaps.first()?;
        state.claimed.insert(from, to);
        Some(from..to + 1)
    }

    /// Releases the rest of a claim for others.
    pub(super) fn release(&self, range: Range<u64>) {
        if !range.is_empty() {
            self.state().claimed.remove(range.start, range.end - 1);
        }
    }

    /// Writes data that was read; puts the copy in place once it is complete. Called by one thread
    /// at a time.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() || self.is_finished() {
            return;
        }
        let mut part = self.part.lock();
        match self.try_write(&mut part, offset, bytes) {
            Ok(false) => {}
            Ok(true) => self.cancel(),
            Err(errno) => {
                self.cancel();
                if let Some(part) = part.take() {
                    self.store.abandon(&part, self.version.size, errno);
                }
                tracing::debug!("cannot cache a file: {errno}");
            }
        }
    }

    /// Writes data, and returns whether the copy is in place now.
    fn try_write(&self, part: &mut Option<Part>, offset: u64, bytes: &[u8]) -> Result<bool> {
        let size = self.version.size;
        if part.is_none() {
            *part = Some(self.store.begin(self.key, size)?);
        }
        let file = &*part.as_ref().expect("there").file;
        // Zeros are not written: they stay holes.
        if bytes.iter().any(|byte| *byte != 0) {
            as_root(|cx| full_io::write_full(cx, file, offset, bytes))?;
        }
        let mut state = self.state();
        state
            .present
            .insert(offset, offset + bytes.len() as u64 - 1);
        if !state.present.covers(0, size - 1) {
            return Ok(false);
        }
        drop(state);
        let sums = as_root(|cx| {
            let sums = Checksums::make(self.key, self.version, |number| {
                let bytes = read_chunk(cx, file, number, size)?;
                Ok(chunk_checksum(self.key, &self.version, number, &bytes))
            })?;
            if size >= CHUNK {
                file.fsync(cx, true)?;
            }
            Ok(sums)
        })?;
        // The part is removed if it cannot be put in place.
        let part = part.take().expect("there");
        match self.is_finished() {
            true => self.store.abandon(&part, size, Errno::ECANCELED),
            false => self.store.put(self.key, &part, &sums)?,
        }
        Ok(true)
    }

    /// Called after the last close, once the data of reads is written. Returns whether the rest is
    /// to be fetched, which is worth it if half of the file is here.
    pub(super) fn close(&self) -> bool {
        let mut state = self.state();
        state.closed = true;
        if state.finished || state.fetch == Fetch::Running {
            return false;
        }
        let here: u64 = state.present.iter().map(|(from, to)| to - from + 1).sum();
        let worth = state.fetch == Fetch::NotStarted && here >= self.version.size.div_ceil(2);
        match worth {
            true => state.fetch = Fetch::Running,
            false => state.finished = true,
        }
        worth
    }

    /// Called after a fetch has tried all unclaimed ranges and its data is written.
    pub(super) fn end_fetch(&self) {
        let mut state = self.state();
        state.fetch = Fetch::Done;
        // Otherwise reads in flight may still add their data.
        state.finished |= state.closed;
    }

    /// Returns whether the caller is to fetch the rest: `true` once, unless the copy is over.
    pub(super) fn begin_fetch(&self) -> bool {
        let mut state = self.state();
        let wants = !state.finished && state.fetch == Fetch::NotStarted;
        if wants {
            state.fetch = Fetch::Running;
        }
        wants
    }

    /// Fetches the unclaimed ranges, and passes them to `each` until that returns `false`.
    pub(super) fn fetch(&self, each: &mut dyn FnMut(u64, Vec<u8>) -> bool) {
        let Some(source) = self.source().clone() else {
            return;
        };
        let call = Call::detached();
        let cx = Cx::new(&source.caller, &call);
        while let Some(claim) = self.claim(0..self.version.size) {
            let mut at = claim.start;
            while at < claim.end {
                let len = PartialCopy::FETCH_SIZE.min(claim.end - at) as usize;
                let mut sink = VecSink::new(len);
                match source.file.read(&cx, at, len, &mut sink) {
                    Ok(1..) if !self.is_finished() => {}
                    _ => return,
                }
                let begin = at;
                at += sink.filled().len() as u64;
                if !each(begin, sink.into_bytes()) {
                    return;
                }
            }
        }
    }
}

impl Drop for PartialCopy {
    fn drop(&mut self) {
        if let Some(part) = self.part.get_mut().take() {
            let canceled = Errno::ECANCELED;
            self.store.abandon(&part, self.version.size, canceled);
        }
    }
}
