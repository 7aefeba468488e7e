//! READ, WRITE, FSYNC, LSEEK, FALLOCATE, COPY_FILE_RANGE: the bytes of open files.

use std::sync::Arc;

use vfs::{AllocateMode, CopyMode, Errno, OpenFlags, Result, Support, Whence};

use super::RequestContext;
use super::handles::Open;
use crate::convert::allocate_from_mode;
use crate::layout::{
    CopyIn, CopyOut, FallocateIn, FsyncIn, LseekIn, LseekOut, ReadIn, WriteIn, WriteOut,
};
use crate::message::WRITE_HEAD;
use crate::numbers::{FSYNC_FDATASYNC, Flags, InitFlags, WRITE_CACHE, WRITE_KILL_SUIDGID, whence};

impl RequestContext<'_> {
    pub(super) fn read(&mut self, args: &ReadIn) -> Result<()> {
        let open = self.readable(args.fh)?;
        check_offset(args.offset)?;
        let len = self.reply_room(args.size);
        self.begin_data();
        if len > 0 {
            open.file.read(&self.cx, args.offset, len, self.out)?;
        }
        self.end_data()
    }

    pub(super) fn write(&mut self, args: &WriteIn) -> Result<()> {
        self.check_room(WriteOut::SIZE)?;
        let open = self.writable(args.fh)?;
        check_offset(args.offset)?;
        let size = args.size as usize;
        if size == 0 {
            return self.reply(&[&WriteOut::default().encode()]);
        }
        if args.write_flags & WRITE_KILL_SUIDGID != 0 {
            self.kill_privileges(&open)?;
        }
        let appends = args.write_flags & WRITE_CACHE == 0
            && Flags::from_bits_retain(args.flags).contains(Flags::APPEND);
        let file = open.writer(appends)?;
        let cx = self.cx;
        let range = WRITE_HEAD..WRITE_HEAD + size;
        if appends && let Some(count) = self.appended(&open, range.clone())? {
            let size = count.min(size) as u32;
            return self.reply(&[&WriteOut { size }.encode()]);
        }
        let count = self
            .message
            .payload(range, &mut |payload| file.write(&cx, args.offset, payload))?;
        debug_assert!(count <= size, "a source wrote more than it got");
        let size = count.min(size) as u32;
        self.reply(&[&WriteOut { size }.encode()])
    }

    pub(super) fn fsync(&mut self, args: &FsyncIn) -> Result<()> {
        let open = self.opened(args.fh)?;
        let datasync = args.fsync_flags & FSYNC_FDATASYNC != 0;
        open.file.fsync(&self.cx, datasync)?;
        self.reply(&[])
    }

    pub(super) fn lseek(&mut self, args: &LseekIn) -> Result<()> {
        // After `ENOSYS` the client treats the whole file as data, and does not ask again.
        if self.session.capabilities.holes == Support::None {
            return Err(Errno::ENOSYS);
        }
        let open = self.readable_or_writable(args.fh)?;
        // A negative offset is beyond the end of any file, as in Linux's file systems.
        let what = match args.whence {
            whence::DATA => Whence::Data,
            whence::HOLE => Whence::Hole,
            _ => return Err(Errno::EINVAL),
        };
        let offset = open.file.seek(&self.cx, args.offset, what)?;
        self.reply(&[&LseekOut { offset }.encode()])
    }

    pub(super) fn fallocate(&mut self, args: &FallocateIn) -> Result<()> {
        let open = self.writable(args.fh)?;
        let end = args.offset.checked_add(args.length).ok_or(Errno::EFBIG)?;
        if args.length == 0 {
            return Err(Errno::EINVAL);
        }
        check_offset(end).map_err(|_| Errno::EFBIG)?;
        let how = allocate_from_mode(args.mode).ok_or(Errno::EOPNOTSUPP)?;
        self.kill_for_callers(&open)?;
        if matches!(how, AllocateMode::Collapse | AllocateMode::Insert) && self.is_moved(&open)? {
            return self.reply(&[]);
        }
        open.file
            .allocate(&self.cx, how, args.offset, args.length)?;
        self.reply(&[])
    }

    /// `wide`: the reply's count has 64 bits.
    pub(super) fn copy(&mut self, args: &CopyIn, wide: bool) -> Result<()> {
        self.check_room(CopyOut::SIZE)?;
        if args.flags != 0 {
            return Err(Errno::EINVAL);
        }
        let (from, to) = (self.readable(args.fh_in)?, self.writable(args.fh_out)?);
        let most = match wide {
            true => i64::MAX as u64,
            // As Linux: whole pages.
            false => u64::from(u32::MAX - 0xfff),
        };
        let mut len = args.len.min(most);
        for begin in [args.off_in, args.off_out] {
            check_offset(begin)?;
            len = len.min(i64::MAX as u64 - begin);
        }
        self.kill_for_callers(&to)?;
        let count = from.file.copy(
            &self.cx,
            args.off_in,
            &*to.file,
            args.off_out,
            len,
            CopyMode::Any,
        )?;
        match wide {
            true => self.reply(&[&CopyOut {
                bytes_copied: count,
            }
            .encode()]),
            false => self.reply(&[&WriteOut { size: count as u32 }.encode()]),
        }
    }

    fn readable(&self, fh: u64) -> Result<Arc<Open>> {
        let open = self.readable_or_writable(fh)?;
        match open.flags.intersects(OpenFlags::READ | OpenFlags::EXEC) {
            true => Ok(open),
            false => Err(Errno::EBADF),
        }
    }

    fn writable(&self, fh: u64) -> Result<Arc<Open>> {
        let open = self.readable_or_writable(fh)?;
        match open.flags.contains(OpenFlags::WRITE) {
            true => Ok(open),
            false => Err(Errno::EBADF),
        }
    }

    fn readable_or_writable(&self, fh: u64) -> Result<Arc<Open>> {
        let open = match self.negotiated.has(InitFlags::NO_OPEN_SUPPORT) {
            true => Arc::new(self.open_unchecked()?),
            false => self.opened(fh)?,
        };
        match open.is_directory() {
            false => Ok(open),
            true => Err(Errno::EISDIR),
        }
    }
}

/// Checks that an offset fits a signed number, as file offsets are.
fn check_offset(offset: u64) -> Result<()> {
    i64::try_from(offset).map(drop).map_err(|_| Errno::EINVAL)
}
