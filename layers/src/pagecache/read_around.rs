//! Read-around: single pages of a file from random reads, those that were requested and those
//! around them.
//!
//! The kernel caches a page that was handed out, so it is evicted first and is not fetched along
//! again before the next open; a page that was not requested yet is kept. Writes are handled
//! elsewhere: a writer takes the page away first. The caller accounts the memory. Lock order: none,
//! the file's state guards it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::units::{BLOCK, PAGE, overlap};

/// The pages of one file, by number.
#[derive(Default)]
pub(super) struct ReadAround {
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
}

/// A page that is handed out.
pub(super) struct FoundPage {
    pub(super) data: Arc<Vec<u8>>,
    /// Whether it was not handed out before.
    pub(super) is_first_use: bool,
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

    /// The maximum number of blocks in `consumed`, which is 4 GiB of a file, in 1 MiB of memory;
    /// beyond it all are dropped.
    const MAX_CONSUMED_BLOCKS: usize = 1 << 16;

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

    /// Stores a page that was fetched for a request of `requested`, unless it is cached already or
    /// not worth it; zeros if `data` is `None`. Returns whether it was stored.
    pub(super) fn insert(
        &mut self,
        number: u64,
        data: Option<&[u8]>,
        requested: &Range<u64>,
    ) -> bool {
        let requested = overlap(requested, &(number * PAGE..(number + 1) * PAGE));
        let wanted = match requested {
            true => !self.contains(number),
            false => self.wants(number),
        };
        if !wanted {
            return false;
        }
        let data = data.map_or_else(|| vec![0; PAGE as usize], <[u8]>::to_vec);
        let page = Page {
            data: Arc::new(data),
            state: if requested {
                PageState::Requested
            } else {
                PageState::Prefetched
            },
        };
        self.pages.insert(number, page);
        true
    }

    /// Hands out a page if it is cached.
    pub(super) fn consume(&mut self, number: u64) -> Option<FoundPage> {
        let page = self.pages.get_mut(&number)?;
        let data = page.data.clone();
        let before = std::mem::replace(&mut page.state, PageState::Consumed);
        if before == PageState::Consumed {
            return Some(FoundPage {
                data,
                is_first_use: false,
            });
        }
        let (block, bit) = block_and_bit(number);
        if self.consumed.len() >= ReadAround::MAX_CONSUMED_BLOCKS {
            self.consumed.clear();
        }
        *self.consumed.entry(block).or_default() |= bit;
        if before == PageState::Prefetched {
            self.adjust_balance(ReadAround::HIT_VALUE - 1);
        }
        Some(FoundPage {
            data,
            is_first_use: true,
        })
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
            Some((number, page.data))
        });
        each.collect()
    }

    /// Drops everything, for another client has changed the file. Returns the number of pages.
    pub(super) fn clear(&mut self) -> usize {
        self.consumed.clear();
        std::mem::take(&mut self.pages).len()
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
