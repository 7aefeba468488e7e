//! READ, WRITE, COMMIT (RFC 8881 sections 18.3, 18.22, 18.32).

use std::sync::Arc;

use vfs::{Caller, Errno, File, Node, OpenFlags, Sink as _, Want};
use wire::{Outgoing as _, padding};

use super::{Bad, Compound, Done};
use crate::v4::op::{Commit, Read, Write};
use crate::v4::reply::Written;
use crate::v4::types::Stable;
use crate::v4::{StateId, Status};

impl Compound<'_, '_> {
    /// The file that `state` names of `node`, open for `access`; nothing for I/O without an open.
    pub(super) fn file_of(
        &self,
        _state: &StateId,
        _node: &Arc<dyn Node>,
        _access: OpenFlags,
    ) -> Result<Option<Arc<dyn File>>, Bad> {
        Ok(None)
    }

    /// The file that `state` names of `node`, or that one opened for `access`.
    pub(super) fn file(
        &self,
        state: &StateId,
        node: &Arc<dyn Node>,
        access: OpenFlags,
    ) -> Result<Arc<dyn File>, Bad> {
        match self.file_of(state, node, access)? {
            Some(file) => Ok(file),
            None => Ok(self.open_anonymously(node, access)?),
        }
    }

    /// Opens `node` for someone who has not opened it: its owner may, whatever its mode says, for it may
    /// have opened it before that was changed.
    pub(super) fn open_anonymously(
        &self,
        node: &Arc<dyn Node>,
        access: OpenFlags,
    ) -> Result<Arc<dyn File>, Errno> {
        let cx = self.cx();
        match node.open(&cx, access) {
            Err(Errno::EACCES) => {
                let attr = node.attr(&cx, Want::BASIC)?;
                match attr.uid == cx.caller.uid {
                    true => node.open(&cx.on_behalf_of(&Caller::ROOT), access),
                    false => Err(Errno::EACCES),
                }
            }
            done => done,
        }
    }

    pub(super) fn read(&mut self, op: Read) -> Done {
        let node = self.regular()?;
        let file = self.file(&op.state, &node, OpenFlags::READ)?;
        let eof_at = self.reply.len();
        self.reply.value(&0u32);
        self.reply.value(&0u32);
        let (got, eof) = self.read_into(&file, op.offset, op.count)?;
        self.reply.patch(eof_at, &u32::from(eof).to_be_bytes());
        self.reply.patch(eof_at + 4, &(got as u32).to_be_bytes());
        Ok(())
    }

    /// Reads up to `count` bytes into the reply and pads them. Says how many they are, and whether they
    /// reach the end of the file.
    pub(super) fn read_into(
        &mut self,
        file: &Arc<dyn File>,
        offset: u64,
        count: u32,
    ) -> Result<(usize, bool), Bad> {
        let len = count.min(self.turn.server.options.max_io) as usize;
        let len = len.min(self.reply.room());
        let cx = self.cx();
        let got = match i64::try_from(offset) {
            Ok(_) if len > 0 => file.read(&cx, offset, len, &mut self.reply)?,
            _ => 0,
        };
        self.reply.bytes(&[0; 3][..padding(got)]);
        // A source may give less than there is, and all that was asked for may be all there is.
        let eof = got == 0 && len > 0 || {
            let size = file.attr(&cx, Want::SIZE)?.size;
            offset.saturating_add(got as u64) >= size
        };
        Ok((got, eof))
    }

    pub(super) fn write(&mut self, op: Write<'_>) -> Done {
        let end = self.arguments.position();
        let len = op.data.0.len();
        let start = end - len - padding(len);
        let node = self.regular()?;
        let file = self.file(&op.state, &node, OpenFlags::WRITE)?;
        if op
            .offset
            .checked_add(len as u64)
            .is_none_or(|end| i64::try_from(end).is_err())
        {
            return Err(Status::Fbig.into());
        }
        let cx = self.cx();
        let mut count = 0;
        for piece in self.turn.record.pieces(start..start + len) {
            let want = piece.len();
            let offset = op.offset + count as u64;
            let done = self
                .turn
                .message
                .payload(piece, &mut |payload| file.write(&cx, offset, payload));
            match done {
                Ok(written) => {
                    count += written.min(want);
                    if written < want {
                        break;
                    }
                }
                // What is written is written.
                Err(_) if count > 0 => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        self.affected();
        match op.stable {
            Stable::Unstable => {}
            how => file.fsync(&self.cx(), how == Stable::Data)?,
        }
        let verifier = self.turn.server.write_verifier();
        self.reply.value(&Written {
            count: count as u32,
            committed: op.stable,
            verifier,
        });
        Ok(())
    }

    pub(super) fn commit(&mut self, op: Commit) -> Done {
        let node = self.regular()?;
        if op.offset.checked_add(op.count.into()).is_none() {
            return Err(Status::Inval.into());
        }
        let cx = self.cx();
        // Any descriptor does, and whoever has written may.
        let root = cx.on_behalf_of(&Caller::ROOT);
        let file = match node.open(&root, OpenFlags::READ) {
            Err(Errno::EACCES) => self.open_anonymously(&node, OpenFlags::WRITE)?,
            done => done?,
        };
        file.fsync(&cx, false)?;
        let verifier = self.turn.server.write_verifier();
        self.reply.value(&verifier);
        Ok(())
    }
}
