//! Data written with UNSTABLE and not committed yet (RFC 1813 sections 3.3.7 and 3.3.21, RFC 8881
//! sections 18.3 and 18.32).
//!
//! A server keeps such data in memory, where a restart loses it. So the client keeps a copy until a
//! COMMIT returns the write verifier of the WRITE; another verifier means a restart, and the data
//! has to be written again. This module is the table of the copies; `commit` makes the calls.
//!
//! The copies of a file are disjoint extents. A later write, truncation or hole removes what it
//! covers, so that data written again never overwrites newer data: every such change is announced
//! ([`Uncommitted::change`]), and excludes rewriting of that file.
//!
//! Bounds: [`Limits`], per file and in total, including the table's own memory.
//!
//! Lock order: the one mutex, never held across a request.

use std::collections::{BTreeMap, HashMap};
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ::nfs::client::Written;
use parking_lot::{Condvar, Mutex, MutexGuard};
use vfs::{Caller, Cx, Errno, Result};

use super::rpc_client::Backoff;
use super::version::Handle;

/// Bounds of the copies.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// The limit per file, in bytes.
    pub(super) file: usize,
    /// The limit for all files, in bytes.
    pub(super) total: usize,
    /// The age at which a file is committed without an fsync.
    pub(super) age: Duration,
}

impl Limits {
    /// A file's limit is what a disk writes in tens of milliseconds to a second, so that early
    /// commits stay cheap; the age is that of Linux's `dirty_expire_centisecs`.
    pub(super) const DEFAULT: Limits = Limits {
        file: 64 << 20,
        total: 128 << 20,
        age: Duration::from_secs(30),
    };

    /// Returns the default with at most `total` bytes for all files, if given.
    pub(super) fn of_total(total: Option<usize>) -> Limits {
        let default = Limits::DEFAULT;
        let total = total.unwrap_or(default.total).min(default.total);
        Limits {
            file: total / 2,
            total,
            ..default
        }
    }
}

/// The most bytes that adjacent writes are joined to: those of one WRITE.
const MAX_JOINED: usize = 1 << 20;

/// The approximate overhead of an extent and of a file, in bytes.
const EXTENT_OVERHEAD: usize = 128;
const FILE_OVERHEAD: usize = 512;

/// Uncommitted data by file. `O` is the state of an open file, with which data is written again.
pub(super) struct Uncommitted<O> {
    limits: Limits,
    table: Mutex<Table<O>>,
    /// The memory of the table, in bytes.
    charged: AtomicUsize,
    /// The number of the connection over which the oldest data was written.
    connection: AtomicU64,
    /// Notified of data for [`Uncommitted::due`], and of the end.
    changed: Condvar,
}

struct Table<O> {
    files: HashMap<Handle, State<O>>,
    /// Files with data, in the order in which they are due.
    order: BTreeMap<u64, Handle>,
    /// The next key in this order.
    next: u64,
    stopped: bool,
}

/// A file's uncommitted data.
struct State<O> {
    extents: BTreeMap<u64, Extent>,
    /// The memory of the extents, in bytes.
    data: usize,
    /// Incremented by each COMMIT: it covers the data of earlier generations.
    generation: u64,
    /// The number of changes in flight.
    changes: usize,
    rewriting: bool,
    /// The key in [`Table::order`] and the due time, if the file has data.
    queued: Option<(u64, Instant)>,
    /// Whether to move the file to the end of this order.
    queued_again: bool,
    /// Whether the last commit failed, which disables early commits.
    failing: bool,
    writer: Option<Writer<O>>,
    /// The reason why data was given up, until it is reported.
    error: Option<Errno>,
}

/// The last writer of a file.
pub(super) struct Writer<O> {
    pub(super) caller: Caller,
    pub(super) open: Weak<O>,
}

impl<O> Clone for Writer<O> {
    fn clone(&self) -> Self {
        Writer {
            caller: self.caller.clone(),
            open: self.open.clone(),
        }
    }
}

