//! A copy that is being made: what readers bring, and what is fetched besides, until all of it is there.
//!
//! Its contents are of one version whatever changes meanwhile: a file that has changed is of another version from then on, and nobody asks for a copy
//! of the one that was.
//!
//! Lock order: the part's, which is held by the thread that writes while it does, then the state's or the source's.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use sys::payload::VecSink;
use vfs::{Call, Caller, Cx, Errno, File, Ranges, Result};

use super::copy::chunk;
use super::store::{Part, Store, own};
use super::sums::{CHUNK, Key, Sums, chunk_sum};
use super::version::Version;
use crate::whole;

pub(super) struct Filling {
    pub(super) key: Key,
    pub(super) version: Version,
    store: Arc<Store>,
    /// The open file of the source, until all of its bytes have come.
    from: Mutex<Option<Arc<Source>>>,
    part: Mutex<Option<Part>>,
    state: Mutex<State>,
}

/// An open file of the source, with the caller that it is read for.
struct Source {
    file: Arc<dyn File>,
    caller: Caller,
    /// The number of these.
    count: Arc<AtomicUsize>,
}

impl Drop for Source {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct State {
    /// Bytes that somebody reads, or has read.
    claimed: Ranges,
    /// Bytes that are in the file.
    here: Ranges,
    /// The number of bytes that have come, written or not.
    brought: u64,
    /// It is put in place, or nothing becomes of it.
    over: bool,
    /// No reader brings any more.
    closed: bool,
    fetch: Fetch,
}

/// Whether what readers do not bring is fetched.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Fetch {
    #[default]
    Not,
    UnderWay,
    Done,
}

impl Filling {
    /// So many files of the source are open at once.
    const MOST: usize = 128;

    /// So many stretches are remembered; who reads in more has it fetched, or does not.
    const STRETCHES: usize = 512;

    /// Bytes that are fetched in one call: several messages.
    const STEP: u64 = 4 << 20;

    /// Nothing if there are too many.
    pub(super) fn new(
        (key, version): (Key, Version),
        store: &Arc<Store>,
        (from, caller): (&Arc<dyn File>, &Caller),
        count: &Arc<AtomicUsize>,
    ) -> Option<Arc<Filling>> {
        if count.fetch_add(1, Ordering::Relaxed) >= Filling::MOST {
            count.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let source = Source {
            file: from.clone(),
            caller: caller.clone(),
            count: count.clone(),
        };
        Some(Arc::new(Filling {
            key,
            version,
            store: store.clone(),
            from: Mutex::new(Some(Arc::new(source))),
            part: Mutex::default(),
            state: Mutex::default(),
        }))
    }

    fn source(&self) -> MutexGuard<'_, Option<Arc<Source>>> {
        self.from.lock().expect("no panic holds it")
    }

