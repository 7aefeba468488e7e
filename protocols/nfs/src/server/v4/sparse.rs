//! Holes, and what moves ranges: READ_PLUS, SEEK, ALLOCATE, DEALLOCATE, COPY, CLONE, IO_ADVISE (RFC 7862
//! section 15).

use std::sync::Arc;
use std::time::Duration;

use vfs::{Allocate, CopyHow, Errno, Extent, File, OpenFlags, Want};
use wire::Outgoing as _;

use super::{Bad, Compound, Done};
use crate::v4::Status;
use crate::v4::attr::Bitmap;
use crate::v4::op::{Clone, Copy, IoAdvise, Read, Seek, Space};
use crate::v4::reply::{Copied, Sought};
use crate::v4::types::{Content, Stable};

/// Holes shorter than this are sent as zeros: telling of one costs about as much.
const SHORTEST_HOLE: u64 = 32 << 10;

/// How many pieces an answer has at most: the client makes room for each.
const MOST_PIECES: usize = 16;

/// How long a copy goes on before it is answered with what there is of it: the client asks again for the rest, and waits for
/// no answer so long that it takes it for lost.
const COPY_TIME: Duration = Duration::from_secs(1);

/// How much is copied between two looks at the clock: a second's work of a slow disk.
const COPY_STEP: u64 = 16 << 20;

impl Compound<'_, '_> {
    pub(super) fn read_plus(&mut self, op: Read) -> Done {
        let node = self.regular()?;
        let file = self.file(&op.state, &node, OpenFlags::READ)?;
        let cx = self.cx();
        let before = file.attr(&cx, Want::SIZE | Want::TIMES)?;
        let count = op.count.min(self.turn.server.options.max_io).into();
        let end = op.offset.saturating_add(count).min(before.size);
        let pieces = match op.offset < end {
            true => layout(&file, &cx, op.offset, end)?,
            false => Vec::new(),
        };
        let start = self.reply.len();
        self.read_pieces(&file, op.offset, &pieces)?;
        // What was a hole may have been written since, and what of it is told must be of one moment.
        if pieces.iter().any(|piece| piece.hole)
            && file.attr(&cx, Want::TIMES)?.change != before.change
        {
            self.reply.truncate(start);
            self.read_pieces(&file, op.offset, &[data(op.offset, end)])?;
        }
        Ok(())
    }

    /// Answers what stands in `pieces`, which follow each other from `at` on.
    fn read_pieces(&mut self, file: &Arc<dyn File>, mut at: u64, pieces: &[Extent]) -> Done {
        let head = self.reply.len();
        self.reply.value(&0u32);
        self.reply.value(&0u32);
        let mut sent = 0u32;
        let mut ended = false;
        for piece in pieces {
            let start = self.reply.len();
            sent += 1;
            if piece.hole {
                self.reply.value(&Content::Hole);
                self.reply.value(&piece.offset);
                self.reply.value(&piece.len);
                at = piece.offset + piece.len;
                continue;
            }
            self.reply.value(&Content::Data);
            self.reply.value(&piece.offset);
            self.reply.value(&0u32);
            let got = self.read_into(file, piece.offset, piece.len as u32)?;
            self.reply.patch(start + 12, &(got as u32).to_be_bytes());
            at = piece.offset + got as u64;
            // It has been cut meanwhile.
            if got as u64 != piece.len {
                ended = got == 0;
                break;
            }
        }
        let eof = ended || at >= file.attr(&self.cx(), Want::SIZE)?.size;
        self.reply.patch(head, &u32::from(eof).to_be_bytes());
        self.reply.patch(head + 4, &sent.to_be_bytes());
        Ok(())
    }

    pub(super) fn seek(&mut self, op: Seek) -> Done {
        let node = self.regular()?;
        let file = self.file(&op.state, &node, OpenFlags::READ)?;
        let what = match Content::from_number(op.what) {
            Some(Content::Data) => vfs::Seek::Data,
            Some(Content::Hole) => vfs::Seek::Hole,
            None => return Err(Status::UnionNotsupp.into()),
        };
        let cx = self.cx();
        let size = file.attr(&cx, Want::SIZE)?.size;
        if op.offset >= size {
            return Err(Status::Nxio.into());
        }
        let sought = match file.seek(&cx, op.offset, what) {
            Ok(offset) => Sought {
                eof: offset >= size,
                offset,
            },
            // No data from here on.
            Err(Errno::ENXIO) => Sought {
                eof: true,
                offset: size,
            },
            Err(errno) => return Err(errno.into()),
        };
        self.reply.value(&sought);
        Ok(())
    }

    pub(super) fn allocate(&mut self, op: Space) -> Done {
        self.space(op, Allocate::Extend)
    }

    pub(super) fn deallocate(&mut self, op: Space) -> Done {
        self.space(op, Allocate::Punch)
    }

    fn space(&mut self, op: Space, how: Allocate) -> Done {
        let node = self.regular()?;
        let file = self.file(&op.state, &node, OpenFlags::WRITE)?;
        let end = op.offset.checked_add(op.length).ok_or(Status::Inval)?;
        if i64::try_from(end).is_err() {
            return Err(Status::Fbig.into());
        }
        if op.length > 0 {
            file.allocate(&self.cx(), how, op.offset, op.length)?;
            self.affected();
        }
        Ok(())
    }

