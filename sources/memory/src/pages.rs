//! The contents of a regular file: pages, with holes where there are none.
//!
//! A page may be shared with clones of the file and is copied on write. The part of a page beyond
//! the end of the file is zero; there may be pages beyond the end (reserved space).
//!
//! Lock order: none, the node's state guards it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use vfs::{Errno, Extent, Result, Sink};

use crate::budget::{Budget, Charge};

/// Bytes of a page: the granularity of holes and sharing, as in local file systems.
pub(crate) const PAGE: u64 = 4096;

/// The maximum size of a file, that of `off_t`.
pub(crate) const MAX_SIZE: u64 = i64::MAX as u64;

type Page = Arc<[u8; PAGE as usize]>;

/// The page of reserved space and explicit zeros, until it is written to.
static ZEROS: LazyLock<Page> = LazyLock::new(|| Arc::new([0; PAGE as usize]));

/// The contents of a regular file.
pub(crate) struct Pages {
    size: u64,
    pages: BTreeMap<u64, Page>,
    charge: Charge,
}

/// The contents of a range at some time, used for copies.
pub(crate) struct Snapshot {
    range: Range<u64>,
    pages: Vec<(u64, Page)>,
}

impl Pages {
    pub(crate) fn new(budget: &Arc<Budget>) -> Result<Pages> {
        Ok(Pages {
            size: 0,
            pages: BTreeMap::new(),
            charge: Charge::new(budget, 0)?,
        })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the bytes of allocated pages.
    pub(crate) fn allocated(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }

    /// Writes up to `len` bytes from `offset` to `sink`, and returns the number of bytes.
    pub(crate) fn read(&self, offset: u64, len: usize, sink: &mut dyn Sink) -> usize {
        let end = self.size.min(offset.saturating_add(len as u64));
        if offset >= end {
            return 0;
        }
        let mut at = offset;
        for (index, page) in self.pages.range(offset / PAGE..end.div_ceil(PAGE)) {
            let start = index * PAGE;
            if at < start {
                sink.zeros((start - at) as usize);
                at = start;
            }
            let to = (end - start).min(PAGE);
            sink.bytes(&page[(at - start) as usize..to as usize]);
            at = start + to;
        }
        if at < end {
            sink.zeros((end - at) as usize);
        }
        (end - offset) as usize
    }

    /// Writes `data` at `offset`, and returns how many bytes fit.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> (usize, Result<()>) {
        let mut at = offset;
        let mut rest = data;
        let end = loop {
            if rest.is_empty() {
                break Ok(());
            }
            if at >= MAX_SIZE {
                break Err(Errno::EFBIG);
            }
            let from = at % PAGE;
            let len = (PAGE - from).min(rest.len() as u64).min(MAX_SIZE - at) as usize;
            let (piece, behind) = rest.split_at(len);
            if let Err(errno) = self.write_in_page(at / PAGE, from as usize, piece) {
                break Err(errno);
            }
            at += len as u64;
            rest = behind;
        };
        if at > offset {
            self.extend_to(at);
        }
        ((at - offset) as usize, end)
    }

    fn write_in_page(&mut self, index: u64, from: usize, piece: &[u8]) -> Result<()> {
        match self.pages.get_mut(&index) {
            Some(page) => Arc::make_mut(page)[from..from + piece.len()].copy_from_slice(piece),
            None => {
                let mut page = [0; PAGE as usize];
                page[from..from + piece.len()].copy_from_slice(piece);
                self.put(index, Arc::new(page))?;
            }
        }
        Ok(())
    }

    fn put(&mut self, index: u64, page: Page) -> Result<()> {
        if !self.pages.contains_key(&index) {
            self.charge.grow(PAGE)?;
        }
        self.pages.insert(index, page);
        Ok(())
    }

    fn uncharge(&mut self, pages: usize) {
        self.charge.shrink(pages as u64 * PAGE);
    }

    /// Truncates the file, or extends it with a hole.
    pub(crate) fn resize(&mut self, size: u64) {
        if size < self.size {
            let removed = self.pages.split_off(&size.div_ceil(PAGE));
            self.uncharge(removed.len());
            self.clear_in_page(size, size.next_multiple_of(PAGE));
        }
        self.size = size;
    }

    /// Punches a hole at `range`; partial pages are zeroed.
    pub(crate) fn punch(&mut self, range: Range<u64>) {
        let whole = range.start.div_ceil(PAGE)..range.end / PAGE;
        if whole.start > whole.end {
            return self.clear_in_page(range.start, range.end);
        }
        self.clear_in_page(range.start, whole.start * PAGE);
        self.clear_in_page(whole.end * PAGE, range.end);
        let removed: Vec<u64> = self.pages.range(whole).map(|(index, _)| *index).collect();
        for index in &removed {
            self.pages.remove(index);
        }
        self.uncharge(removed.len());
    }

    /// Zeros a part of one page.
    fn clear_in_page(&mut self, start: u64, end: u64) {
        if start == end {
            return;
        }
        if let Some(page) = self.pages.get_mut(&(start / PAGE)) {
            let from = (start % PAGE) as usize;
            Arc::make_mut(page)[from..from + (end - start) as usize].fill(0);
        }
    }

