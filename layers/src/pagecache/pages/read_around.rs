//! Read-around: single pages of a file from random reads, those that were requested and those
//! around them.
//!
//! The kernel caches a page that was handed out, so it is evicted first and is not fetched along
//! again before the next open; a page that was not requested yet is kept. Writes are handled
//! elsewhere: a writer takes the page away first. Lock order: none, the file's state guards it;
//! memory's mutex after that.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Weak};

use super::super::cached::Cached;
use super::super::memory::Memory;
use super::{BLOCK, PAGE, Pages, Piece, overlap, within};

/// The pages of one file, by number.
pub(super) struct ReadAround {
    memory: Arc<Memory>,
    owner: Weak<Cached>,
    pages: BTreeMap<u64, Page>,
    /// The pages of each block that were handed out since the last open, a bit each.
    consumed: HashMap<u64, u16>,
    /// The balance of read-around: positive if it gained more than it cost.
    balance: i32,
    /// The number of calls of [`ReadAround::is_worthwhile`].
    calls: u32,
}

struct Page {
    data: Arc<Vec<u8>>,
    state: PageState,
    memory: Arc<Memory>,
}

/// The state of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageState {
    /// Fetched along with another, not requested yet.
    Prefetched,
    /// Requested, not handed out yet.
    Requested,
    /// Handed out.
    Consumed,
}

impl Drop for Page {
    fn drop(&mut self) {
        self.memory.free_page();
    }
}

/// Returns the numbers of the pages that overlap `range`.
fn page_numbers(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}

/// Returns the number of a page's block, and its bit there.
fn block_and_bit(number: u64) -> (u64, u16) {
    let each = BLOCK / PAGE;
    (number / each, 1 << (number % each))
}

impl ReadAround {
    /// The number of pages fetched along that one page used later pays for. From a server on this
    /// host, one page takes 125 µs and 16 take 212 µs (9P, Unix socket, cold): each page used later
    /// saves 95 µs, and each page fetched along costs 6 µs, so one of 16 would break even. This is
    /// twice that, for the memory has other uses, too. With a more distant server a message costs
    /// more.
    const HIT_VALUE: i32 = 8;

    /// The limit of the balance: some hundred useless messages offset any number of useful ones.
    const MAX_BALANCE: i32 = 4096;

    /// The interval of trials while read-around does not pay: they cost 2 % more than none.
    const TRIAL_INTERVAL: u32 = 32;

    /// The maximum number of blocks in `seen`, which is 4 GiB of a file, in 1 MiB of memory; beyond
    /// it all are dropped.
    const MAX_CONSUMED_BLOCKS: usize = 1 << 16;

    pub(super) fn new(memory: Arc<Memory>, owner: Weak<Cached>) -> ReadAround {
        ReadAround {
            memory,
            owner,
            pages: BTreeMap::new(),
            consumed: HashMap::new(),
            balance: 0,
            calls: 0,
        }
    }

    /// Returns whether there is no page.
    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Returns whether the page is cached.
    pub(super) fn contains(&self, number: u64) -> bool {
        self.pages.contains_key(&number)
    }

    /// Returns whether a random read is to fetch the pages around it: as long as enough of them
    /// were requested later. Otherwise it is tried again at intervals.
    pub(super) fn is_worthwhile(&mut self) -> bool {
        self.calls = self.calls.wrapping_add(1);
        self.balance >= 0 || self.calls.is_multiple_of(ReadAround::TRIAL_INTERVAL)
    }

    fn adjust_balance(&mut self, pages: i32) {
        self.balance =
            (self.balance + pages).clamp(-ReadAround::MAX_BALANCE, ReadAround::MAX_BALANCE);
    }

    /// Returns whether the page is worth fetching along.
    pub(super) fn wants(&self, number: u64) -> bool {
        let (block, bit) = block_and_bit(number);
        let seen = self
            .consumed
            .get(&block)
            .is_some_and(|seen| seen & bit != 0);
        !seen && !self.contains(number)
    }

