//! Detection of holes that are worth reporting to a client.
//!
//! Holes are found with seeks, which see the file as reads do: data written but not yet on disk is
//! data. Stretches where a search is unlikely to pay are skipped: see [`HoleSearchHint`].

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::{Cx, Errno, Extent, File, Result, Whence};

/// The minimum length of a reported hole. Shorter ones are sent as zeros: finding and reporting a
/// hole costs the two sides about as much.
const MIN_HOLE: u64 = 16 << 10;

/// The maximum number of holes in one walk, for which a client reserves room: as many as fit in the
/// 1 MiB that Linux reads at most over NFS if they alternate with as much data.
const MAX_HOLES: usize = 32;

/// The maximum number of holes below the minimum length before a walk stops searching.
const MAX_SHORT_HOLES: usize = 2;

/// A stretch of an open file that is not searched for holes, because there were none, or none worth
/// reporting. Holes that appear later are sent as zeros, so the search is repeated now and then.
#[derive(Debug, Default)]
pub struct HoleSearchHint {
    from: AtomicU64,
    to: AtomicU64,
    /// The number of further reads that skip the search.
    reads: AtomicU32,
}

/// The number of reads that assume that data extends as far as the last search saw.
const READS_AFTER_DATA: u32 = 1024;

/// The number of reads that assume that holes are still too short.
const READS_AFTER_SHORT_HOLES: u32 = 16;

/// The number of reads that assume that the data is not cached, as before: a search in vain costs
/// half as much as reading 1 MiB.
const READS_AFTER_UNCACHED: u32 = 64;

impl HoleSearchHint {
    fn covers(&self, from: u64, to: u64) -> bool {
        // Races are harmless: a torn or stale stretch only skips a search for holes.
        let known = self.from.load(Ordering::Relaxed)..=self.to.load(Ordering::Relaxed);
        let left = &self.reads;
        known.contains(&from)
            && known.contains(&to)
            && left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                })
                .is_ok()
    }

    fn learn(&self, from: u64, to: u64, reads: u32) {
        self.from.store(from, Ordering::Relaxed);
        self.to.store(to, Ordering::Relaxed);
        self.reads.store(reads, Ordering::Relaxed);
    }
}

/// Returns a data extent of `from..to`.
fn data_extent(from: u64, to: u64) -> Extent {
    Extent {
        offset: from,
        len: to - from,
        hole: false,
    }
}

/// A walk through a range within the file, as data and holes worth reporting. It costs one seek if
/// all of it is a hole, two if all of it is data, and otherwise one for each boundary, as long as
/// that pays. A stretch that was not searched is reported as data.
pub struct HoleScanner<'a> {
    file: &'a dyn File,
    hint: &'a HoleSearchHint,
    from: u64,
    to: u64,
    /// The offset up to which the range was walked.
    position: u64,
    /// The hole that follows the data returned last.
    hole: Option<Extent>,
    holes: usize,
    short: usize,
}

impl<'a> HoleScanner<'a> {
    /// Creates a walk through `range` of `file`, with the search history `solid`.
    pub fn new(
        file: &'a dyn File,
        solid: &'a HoleSearchHint,
        range: Range<u64>,
    ) -> HoleScanner<'a> {
        HoleScanner {
            file,
            hint: solid,
            from: range.start,
            to: range.end,
            position: range.start,
            hole: None,
            holes: 0,
            short: 0,
        }
    }

    /// Returns the next extent. Errors are those of [`File::seek`].
    pub fn next(&mut self, cx: &Cx<'_>) -> Result<Option<Extent>> {
        if let Some(hole) = self.hole.take() {
            return Ok(Some(hole));
        }
        let start = self.position;
        while self.position < self.to {
            let at = self.position;
            if self.has_stopped() {
                self.position = self.to;
                break;
            }
            let found = match self.file.seek(cx, at, Whence::Data) {
                Ok(found) => found.clamp(at, self.to),
                // No data up to end of file, which is not before `self.to`.
                Err(Errno::ENXIO) => self.to,
                // The file does not support seeking for holes.
                Err(Errno::EOPNOTSUPP | Errno::EINVAL) => {
                    self.hint.learn(0, u64::MAX, READS_AFTER_DATA);
                    self.position = self.to;
                    break;
                }
                Err(errno) => return Err(errno),
            };
            if found - at >= MIN_HOLE {
                self.holes += 1;
                self.position = found;
                let hole = Extent {
                    hole: true,
                    ..data_extent(at, found)
                };
                if at == start {
                    return Ok(Some(hole));
                }
                self.hole = Some(hole);
                return Ok(Some(data_extent(start, at)));
            }
            self.short += usize::from(found > at);
            self.position = match self.file.seek(cx, found, Whence::Hole) {
                _ if found == self.to => found,
                Ok(hole) => {
                    if hole >= self.to && self.holes + self.short == 0 {
                        self.hint.learn(self.from, hole, READS_AFTER_DATA);
                    }
                    hole.clamp(found + 1, self.to)
                }
                // The file was truncated meanwhile: the read will find out.
                Err(Errno::ENXIO) => self.to,
                Err(errno) => return Err(errno),
            };
        }
        if self.short > 0 && self.holes == 0 {
            self.hint
                .learn(self.from, u64::MAX, READS_AFTER_SHORT_HOLES);
        }
        Ok((start < self.to).then(|| data_extent(start, self.to)))
    }

    /// Returns the data from the start of `piece` to the end of the range, and stops searching in
    /// this walk and the next reads: for data that is not cached, where a search pays less than the
    /// wait for a disk.
    pub fn stop_searching(&mut self, piece: &Extent) -> Extent {
        self.hint
            .learn(piece.offset, u64::MAX, READS_AFTER_UNCACHED);
        (self.position, self.hole) = (self.to, None);
        data_extent(piece.offset, self.to)
    }

    /// Returns whether the search for holes has stopped.
    fn has_stopped(&self) -> bool {
        self.holes == MAX_HOLES
            || self.short == MAX_SHORT_HOLES
            || self.to - self.from < MIN_HOLE
            || self.position == self.from && self.hint.covers(self.from, self.to)
    }
}
