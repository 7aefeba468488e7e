//! Sparse files: SEEK, ALLOCATE, DEALLOCATE (RFC 7862 sections 15.1, 15.4 and 15.11).

use vfs::{Allocate, Errno, OpenFlags, Want};

use super::compound::{Compound, OpResult};
use crate::server::RequestContext;
use crate::v4::Status;
use crate::v4::op::{Seek, Space};
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
}
