//! GETATTR, SETATTR, STATX, ACCESS, STATFS, READLINK, SYNCFS.

use vfs::{Access, Attr, AttrMask, Errno, Kind, OpenFlags, Result, SetAttr, SetTime, Time};

use super::RequestContext;
use super::privileges::{KILL, SET_ID};
use crate::layout::{GetattrIn, SetattrIn, StatFs, Statx, StatxIn, StatxOut, SxTime};
use crate::numbers::{Fattr, GETATTR_FH, InitFlags, statx};

impl RequestContext<'_> {
    pub(super) fn getattr(&mut self, args: &GetattrIn) -> Result<()> {
        let fh = (args.getattr_flags & GETATTR_FH != 0).then_some(args.fh);
        let attr = self.attr(fh, AttrMask::STAT)?;
        self.reply_attr(&attr)
    }

    /// Adds only the birth time to GETATTR. If the source has none, `ENOSYS` makes the client use
    /// GETATTR from then on.
    pub(super) fn statx(&mut self, args: &StatxIn) -> Result<()> {
        if self.session.capabilities.no_birth_times {
            return Err(Errno::ENOSYS);
        }
        let mut want = AttrMask::STAT;
        want.set(AttrMask::BTIME, args.sx_mask & statx::BTIME != 0);
        let fh = (args.getattr_flags & GETATTR_FH != 0).then_some(args.fh);
        let attr = self.attr(fh, want)?;
        let time = |time: Time| SxTime {
            sec: time.sec,
            nsec: time.nsec,
        };
        let btime = attr.btime.map_or(0, |_| statx::BTIME);
        let validity = self.attr_validity(&attr);
        let answer = StatxOut {
            attr_valid: validity.as_secs(),
            attr_valid_nsec: validity.subsec_nanos(),
            flags: 0,
            stat: Statx {
                mask: statx::BASIC_STATS | btime,
                blksize: attr.blksize,
                nlink: attr.nlink,
                uid: attr.uid,
                gid: attr.gid,
                mode: attr.st_mode() as u16,
                ino: self.session.nodes.inode_number(attr.id),
                size: attr.size,
                blocks: attr.blocks,
                atime: time(attr.atime),
                btime: time(attr.btime.unwrap_or_default()),
                ctime: time(attr.ctime),
                mtime: time(attr.mtime),
                rdev_major: attr.rdev.major,
                rdev_minor: attr.rdev.minor,
                ..Statx::default()
            },
        };
        self.reply(&[&answer.encode()])
    }

    /// Returns the attributes, of the open file if the client names one: it outlives its name.
    pub(super) fn attr(&self, fh: Option<u64>, want: AttrMask) -> Result<Attr> {
        match fh {
            Some(_) if self.negotiated.has(InitFlags::NO_OPEN_SUPPORT) => {
                self.node()?.node.attr(&self.cx, want)
            }
            Some(fh) => self.opened(fh)?.file.attr(&self.cx, want),
            None => self.node()?.node.attr(&self.cx, want),
        }
    }

    pub(super) fn setattr(&mut self, args: &SetattrIn) -> Result<()> {
        let valid = Fattr::from_bits_retain(args.valid);
        let has = |bit| valid.contains(bit);
        // An id of all ones leaves the owner unchanged, as in chown(2).
        let owner = |bit, id| (has(bit) && id != u32::MAX).then_some(id);
        let time = |bit, now, sec: u64, nsec: u32| match (has(bit), has(now)) {
            (false, _) => Ok(None),
            (true, true) => Ok(Some(SetTime::Now)),
            (true, false) if nsec > 999_999_999 => Err(Errno::EINVAL),
            (true, false) => Ok(Some(SetTime::At(Time {
                sec: sec as i64,
                nsec,
            }))),
        };
        if has(Fattr::SIZE) && i64::try_from(args.size).is_err() {
            return Err(Errno::EFBIG);
        }
        let set = SetAttr {
            mode: has(Fattr::MODE).then_some(args.mode & 0o7777),
            uid: owner(Fattr::UID, args.uid),
            gid: owner(Fattr::GID, args.gid),
            size: has(Fattr::SIZE).then_some(args.size),
            atime: time(Fattr::ATIME, Fattr::ATIME_NOW, args.atime, args.atimensec)?,
            mtime: time(Fattr::MTIME, Fattr::MTIME_NOW, args.mtime, args.mtimensec)?,
            // The source sets its own time, as for every change.
            ctime: has(Fattr::CTIME),
            kill_priv: self.setattr_kills(args),
        };
        let fh = has(Fattr::FH).then_some(args.fh);
        let attr = match self.restores(args) {
            true => match self.restore(fh, set) {
                // The caller may not set a mode, so this is not an overlayfs that restores one.
                Err(Errno::EPERM) => self.change(fh, &set)?,
                restored => restored?,
            },
            false if set == KILL => self.kill_only(fh)?,
            false => self.change(fh, &set)?,
        };
        if set.uid.is_some() || set.gid.is_some() {
            self.forget_restored();
        }
        if set.mode.is_some_and(|mode| mode & SET_ID != 0) && attr.kind != Kind::Directory {
            self.note_restored();
        }
        self.reply_attr(&attr)
    }

    /// Changes attributes, of the open file if the client names one: it outlives its name, and a
    /// new size needs no permission. A file that is open for reading only cannot be truncated, but
    /// its node may be.
    pub(super) fn change(&self, fh: Option<u64>, set: &SetAttr) -> Result<Attr> {
        if let Some(fh) = fh {
            let open = self.opened(fh)?;
            return match set.size.is_none() || open.flags.contains(OpenFlags::WRITE) {
                true => open.file.setattr(&self.cx, set),
                false => open.node().setattr(&self.cx, set),
            };
        }
        self.node()?.node.setattr(&self.cx, set)
    }

    pub(super) fn access(&mut self, mask: u32) -> Result<()> {
        let want = Access::from_bits(mask).ok_or(Errno::EINVAL)?;
        let node = self.node()?.node;
        if !want.is_empty() && node.access(&self.cx, want)? != want {
            return Err(Errno::EACCES);
        }
        self.reply(&[])
    }

    pub(super) fn statfs(&mut self) -> Result<()> {
        let stat = self.node()?.node.statfs(&self.cx)?;
        let answer = StatFs {
            blocks: stat.blocks,
            bfree: stat.bfree,
            bavail: stat.bavail,
            files: stat.files,
            ffree: stat.ffree,
            bsize: stat.bsize,
            namelen: stat.namelen,
            frsize: stat.bsize,
        };
        self.reply(&[&answer.encode()])
    }

    pub(super) fn readlink(&mut self) -> Result<()> {
        let target = self.node()?.node.readlink(&self.cx)?;
        self.reply(&[&target])
    }

    pub(super) fn syncfs(&mut self) -> Result<()> {
        self.session.export.fs.sync(&self.cx)?;
        self.reply(&[])
    }
}