/// Adjacent bytes with the same verifier.
pub(super) struct Extent {
    pub(super) data: Vec<u8>,
    verifier: [u8; 8],
    generation: u64,
}

/// A COMMIT in flight.
pub(super) struct Commit<O> {
    generation: u64,
    pub(super) writer: Option<Writer<O>>,
}

impl<O> Uncommitted<O> {
    pub(super) fn new(limits: Limits) -> Uncommitted<O> {
        Uncommitted {
            limits,
            table: Mutex::new(Table {
                files: HashMap::new(),
                order: BTreeMap::new(),
                next: 0,
                stopped: false,
            }),
            charged: AtomicUsize::new(0),
            connection: AtomicU64::new(0),
            changed: Condvar::new(),
        }
    }

    /// Announces a change of a file's content, after waiting until no data of the file is being
    /// rewritten. `connection` is the number of the connection before the change.
    pub(super) fn change<'a>(
        &'a self,
        cx: &Cx<'_>,
        handle: &'a Handle,
        connection: u64,
    ) -> Result<Change<'a, O>> {
        let mut pauses = Backoff::new();
        loop {
            {
                let mut table = self.table();
                if table.order.is_empty() {
                    self.connection.store(connection, Ordering::Release);
                }
                let state = table.files.entry(handle.clone()).or_default();
                if !state.rewriting {
                    state.changes += 1;
                    return Ok(Change {
                        table: self,
                        handle,
                    });
                }
            }
            pauses.pause(cx)?;
        }
    }

    /// Returns whether the table is full, and writes have to be stable.
    pub(super) fn is_full(&self) -> bool {
        self.charged.load(Ordering::Relaxed) > self.limits.total
    }

    /// Returns the file to commit early after a write to `handle`, if there is too much data.
    pub(super) fn over_limit(&self, handle: &Handle) -> Option<Handle> {
        if self.charged.load(Ordering::Relaxed) <= self.limits.file {
            return None;
        }
        let table = self.table();
        let state = table.files.get(handle);
        if state.is_some_and(|state| state.charged() > self.limits.file) {
            return Some(handle.clone());
        }
        match self.is_full() {
            true => table.order.values().next().cloned(),
            false => None,
        }
    }

    /// Begins to commit a file. Returns `None` if all of it is durable.
    pub(super) fn begin_commit(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Option<Commit<O>>> {
        let mut pauses = Backoff::new();
        loop {
            {
                let mut table = self.table();
                let Some(state) = table.files.get_mut(handle) else {
                    return Ok(None);
                };
                if !state.rewriting {
                    if state.extents.is_empty() {
                        return Ok(None);
                    }
                    state.generation += 1;
                    return Ok(Some(Commit {
                        generation: state.generation - 1,
                        writer: state.writer.clone(),
                    }));
                }
            }
            pauses.pause(cx)?;
        }
    }

    /// Drops the data that a COMMIT has confirmed with its verifier, and returns whether that is
    /// all data that the COMMIT covered.
    pub(super) fn committed(&self, handle: &Handle, commit: &Commit<O>, verifier: [u8; 8]) -> bool {
        let all = self.with(handle, |state| {
            let (mut all, mut retained) = (true, 0);
            state.extents.retain(|_, extent| {
                let lost = extent.is_lost(commit.generation, verifier);
                all &= !lost;
                let stays = lost || extent.generation > commit.generation;
                retained += if stays { extent.charged() } else { 0 };
                stays
            });
            state.data = retained;
            state.failing = false;
            state.queued_again = true;
            all
        });
        all.unwrap_or(true)
    }

    /// Records that a commit failed, which disables early commits.
    pub(super) fn failed(&self, handle: &Handle) {
        self.with(handle, |state| {
            state.failing = true;
            state.queued_again = true;
        });
    }

    /// Excludes changes of a file, to rewrite the data that a restart of the server has lost: that
    /// which `commit` covered and `verifier` does not confirm.
    pub(super) fn rewrite<'a>(
        &'a self,
        cx: &Cx<'_>,
        handle: &'a Handle,
        commit: &Commit<O>,
        verifier: [u8; 8],
    ) -> Result<Rewrite<'a, O>> {
        let mut rewrite = Rewrite {
            table: self,
            handle,
            excludes: false,
            lost: BTreeMap::new(),
        };
        let mut pauses = Backoff::new();
        loop {
            let started = self.with(handle, |state| {
                if !rewrite.excludes && !state.rewriting {
                    state.rewriting = true;
                    rewrite.excludes = true;
                }
                let begins = rewrite.excludes && state.changes == 0;
                if begins {
                    rewrite.lost = state.take_lost(commit.generation, verifier);
                }
                begins
            });
            if started != Some(false) {
                return Ok(rewrite);
            }
            pauses.pause(cx)?;
        }
    }

    /// Forgets a file that no longer exists on the server.
    pub(super) fn forget(&self, handle: &Handle) {
        self.with(handle, |state| {
            state.cut(0, u64::MAX);
            state.error = None;
        });
    }

    /// Reports once the reason why data of a file was given up.
    pub(super) fn take_error(&self, handle: &Handle) -> Result<()> {
        let error = self.with(handle, |state| state.error.take());
        error.flatten().map_or(Ok(()), Err)
    }

    /// The files with data or an error to report, and their last writers.
    pub(super) fn all(&self) -> Vec<(Handle, Option<Writer<O>>)> {
        let table = self.table();
        let retained = table.files.iter().filter(|(_, state)| state.charged() > 0);
        retained
            .map(|(handle, state)| (handle.clone(), state.writer.clone()))
            .collect()
    }

    /// Returns whether there is data that was written over a connection before `connection`: the
    /// server may have restarted since.
    #[inline]
    pub(super) fn may_be_lost(&self, connection: u64) -> bool {
        self.charged.load(Ordering::Acquire) > 0
            && self.connection.load(Ordering::Acquire) != connection
    }

    /// Records that all data was committed or rewritten over `connection`.
    pub(super) fn recommitted(&self, connection: u64) {
        self.connection.store(connection, Ordering::Release);
    }

    /// Waits for a file to commit without an fsync, because its data is old or the table is half
    /// full. Returns `None` after [`Uncommitted::stop`].
    pub(super) fn due(&self) -> Option<(Handle, Option<Writer<O>>)> {
        let mut table = self.table();
        loop {
            if table.stopped {
                return None;
            }
            let Some(handle) = table.order.values().next() else {
                self.changed.wait(&mut table);
                continue;
            };
            let state = &table.files[handle];
            let now = Instant::now();
            let at = state.queued.map_or(now, |(_, at)| at);
            let pressed = self.charged.load(Ordering::Relaxed) > self.limits.total / 2;
            if at <= now || pressed && !state.failing {
                return Some((handle.clone(), state.writer.clone()));
            }
            self.changed.wait_for(&mut table, at - now);
        }
    }

    /// Ends [`Uncommitted::due`].
    pub(super) fn stop(&self) {
        self.table().stopped = true;
        self.changed.notify_all();
    }

    /// Changes a file's state, if there is one, and updates the order and totals.
    fn with<T>(&self, handle: &Handle, change: impl FnOnce(&mut State<O>) -> T) -> Option<T> {
        let mut table = self.table();
        let Table {
            files, order, next, ..
        } = &mut *table;
        let state = files.get_mut(handle)?;
        let (before, was_empty) = (state.charged(), state.extents.is_empty());
        let done = change(state);
        let (after, is_empty) = (state.charged(), state.extents.is_empty());
        if (is_empty || std::mem::take(&mut state.queued_again))
            && let Some((number, _)) = state.queued.take()
        {
            order.remove(&number);
        }
        if !is_empty && state.queued.is_none() {
            state.queued = Some((*next, Instant::now() + self.limits.age));
            order.insert(*next, handle.clone());
            *next += 1;
        }
        if after == 0 && state.changes == 0 {
            files.remove(handle);
        }
        self.charged.fetch_add(after, Ordering::AcqRel);
        let total = self.charged.fetch_sub(before, Ordering::AcqRel) - before;
        drop(table);
        if !is_empty && (was_empty || total > self.limits.total / 2) {
            self.changed.notify_one();
        }
        Some(done)
    }

    fn table(&self) -> MutexGuard<'_, Table<O>> {
        self.table.lock()
    }
}

