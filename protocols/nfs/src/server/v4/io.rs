//! READ, WRITE, COMMIT (RFC 8881 sections 18.3, 18.22, 18.32).

use std::sync::Arc;

use vfs::{Cx, File, Node, OpenFlags, Sink as _, Want};
use wire::{Outgoing as _, padding};

use super::compound::{Compound, OpError, OpResult};
use super::open_file::OpenFile;
use super::state::{Share, SlotRequest, Special, special};
use crate::server::RequestContext;
use crate::server::data::Durable;
use crate::v4::op::{Commit, Read, Write};
use crate::v4::reply::Written;
use crate::v4::types::Stable;
use crate::v4::{StateId, Status};

impl RequestContext<'_, Compound> {
    /// Returns the open, lock or delegation of `node` that `given` names, if that allows `access`.
    /// Returns `None` for the special stateids.
    pub(super) fn file_of(
        &self,
        given: &StateId,
        node: &Arc<dyn Node>,
        access: OpenFlags,
    ) -> Result<Option<OpenFile>, OpError> {
        let given = self.current_of(given)?;
        let key = self.key(node);
        let share = match access.contains(OpenFlags::WRITE) {
            true => Share::WRITE,
            false => Share::READ,
        };
        let state = &self.server.state;
        match special(&given) {
            Some(Special::Bypass) if share == Share::READ => Ok(None),
            Some(Special::Anonymous | Special::Bypass) => {
                state.anonymous(key, share)?;
                Ok(None)
            }
            Some(Special::Current | Special::Invalid) => Err(Status::BadStateid.into()),
            None => {
                self.check_holder(&given)?;
                let client = self.compound.slot.as_ref().map(SlotRequest::client);
                let open = state.io(client.as_ref(), &given, key, share)?;
                self.check_user(&open, node, share)?;
                Ok(Some(open))
            }
        }
    }

    /// Checks that the caller may use the open of a stateid, which is no secret: if the caller
    /// opened the file, could open it now, or owns it, as its mode may have changed since. From
    /// another address the caller may have another identity at the export: then only a check of
    /// whether the caller could open it now counts.
    fn check_user(&self, open: &OpenFile, node: &Arc<dyn Node>, share: Share) -> OpResult {
        let caller = self.caller;
        if open.addr != self.call.addr() {
            return self.check_access(node, share);
        }
        if open.caller == *caller || node.attr(&self.cx(), Want::BASIC)?.uid == caller.uid {
            return Ok(());
        }
        self.check_access(node, share)
    }

    /// Returns the file that `state` names for `node`, or one opened for `access`.
    pub(super) fn file(
        &self,
        state: &StateId,
        node: &Arc<dyn Node>,
        access: OpenFlags,
    ) -> Result<Arc<dyn File>, OpError> {
        match self.file_of(state, node, access)? {
            Some(open) => Ok(open.file),
            None => Ok(self.server.file(&self.cx(), node, access)?),
        }
    }

    pub(super) fn read(&mut self, op: Read) -> OpResult {
        let node = self.regular()?;
        let file = self.file(&op.state, &node, OpenFlags::READ)?;
        let eof_at = self.reply.len();
        self.reply.value(&0u32);
        self.reply.value(&0u32);
        let got = self.read_into(&self.cx(), &file, op.offset, op.count)?;
        // A source may return less than there is, and the count asked for may end exactly at the
        // end of file.
        let size = file.attr(&self.cx(), Want::SIZE)?.size;
        let eof = got == 0 && op.count > 0 || op.offset.saturating_add(got as u64) >= size;
        self.reply.patch(eof_at, &u32::from(eof).to_be_bytes());
        self.reply.patch(eof_at + 4, &(got as u32).to_be_bytes());
        Ok(())
    }

    /// Reads up to `count` bytes into the reply and pads them. Returns their number.
    pub(super) fn read_into(
        &mut self,
        cx: &Cx<'_>,
        file: &Arc<dyn File>,
        offset: u64,
        count: u32,
    ) -> Result<usize, OpError> {
        let len = count.min(self.server.options.max_io) as usize;
        let len = len.min(self.reply.room());
        if len == 0 && count > 0 {
            return Err(self.too_big().into());
        }
        let got = match i64::try_from(offset) {
            Ok(_) if len > 0 => file.read(cx, offset, len, &mut self.reply)?,
            _ => 0,
        };
        self.reply.bytes(&[0; 3][..padding(got)]);
        Ok(got)
    }

    pub(super) fn write(&mut self, op: Write<'_>) -> OpResult {
        let end = self.arguments.position();
        let len = op.data.0.len();
        let start = end - len - padding(len);
        let node = self.regular()?;
        let file = self.file(&op.state, &node, OpenFlags::WRITE)?;
        let durable = match op.stable {
            Stable::Unstable => Durable::No,
            Stable::Data => Durable::Data,
            Stable::File => Durable::All,
        };
        let data = (self.message, self.record, start..start + len);
        let count = self
            .server
            .write(&self.cx(), &*file, data, op.offset, durable)?;
        self.forbid_restart();
        let verifier = self.server.write_verifier();
        self.reply.value(&Written {
            count: count as u32,
            committed: op.stable,
            verifier,
        });
        Ok(())
    }

    pub(super) fn commit(&mut self, op: Commit) -> OpResult {
        let node = self.regular()?;
        if op.offset.checked_add(op.count.into()).is_none() {
            return Err(Status::Inval.into());
        }
        let cx = self.cx();
        let file = match self.delegated_to_caller(&node, Share::READ) {
            Some(delegated) => delegated.file,
            None => {
                // For reading if possible: an open for writing would prevent others from getting a
                // delegation.
                let ways = [OpenFlags::READ, OpenFlags::WRITE];
                self.server.file_to_sync(&cx, &node, ways)?
            }
        };
        self.server.sync(&cx, &*file, false)?;
        let verifier = self.server.write_verifier();
        self.reply.value(&verifier);
        Ok(())
    }
}
