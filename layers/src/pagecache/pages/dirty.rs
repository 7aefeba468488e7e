//! Dirty data of a file: the runs to write, and the results of writes.

use std::ops::Range;

use super::{Pages, Piece, PieceData, split, within};
use crate::pagecache::units::{BLOCK, overlap};

/// Adjacent bytes to write in one message.
pub(in crate::pagecache) struct DirtyRun {
    pub(in crate::pagecache) range: Range<u64>,
    pub(in crate::pagecache) pieces: Vec<Piece>,
}

impl Pages {
    /// Returns the number of separate dirty runs in the block at `at`.
    pub(in crate::pagecache) fn dirty_runs(&self, at: u64) -> usize {
        let block = self.blocks.get(&(at / BLOCK));
        block.map_or(0, |block| block.dirty.count())
    }

    /// Returns the dirty run that contains the byte `at`, limited to about `most` bytes on each
    /// side.
    pub(in crate::pagecache) fn dirty_run_at(&self, at: u64, most: u64) -> Option<Range<u64>> {
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
    pub(in crate::pagecache) fn take_run(&mut self, from: u64, most: u64) -> Option<DirtyRun> {
        let number = from / BLOCK;
        let busy = |at: u64| self.writing.iter().any(|range| range.contains(&at));
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
        let busy = self.writing.iter().map(|range| range.start);
        end = busy.filter(|&at| at > start).fold(end, u64::min);
        self.take(start..end)
    }

    /// Takes the `most` bytes at `at`, as [`Pages::take_run`] does, if all are dirty and none is
    /// being written.
    pub(in crate::pagecache) fn take_message(&mut self, at: u64, most: u64) -> Option<DirtyRun> {
        let whole = at..at + most;
        let ready = self.dirty_run_at(at, most)?.end >= whole.end;
        let busy = self.writing.iter().any(|range| overlap(range, &whole));
        (ready && !busy).then_some(())?;
        self.take(whole)
    }

    /// Returns whether more than `bytes` may be dirty.
    pub(in crate::pagecache) fn has_more_than(&self, bytes: u64) -> bool {
        self.dirty.len() as u64 * BLOCK > bytes
    }

    fn take(&mut self, range: Range<u64>) -> Option<DirtyRun> {
        let mut pieces = Vec::new();
        for (number, part) in split(range.clone()) {
            let block = self.blocks.get_mut(&number)?;
            pieces.push(Piece {
                data: PieceData::Block(block.data.clone()),
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
    pub(in crate::pagecache) fn end_write(&mut self, run: &Range<u64>, written: u64, again: bool) {
        if let Some(at) = self.writing.iter().position(|range| range == run) {
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
}
