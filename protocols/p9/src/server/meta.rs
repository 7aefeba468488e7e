//! Tgetattr, Tsetattr, Tstatfs, Treadlink.

use vfs::{Attr, AttrMask, Device, Errno, Kind, OpenFlags, Result, SetAttr, SetTime, Time};

use super::fid::{FidState, State};
use super::qid::qid_of;
use super::request::RequestContext;
use crate::numbers::{Getattr, Setattr, V9FS_MAGIC};
use crate::{Fid, Rmessage, Tmessage};

impl RequestContext<'_> {
    pub(super) fn getattr(&mut self, fid: Fid, mask: u64) -> Result<()> {
        let fid = self.fid(fid)?;
        let mask = Getattr::from_bits_truncate(mask & KNOWN_FIELDS);
        // Times are always needed: the qid holds the change counter.
        let mut want = AttrMask::BASIC | AttrMask::TIMES;
        want.set(
            AttrMask::SIZE,
            mask.intersects(Getattr::SIZE | Getattr::BLOCKS),
        );
        want.set(AttrMask::BTIME, mask.contains(Getattr::BTIME));
        want.set(AttrMask::GENERATION, mask.contains(Getattr::GEN));
        let attr = fid.attr(&self.cx(&fid.attach().caller), want)?;
        let mut valid = mask;
        if attr.btime.is_none() {
            valid.remove(Getattr::BTIME);
        }
        if attr.generation == 0 {
            valid.remove(Getattr::GEN);
        }
        let btime = attr.btime.unwrap_or_default();
        self.reply(&Rmessage::Getattr {
            valid: valid.bits(),
            qid: qid_of(&attr),
            mode: attr.st_mode(),
            uid: attr.uid,
            gid: attr.gid,
            nlink: attr.nlink.into(),
            rdev: encode_device(attr.rdev),
            size: attr.size,
            blksize: self.blksize(&attr),
            blocks: attr.blocks,
            atime_sec: attr.atime.sec as u64,
            atime_nsec: attr.atime.nsec.into(),
            mtime_sec: attr.mtime.sec as u64,
            mtime_nsec: attr.mtime.nsec.into(),
            ctime_sec: attr.ctime.sec as u64,
            ctime_nsec: attr.ctime.nsec.into(),
            btime_sec: btime.sec as u64,
            btime_nsec: btime.nsec.into(),
            generation: attr.generation,
            data_version: attr.change,
        })
    }

    /// Returns the preferred I/O size. cat(1) and cp(1) use it, so for a regular file it is the
    /// largest power of two that one message carries, to save round trips. At most 1 MiB, because
    /// programs allocate that much. A directory's is the source's own: readdir(3) allocates it for
    /// every directory.
    fn blksize(&self, attr: &Attr) -> u64 {
        /// The bytes of a message that Linux does not use for data (`P9_IOHDRSZ`).
        const IO_HEAD: usize = 24;
        let own = u64::from(attr.blksize.max(512));
        if attr.kind != Kind::File {
            return own;
        }
        let limit = self.limit.saturating_sub(IO_HEAD).clamp(512, 1 << 20);
        own.max(1 << limit.ilog2())
    }

    pub(super) fn setattr(&mut self, request: &Tmessage<'_>) -> Result<()> {
        let &Tmessage::Setattr {
            fid,
            valid,
            mode,
            uid,
            gid,
            size,
            atime_sec,
            atime_nsec,
            mtime_sec,
            mtime_nsec,
        } = request
        else {
            return Err(Errno::EPROTO);
        };
        let fid = self.fid(fid)?;
        fid.check_file()?;
        let valid = Setattr::from_bits_retain(valid);
        let has = |bit| valid.contains(bit);
        // An id of all ones leaves the owner unchanged, as in chown(2).
        let owner = |bit, id| (has(bit) && id != u32::MAX).then_some(id);
        let time = |bit, set, sec: u64, nsec: u64| match (has(bit), has(set)) {
            (false, _) => Ok(None),
            (true, false) => Ok(Some(SetTime::Now)),
            (true, true) if nsec > 999_999_999 => Err(Errno::EINVAL),
            (true, true) => Ok(Some(SetTime::At(Time {
                sec: sec as i64,
                nsec: nsec as u32,
            }))),
        };
        if has(Setattr::SIZE) && i64::try_from(size).is_err() {
            return Err(Errno::EFBIG);
        }
        let set = SetAttr {
            mode: has(Setattr::MODE).then_some(mode & 0o7777),
            uid: owner(Setattr::UID, uid),
            gid: owner(Setattr::GID, gid),
            size: has(Setattr::SIZE).then_some(size),
            atime: time(Setattr::ATIME, Setattr::ATIME_SET, atime_sec, atime_nsec)?,
            mtime: time(Setattr::MTIME, Setattr::MTIME_SET, mtime_sec, mtime_nsec)?,
            ctime: has(Setattr::CTIME),
            // The client's kernel has removed the set-id bits from the mode itself.
            kill_priv: false,
        };
        self.change(&fid, &set)?;
        self.reply(&Rmessage::Setattr {})
    }

    /// Changes attributes, of the open file if there is one: it outlives its name, and a new size
    /// needs no permission. A file that is open for reading only cannot be truncated, but its node
    /// may be.
    pub(super) fn change(&self, fid: &FidState, set: &SetAttr) -> Result<Attr> {
        let cx = self.cx(&fid.attach().caller);
        let reach = set
            .size
            .and_then(|_| self.connection.write_states.find(fid.step()));
        let _order = reach
            .as_ref()
            .map(|reach| reach.lock_writes(&cx))
            .transpose()?;
        let attr = match fid.state() {
            State::Open(open) if set.size.is_none() || open.flags.contains(OpenFlags::WRITE) => {
                open.file.setattr(&cx, set)
            }
            _ => fid.node().setattr(&cx, set),
        }?;
        if let (Some(reach), Some(size)) = (&reach, set.size) {
            reach.resize(size);
        }
        Ok(attr)
    }

    pub(super) fn statfs(&mut self, fid: Fid) -> Result<()> {
        let fid = self.fid(fid)?;
        let stat = fid.node().statfs(&self.cx(&fid.attach().caller))?;
        self.reply(&Rmessage::Statfs {
            // Not the source's type: programs take a local file system's type as permission for
            // features that only work locally (inotify, for tail(1)).
            kind: V9FS_MAGIC,
            bsize: stat.bsize,
            blocks: stat.blocks,
            bfree: stat.bfree,
            bavail: stat.bavail,
            files: stat.files,
            ffree: stat.ffree,
            fsid: stat.fsid,
            namelen: stat.namelen,
        })
    }

    pub(super) fn readlink(&mut self, fid: Fid) -> Result<()> {
        let fid = self.fid(fid)?;
        let target = fid.node().readlink(&self.cx(&fid.attach().caller))?;
        if target.len() > u16::MAX.into() {
            return Err(Errno::ENAMETOOLONG);
        }
        self.reply(&Rmessage::Readlink { target: &target })
    }
}

/// The known fields of Rgetattr.
const KNOWN_FIELDS: u64 = 0x3fff;

/// Encodes a device number as the C library does; Linux decodes the lower 32 bits by the same rule
/// (`new_decode_dev`).
fn encode_device(device: Device) -> u64 {
    let (major, minor) = (u64::from(device.major), u64::from(device.minor));
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12 | (major & !0xfff) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_the_c_librarys() {
        let device = |major, minor| encode_device(Device { major, minor });
        assert_eq!(device(1, 3), 0x103);
        assert_eq!(device(8, 0x1_23), 0x10_0823);
        assert_eq!(device(0x1234, 0x5678_9abc), 0x0000_1567_89a2_34bc);
    }
}
