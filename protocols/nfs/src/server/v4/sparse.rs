//! Sparse files: SEEK, ALLOCATE, DEALLOCATE (RFC 7862 sections 15.1, 15.4 and 15.11).

use vfs::{AllocateMode, AttrMask, Errno, OpenFlags};

use super::compound::{Compound, OpResult};
use crate::server::RequestContext;
use crate::v4::Status;
use crate::v4::op::{Seek, Space};
use crate::v4::reply::Sought;
use crate::v4::types::Content;

impl RequestContext<'_, Compound> {
    pub(super) fn seek(&mut self, args: Seek) -> OpResult {
        let node = self.regular()?;
        let file = self.file(&args.state, &node, OpenFlags::READ)?;
        let what = match Content::from_number(args.what) {
            Some(Content::Data) => vfs::Whence::Data,
            Some(Content::Hole) => vfs::Whence::Hole,
            None => return Err(Status::UnionNotsupp.into()),
        };
        let cx = self.cx();
        let size = file.attr(&cx, AttrMask::SIZE)?.size;
        if args.offset >= size {
            return Err(Status::Nxio.into());
        }
        let sought = match file.seek(&cx, args.offset, what) {
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

    pub(super) fn allocate(&mut self, args: Space) -> OpResult {
        self.space(args, AllocateMode::Extend)
    }

    pub(super) fn deallocate(&mut self, args: Space) -> OpResult {
        self.space(args, AllocateMode::Punch)
    }

    fn space(&mut self, args: Space, how: AllocateMode) -> OpResult {
        let node = self.regular()?;
        let file = self.file(&args.state, &node, OpenFlags::WRITE)?;
        let end = args.offset.checked_add(args.length).ok_or(Status::Inval)?;
        if i64::try_from(end).is_err() {
            return Err(Status::Fbig.into());
        }
        if args.length > 0 {
            file.allocate(&self.cx(), how, args.offset, args.length)?;
            self.forbid_restart();
        }
        Ok(())
    }
}