    /// Source and target of a copy or clone.
    fn two_files(
        &self,
        from: &crate::v4::StateId,
        to: &crate::v4::StateId,
    ) -> Result<[Arc<dyn File>; 2], Bad> {
        let (source, target) = (self.saved_node()?, self.node()?);
        self.check_regular(&source)?;
        self.check_regular(&target)?;
        Ok([
            self.file(from, &source, OpenFlags::READ)?,
            self.file(to, &target, OpenFlags::WRITE)?,
        ])
    }

    pub(super) fn copy(&mut self, op: Copy<'_>) -> Done {
        if !op.servers.is_empty() {
            return Err(Status::Notsupp.into());
        }
        let [from, to] = self.two_files(&op.from, &op.to)?;
        let cx = self.cx();
        let size = from.attr(&cx, Want::SIZE)?.size;
        let left = match op.count {
            0 => size.checked_sub(op.from_offset).ok_or(Status::Inval)?,
            count => match op.from_offset.checked_add(count) {
                Some(end) if end <= size => count,
                _ => return Err(Status::Inval.into()),
            },
        };
        cx.may_wait()?;
        // They would overlap, which no part of it shows.
        let apart = op.from_offset.abs_diff(op.to_offset);
        if self.saved_node()?.id() == self.node()?.id() && apart < left {
            return Err(Status::Inval.into());
        }
        let clock = &self.turn.server.options.clock;
        let began = clock();
        let mut count = 0;
        while count < left {
            let step = (left - count).min(COPY_STEP);
            let (at, to_at) = (op.from_offset + count, op.to_offset.saturating_add(count));
            match from.copy(&cx, at, &*to, to_at, step, CopyHow::Any) {
                Ok(0) => break,
                Ok(more) => count += more,
                Err(errno) if count == 0 => return Err(errno.into()),
                // It comes again for the rest.
                Err(_) => break,
            }
            if clock().saturating_sub(began) >= COPY_TIME {
                break;
            }
        }
        self.affected();
        let verifier = self.turn.server.write_verifier();
        self.reply.value(&Copied {
            callback: Vec::new(),
            count,
            committed: Stable::Unstable,
            verifier,
            consecutive: true,
            synchronous: true,
        });
        Ok(())
    }

    pub(super) fn clone_range(&mut self, op: Clone) -> Done {
        let [from, to] = self.two_files(&op.from, &op.to)?;
        let cx = self.cx();
        let size = from.attr(&cx, Want::SIZE)?.size;
        let count = match op.count {
            0 => size.checked_sub(op.from_offset).ok_or(Status::Inval)?,
            count => count,
        };
        from.copy(
            &cx,
            op.from_offset,
            &*to,
            op.to_offset,
            count,
            CopyHow::Clone,
        )?;
        self.affected();
        Ok(())
    }

    pub(super) fn io_advise(&mut self, op: IoAdvise) -> Done {
        let node = self.regular()?;
        self.file(&op.state, &node, OpenFlags::READ)?;
        // None is acted on: the host reads ahead by itself.
        self.reply.value(&Bitmap::default());
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

/// What stands in `from..to` of `file`, data and holes, as few and as long pieces as serve: one question for
/// data alone, two for a hole alone, and a map for the rest.
fn layout(
    file: &Arc<dyn File>,
    cx: &vfs::Cx<'_>,
    from: u64,
    to: u64,
) -> Result<Vec<Extent>, Errno> {
    let whole = vec![data(from, to)];
    match file.seek(cx, from, vfs::Seek::Hole) {
        Ok(hole) if hole >= to => return Ok(whole),
        Ok(hole) if hole == from => match file.seek(cx, from, vfs::Seek::Data) {
            Ok(data) if data < to => {}
            Ok(_) | Err(Errno::ENXIO) => {
                return Ok(vec![Extent {
                    hole: true,
                    ..data(from, to)
                }]);
            }
            Err(errno) => return Err(errno),
        },
        Ok(_) => {}
        // Where nothing is known of holes there are none; it has been cut meanwhile if it ends before.
        Err(Errno::EOPNOTSUPP | Errno::EINVAL | Errno::ENXIO) => return Ok(whole),
        Err(errno) => return Err(errno),
    }
    let mut pieces: Vec<Extent> = Vec::new();
    let mut at = from;
    let mut each = |extent: Extent| {
        let start = extent.offset.max(at);
        let end = (extent.offset + extent.len).min(to);
        if start >= end {
            return extent.offset < to;
        }
        let hole = extent.hole && end - start >= SHORTEST_HOLE.min(to - from);
        match pieces.last_mut() {
            Some(last) if last.hole == hole => last.len = end - last.offset,
            _ => pieces.push(Extent {
                offset: start,
                len: end - start,
                hole,
            }),
        }
        at = end;
        pieces.len() <= MOST_PIECES && end < to
    };
    match file.extents(cx, from, to - from, &mut each) {
        Ok(()) => {}
        Err(Errno::EOPNOTSUPP) => return Ok(whole),
        Err(errno) => return Err(errno),
    }
    // The last of too many, and whatever no map tells of, is data.
    if pieces.len() > MOST_PIECES {
        pieces.truncate(MOST_PIECES - 1);
    }
    let covered = pieces.last().map_or(from, |last| last.offset + last.len);
    if covered < to {
        match pieces.last_mut() {
            Some(last) if !last.hole => last.len = to - last.offset,
            _ => pieces.push(data(covered, to)),
        }
    }
    Ok(pieces)
}
