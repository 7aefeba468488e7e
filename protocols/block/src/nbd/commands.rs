//! The transmission phase: read, write and other commands.

use vfs::{Cx, Errno, Extent};
use wire::{Incoming, Outgoing};

use super::message::{
    CommandFlags, MAX_PAYLOAD, REQUEST_HEAD, Request, chunk, chunk_head, command, error,
    simple_head,
};
use super::options::ALLOCATION_ID;
use super::{Failure, SelectedExport, is_retry};

/// The most extents in one reply.
const MAX_EXTENTS: usize = 4096;

/// The status flags of an extent that is not data.
const HOLE_AND_ZERO: u32 = 1 | 2;

impl SelectedExport {
    pub(super) fn serve(
        &self,
        cx: &Cx<'_>,
        request: &Request,
        message: &dyn Incoming,
        out: &mut dyn Outgoing,
    ) -> Result<(), Failure> {
        if request.kind == command::DISC {
            return Ok(());
        }
        let answered = self.execute(cx, request, message, out);
        cx.call.note_operation(request.kind);
        match answered {
            Err(errno) if is_retry(errno) => Err(errno.into()),
            Err(errno) => {
                cx.call.note_error(errno.raw());
                out.truncate(0);
                self.reply_error(request, errno, out);
                Ok(())
            }
            Ok(()) if out.is_empty() => {
                self.reply_done(request, out);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Executes a request, with any data of the reply in `out`.
    fn execute(
        &self,
        cx: &Cx<'_>,
        request: &Request,
        message: &dyn Incoming,
        out: &mut dyn Outgoing,
    ) -> Result<(), Errno> {
        let Request {
            kind, offset, len, ..
        } = *request;
        let flags = CommandFlags::from_bits(request.flags).ok_or(Errno::EINVAL)?;
        if !(allowed_flags(kind) | CommandFlags::FUA).contains(flags) {
            return Err(Errno::EINVAL);
        }
        let durably = flags.contains(CommandFlags::FUA);
        if !self.disk.contains(offset, len.into()) {
            let grows = matches!(kind, command::WRITE | command::WRITE_ZEROES);
            return Err(if grows { Errno::ENOSPC } else { Errno::EINVAL });
        }
        match kind {
            command::READ if len > MAX_PAYLOAD => Err(Errno::EINVAL),
            command::READ => self.read(cx, request, flags, out),
            command::WRITE => self.disk.write(cx, offset, message, REQUEST_HEAD, durably),
            command::FLUSH => self.disk.flush(cx),
            command::TRIM => self.disk.zero(cx, offset, len.into(), true, durably),
            command::WRITE_ZEROES => {
                let give_back = !flags.contains(CommandFlags::NO_HOLE);
                self.disk.zero(cx, offset, len.into(), give_back, durably)
            }
            command::BLOCK_STATUS if self.allocation_context && len > 0 => {
                let most = match flags.contains(CommandFlags::REQ_ONE) {
                    true => 1,
                    false => MAX_EXTENTS,
                };
                self.reply_extents(cx, request, most, out)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn read(
        &self,
        cx: &Cx<'_>,
        request: &Request,
        flags: CommandFlags,
        out: &mut dyn Outgoing,
    ) -> Result<(), Errno> {
        let Request {
            cookie,
            offset,
            len,
            ..
        } = *request;
        if !self.structured_replies {
            out.bytes(&simple_head(cookie, 0));
            return self.disk.read(cx, offset, len as usize, out);
        }
        if len == 0 {
            return Ok(());
        }
        let (end, whole) = (offset + u64::from(len), flags.contains(CommandFlags::DF));
        let mut walk = self.disk.scan(offset, len.into());
        let mut at = offset;
        while at < end {
            let met = match whole {
                true => None,
                false => walk.next(cx)?,
            };
            let piece = met.unwrap_or(Extent {
                offset: at,
                len: end - at,
                hole: false,
            });
            at = piece.offset + piece.len;
            let (bytes, begin) = (piece.len as u32, piece.offset.to_be_bytes());
            if piece.hole {
                out.bytes(&chunk_head(cookie, chunk::OFFSET_HOLE, 12, at == end));
                out.bytes(&begin);
                out.bytes(&bytes.to_be_bytes());
            } else {
                let head = chunk_head(cookie, chunk::OFFSET_DATA, 8 + bytes, at == end);
                out.bytes(&head);
                out.bytes(&begin);
                self.disk.read(cx, piece.offset, bytes as usize, out)?;
            }
        }
        Ok(())
    }

    fn reply_extents(
        &self,
        cx: &Cx<'_>,
        request: &Request,
        most: usize,
        out: &mut dyn Outgoing,
    ) -> Result<(), Errno> {
        let extents = self.extents(cx, request.offset, request.len.into(), most)?;
        let len = 4 + 8 * extents.len();
        let head = chunk_head(request.cookie, chunk::BLOCK_STATUS, len as u32, true);
        out.bytes(&head);
        out.bytes(&ALLOCATION_ID.to_be_bytes());
        for extent in extents {
            let what = if extent.hole { HOLE_AND_ZERO } else { 0 };
            out.bytes(&(extent.len as u32).to_be_bytes());
            out.bytes(&what.to_be_bytes());
        }
        Ok(())
    }

    /// Returns the first `most` extents of `len` bytes at `offset`; adjacent extents differ.
    fn extents(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: u64,
        most: usize,
    ) -> Result<Vec<Extent>, Errno> {
        let mut extents: Vec<Extent> = Vec::new();
        self.disk.extents(cx, offset, len, &mut |extent| {
            let count = extents.len();
            match extents.last_mut() {
                Some(last) if last.hole == extent.hole => last.len += extent.len,
                _ if count == most => return false,
                _ => extents.push(extent),
            }
            true
        })?;
        Ok(extents)
    }

    fn reply_done(&self, request: &Request, out: &mut dyn Outgoing) {
        match self.structured_replies && request.kind == command::READ {
            true => out.bytes(&chunk_head(request.cookie, chunk::NONE, 0, true)),
            false => out.bytes(&simple_head(request.cookie, 0)),
        }
    }

    pub(super) fn reply_error(&self, request: &Request, errno: Errno, out: &mut dyn Outgoing) {
        let error = error_number(errno);
        let is_structured = matches!(request.kind, command::READ | command::BLOCK_STATUS);
        if !self.structured_replies || !is_structured {
            return out.bytes(&simple_head(request.cookie, error));
        }
        // The error number, and an empty message.
        const LEN: u32 = 6;
        out.bytes(&chunk_head(request.cookie, chunk::ERROR, LEN, true));
        out.bytes(&error.to_be_bytes());
        out.bytes(&[0; 2]);
    }
}

/// Returns the flags that a command may have in addition to [`CommandFlags::FUA`], which has no
/// effect on commands that change nothing.
fn allowed_flags(kind: u16) -> CommandFlags {
    match kind {
        command::READ => CommandFlags::DF,
        command::WRITE_ZEROES => CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO,
        command::BLOCK_STATUS => CommandFlags::REQ_ONE,
        _ => CommandFlags::empty(),
    }
}

/// Returns the protocol's number for an error.
fn error_number(errno: Errno) -> u32 {
    match errno {
        Errno::EPERM | Errno::EACCES | Errno::EROFS => error::EPERM,
        Errno::EINVAL => error::EINVAL,
        Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG => error::ENOSPC,
        Errno::EOPNOTSUPP => error::ENOTSUP,
        _ => error::EIO,
    }
}
