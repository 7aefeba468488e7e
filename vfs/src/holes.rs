//! Where a file has holes that are worth telling of.
//!
//! Holes are asked for by seeking, which sees a file as reading does: what is written and not on the disk yet is data.
//! Where there is nothing to be won, nothing is asked: see [`Solid`].

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::{Cx, Errno, Extent, File, Result, Seek};

/// Holes shorter than this are sent as zeros: finding one and telling of it costs the two sides about as much.
const SHORTEST_HOLE: u64 = 16 << 10;

/// How many holes one walk tells of at most, for a client makes room for each piece: as many as there are in the 1 MiB
/// that Linux reads at most by NFS if they alternate with as much data.
const MOST_HOLES: usize = 32;

/// How many holes that are too short may be met before no more are looked for.
const MOST_SHORT: usize = 2;

/// A stretch of an open file that is not asked for holes, because there were none, or none worth the trouble. It may
/// get some by and by, which are then sent as zeros; so now and then it is asked again.
#[derive(Debug, Default)]
pub struct Solid {
    from: AtomicU64,
    to: AtomicU64,
    /// How many more reads take its word.
    reads: AtomicU32,
}

/// How many reads take it for granted that data goes on as far as it was seen to.
const READS_OF_DATA: u32 = 1024;

/// How many reads take it for granted that holes are as short as they were.
const READS_OF_SHORT: u32 = 16;

/// How many reads take it for granted that a disk has to be waited for, as it had to: what one finds out in vain costs half
/// as much as it takes to read a MiB.
const READS_OF_DISK: u32 = 64;

impl Solid {
    fn covers(&self, from: u64, to: u64) -> bool {
        // Torn or late, it is a stretch that is not asked for holes.
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

/// The data in `from..to`.
fn data(from: u64, to: u64) -> Extent {
    Extent {
        offset: from,
        len: to - from,
        hole: false,
    }
}

/// A walk through a part of a file, which does not end before that: data, and holes worth telling of. One question
/// for a hole alone, two for data alone, and one for each end of a piece else, as long as that pays. What nobody was
/// asked of is data.
pub struct Walk<'a> {
    file: &'a dyn File,
    solid: &'a Solid,
    from: u64,
    to: u64,
    /// What is before it has been met.
    at: u64,
    /// What has been found behind the data that was met last.
    hole: Option<Extent>,
    holes: usize,
    short: usize,
}

impl<'a> Walk<'a> {
    /// A walk through `range` of `file`, of which `solid` is known.
    pub fn new(file: &'a dyn File, solid: &'a Solid, range: Range<u64>) -> Walk<'a> {
        Walk {
            file,
            solid,
            from: range.start,
            to: range.end,
            at: range.start,
            hole: None,
            holes: 0,
            short: 0,
        }
    }

    /// The next piece. Errors are those of [`File::seek`].
    pub fn next(&mut self, cx: &Cx<'_>) -> Result<Option<Extent>> {
        if let Some(hole) = self.hole.take() {
            return Ok(Some(hole));
        }
        let start = self.at;
        while self.at < self.to {
            let at = self.at;
            if self.is_over() {
                self.at = self.to;
                break;
            }
            let found = match self.file.seek(cx, at, Seek::Data) {
                Ok(found) => found.clamp(at, self.to),
                // None up to the end of file, which is not before this.
                Err(Errno::ENXIO) => self.to,
                // Nothing is known of holes here.
                Err(Errno::EOPNOTSUPP | Errno::EINVAL) => {
                    self.solid.learn(0, u64::MAX, READS_OF_DATA);
                    self.at = self.to;
                    break;
                }
                Err(errno) => return Err(errno),
            };
            if found - at >= SHORTEST_HOLE {
                self.holes += 1;
                self.at = found;
                let hole = Extent {
                    hole: true,
                    ..data(at, found)
                };
                if at == start {
                    return Ok(Some(hole));
                }
                self.hole = Some(hole);
                return Ok(Some(data(start, at)));
            }
            self.short += usize::from(found > at);
            self.at = match self.file.seek(cx, found, Seek::Hole) {
                _ if found == self.to => found,
                Ok(hole) => {
                    if hole >= self.to && self.holes + self.short == 0 {
                        self.solid.learn(self.from, hole, READS_OF_DATA);
                    }
                    hole.clamp(found + 1, self.to)
                }
                // Cut meanwhile: reading tells.
                Err(Errno::ENXIO) => self.to,
                Err(errno) => return Err(errno),
            };
        }
        if self.short > 0 && self.holes == 0 {
            self.solid.learn(self.from, u64::MAX, READS_OF_SHORT);
        }
        Ok((start < self.to).then(|| data(start, self.to)))
    }

    /// The data that `piece` begins with, up to the end: nothing more is asked now, nor by the next reads. For what is
    /// not cached: what one finds out while a disk has to be waited for pays less.
    pub fn give_up(&mut self, piece: &Extent) -> Extent {
        self.solid.learn(piece.offset, u64::MAX, READS_OF_DISK);
        (self.at, self.hole) = (self.to, None);
        data(piece.offset, self.to)
    }

    /// Whether nothing more is asked.
    fn is_over(&self) -> bool {
        self.holes == MOST_HOLES
            || self.short == MOST_SHORT
            || self.to - self.from < SHORTEST_HOLE
            || self.at == self.from && self.solid.covers(self.from, self.to)
    }
}
