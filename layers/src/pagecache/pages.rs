//! The cached contents of one file: blocks, their valid bytes and their dirty bytes.
//!
//! Independent of the file's size, of callers and of time. Lock order: none, the file's state
//! guards it.

mod read_around;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};

use vfs::Ranges;

use self::read_around::ReadAround;
use super::cached::Cached;
use super::memory::{CacheUnit, Memory};

/// Bytes of a block: the unit of allocation, and of read-around.
pub(super) const BLOCK: u64 = 64 << 10;

/// Bytes of a page: the minimum to read.
pub(super) const PAGE: u64 = 4 << 10;

/// The cached contents of one file.
pub(super) struct Pages {
    memory: Arc<Memory>,
    owner: Weak<Cached>,
    blocks: BTreeMap<u64, Block>,
    /// The numbers of blocks with dirty bytes.
    dirty: BTreeSet<u64>,
    /// Ranges being written: no other message may write them before the reply arrives.
    writing: Vec<Range<u64>>,
    /// Ranges being read: data written meanwhile must still be here when the reply arrives.
    reading: Vec<Range<u64>>,
    /// Clean pages from random reads. Where a block has the same bytes, the block's are valid.
    read_around: ReadAround,
}

/// A block; its ranges are in bytes of the file.
struct Block {
    data: Arc<Vec<u8>>,
    valid: Ranges,
    dirty: Ranges,
    /// The number of reads since it was loaded or spared.
    reads: u8,
    memory: Arc<Memory>,
}

impl Drop for Block {
    fn drop(&mut self) {
        self.memory.free(std::mem::take(&mut self.data));
    }
}

/// Bytes that do not change, whatever happens to the cache.
pub(super) struct Piece {
    data: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Piece {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.data[self.range.clone()]
    }
}

/// Adjacent bytes to write in one message.
pub(super) struct DirtyRun {
    pub(super) range: Range<u64>,
    pub(super) pieces: Vec<Piece>,
}

/// Splits `range` into its parts in each block.
fn split(range: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        (at < range.end).then(|| {
            let (number, begin) = (at / BLOCK, at);
            at = range.end.min((number + 1) * BLOCK);
            (number, begin..at)
        })
    })
}

