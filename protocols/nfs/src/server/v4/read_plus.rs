//! READ_PLUS (RFC 7862 section 15.10): a READ that may leave out holes, and never costs much more
//! than a READ.
//!
//! Each byte of the result, in a hole or not, is one that the file had at some moment during the
//! call, as with READ. Holes are searched for only where they are likely: see [`vfs::holes`].

use std::sync::Arc;

use vfs::holes::HoleScanner;
use vfs::{AttrMask, Cx, Extent, File, OpenFlags, Patience, Sink as _};
use wire::{Outgoing as _, ServeOutcome};

use super::super::CallError;
use super::compound::{Compound, OpError, OpResult};
use crate::server::RequestContext;
use crate::v4::op::Read;
use crate::v4::types::Content;

/// The length of a segment's header: content type, offset and length.
const PIECE_HEAD: usize = 16;

impl RequestContext<'_, Compound> {
    pub(super) fn read_plus(&mut self, args: Read) -> OpResult {
        let node = self.regular()?;
        let (file, solid) = match self.file_of(&args.state, &node, OpenFlags::READ)? {
            Some(open) => (open.file, open.hole_hint),
            None => {
                let server = self.server;
                let file = server.file(&self.cx(), &node, OpenFlags::READ)?;
                (file, Arc::default())
            }
        };
        let count = args.count.min(self.server.options.max_io).into();
        // Before the file is searched: what lies beyond its end now need not be a hole in what it
        // contains later.
        let size = file.attr(&self.cx(), AttrMask::SIZE)?.size;
        let (from, end) = (args.offset, args.offset.saturating_add(count).min(size));
        let walk = HoleScanner::new(&*file, &solid, from..end);
        self.pieces(&file, size, from, walk)
    }

    /// Writes the segments that `walk` finds from offset `from` on in a file of `size` bytes.
    fn pieces(
        &mut self,
        file: &Arc<dyn File>,
        mut size: u64,
        from: u64,
        mut walk: HoleScanner<'_>,
    ) -> OpResult {
        let head = self.reply.len();
        self.reply.value(&0u32);
        self.reply.value(&0u32);
        let (mut sent, mut at) = (0u32, from);
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
                // Reads the rest in one piece: Linux reads ahead over holes, and would wait for
                // each piece.
                Err(OpError::Call(CallError::Retry(ServeOutcome::WouldBlock)))
                    if self.cx().patience == Patience::Full =>
                {
                    piece = walk.stop_searching(&piece);
                    at = piece.offset + piece.len;
                    self.piece(file, &piece, Patience::Full)?
                }
                got => got?,
            };
            let count = (got as u32).to_be_bytes();
            self.reply.patch(start + PIECE_HEAD - 4, &count);
            if got as u64 != piece.len {
                // The file was truncated, the source has no more for now, or the reply is full.
                at = piece.offset + got as u64;
                size = match got {
                    0 => at,
                    _ => file.attr(&self.cx(), AttrMask::SIZE)?.size,
                };
                break;
            }
        }
        let eof = at >= size;
        self.reply.patch(head, &u32::from(eof).to_be_bytes());
        self.reply.patch(head + 4, &sent.to_be_bytes());
        Ok(())
    }

    /// Reads a segment of data, with at most `patience`.
    fn piece(
        &mut self,
        file: &Arc<dyn File>,
        piece: &Extent,
        patience: Patience,
    ) -> Result<usize, OpError> {
        let cx = self.cx();
        let cx = Cx {
            patience: cx.patience.min(patience),
            ..cx
        };
        self.read_into(&cx, file, piece.offset, piece.len as u32)
    }
}
