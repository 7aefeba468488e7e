//! READ_PLUS (RFC 7862 section 15.10): a READ that need not send holes, and never costs much more than one.
//!
//! Holes are asked for by seeking, which sees a file as reading does: what is written and not on the disk yet is data.
//! Each byte told of, be it in a hole or not, is one that the file had at some moment of the call, as with READ.
//! Where there is nothing to be won, nothing is asked: see [`Solid`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use vfs::{Cx, Errno, Extent, File, OpenFlags, Seek, Sink as _, Want};
use wire::Outgoing as _;

use super::{Compound, Done};
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
        let pieces = match end.saturating_sub(from) {
            0 => Vec::new(),
            len if len < SHORTEST_HOLE || solid.covers(from, end) => vec![data(from, end)],
            _ => layout(&*file, &self.cx(), &solid, from, end)?,
        };
        self.pieces(&file, (from, size), &pieces)
    }

    /// Answers `pieces` of a file of `size`, which follow each other from `at` on.
    fn pieces(
        &mut self,
        file: &Arc<dyn File>,
        (mut at, mut size): (u64, u64),
        pieces: &[Extent],
    ) -> Done {
        let head = self.reply.len();
        self.reply.value(&0u32);
        self.reply.value(&0u32);
        let mut sent = 0u32;
        for piece in pieces {
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
            let got = self.read_into(file, piece.offset, piece.len as u32)?;
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
}

/// The data in `from..to`.
fn data(from: u64, to: u64) -> Extent {
    Extent {
        offset: from,
        len: to - from,
        hole: false,
    }
}

/// What stands in `from..to` of `file`, data and holes worth telling of: one question for a hole alone, two for data
/// alone, and one for each end of a piece else, as long as that pays. What nobody was asked of is data.
fn layout(
    file: &dyn File,
    cx: &Cx<'_>,
    solid: &Solid,
    from: u64,
    to: u64,
) -> Result<Vec<Extent>, Errno> {
    let mut pieces = vec![data(from, from)];
    let (mut at, mut holes, mut short) = (from, 0, 0);
    while at < to {
        let found = match file.seek(cx, at, Seek::Data) {
            Ok(found) => found.clamp(at, to),
            // None up to the end of file, behind which `to` is not.
            Err(Errno::ENXIO) => to,
            // Nothing is known of holes here.
            Err(Errno::EOPNOTSUPP | Errno::EINVAL) => {
                solid.learn(0, u64::MAX, READS_OF_DATA);
                return Ok(vec![data(from, to)]);
            }
            Err(errno) => return Err(errno),
        };
        match found - at {
            0 => {}
            len if len < SHORTEST_HOLE => short += 1,
            len => {
                holes += 1;
                pieces.push(Extent {
                    hole: true,
                    ..data(at, at + len)
                });
                pieces.push(data(found, found));
            }
        }
        let last = pieces.last_mut().expect("the first is data");
        last.len = found - last.offset;
        if found < to && holes < MOST_HOLES && short < MOST_SHORT {
            let hole = match file.seek(cx, found, Seek::Hole) {
                Ok(hole) => hole.max(found + 1),
                // Cut meanwhile: reading tells.
                Err(Errno::ENXIO) => to,
                Err(errno) => return Err(errno),
            };
            if hole >= to && holes + short == 0 {
                solid.learn(from, hole, READS_OF_DATA);
            }
            at = hole.min(to);
            last.len = at - last.offset;
        } else {
            last.len = to - last.offset;
            break;
        }
    }
    if short > 0 && holes == 0 {
        solid.learn(from, u64::MAX, READS_OF_SHORT);
    }
    pieces.retain(|piece| piece.len > 0);
    Ok(pieces)
}