impl<O> Default for State<O> {
    fn default() -> Self {
        State {
            extents: BTreeMap::new(),
            data: 0,
            generation: 0,
            changes: 0,
            rewriting: false,
            queued: None,
            queued_again: false,
            failing: false,
            writer: None,
            error: None,
        }
    }
}

impl<O> State<O> {
    /// The memory that has to be kept, in bytes.
    fn charged(&self) -> usize {
        let stays = !self.extents.is_empty() || self.error.is_some() || self.rewriting;
        if stays { self.data + FILE_OVERHEAD } else { 0 }
    }

    fn insert(&mut self, offset: u64, data: &[u8], verifier: [u8; 8]) {
        let generation = self.generation;
        let end = offset + data.len() as u64;
        let same = |extent: &Extent| extent.verifier == verifier && extent.generation == generation;
        let before = self.extents.range_mut(..=offset).next_back();
        if let Some((&at, extent)) = before
            && same(extent)
            && end <= extent.end(at)
        {
            let from = (offset - at) as usize;
            extent.data[from..from + data.len()].copy_from_slice(data);
            return;
        }
        self.cut(offset, end);
        let before = self.extents.range_mut(..offset).next_back();
        if let Some((&at, extent)) = before
            && same(extent)
            && extent.end(at) == offset
            && extent.data.len() + data.len() <= MAX_JOINED
        {
            self.data -= extent.charged();
            extent.data.extend_from_slice(data);
            self.data += extent.charged();
            return;
        }
        let data = data.to_vec();
        let extent = Extent {
            data,
            verifier,
            generation,
        };
        self.put(offset, extent);
    }

