//! Operations on ranges: SEEK, ALLOCATE, DEALLOCATE, CLONE, IO_ADVISE (RFC 7862 section 15).

use std::sync::Arc;

use vfs::{Allocate, CopyHow, Errno, File, OpenFlags, Want};

use super::compound::{Compound, OpError, OpResult};
use crate::server::RequestContext;
use crate::v4::Status;
use crate::v4::attr::Bitmap;
use crate::v4::op::{Clone, IoAdvise, Seek, Space};
use crate::v4::reply::Sought;
use crate::v4::types::Content;

impl RequestContext<'_, Compound> {
    pub(super) fn seek(&mut self, op: Seek) -> OpResult {
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
            // There is no data after the offset.
            Err(Errno::ENXIO) => Sought {
                eof: true,
                offset: size,
            },
            Err(errno) => return Err(errno.into()),
        };
        self.reply.value(&sought);
        Ok(())
    }

    pub(super) fn allocate(&mut self, op: Space) -> OpResult {
        self.space(op, Allocate::Extend)
    }

    pub(super) fn deallocate(&mut self, op: Space) -> OpResult {
        self.space(op, Allocate::Punch)
    }

    fn space(&mut self, op: Space, how: Allocate) -> OpResult {
        let node = self.regular()?;
        let file = self.file(&op.state, &node, OpenFlags::WRITE)?;
        let end = op.offset.checked_add(op.length).ok_or(Status::Inval)?;
        if i64::try_from(end).is_err() {
            return Err(Status::Fbig.into());
        }
        if op.length > 0 {
            file.allocate(&self.cx(), how, op.offset, op.length)?;
            self.forbid_restart();
        }
        Ok(())
    }

    /// Returns the source and the target of a copy or clone.
    pub(super) fn two_files(
        &self,
        from: &crate::v4::StateId,
        to: &crate::v4::StateId,
    ) -> Result<[Arc<dyn File>; 2], OpError> {
        let (source, target) = (self.saved_node()?, self.node()?);
        self.check_regular(&source)?;
        self.check_regular(&target)?;
        Ok([
            self.file(from, &source, OpenFlags::READ)?,
            self.file(to, &target, OpenFlags::WRITE)?,
        ])
    }

    pub(super) fn clone_range(&mut self, op: Clone) -> OpResult {
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
        self.forbid_restart();
        Ok(())
    }

    pub(super) fn io_advise(&mut self, op: IoAdvise) -> OpResult {
        let node = self.regular()?;
        self.file(&op.state, &node, OpenFlags::READ)?;
        // No advice is applied: the host reads ahead by itself.
        self.reply.value(&Bitmap::default());
        Ok(())
    }
}