    /// Stores a page that was fetched for a request of `asked`; zeros if `data` is `None`.
    pub(super) fn insert(&mut self, number: u64, data: Option<&[u8]>, asked: &Range<u64>) {
        let asked = overlap(asked, &(number * PAGE..(number + 1) * PAGE));
        let wanted = match asked {
            true => !self.contains(number),
            false => self.wants(number),
        };
        if !wanted {
            return;
        }
        self.memory.charge_page(&self.owner, number);
        let data = data.map_or_else(|| vec![0; PAGE as usize], <[u8]>::to_vec);
        let page = Page {
            data: Arc::new(data),
            state: if asked {
                PageState::Requested
            } else {
                PageState::Prefetched
            },
            memory: self.memory.clone(),
        };
        self.pages.insert(number, page);
    }

    /// Hands out a page if it is cached.
    pub(super) fn consume(&mut self, number: u64) -> Option<Arc<Vec<u8>>> {
        let page = self.pages.get_mut(&number)?;
        let data = page.data.clone();
        let before = std::mem::replace(&mut page.state, PageState::Consumed);
        if before == PageState::Consumed {
            return Some(data);
        }
        self.memory.mark_consumed(&self.owner, number);
        let (block, bit) = block_and_bit(number);
        if self.consumed.len() >= ReadAround::MAX_CONSUMED_BLOCKS {
            self.consumed.clear();
        }
        *self.consumed.entry(block).or_default() |= bit;
        if before == PageState::Prefetched {
            self.adjust_balance(ReadAround::HIT_VALUE - 1);
        }
        Some(data)
    }

    /// Removes the pages that overlap `range`, and returns them.
    pub(super) fn take(&mut self, range: &Range<u64>) -> Vec<(u64, Arc<Vec<u8>>)> {
        let found: Vec<u64> = self
            .pages
            .range(page_numbers(range))
            .map(|page| *page.0)
            .collect();
        let each = found.into_iter().filter_map(|number| {
            let page = self.pages.remove(&number)?;
            Some((number, page.data.clone()))
        });
        each.collect()
    }

    /// Drops everything: another client has changed the file.
    pub(super) fn clear(&mut self) {
        self.pages.clear();
        self.consumed.clear();
    }

    /// Forgets which pages were handed out: after an open, the kernel requests all pages again.
    pub(super) fn clear_consumed(&mut self) {
        self.consumed.clear();
    }

    /// Returns whether a page is cached in the state of an eviction entry: handed out (`spent`) or
    /// not.
    pub(super) fn is_in_state(&self, number: u64, spent: bool) -> bool {
        let page = self.pages.get(&number);
        page.is_some_and(|page| (page.state == PageState::Consumed) == spent)
    }

    /// Evicts a page.
    pub(super) fn evict(&mut self, number: u64) {
        let page = self.pages.remove(&number);
        if page.is_some_and(|page| page.state == PageState::Prefetched) {
            self.adjust_balance(-1);
        }
    }
}

impl Pages {
    /// Appends `part` of an incomplete block to `pieces`. Otherwise returns what is missing, in it
    /// or after it, up to `end`.
    pub(super) fn get_by_pages(
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
                    data: block.data.clone(),
                    range: within(&page),
                },
                (first, _) => match self.read_around.consume(at / PAGE) {
                    Some(data) => {
                        let start = (at % PAGE) as usize;
                        Piece {
                            data,
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

    /// Returns the range to read for a random read of `asked`, part of which is missing, of a file
    /// of `size` bytes: with the pages around it if that pays, otherwise alone.
    pub(in crate::pagecache) fn read_around_window(
        &mut self,
        asked: &Range<u64>,
        size: u64,
    ) -> Range<u64> {
        let pages = asked.start / PAGE..asked.end.div_ceil(PAGE);
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

    /// Stores data that was read for `range` because of a random read of `asked`; zeros if `data`
    /// is `None`. Whole pages are stored as single pages, the rest in blocks.
    pub(in crate::pagecache) fn insert_pages(
        &mut self,
        range: Range<u64>,
        data: Option<&[u8]>,
        asked: &Range<u64>,
    ) {
        let mut at = range.start;
        while at < range.end {
            let page = at..range.end.min((at / PAGE + 1) * PAGE);
            let (from, to) = (page.start - range.start, page.end - range.start);
            let part = data.map(|data| &data[from as usize..to as usize]);
            let block = self.blocks.get(&(at / BLOCK));
            let begun = block.and_then(|block| block.valid.next(page.start));
            let begun = begun.is_some_and(|(first, _)| first < page.end);
            at = page.end;
            match page.end - page.start == PAGE && !begun {
                true => self.read_around.insert(page.start / PAGE, part, asked),
                false => self.fill(page, part),
            }
        }
    }
}