    fn take_lost(&mut self, generation: u64, verifier: [u8; 8]) -> BTreeMap<u64, Extent> {
        let all = std::mem::take(&mut self.extents).into_iter();
        let (lost, retained) = all.partition(|(_, extent)| extent.is_lost(generation, verifier));
        self.extents = retained;
        self.data = self.extents.values().map(Extent::charged).sum();
        lost
    }

    fn put(&mut self, offset: u64, extent: Extent) {
        self.data += extent.charged();
        self.extents.insert(offset, extent);
    }

    /// Removes the bytes from `start` to `end`.
    fn cut(&mut self, start: u64, end: u64) {
        let before = self.extents.range(..start).next_back();
        let from = match before {
            Some((&at, extent)) if extent.end(at) > start => at,
            _ => start,
        };
        while let Some((&at, _)) = self.extents.range(from..end.max(from)).next() {
            let mut extent = self.extents.remove(&at).expect("it was found");
            self.data -= extent.charged();
            if let Some(tail) = extent.tail(at, end) {
                self.put(end, tail);
            }
            if at < start {
                extent.data.truncate((start - at) as usize);
                extent.data.shrink_to_fit();
                self.put(at, extent);
                return self.cut(start, end);
            }
        }
    }
}

impl Extent {
    /// The approximate memory, in bytes.
    fn charged(&self) -> usize {
        self.data.capacity() + EXTENT_OVERHEAD
    }

    fn end(&self, offset: u64) -> u64 {
        offset + self.data.len() as u64
    }

    /// Returns whether the commit of this generation covered the extent, and `verifier` does not
    /// confirm it.
    fn is_lost(&self, generation: u64, verifier: [u8; 8]) -> bool {
        self.generation <= generation && self.verifier != verifier
    }

