//! READ, WRITE, COMMIT.

use std::ops::Range;
use std::sync::Arc;

use vfs::{Attr, AttrMask, File, Kind, Node, OpenFlags};
use wire::{Put, Xdr, padding};

use super::{ProcedureResult, StepError, StepResult, outcome};
use crate::server::write::Durable;
use crate::server::{CallError, RequestContext};
use crate::v3::{
    Attributes, CommitArgs, CommitOk, Outcome, ReadArgs, Stable, Status, Wcc, WriteArgs, WriteOk,
};

impl RequestContext<'_> {
    pub(super) fn read(&mut self) -> Result<(), CallError> {
        let args: ReadArgs = self.decode()?;
        let node = self.object(&args.file);
        self.fill(node, |request, node| request.read_into_reply(node, &args))
    }

    /// Reads the data directly into the reply; the header before the data is filled in afterwards.
    fn read_into_reply(&mut self, node: &Arc<dyn Node>, args: &ReadArgs) -> StepResult<()> {
        check_file(node)?;
        let cx = self.cx();
        let file = self.server.file(&cx, node, OpenFlags::READ)?;
        let at = self.reply.out.len();
        self.reply.out.bytes(&[0; ReadHead::SIZE]);
        let capacity = self.reply.out.room().saturating_sub(3);
        let most = args.count.min(self.server.options.max_io) as usize;
        let len = most.min(capacity);
        // No data is beyond the largest file offset.
        let count = match i64::try_from(args.offset) {
            Ok(_) if len > 0 => file.read(&cx, args.offset, len, self.reply.out)?,
            _ => 0,
        };
        let attr = file.attr(&cx, AttrMask::STAT)?;
        self.reply.out.bytes(&[0; 3][..padding(count)]);
        let head = ReadHead::new(&attr, count, args.offset);
        self.reply.out.patch(at, &head.bytes);
        Ok(())
    }

    pub(super) fn write(&mut self) -> Result<(), CallError> {
        let args: WriteArgs<'_> = self.decode()?;
        let len = args.data.len().min(args.count as usize);
        // The data are the last argument.
        let end = self.arguments.position();
        let start = end - args.data.len() - padding(args.data.len());
        let mut wcc = Wcc::default();
        let result = self.object(&args.file).and_then(|node| {
            check_file(&node)?;
            let cx = self.cx();
            let file = self.server.file(&cx, &node, OpenFlags::WRITE)?;
            let before = file.attr(&cx, AttrMask::STAT)?;
            let result = self.write_payload(&*file, start..start + len, &args);
            if !matches!(result, Err(StepError::Later(_))) {
                wcc = self.file_wcc(&before, &file);
            }
            result
        });
        let written = match result {
            Ok(count) => Outcome::Done(WriteOk {
                file: wcc,
                count,
                committed: args.stable,
                verifier: self.server.write_verifier(),
            }),
            Err(StepError::Status(status)) => Outcome::Failed(status, wcc),
            Err(StepError::Later(answer)) => return Err(CallError::Retry(answer)),
        };
        self.answer(&written);
        Ok(())
    }

    fn write_payload(
        &self,
        file: &dyn File,
        data: Range<usize>,
        args: &WriteArgs<'_>,
    ) -> StepResult<u32> {
        let durable = match args.stable {
            Stable::Unstable => Durable::No,
            Stable::DataSync => Durable::Data,
            Stable::FileSync => Durable::All,
        };
        let data = (self.message, self.record, data);
        let written = self
            .server
            .write(&self.cx(), file, data, args.offset, durable)?;
        Ok(written as u32)
    }

    pub(super) fn commit(&self, args: CommitArgs) -> ProcedureResult<CommitOk, Wcc> {
        let mut wcc = Wcc::default();
        let result = self.object(&args.file).and_then(|node| {
            check_file(&node)?;
            let cx = self.cx();
            let file = self
                .server
                .file_to_sync(&cx, &node, [OpenFlags::WRITE, OpenFlags::READ])?;
            let before = file.attr(&cx, AttrMask::STAT)?;
            self.server.sync(&cx, &*file, false)?;
            wcc = self.file_wcc(&before, &file);
            Ok(())
        });
        Ok(match outcome(result, || wcc)? {
            Outcome::Done(()) => Outcome::Done(CommitOk {
                file: wcc,
                verifier: self.server.write_verifier(),
            }),
            Outcome::Failed(status, wcc) => Outcome::Failed(status, wcc),
        })
    }

    fn file_wcc(&self, before: &Attr, file: &Arc<dyn File>) -> Wcc {
        let after = file.attr(&self.patient_cx(), AttrMask::STAT).ok();
        Wcc {
            before: Some(before.into()),
            after: after.as_ref().map(Attributes::from),
        }
    }
}

fn check_file(node: &Arc<dyn Node>) -> StepResult<()> {
    match node.kind() {
        Kind::File => Ok(()),
        Kind::Directory => Err(Status::Isdir.into()),
        _ => Err(Status::Inval.into()),
    }
}

/// The part of a READ's results that precedes the data.
struct ReadHead {
    bytes: [u8; ReadHead::SIZE],
    len: usize,
}

impl ReadHead {
    /// Status, attributes, count, end of file, and the length of the data.
    const SIZE: usize = 4 + 4 + 84 + 4 + 4 + 4;

    fn new(attr: &Attr, count: usize, offset: u64) -> ReadHead {
        let mut head = ReadHead {
            bytes: [0; ReadHead::SIZE],
            len: 0,
        };
        Status::Ok.put(&mut head);
        Some(Attributes::from(attr)).put(&mut head);
        (count as u32).put(&mut head);
        (offset.saturating_add(count as u64) >= attr.size).put(&mut head);
        (count as u32).put(&mut head);
        head
    }
}

impl Put for ReadHead {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}
