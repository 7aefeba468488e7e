//! What finds, makes and moves ranges: SEEK, ALLOCATE, DEALLOCATE, COPY, CLONE, IO_ADVISE (RFC 7862 section 15).

use std::sync::Arc;
use std::time::Duration;

use vfs::{Allocate, CopyHow, Errno, File, OpenFlags, Want};

use super::{Bad, Compound, Done};
use crate::v4::Status;
use crate::v4::attr::Bitmap;
use crate::v4::op::{Clone, Copy, IoAdvise, Seek, Space};
use crate::v4::reply::{Copied, Sought};
use crate::v4::types::{Content, Stable};

/// How long a copy goes on before it is answered with what there is of it: the client asks again for the rest, and waits for
/// no answer so long that it takes it for lost.
const COPY_TIME: Duration = Duration::from_secs(1);

/// How much is copied between two looks at the clock: a second's work of a slow disk.
const COPY_STEP: u64 = 16 << 20;

impl Compound<'_, '_> {
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
