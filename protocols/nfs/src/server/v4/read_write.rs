//! READ, WRITE, COMMIT (RFC 8881 sections 18.3, 18.22, 18.32), IO_ADVISE (RFC 7862 section 15.5).

use std::sync::Arc;

use vfs::{AttrMask, Cx, File, OpenFlags, Sink as _};
use wire::{Outgoing as _, padding};

use super::compound::{Compound, OpError, OpResult};
use super::state::Share;
use crate::server::RequestContext;
use crate::server::write::Durable;
use crate::v4::Status;
use crate::v4::attr::Bitmap;
use crate::v4::op::{Commit, IoAdvise, Read, Write};
use crate::v4::reply::Written;
use crate::v4::types::Stable;

impl RequestContext<'_, Compound> {
    pub(super) fn read(&mut self, args: Read) -> OpResult {
        let node = self.regular()?;
        let file = self.file(&args.state, &node, OpenFlags::READ)?;
        let eof_at = self.reply.len();
        self.reply.value(&0u32);
        self.reply.value(&0u32);
        let got = self.read_into(&self.cx(), &file, args.offset, args.count)?;
        // A source may return less than there is, and the count asked for may end exactly at the
        // end of file.
        let size = file.attr(&self.cx(), AttrMask::SIZE)?.size;
        let eof = got == 0 && args.count > 0 || args.offset.saturating_add(got as u64) >= size;
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

    pub(super) fn write(&mut self, args: Write<'_>) -> OpResult {
        let end = self.arguments.position();
        let len = args.data.0.len();
        let start = end - len - padding(len);
        let node = self.regular()?;
        let file = self.file(&args.state, &node, OpenFlags::WRITE)?;
        let durable = match args.stable {
            Stable::Unstable => Durable::No,
            Stable::Data => Durable::Data,
            Stable::File => Durable::All,
        };
        let data = (self.message, self.record, start..start + len);
        let count = self
            .server
            .write(&self.cx(), &*file, data, args.offset, durable)?;
        self.forbid_restart();
        let verifier = self.server.write_verifier();
        self.reply.value(&Written {
            count: count as u32,
            committed: args.stable,
            verifier,
        });
        Ok(())
    }

    pub(super) fn commit(&mut self, args: Commit) -> OpResult {
        let node = self.regular()?;
        if args.offset.checked_add(args.count.into()).is_none() {
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

    pub(super) fn io_advise(&mut self, args: IoAdvise) -> OpResult {
        let node = self.regular()?;
        self.file(&args.state, &node, OpenFlags::READ)?;
        // No advice is applied: the host reads ahead by itself.
        self.reply.value(&Bitmap::default());
        Ok(())
    }
}
