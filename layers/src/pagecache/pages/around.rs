//! What reads at random have brought of a file: single pages, those that were asked for and those around them.
//!
//! A page that was handed out is the kernel's now, so it is the first to make room and is not brought along again before the file is
//! opened anew; one that nobody asked for yet stays for those who will. It knows nothing of what is written: whoever writes to a page
//! takes it away first. Lock order: none, the file's state guards it; memory's mutex behind that.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Weak};

use super::super::cached::Cached;
use super::super::memory::Memory;
use super::{BLOCK, PAGE, Pages, Piece, overlap, within};

/// Pages of one file, by their numbers.
pub(super) struct Around {
    memory: Arc<Memory>,
    owner: Weak<Cached>,
    pages: BTreeMap<u64, Page>,
    /// Which pages of a block were handed out since the file was opened last, a bit each.
    seen: HashMap<u64, u16>,
    /// What bringing pages along has earned: above 0 more than it cost.
    worth: i32,
    /// How often [`Around::pays`] was asked.
    asked: u32,
}

struct Page {
    data: Arc<Vec<u8>>,
    state: Since,
    memory: Arc<Memory>,
}

/// What became of a page since it came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Since {
    /// It came along with another, and nobody asked for it yet.
    Along,
    /// It came for somebody, who has not got it yet.
    Asked,
    /// It was handed out.
    Spent,
}

impl Drop for Page {
    fn drop(&mut self) {
        self.memory.give_page();
    }
}

/// Numbers of the pages that have bytes of `range`.
fn numbers(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}

/// Where a page is in what is known of its block.
fn place(number: u64) -> (u64, u16) {
    let each = BLOCK / PAGE;
    (number / each, 1 << (number % each))
}

impl Around {
    /// As many pages as one that was asked for pays. Of a server of this host one page takes 125 µs and 16 take 212 (9P, Unix socket,
    /// cold): each that is asked for later saves 95, and 6 are what one costs, so one of 16 would pay. Twice that, for the memory is
    /// good for something else, too. With a server further away a message is worth more.
    const EARNS: i32 = 8;

    /// So much is remembered: some hundred messages that were of no use make up for any number that were.
    const WORTH: i32 = 4096;

    /// So often it is tried again whether it pays: the tries cost 2 % more than none.
    const TRIES: u32 = 32;

    /// Of so many blocks it is known what was handed out, which is 4 GiB of a file, in 1 MiB of memory; then all begins anew.
    const SEEN: usize = 1 << 16;

    pub(super) fn new(memory: Arc<Memory>, owner: Weak<Cached>) -> Around {
        Around {
            memory,
            owner,
            pages: BTreeMap::new(),
            seen: HashMap::new(),
            worth: 0,
            asked: 0,
        }
    }

    /// Whether there is no page.
    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Whether the page is here.
    pub(super) fn has(&self, number: u64) -> bool {
        self.pages.contains_key(&number)
    }

    /// Whether a read at random is to bring along what is around it: as long as enough of that was asked for later. Tried again now
    /// and then.
    pub(super) fn pays(&mut self) -> bool {
        self.asked = self.asked.wrapping_add(1);
        self.worth >= 0 || self.asked.is_multiple_of(Around::TRIES)
    }

    fn earn(&mut self, pages: i32) {
        self.worth = (self.worth + pages).clamp(-Around::WORTH, Around::WORTH);
    }

    /// Whether the page is worth bringing along.
    pub(super) fn lacks(&self, number: u64) -> bool {
        let (block, bit) = place(number);
        let seen = self.seen.get(&block).is_some_and(|seen| seen & bit != 0);
        !seen && !self.has(number)
    }

    /// Takes over a page that has come for somebody who asked for `asked`: zeros without `data`.
    pub(super) fn bring(&mut self, number: u64, data: Option<&[u8]>, asked: &Range<u64>) {
        let asked = overlap(asked, &(number * PAGE..(number + 1) * PAGE));
        let wanted = match asked {
            true => !self.has(number),
            false => self.lacks(number),
        };
        if !wanted {
            return;
        }
        self.memory.take_page(&self.owner, number);
        let data = data.map_or_else(|| vec![0; PAGE as usize], <[u8]>::to_vec);
        let page = Page {
            data: Arc::new(data),
            state: if asked { Since::Asked } else { Since::Along },
            memory: self.memory.clone(),
        };
        self.pages.insert(number, page);
    }

    /// Hands out a page, if it is here.
    pub(super) fn hand_out(&mut self, number: u64) -> Option<Arc<Vec<u8>>> {
        let page = self.pages.get_mut(&number)?;
        let data = page.data.clone();
        let before = std::mem::replace(&mut page.state, Since::Spent);
        if before == Since::Spent {
            return Some(data);
        }
        self.memory.spent(&self.owner, number);
        let (block, bit) = place(number);
        if self.seen.len() >= Around::SEEN {
            self.seen.clear();
        }
        *self.seen.entry(block).or_default() |= bit;
        if before == Since::Along {
            self.earn(Around::EARNS - 1);
        }
        Some(data)
    }

    /// Takes the pages away that have bytes of `range`, with what is in them.
    pub(super) fn take(&mut self, range: &Range<u64>) -> Vec<(u64, Arc<Vec<u8>>)> {
        let found: Vec<u64> = self
            .pages
            .range(numbers(range))
            .map(|page| *page.0)
            .collect();
        let each = found.into_iter().filter_map(|number| {
            let page = self.pages.remove(&number)?;
            Some((number, page.data.clone()))
        });
        each.collect()
    }

    /// Forgets everything: others have changed the file.
    pub(super) fn forget(&mut self) {
        self.pages.clear();
        self.seen.clear();
    }

    /// The file is opened anew: the kernel asks for everything again.
    pub(super) fn unsee(&mut self) {
        self.seen.clear();
    }

    /// Whether a page is in memory as what it is held for: one that was handed out is so for that only.
    pub(super) fn holds(&self, number: u64, spent: bool) -> bool {
        let page = self.pages.get(&number);
        page.is_some_and(|page| (page.state == Since::Spent) == spent)
    }

    /// Makes room of a page.
    pub(super) fn evict(&mut self, number: u64) {
        let page = self.pages.remove(&number);
        if page.is_some_and(|page| page.state == Since::Along) {
            self.earn(-1);
        }
    }
}

impl Pages {
    /// Adds `part` of a block that does not have all of it, or says what is missing of it or behind it, up to `end`.
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
                (first, _) => match self.around.hand_out(at / PAGE) {
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

    /// What to read for a read at random of `asked`, which is not all here, of a file of `size` bytes: what is worth it around it, or
    /// the pages alone.
    pub(in crate::pagecache) fn window(&mut self, asked: &Range<u64>, size: u64) -> Range<u64> {
        let pages = asked.start / PAGE..asked.end.div_ceil(PAGE);
        let grain = if self.around.pays() { BLOCK / PAGE } else { 1 };
        let before = pages.start / grain * grain..pages.start;
        let behind = pages.end..pages.end.next_multiple_of(grain);
        let lacks = |number: &u64| {
            let at = number * PAGE;
            let block = self.blocks.get(&(at / BLOCK));
            self.around.lacks(*number)
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

    /// Takes over what came from below for `range`, because somebody asked for `asked` at random: zeros without `data`. Whole pages
    /// become single ones.
    pub(in crate::pagecache) fn bring(
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
                true => self.around.bring(page.start / PAGE, part, asked),
                false => self.fill(page, part),
            }
        }
    }
}