    /// Counts bytes of a claim that have come. Lets go of the source's file once all have.
    pub(super) fn brought(&self, bytes: usize) {
        let mut state = self.state();
        state.brought += bytes as u64;
        let all = state.brought >= self.version.size;
        drop(state);
        if all {
            let source = self.source().take();
            drop(source);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic holds it")
    }

    /// Whether nothing more becomes of it.
    pub(super) fn is_over(&self) -> bool {
        self.state().over
    }

    /// Nothing is to become of it.
    pub(super) fn cancel(&self) {
        self.state().over = true;
    }

    /// What of `range` is there and nobody brings yet: the first stretch of it, which is the caller's now.
    pub(super) fn claim(&self, range: Range<u64>) -> Option<Range<u64>> {
        let end = range.end.min(self.version.size);
        let mut state = self.state();
        if state.over || range.start >= end || state.claimed.count() >= Filling::STRETCHES {
            return None;
        }
        let gaps = state.claimed.gaps(range.start, end - 1);
        let &(from, to) = gaps.first()?;
        state.claimed.insert(from, to);
        Some(from..to + 1)
    }

    /// Somebody else may bring what is left of a claim.
    pub(super) fn disclaim(&self, range: Range<u64>) {
        if !range.is_empty() {
            self.state().claimed.remove(range.start, range.end - 1);
        }
    }

    /// Writes what has come; puts the copy in place once it is whole. For one thread at a time.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() || self.is_over() {
            return;
        }
        let mut part = self.part.lock().expect("no panic holds it");
        match self.try_write(&mut part, offset, bytes) {
            Ok(false) => {}
            Ok(true) => self.cancel(),
            Err(errno) => {
                self.cancel();
                if let Some(part) = part.take() {
                    self.store.give_up(&part, self.version.size, errno);
                }
                tracing::debug!("a file is not kept: {errno}");
            }
        }
    }

    /// Whether it is in place now.
    fn try_write(&self, part: &mut Option<Part>, offset: u64, bytes: &[u8]) -> Result<bool> {
        let size = self.version.size;
        if part.is_none() {
            *part = Some(self.store.begin(self.key, size)?);
        }
        let file = &*part.as_ref().expect("there").file;
        // Holes stay holes.
        if bytes.iter().any(|byte| *byte != 0) {
            own(|cx| whole::write(cx, file, offset, bytes))?;
        }
        let mut state = self.state();
        state.here.insert(offset, offset + bytes.len() as u64 - 1);
        if !state.here.covers(0, size - 1) {
            return Ok(false);
        }
        drop(state);
        let sums = own(|cx| {
            let sums = Sums::make(self.key, self.version, |number| {
                let bytes = chunk(cx, file, number, size)?;
                Ok(chunk_sum(self.key, &self.version, number, &bytes))
            })?;
            if size >= CHUNK {
                file.fsync(cx, true)?;
            }
            Ok(sums)
        })?;
        // It is gone if it cannot be put there.
        let part = part.take().expect("there");
        match self.is_over() {
            true => self.store.give_up(&part, size, Errno::ECANCELED),
            false => self.store.put(self.key, &part, &sums)?,
        }
        Ok(true)
    }

    /// Nobody has the file open any more, and what readers brought is written. Whether the rest is to be fetched, which is worth it if half of
    /// it is here.
    pub(super) fn close(&self) -> bool {
        let mut state = self.state();
        state.closed = true;
        if state.over || state.fetch == Fetch::UnderWay {
            return false;
        }
        let here: u64 = state.here.iter().map(|(from, to)| to - from + 1).sum();
        let worth = state.fetch == Fetch::Not && here >= self.version.size.div_ceil(2);
        match worth {
            true => state.fetch = Fetch::UnderWay,
            false => state.over = true,
        }
        worth
    }

    /// All was tried that nobody else brings, and what was fetched is written.
    pub(super) fn fetched(&self) {
        let mut state = self.state();
        state.fetch = Fetch::Done;
        // Otherwise readers may still bring what they have begun to read.
        state.over |= state.closed;
    }

    /// Whether it is to be fetched by who asks, as nobody does yet.
    pub(super) fn wants_fetching(&self) -> bool {
        let mut state = self.state();
        let wants = !state.over && state.fetch == Fetch::Not;
        if wants {
            state.fetch = Fetch::UnderWay;
        }
        wants
    }

    /// Fetches what nobody has brought, and gives it to `each` until that says that it is enough (`false`).
    pub(super) fn fetch(&self, each: &mut dyn FnMut(u64, Vec<u8>) -> bool) {
        let Some(source) = self.source().clone() else {
            return;
        };
        let call = Call::detached();
        let cx = Cx::new(&source.caller, &call);
        while let Some(claim) = self.claim(0..self.version.size) {
            let mut at = claim.start;
            while at < claim.end {
                let len = Filling::STEP.min(claim.end - at) as usize;
                let mut sink = VecSink::new(len);
                match source.file.read(&cx, at, len, &mut sink) {
                    Ok(1..) if !self.is_over() => {}
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

impl Drop for Filling {
    fn drop(&mut self) {
        if let Ok(Some(part)) = self.part.get_mut().map(Option::take) {
            let canceled = Errno::ECANCELED;
            self.store.give_up(&part, self.version.size, canceled);
        }
    }
}
