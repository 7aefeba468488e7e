//! The cached contents of one file: blocks, their valid bytes and their dirty bytes.
//!
//! Independent of the file's size, of callers and of time. Lock order: none, the file's state
//! guards it; memory's mutex after that.

pub(super) mod dirty;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};

use sys::pages::PageBuffer;
use vfs::Ranges;

use super::cached::Cached;
use super::memory::Memory;
use super::read_around::ReadAround;
use super::units::{BLOCK, CacheUnit, PAGE, overlap};

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
    data: Arc<PageBuffer>,
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
    data: PieceData,
    range: Range<usize>,
}

enum PieceData {
    Block(Arc<PageBuffer>),
    Page(Arc<Vec<u8>>),
}

impl Piece {
    pub(super) fn bytes(&self) -> &[u8] {
        let data: &[u8] = match &self.data {
            PieceData::Block(data) => data,
            PieceData::Page(data) => data,
        };
        &data[self.range.clone()]
    }
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

impl Pages {
    pub(super) fn new(memory: Arc<Memory>, owner: Weak<Cached>) -> Pages {
        Pages {
            memory,
            owner,
            blocks: BTreeMap::new(),
            dirty: BTreeSet::new(),
            writing: Vec::new(),
            reading: Vec::new(),
            read_around: ReadAround::default(),
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
            || self.writing.iter().any(|range| range.end > at)
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
        let pages = self.read_around.take(&(at..at + data.len() as u64));
        self.memory.free_pages(pages.len());
        for (number, page) in pages {
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
                        data: PieceData::Block(block.data.clone()),
                        range: within(&part),
                    });
                }
                _ => self.get_by_pages(part, range.end, &mut pieces)?,
            }
        }
        Ok(pieces)
    }

    /// Appends `part` of an incomplete block to `pieces`. Otherwise returns what is missing, in it
    /// or after it, up to `end`.
    fn get_by_pages(
        &mut self,
        part: Range<u64>,
        end: u64,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), Range<u64>> {
        let mut at = part.start;
        while at < part.end {
            let page = at..part.end.min((at / PAGE + 1) * PAGE);
            let block = self.blocks.get(&(at / BLOCK));
            let first = match block {
                Some(block) => block
                    .valid
                    .gaps(page.start, page.end - 1)
                    .first()
                    .map(|gap| gap.0),
                None => Some(at),
            };
            pieces.push(match (first, block) {
                (None, Some(block)) => Piece {
                    data: PieceData::Block(block.data.clone()),
                    range: within(&page),
                },
                (first, _) => match self.read_around.consume(at / PAGE) {
                    Some(found) => {
                        if found.is_first_use {
                            self.memory.mark_consumed(&self.owner, at / PAGE);
                        }
                        let start = (at % PAGE) as usize;
                        Piece {
                            data: PieceData::Page(found.data),
                            range: start..start + (page.end - at) as usize,
                        }
                    }
                    None => {
                        let first = first.unwrap_or(at);
                        return Err(first..self.missing(first, end));
                    }
                },
            });
            at = page.end;
        }
        Ok(())
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

    /// Returns the range to read for a random read of `requested`, part of which is missing, of a
    /// file of `size` bytes: with the pages around it if that pays, otherwise alone.
    pub(super) fn read_around_window(&mut self, requested: &Range<u64>, size: u64) -> Range<u64> {
        let pages = requested.start / PAGE..requested.end.div_ceil(PAGE);
        let grain = if self.read_around.is_worthwhile() {
            BLOCK / PAGE
        } else {
            1
        };
        let before = pages.start / grain * grain..pages.start;
        let behind = pages.end..pages.end.next_multiple_of(grain);
        let lacks = |number: &u64| {
            let at = number * PAGE;
            let block = self.blocks.get(&(at / BLOCK));
            self.read_around.wants(*number)
                && !block.is_some_and(|block| block.valid.covers(at, at + PAGE - 1))
        };
        let first = before.clone().find(lacks).unwrap_or(pages.start);
        let last = behind
            .clone()
            .rev()
            .find(lacks)
            .map_or(pages.end, |last| last + 1);
        first * PAGE..(last * PAGE).min(size)
    }

    /// Stores data that was read for `range` because of a random read of `requested`; zeros if
    /// `data` is `None`. Whole pages are stored as single pages, the rest in blocks.
    pub(super) fn insert_pages(
        &mut self,
        range: Range<u64>,
        data: Option<&[u8]>,
        requested: &Range<u64>,
    ) {
        let mut at = range.start;
        while at < range.end {
            let page = at..range.end.min((at / PAGE + 1) * PAGE);
            let (from, to) = (page.start - range.start, page.end - range.start);
            let part = data.map(|data| &data[from as usize..to as usize]);
            let block = self.blocks.get(&(at / BLOCK));
            let valid = block.and_then(|block| block.valid.next(page.start));
            let valid = valid.is_some_and(|(first, _)| first < page.end);
            at = page.end;
            match page.end - page.start == PAGE && !valid {
                true => {
                    let number = page.start / PAGE;
                    if self.read_around.insert(number, part, requested) {
                        self.memory.charge_page(&self.owner, number);
                    }
                }
                false => self.fill(page, part),
            }
        }
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

    /// Drops everything from `size` on.
    pub(super) fn truncate(&mut self, size: u64) {
        self.remove(size..u64::MAX);
    }

    /// Drops `range`, dirty or not.
    pub(super) fn remove(&mut self, range: Range<u64>) {
        self.memory.free_pages(self.read_around.take(&range).len());
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
            let (empty, clean) = (block.valid.is_empty(), block.dirty.is_empty());
            if clean && self.dirty.remove(&number) {
                self.memory.cleaned();
            }
            if empty {
                self.blocks.remove(&number);
            }
        }
    }

    /// Drops everything that is neither dirty nor being written.
    pub(super) fn drop_clean(&mut self) {
        self.memory.free_pages(self.read_around.clear());
        let writing = &self.writing;
        self.blocks.retain(|number, block| {
            let whole = number * BLOCK..(number + 1) * BLOCK;
            let mut retained = block.dirty.clone();
            for range in writing.iter().filter(|range| overlap(range, &whole)) {
                let (from, to) = (range.start.max(whole.start), range.end.min(whole.end));
                retained.insert(from, to - 1);
            }
            block.valid = retained;
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
                self.read_around.evict(number);
                self.memory.free_pages(1);
                self.memory.count_evicted(PAGE);
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
        self.memory.count_evicted(BLOCK);
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
        self.memory.free_pages(self.read_around.clear());
    }
}
