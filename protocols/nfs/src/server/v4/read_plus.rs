//! READ_PLUS (RFC 7862 section 15.10): a READ that need not send holes, and never costs much more than one.
//!
//! Holes are asked for by seeking, which sees a file as reading does: what is written and not on the disk yet is data.
//! Each byte told of, be it in a hole or not, is one that the file had at some moment of the call, as with READ.
//! Where there is nothing to be won, nothing is asked: see [`Solid`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use vfs::{Cx, Errno, Extent, File, OpenFlags, Patience, Seek, Sink as _, Want};
use wire::{Answer, Outgoing as _};

use super::super::Stop;
use super::{Bad, Compound, Done};
use crate::v4::op::Read;
use crate::v4::types::Content;

/// Holes shorter than this are sent as zeros: finding one and telling of it costs the two sides about as much.
const SHORTEST_HOLE: u64 = 16 << 10;

/// How many holes an answer tells of at most, for the client makes room for each piece: as many as there are in the 1 MiB
/// that Linux reads at most if they alternate with as much data.
const MOST_HOLES: usize = 32;

/// How many holes that are too short may be met before no more are looked for.
const MOST_SHORT: usize = 2;

/// How long a piece's head is: what it is, where, and how many bytes follow.
const PIECE_HEAD: usize = 16;

/// A stretch of an open file that is not asked for holes, because there were none, or none worth the trouble. It may
/// get some by and by, which are then sent as zeros; so now and then it is asked again.
#[derive(Default)]
pub(crate) struct Solid {
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

impl Compound<'_, '_> {
    pub(super) fn read_plus(&mut self, op: Read) -> Done {
        let node = self.regular()?;
        let (file, solid) = match self.file_of(&op.state, &node, OpenFlags::READ)? {
            Some(open) => (open.file, open.solid),
            None => {
                let server = self.turn.server;
                let file = server.file(&self.cx(), &node, OpenFlags::READ)?;
                (file, Arc::default())
            }
        };
        let count = op.count.min(self.turn.server.options.max_io).into();
        // Before all else: what is behind the end of file now is no hole in what it holds later.
        let size = file.attr(&self.cx(), Want::SIZE)?.size;
        let (from, end) = (op.offset, op.offset.saturating_add(count).min(size));
        let walk = Walk {
            file: &*file,
            solid: &solid,
            from,
            to: end,
            at: from,
            hole: None,
            holes: 0,
            short: 0,
        };
        self.pieces(&file, size, walk)
    }

    /// Answers what a walk through a file of `size` meets, as it is met.
    fn pieces(&mut self, file: &Arc<dyn File>, mut size: u64, mut walk: Walk<'_>) -> Done {
        let head = self.reply.len();
        self.reply.value(&0u32);
        self.reply.value(&0u32);
        let (mut sent, mut at) = (0u32, walk.from);
        while let Some(mut piece) = walk.next(&self.cx())? {
            if sent > 0 && self.reply.room() <= PIECE_HEAD + 4 {
                break;
            }
            sent += 1;
            at = piece.offset + piece.len;
            if piece.hole {
                self.reply.value(&Content::Hole);
                self.reply.value(&piece.offset);
                self.reply.value(&piece.len);
                continue;
            }
            let start = self.reply.len();
            self.reply.value(&Content::Data);
            self.reply.value(&piece.offset);
            self.reply.value(&0u32);
            let got = match self.piece(file, &piece, Patience::Brief) {
                // All at once: Linux reads ahead over holes, and would wait for each piece.
                Err(Bad::Stop(Stop::Later(Answer::WouldBlock)))
                    if self.cx().patience == Patience::Full =>
                {
                    piece = walk.give_up(&piece);
                    at = piece.offset + piece.len;
                    self.piece(file, &piece, Patience::Full)?
                }
                got => got?,
            };
            let count = (got as u32).to_be_bytes();
            self.reply.patch(start + PIECE_HEAD - 4, &count);
            if got as u64 != piece.len {
                // It has been cut, the source has no more for now, or the reply is full.
                at = piece.offset + got as u64;
                size = match got {
                    0 => at,
                    _ => file.attr(&self.cx(), Want::SIZE)?.size,
                };
                break;
            }
        }
        let eof = at >= size;
        self.reply.patch(head, &u32::from(eof).to_be_bytes());
        self.reply.patch(head + 4, &sent.to_be_bytes());
        Ok(())
    }

    /// Reads a piece of data, with no more than `patience`.
    fn piece(
        &mut self,
        file: &Arc<dyn File>,
        piece: &Extent,
        patience: Patience,
    ) -> Result<usize, Bad> {
        let cx = self.cx();
        let cx = Cx {
            patience: cx.patience.min(patience),
            ..cx
        };
        self.read_into(&cx, file, piece.offset, piece.len as u32)
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

/// A walk through `from..to` of a file, which does not end before that: data, and holes worth telling of. One question
/// for a hole alone, two for data alone, and one for each end of a piece else, as long as that pays. What nobody was
/// asked of is data.
struct Walk<'a> {
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

impl Walk<'_> {
    /// The next piece.
    fn next(&mut self, cx: &Cx<'_>) -> Result<Option<Extent>, Errno> {
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

    /// The data that `piece` begins with, up to the end: nothing more is asked now, nor by the next reads.
    fn give_up(&mut self, piece: &Extent) -> Extent {
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