    /// Allocates pages for all holes in `range`, or none.
    pub(crate) fn reserve(&mut self, range: Range<u64>) -> Result<()> {
        let indexes = range.start / PAGE..range.end.div_ceil(PAGE);
        let missing =
            indexes.end - indexes.start - self.pages.range(indexes.clone()).count() as u64;
        let bytes = missing.checked_mul(PAGE).ok_or(Errno::ENOSPC)?;
        self.charge.grow(bytes)?;
        for index in indexes {
            self.pages.entry(index).or_insert_with(|| ZEROS.clone());
        }
        Ok(())
    }

    /// Zeros `range` without creating holes.
    pub(crate) fn zero(&mut self, range: Range<u64>) -> Result<()> {
        self.reserve(range.clone())?;
        let whole = range.start.div_ceil(PAGE)..range.end / PAGE;
        if whole.start > whole.end {
            self.clear_in_page(range.start, range.end);
            return Ok(());
        }
        self.clear_in_page(range.start, whole.start * PAGE);
        self.clear_in_page(whole.end * PAGE, range.end);
        for (_, page) in self.pages.range_mut(whole) {
            *page = ZEROS.clone();
        }
        Ok(())
    }

    /// Extends the file to `end` if it is shorter.
    pub(crate) fn extend_to(&mut self, end: u64) {
        self.size = self.size.max(end);
    }

    /// Removes `range` and shifts the data after it; `range` consists of whole pages within the
    /// file.
    pub(crate) fn collapse(&mut self, range: Range<u64>) {
        let shift = (range.end - range.start) / PAGE;
        let behind = self.pages.split_off(&(range.end / PAGE));
        let removed = self.pages.split_off(&(range.start / PAGE));
        self.pages
            .extend(behind.into_iter().map(|(i, page)| (i - shift, page)));
        self.uncharge(removed.len());
        self.size -= range.end - range.start;
    }

    /// Inserts a hole at `range`, which consists of whole pages and starts within the file.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        let shift = (range.end - range.start) / PAGE;
        let behind = self.pages.split_off(&(range.start / PAGE));
        self.pages
            .extend(behind.into_iter().map(|(i, page)| (i + shift, page)));
        self.size += range.end - range.start;
    }

    /// Unshares the pages of `range` from clones.
    pub(crate) fn unshare(&mut self, range: Range<u64>) {
        let indexes = range.start / PAGE..range.end.div_ceil(PAGE);
        for (_, page) in self.pages.range_mut(indexes) {
            Arc::make_mut(page);
        }
    }

    /// Returns the first byte of data at or after `offset`.
    pub(crate) fn next_data(&self, offset: u64) -> Option<u64> {
        let (index, _) = self.pages.range(offset / PAGE..).next()?;
        Some(offset.max(index * PAGE)).filter(|at| *at < self.size)
    }

    /// Returns the first byte of a hole at or after `offset`, at most the end of the file.
    pub(crate) fn next_hole(&self, offset: u64) -> u64 {
        let first = offset / PAGE;
        let full = self
            .pages
            .range(first..)
            .zip(first..)
            .take_while(|((index, _), expected)| **index == *expected)
            .count() as u64;
        offset.max((first + full) * PAGE).min(self.size)
    }

    /// Passes the extents of `range`, up to the end of the file, to `each` until it returns
    /// `false`.
    pub(crate) fn extents(&self, range: Range<u64>, each: &mut dyn FnMut(Extent) -> bool) {
        let end = range.end.min(self.size);
        let mut at = range.start;
        while at < end {
            let data = self.next_data(at).unwrap_or(end).min(end);
            let (stop, hole) = match data {
                data if data > at => (data, true),
                _ => (self.next_hole(at).min(end), false),
            };
            let extent = Extent {
                offset: at,
                len: stop - at,
                hole,
            };
            if !each(extent) {
                return;
            }
            at = stop;
        }
    }

    /// Returns a snapshot of `range`, cut off at the end of the file.
    pub(crate) fn snapshot(&self, range: Range<u64>) -> Snapshot {
        let range = range.start..range.end.min(self.size).max(range.start);
        let indexes = range.start / PAGE..range.end.div_ceil(PAGE);
        Snapshot {
            pages: self
                .pages
                .range(indexes)
                .map(|(index, page)| (*index, page.clone()))
                .collect(),
            range,
        }
    }

    /// Writes a snapshot at `offset`, sharing whole pages where both are aligned, and returns how
    /// many bytes fit.
    pub(crate) fn put_snapshot(&mut self, offset: u64, from: &Snapshot) -> (u64, Result<()>) {
        let mut pages = from.pages.iter().peekable();
        let mut at = from.range.start;
        while at < from.range.end {
            let index = at / PAGE;
            let len = (PAGE - at % PAGE).min(from.range.end - at);
            let to = offset + (at - from.range.start);
            let result = match pages.next_if(|(i, _)| *i == index) {
                Some((_, page)) if len == PAGE && to.is_multiple_of(PAGE) => {
                    self.put(to / PAGE, page.clone())
                }
                Some((_, page)) => {
                    let start = (at % PAGE) as usize;
                    match self.write(to, &page[start..start + len as usize]) {
                        (wrote, Err(errno)) if wrote > 0 => {
                            return (at - from.range.start + wrote as u64, Err(errno));
                        }
                        (_, result) => result,
                    }
                }
                None => {
                    self.punch(to..to + len);
                    Ok(())
                }
            };
            if result.is_err() {
                return (at - from.range.start, result);
            }
            at += len;
            self.extend_to(to + len);
        }
        (at - from.range.start, Ok(()))
    }
}

impl Snapshot {
    pub(crate) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}