/// Returns where a part of a block lies in its memory.
fn within(part: &Range<u64>) -> Range<usize> {
    let begin = (part.start % BLOCK) as usize;
    begin..begin + (part.end - part.start) as usize
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Pages {
    pub(super) fn new(memory: Arc<Memory>, owner: Weak<Cached>) -> Pages {
        Pages {
            read_around: ReadAround::new(memory.clone(), owner.clone()),
            memory,
            owner,
            blocks: BTreeMap::new(),
            dirty: BTreeSet::new(),
            writing: Vec::new(),
            reading: Vec::new(),
        }
    }

    /// Returns whether nothing of the file is cached.
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.read_around.is_empty()
    }

    /// Returns whether no data is dirty or being written.
    pub(super) fn is_clean(&self) -> bool {
        self.dirty.is_empty() && self.writing.is_empty()
    }

    /// Returns whether there is dirty data that is not being written.
    pub(super) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Returns whether any data after `at` is dirty or being written.
    pub(super) fn unwritten_from(&self, at: u64) -> bool {
        let last = self.dirty.last().and_then(|number| self.blocks.get(number));
        last.is_some_and(|block| block.dirty.next(at).is_some())
            || self.writing.iter().any(|flight| flight.end > at)
    }

    fn block(&mut self, number: u64) -> &mut Block {
        let (memory, owner) = (&self.memory, &self.owner);
        self.blocks.entry(number).or_insert_with(|| Block {
            data: Arc::new(memory.allocate(owner, number)),
            valid: Ranges::default(),
            dirty: Ranges::default(),
            reads: 0,
            memory: memory.clone(),
        })
    }

    /// Stores data that a program writes at `at`.
    pub(super) fn write(&mut self, at: u64, data: &[u8]) {
        for (number, page) in self.read_around.take(&(at..at + data.len() as u64)) {
            self.fill(number * PAGE..(number + 1) * PAGE, Some(&page));
        }
        let mut rest = data;
        for (number, part) in split(at..at + data.len() as u64) {
            let here = within(&part);
            let (piece, behind) = rest.split_at(here.len());
            rest = behind;
            let block = self.block(number);
            Arc::make_mut(&mut block.data)[here].copy_from_slice(piece);
            block.valid.insert(part.start, part.end - 1);
            block.dirty.insert(part.start, part.end - 1);
            if self.dirty.insert(number) {
                self.memory.dirtied();
            }
        }
    }

    /// Stores data that was read for `range` where none is valid yet; zeros if `data` is `None`.
    pub(super) fn fill(&mut self, range: Range<u64>, data: Option<&[u8]>) {
        let start = range.start;
        for (number, part) in split(range) {
            let block = self.block(number);
            for (from, to) in block.valid.gaps(part.start, part.end - 1) {
                let gap = &mut Arc::make_mut(&mut block.data)[within(&(from..to + 1))];
                match data {
                    Some(data) => {
                        let at = (from - start) as usize;
                        gap.copy_from_slice(&data[at..at + gap.len()]);
                    }
                    None => gap.fill(0),
                }
            }
            block.valid.insert(part.start, part.end - 1);
        }
    }

    /// Returns all of `range`, or the first part of it that is missing.
    pub(super) fn get(&mut self, range: Range<u64>) -> Result<Vec<Piece>, Range<u64>> {
        let mut pieces = Vec::with_capacity(((range.end - range.start) / BLOCK) as usize + 2);
        for (number, part) in split(range.clone()) {
            match self.blocks.get_mut(&number) {
                Some(block) if block.valid.covers(part.start, part.end - 1) => {
                    block.reads = block.reads.saturating_add(1);
                    pieces.push(Piece {
                        data: block.data.clone(),
                        range: within(&part),
                    });
                }
                _ => self.get_by_pages(part, range.end, &mut pieces)?,
            }
        }
        Ok(pieces)
    }

    /// Returns where the missing data at `from` ends, at most `to`: adjacent missing parts are
    /// combined.
    fn missing(&self, from: u64, to: u64) -> u64 {
        let mut end = from;
        for (number, part) in split(from..to) {
            match self
                .blocks
                .get(&number)
                .and_then(|b| b.valid.next(part.start))
            {
                Some((first, _)) if first < part.end => return first.max(end),
                _ => end = part.end,
            }
        }
        end
    }

    /// Returns the first missing part of `range` that is not being read; empty if there is none.
    pub(super) fn first_missing(&self, mut range: Range<u64>) -> Range<u64> {
        while range.start < range.end {
            let busy = self
                .reading
                .iter()
                .find(|fetch| fetch.contains(&range.start));
            if let Some(busy) = busy {
                range.start = busy.end;
                continue;
            }
            let number = range.start / BLOCK;
            let here = self
                .blocks
                .get(&number)
                .and_then(|b| b.valid.next(range.start));
            match here {
                Some((first, last)) if first <= range.start => range.start = last + 1,
                _ => break,
            }
        }
        if range.start >= range.end {
            return range.end..range.end;
        }
        let next = self.reading.iter().map(|fetch| fetch.start);
        let next = next.filter(|&start| start > range.start).min();
        range.end = range.end.min(next.unwrap_or(range.end));
        range.start..self.missing(range.start, range.end)
    }

    /// Returns whether any part of `range` is being read.
    pub(super) fn is_being_read(&self, range: &Range<u64>) -> bool {
        self.reading.iter().any(|fetch| overlap(fetch, range))
    }

    /// Marks `range` as being read, until [`Pages::end_read`].
    pub(super) fn begin_read(&mut self, range: Range<u64>) {
        self.reading.push(range);
    }

    pub(super) fn end_read(&mut self, range: &Range<u64>) {
        if let Some(at) = self.reading.iter().position(|fetch| fetch == range) {
            self.reading.swap_remove(at);
        }
    }

    /// Returns the number of separate dirty runs in the block at `at`.
    pub(super) fn dirty_runs(&self, at: u64) -> usize {
        let block = self.blocks.get(&(at / BLOCK));
        block.map_or(0, |block| block.dirty.count())
    }

    /// Returns the dirty run that contains the byte `at`, limited to about `most` bytes on each
    /// side.
    pub(super) fn dirty_run_at(&self, at: u64, most: u64) -> Option<Range<u64>> {
        let dirty = |number: u64| self.blocks.get(&number).map(|block| &block.dirty);
        let (first, last) = dirty(at / BLOCK)?
            .next(at)
            .filter(|&(from, _)| from <= at)?;
        let (mut start, mut end) = (first, last + 1);
        while start.is_multiple_of(BLOCK) && start > 0 && at - start < most {
            let before = dirty(start / BLOCK - 1);
            match before.and_then(|dirty| dirty.next(start - 1)) {
                Some((from, _)) if from < start => start = from,
                _ => break,
            }
        }
        while end.is_multiple_of(BLOCK) && end - at < most {
            match dirty(end / BLOCK).and_then(|dirty| dirty.next(end)) {
                Some((from, last)) if from == end => end = last + 1,
                _ => break,
            }
        }
        Some(start..end)
    }

    /// Takes the next dirty run, at or after `from` or else from the start of the file: adjacent
    /// bytes, at most `most`, up to a multiple of `most` if they extend beyond it. Bytes that are
    /// being written already are skipped. The run counts as being written until
    /// [`Pages::end_write`].
    pub(super) fn take_run(&mut self, from: u64, most: u64) -> Option<DirtyRun> {
        let number = from / BLOCK;
        let busy = |at: u64| self.writing.iter().any(|flight| flight.contains(&at));
        let mut numbers = self.dirty.range(number..).chain(self.dirty.range(..number));
        let start = numbers.find_map(|number| {
            let block = self.blocks.get(number)?;
            let begins = || {
                block
                    .dirty
                    .iter()
                    .map(|(first, last)| first.max(from.min(last)))
            };
            let behind = begins().filter(|&at| at >= from && !busy(at)).min();
            behind.or_else(|| {
                let begins = block.dirty.iter().map(|(first, _)| first);
                begins.filter(|&at| !busy(at)).min()
            })
        })?;
        let stretch = self.dirty_run_at(start, most)?;
        let mut end = stretch.end.min((start / most + 1) * most);
        let busy = self.writing.iter().map(|flight| flight.start);
        end = busy.filter(|&at| at > start).fold(end, u64::min);
        self.take(start..end)
    }

    /// Takes the `most` bytes at `at`, as [`Pages::take_run`] does, if all are dirty and none is
    /// being written.
    pub(super) fn take_message(&mut self, at: u64, most: u64) -> Option<DirtyRun> {
        let whole = at..at + most;
        let ready = self.dirty_run_at(at, most)?.end >= whole.end;
        let busy = self.writing.iter().any(|flight| overlap(flight, &whole));
        (ready && !busy).then_some(())?;
        self.take(whole)
    }

    /// Returns whether more than `bytes` may be dirty.
    pub(super) fn has_more_than(&self, bytes: u64) -> bool {
        self.dirty.len() as u64 * BLOCK > bytes
    }

    fn take(&mut self, range: Range<u64>) -> Option<DirtyRun> {
        let mut pieces = Vec::new();
        for (number, part) in split(range.clone()) {
            let block = self.blocks.get_mut(&number)?;
            pieces.push(Piece {
                data: block.data.clone(),
                range: within(&part),
            });
            block.dirty.remove(part.start, part.end - 1);
            if block.dirty.is_empty() && self.dirty.remove(&number) {
                self.memory.cleaned();
            }
        }
        self.writing.push(range.clone());
        Some(DirtyRun { range, pieces })
    }

    /// Ends the write of `run`. The rest after `written` bytes becomes dirty again (`again`), or is
    /// lost: invalid unless it was written again meanwhile.
    pub(super) fn end_write(&mut self, run: &Range<u64>, written: u64, again: bool) {
        if let Some(at) = self.writing.iter().position(|flight| flight == run) {
            self.writing.swap_remove(at);
        }
        for (number, part) in split(run.start + written..run.end) {
            let Some(block) = self.blocks.get_mut(&number) else {
                continue;
            };
            if again {
                block.dirty.insert(part.start, part.end - 1);
                if self.dirty.insert(number) {
                    self.memory.dirtied();
                }
                continue;
            }
            for (from, to) in block.dirty.gaps(part.start, part.end - 1) {
                block.valid.remove(from, to);
            }
            if block.valid.is_empty() {
                self.blocks.remove(&number);
            }
        }
    }

    /// Drops everything from `size` on.
    pub(super) fn truncate(&mut self, size: u64) {
        self.remove(size..u64::MAX);
    }

    /// Drops `range`, dirty or not.
    pub(super) fn remove(&mut self, range: Range<u64>) {
        self.read_around.take(&range);
        let numbers = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let numbers: Vec<u64> = self
            .blocks
            .range(numbers)
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            let Some(block) = self.blocks.get_mut(&number) else {
                continue;
            };
            block.valid.remove(range.start, range.end - 1);
            block.dirty.remove(range.start, range.end - 1);
            let (gone, clean) = (block.valid.is_empty(), block.dirty.is_empty());
            if clean && self.dirty.remove(&number) {
                self.memory.cleaned();
            }
            if gone {
                self.blocks.remove(&number);
            }
        }
    }

    /// Drops everything that is neither dirty nor being written.
    pub(super) fn drop_clean(&mut self) {
        self.read_around.clear();
        let flights = &self.writing;
        self.blocks.retain(|number, block| {
            let whole = number * BLOCK..(number + 1) * BLOCK;
            let mut kept = block.dirty.clone();
            for flight in flights.iter().filter(|flight| overlap(flight, &whole)) {
                let (from, to) = (flight.start.max(whole.start), flight.end.min(whole.end));
                kept.insert(from, to - 1);
            }
            block.valid = kept;
            !block.valid.is_empty()
        });
    }

    /// Called for each open of the file.
    pub(super) fn opened(&mut self) {
        self.read_around.clear_consumed();
    }

    /// Evicts an entry unless it is needed, and returns whether it is gone. A block that was read
    /// repeatedly is spared once first if `again`.
    pub(super) fn evict(&mut self, held: CacheUnit, again: bool) -> bool {
        match held {
            CacheUnit::Block(number) => return self.evict_block(number, again),
            CacheUnit::Page(number) | CacheUnit::ConsumedPage(number) if self.contains(held) => {
                self.read_around.evict(number)
            }
            CacheUnit::Page(_) | CacheUnit::ConsumedPage(_) => {}
        }
        true
    }

    fn evict_block(&mut self, number: u64, again: bool) -> bool {
        let whole = number * BLOCK..(number + 1) * BLOCK;
        let Some(block) = self.blocks.get_mut(&number) else {
            return true;
        };
        let busy = |ranges: &[Range<u64>]| ranges.iter().any(|range| overlap(range, &whole));
        if !block.dirty.is_empty() || busy(&self.writing) || busy(&self.reading) {
            return false;
        }
        if block.reads > 1 && again {
            block.reads = 0;
            return false;
        }
        self.blocks.remove(&number);
        true
    }

    /// Returns whether the entry is still cached.
    pub(super) fn contains(&self, held: CacheUnit) -> bool {
        match held {
            CacheUnit::Block(number) => self.blocks.contains_key(&number),
            CacheUnit::Page(number) => self.read_around.is_in_state(number, false),
            CacheUnit::ConsumedPage(number) => self.read_around.is_in_state(number, true),
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        for _ in 0..self.dirty.len() {
            self.memory.cleaned();
        }
    }
}