    /// The part after `end` of an extent at `offset`.
    fn tail(&self, offset: u64, end: u64) -> Option<Extent> {
        let cut = end.checked_sub(offset)?;
        let data = usize::try_from(cut)
            .ok()
            .and_then(|cut| self.data.get(cut..))?;
        (!data.is_empty()).then(|| Extent {
            data: data.to_vec(),
            ..*self
        })
    }
}

/// A change of a file's content in flight: a write, truncation, hole or copy.
pub(super) struct Change<'a, O> {
    table: &'a Uncommitted<O>,
    handle: &'a Handle,
}

impl<O> Change<'_, O> {
    /// Records that `data` was written, and keeps a copy unless it is durable.
    pub(super) fn wrote(
        &self,
        offset: u64,
        data: &[u8],
        written: &Written,
        writer: impl FnOnce() -> Writer<O>,
    ) {
        let data = &data[..data.len().min(written.count as usize)];
        self.table.with(self.handle, |state| match data {
            [] => {}
            _ if written.durable => state.cut(offset, offset + data.len() as u64),
            _ => {
                state.insert(offset, data, written.verifier);
                state.writer = Some(writer());
            }
        });
    }

    /// Records that the bytes from `start` to `end` are replaced by a hole or a copy, or truncated.
    pub(super) fn replaced(&self, start: u64, end: u64) {
        self.table.with(self.handle, |state| state.cut(start, end));
    }
}

impl<O> Drop for Change<'_, O> {
    fn drop(&mut self) {
        self.table.with(self.handle, |state| state.changes -= 1);
    }
}

/// Lost data of a file that is being rewritten, which excludes changes.
pub(super) struct Rewrite<'a, O> {
    table: &'a Uncommitted<O>,
    handle: &'a Handle,
    excludes: bool,
    /// The extents that are still to be written, by offset.
    lost: BTreeMap<u64, Extent>,
}

impl<O> Rewrite<'_, O> {
    /// The next extent to write, and its offset.
    pub(super) fn next(&self) -> Option<(u64, &[u8])> {
        let (&offset, extent) = self.lost.first_key_value()?;
        Some((offset, &extent.data))
    }

    /// Records that the next extent was rewritten. It is kept with the new verifier if it is not
    /// durable.
    pub(super) fn wrote(&mut self, unstable: Option<[u8; 8]>) {
        let Some((offset, extent)) = self.lost.pop_first() else {
            return;
        };
        if let Some(verifier) = unstable {
            self.table.with(self.handle, |state| {
                state.insert(offset, &extent.data, verifier);
            });
        }
    }

    /// Gives up the next extent, for a reason that is reported later.
    pub(super) fn give_up(&mut self, errno: Errno) {
        self.lost.pop_first();
        self.table.with(self.handle, |state| {
            state.error.get_or_insert(errno);
        });
    }
}

