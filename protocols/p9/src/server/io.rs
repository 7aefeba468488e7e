//! Tread, Twrite and Tfsync: the data of open files and extended attributes.

use vfs::{Errno, OpenFlags, Result};

use super::fid::State;
use super::request::RequestContext;
use crate::message::{DATA_HEAD, WRITE_HEAD, data_head};
use crate::{Fid, Kind, Rmessage};

impl RequestContext<'_> {
    pub(super) fn read(&mut self, fid: Fid, offset: u64, count: u32) -> Result<()> {
        let fid = self.fid(fid)?;
        let open = match fid.state() {
            State::Open(open) => open,
            State::XattrRead(value) => {
                let begin = value
                    .bytes
                    .len()
                    .min(offset.try_into().unwrap_or(usize::MAX));
                let rest = &value.bytes[begin..];
                let data = &rest[..rest.len().min(self.reply_room(count))];
                self.begin_data(Kind::Read);
                self.out.bytes(data);
                return self.end_data(Kind::Read);
            }
            State::Walked | State::XattrWrite(_) => return Err(Errno::EBADF),
        };
        if open.directory {
            return self.read_records(&fid, open, offset, count);
        }
        if !open.flags.intersects(OpenFlags::READ | OpenFlags::EXEC) {
            return Err(Errno::EBADF);
        }
        check_offset(offset)?;
        let len = self.reply_room(count);
        self.begin_data(Kind::Read);
        if len > 0 {
            let cx = self.cx(&fid.attach().caller);
            open.file.read(&cx, offset, len, self.out)?;
        }
        self.end_data(Kind::Read)
    }

    pub(super) fn write(&mut self, fid: Fid, offset: u64) -> Result<()> {
        let fid = self.fid(fid)?;
        check_offset(offset)?;
        let range = WRITE_HEAD..self.size;
        let count = match fid.state() {
            State::Open(open) if open.directory => return Err(Errno::EISDIR),
            State::Open(open) => self.write_file(&fid, open, offset)?,
            State::XattrWrite(draft) => self
                .message
                .payload(range, &mut |payload| draft.write(offset, payload))?,
            State::Walked | State::XattrRead(_) => return Err(Errno::EBADF),
        };
        self.reply(&Rmessage::Write {
            count: count as u32,
        })
    }

    pub(super) fn fsync(&mut self, fid: Fid, datasync: bool) -> Result<()> {
        let fid = self.fid(fid)?;
        let open = fid.open()?;
        open.file.fsync(&self.cx(&fid.attach().caller), datasync)?;
        self.reply(&Rmessage::Fsync {})
    }

    /// Returns how many of the requested `count` bytes the reply may carry.
    pub(super) fn reply_room(&self, count: u32) -> usize {
        (count as usize).min(self.limit.saturating_sub(DATA_HEAD))
    }

    /// Begins a reply whose payload is written directly after its head.
    pub(super) fn begin_data(&mut self, kind: Kind) {
        self.out.bytes(&data_head(kind, self.tag, 0));
    }

    /// Ends the reply by setting its length.
    pub(super) fn end_data(&mut self, kind: Kind) -> Result<()> {
        let count = self.out.len() - DATA_HEAD;
        self.out.patch(0, &data_head(kind, self.tag, count as u32));
        Ok(())
    }
}

/// Checks that an offset fits a signed number, as file offsets are.
fn check_offset(offset: u64) -> Result<()> {
    i64::try_from(offset).map(drop).map_err(|_| Errno::EINVAL)
}