impl<O> Drop for Rewrite<'_, O> {
    fn drop(&mut self) {
        let lost = std::mem::take(&mut self.lost);
        if self.excludes {
            self.table.with(self.handle, |state| {
                state.rewriting = false;
                for (offset, extent) in lost {
                    state.put(offset, extent);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use vfs::Call;
    use vfs_testkit::wait_until;

    use super::*;

    const OLD: [u8; 8] = [1; 8];
    const NEW: [u8; 8] = [2; 8];

    const LIMITS: Limits = Limits {
        file: 20_000,
        total: 40_000,
        age: Duration::from_secs(3600),
    };

    fn with_cx<T>(run: impl FnOnce(&Cx<'_>) -> T) -> T {
        run(&Cx::new(&Caller::ROOT, &Call::detached()))
    }

    fn file(number: u8) -> Handle {
        [number][..].into()
    }

    fn write(of: &Uncommitted<()>, file: &Handle, offset: u64, data: &[u8], verifier: [u8; 8]) {
        let change = with_cx(|cx| of.change(cx, file, 0)).expect("not excluded");
        let written = Written {
            count: data.len() as u32,
            durable: false,
            verifier,
        };
        change.wrote(offset, data, &written, || Writer {
            caller: Caller::ROOT,
            open: Weak::new(),
        });
    }

    /// Commits as a server with this verifier, and returns the data to rewrite.
    fn commit(of: &Uncommitted<()>, file: &Handle, verifier: [u8; 8]) -> Vec<(u64, Vec<u8>)> {
        with_cx(|cx| {
            let commit = of.begin_commit(cx, file).expect("not excluded");
            let Some(commit) = commit else {
                return Vec::new();
            };
            if of.committed(file, &commit, verifier) {
                return Vec::new();
            }
            let mut rewrite = of.rewrite(cx, file, &commit, verifier).expect("no changes");
            let mut lost = Vec::new();
            while let Some((offset, data)) = rewrite.next() {
                lost.push((offset, data.to_vec()));
                rewrite.wrote(None);
            }
            lost
        })
    }

    fn is_empty(of: &Uncommitted<()>) -> bool {
        let table = of.table();
        let charged = of.charged.load(Ordering::Relaxed);
        (table.files.len(), table.order.len(), charged) == (0, 0, 0)
    }

    #[test]
    fn a_commit_confirms_by_its_verifier() {
        let (of, file) = (Uncommitted::new(LIMITS), file(1));
        write(&of, &file, 0, b"abc", OLD);
        assert_eq!(commit(&of, &file, OLD), []);
        assert!(is_empty(&of));
        write(&of, &file, 0, b"abc", OLD);
        write(&of, &file, 3, b"def", NEW);
        assert_eq!(commit(&of, &file, NEW), [(0, b"abc".to_vec())]);
        assert!(is_empty(&of));
    }

    #[test]
    fn data_written_after_a_commit_was_sent_stays() {
        let (of, file) = (Uncommitted::new(LIMITS), file(1));
        write(&of, &file, 0, b"abc", OLD);
        let sent_commit = with_cx(|cx| of.begin_commit(cx, &file)).expect("not excluded");
        write(&of, &file, 3, b"def", OLD);
        assert!(of.committed(&file, &sent_commit.expect("data"), OLD));
        assert_eq!(commit(&of, &file, NEW), [(3, b"def".to_vec())]);
    }

    #[test]
    fn durable_writes_and_replaced_ranges_take_copies_away() {
        let (of, file) = (Uncommitted::new(LIMITS), file(1));
        write(&of, &file, 0, b"abcdefghij", OLD);
        with_cx(|cx| {
            let change = of.change(cx, &file, 0).expect("not excluded");
            let durable = Written {
                count: 2,
                durable: true,
                verifier: OLD,
            };
            let writer = || -> Writer<()> { unreachable!("nothing is kept") };
            change.wrote(2, b"..", &durable, writer);
            change.replaced(8, u64::MAX);
        });
        let lost = commit(&of, &file, NEW);
        assert_eq!(lost, [(0, b"ab".to_vec()), (4, b"efgh".to_vec())]);
    }

    /// Runs `then` while the data of `file` is rewritten to a restarted server.
    fn rewriting(of: &Uncommitted<()>, file: &Handle, then: impl FnOnce(&Cx<'_>, Rewrite<'_, ()>)) {
        with_cx(|cx| {
            let commit = of.begin_commit(cx, file).expect("not excluded");
            let commit = commit.expect("data");
            assert!(!of.committed(file, &commit, NEW));
            then(cx, of.rewrite(cx, file, &commit, NEW).expect("no changes"));
        });
    }

    #[test]
    fn data_that_cannot_be_written_again_is_reported_once() {
        let (of, file) = (Uncommitted::new(LIMITS), file(1));
        write(&of, &file, 0, b"abc", OLD);
        rewriting(&of, &file, |_, mut rewrite| rewrite.give_up(Errno::ENOSPC));
        assert_eq!(of.all().len(), 1);
        assert_eq!(of.take_error(&file), Err(Errno::ENOSPC));
        assert_eq!(of.take_error(&file), Ok(()));
        assert!(is_empty(&of));
    }

    #[test]
    fn an_interrupted_rewrite_leaves_its_data() {
        let (of, file) = (Uncommitted::new(LIMITS), file(1));
        write(&of, &file, 0, b"abc", OLD);
        rewriting(&of, &file, |cx, rewrite| {
            // Changes wait for it, and give up when they are cancelled.
            cx.call.cancel();
            assert!(of.change(cx, &file, 0).is_err());
            drop(rewrite);
        });
        assert_eq!(commit(&of, &file, NEW), [(0, b"abc".to_vec())]);
    }

    #[test]
    fn files_that_are_too_large_and_the_oldest_ones_are_committed_early() {
        let of = Uncommitted::new(LIMITS);
        let (large, small) = (file(1), file(2));
        write(&of, &small, 0, &[0; 1000], OLD);
        write(&of, &large, 0, &[0; 19_000], OLD);
        assert_eq!(of.over_limit(&large), None);
        write(&of, &large, 50_000, &[0; 1000], OLD);
        assert_eq!(of.over_limit(&large).as_ref(), Some(&large));
        assert_eq!(of.over_limit(&small), None);
        // The table is more than half full.
        assert_eq!(of.due().map(|(file, _)| file).as_ref(), Some(&small));
        let third = file(3);
        write(&of, &third, 0, &[0; 18_000], OLD);
        assert!(of.is_full());
        assert_eq!(of.over_limit(&third).as_ref(), Some(&small));
        for file in [&small, &large, &third] {
            commit(&of, file, OLD);
        }
        assert!(is_empty(&of));
    }

    #[test]
    fn old_data_is_due_and_the_end_is_heard() {
        let of = Arc::new(Uncommitted::<()>::new(Limits {
            age: Duration::ZERO,
            ..LIMITS
        }));
        let waits = of.clone();
        let thread = std::thread::spawn(move || {
            let mut found = Vec::new();
            while let Some((file, _)) = waits.due() {
                commit(&waits, &file, OLD);
                found.push(file);
            }
            found
        });
        write(&of, &file(7), 0, b"abc", OLD);
        wait_until("the thread has taken the file", || is_empty(&of));
        of.stop();
        assert_eq!(thread.join().expect("no panic"), [file(7)]);
    }

    proptest! {
        /// Each byte is the last one written there, however writes overlap.
        #[test]
        fn copies_are_the_last_bytes_written(
            changes in prop::collection::vec((0u64..60, 1usize..40, 0u8..4), 1..40),
        ) {
            let (of, file) = (Uncommitted::new(LIMITS), file(1));
            let mut want = [None; 100];
            for (number, (offset, len, how)) in changes.into_iter().enumerate() {
                let range = offset as usize..offset as usize + len;
                match how {
                    0 => {
                        let change = with_cx(|cx| of.change(cx, &file, 0)).expect("not excluded");
                        change.replaced(offset, offset + len as u64);
                        want[range].fill(None);
                    }
                    _ => {
                        let verifier = [3 + how % 2; 8];
                        write(&of, &file, offset, &vec![number as u8; len], verifier);
                        want[range].fill(Some(number as u8));
                    }
                }
                let data: usize = of.table().files.get(&file).map_or(0, State::charged);
                prop_assert_eq!(data, of.charged.load(Ordering::Relaxed));
            }
            let mut got = [None; 100];
            for (offset, data) in commit(&of, &file, NEW) {
                for (at, &byte) in data.iter().enumerate() {
                    prop_assert!(got[offset as usize + at].replace(byte).is_none());
                }
            }
            prop_assert_eq!(got, want);
            prop_assert!(is_empty(&of));
        }
    }
}
