//! Reading and changing attributes.

use std::os::fd::BorrowedFd;

use rustix::fs::{
    AtFlags, Gid, Mode, RawMode, Statx, StatxTimestamp, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, Uid,
};
use rustix::io::Errno as Raw;
use rustix::path::DecInt;
use sys::errno;
use vfs::{Attr, AttrMask, Cx, Errno, Kind, Result, SetAttr, SetTime, Time};

use crate::device::Device;
use crate::host::Host;
use crate::identity;
use crate::proc_fd::ProcPath;
use crate::stat::{dev_of, incarnation_of, stat};

/// Converts the result of statx(2) for a node on `device`, without a generation.
///
/// The change counter is the ctime in nanoseconds. Kernels from 6.13 on take it from a fine-grained
/// clock if the attributes were read since the last change (ext4, XFS, btrfs, tmpfs), so two states
/// that were both read never share one. Including the mtime would add no information: each change
/// of it changes the ctime. The size is included for directories of tmpfs, where making a hard link
/// does not use the fine-grained clock, but each name adds to the size.
pub(crate) fn of(device: &Device, stx: &Statx) -> Attr {
    let mode = u32::from(stx.stx_mode);
    let ctime = time(stx.stx_ctime);
    let kind = Kind::from_mode(mode).unwrap_or(Kind::File);
    let mut change = (ctime.sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(ctime.nsec.into());
    if kind == Kind::Directory && device.is_memory() {
        change = change.wrapping_add(stx.stx_size);
    }
    Attr {
        id: device.id(stx.stx_ino),
        generation: 0,
        kind,
        mode: mode & 0o7777,
        nlink: stx.stx_nlink,
        uid: stx.stx_uid,
        gid: stx.stx_gid,
        rdev: vfs::Device {
            major: stx.stx_rdev_major,
            minor: stx.stx_rdev_minor,
        },
        size: stx.stx_size,
        blksize: stx.stx_blksize,
        blocks: stx.stx_blocks,
        atime: time(stx.stx_atime),
        mtime: time(stx.stx_mtime),
        ctime,
        btime: (stx.stx_mask & rustix::fs::StatxFlags::BTIME.bits() != 0)
            .then(|| time(stx.stx_btime)),
        change,
        device: dev_of(stx),
    }
}

/// Returns the attributes of the object that `fd` is open on, on `device`.
pub(crate) fn read(device: &Device, fd: BorrowedFd<'_>, want: AttrMask) -> Result<Attr> {
    let mut attr = of(device, &stat(fd)?);
    if want.contains(AttrMask::GENERATION) {
        attr.generation = incarnation_of(fd);
    }
    Ok(attr)
}

fn time(stamp: StatxTimestamp) -> Time {
    Time {
        sec: stamp.tv_sec,
        nsec: stamp.tv_nsec,
    }
}

/// The means by which an object is changed.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    /// A descriptor that may be `O_PATH` only: permissions are checked.
    Path(BorrowedFd<'a>),
    /// An open file.
    Open(BorrowedFd<'a>),
}

/// Applies the changes in `set`: owner, mode, times, size. Permissions are those of the caller,
/// whose identity the thread has. An error ends it; earlier changes stay.
fn change(host: &Host, target: Target<'_>, set: &SetAttr) -> Result<()> {
    if set.uid.is_some() || set.gid.is_some() {
        target.chown(set.uid, set.gid)?;
    }
    // After the owner, whose change removes set-id bits.
    if let Some(mode) = set.mode {
        target.chmod(host, mode)?;
    }
    let timed = set.atime.is_some() || set.mtime.is_some();
    if timed {
        target.set_times(set)?;
    }
    if let Some(size) = set.size {
        target.truncate(size)?;
        // Truncating has set the mtime to now.
        if matches!(set.mtime, Some(SetTime::At(_))) {
            target.set_times(set)?;
        }
    }
    let changed = set.uid.is_some() || set.gid.is_some() || set.mode.is_some() || timed;
    if set.ctime && !changed && set.size.is_none() {
        target.set_ctime(host)?;
    }
    if set.kill_priv {
        identity::assume_server()?;
        target.kill_privileges(host)?;
    }
    Ok(())
}

impl<'a> Target<'a> {
    fn fd(self) -> BorrowedFd<'a> {
        match self {
            Target::Path(fd) | Target::Open(fd) => fd,
        }
    }

    fn chown(self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        match self {
            Target::Path(fd) => rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH),
            Target::Open(fd) => rustix::fs::fchown(fd, uid, gid),
        }
        .map_err(errno)
    }

    fn chmod(self, host: &Host, mode: u32) -> Result<()> {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        match self {
            Target::Path(fd) => {
                rustix::fs::chmodat(&host.proc_fds, DecInt::from_fd(fd), mode, AtFlags::empty())
            }
            Target::Open(fd) => rustix::fs::fchmod(fd, mode),
        }
        .map_err(errno)
    }

    fn utimens(self, times: &Timestamps) -> rustix::io::Result<()> {
        match self {
            Target::Path(fd) => rustix::fs::utimensat(fd, c"", times, AtFlags::EMPTY_PATH),
            Target::Open(fd) => rustix::fs::futimens(fd, times),
        }
    }

    fn set_times(self, set: &SetAttr) -> Result<()> {
        let times = Timestamps {
            last_access: timespec(set.atime),
            last_modification: timespec(set.mtime),
        };
        let explicit = |time| matches!(time, Some(SetTime::At(_)));
        match self.utimens(&times) {
            // The kernel lets a process with write permission set both times to now, or none.
            Err(Raw::PERM | Raw::ACCESS) if !explicit(set.atime) && !explicit(set.mtime) => {
                // A new size sets the mtime to now itself.
                if set.size.is_some() {
                    return Ok(());
                }
                let now = timespec(Some(SetTime::Now));
                self.utimens(&Timestamps {
                    last_access: now,
                    last_modification: now,
                })
                .map_err(errno)
            }
            done => done.map_err(errno),
        }
    }

    fn truncate(self, size: u64) -> Result<()> {
        match self {
            Target::Path(fd) => sys::path::truncate(ProcPath::of(fd).as_c_str(), size),
            Target::Open(fd) => rustix::fs::ftruncate(fd, size),
        }
        .map_err(errno)
    }

    /// Sets only the ctime to now.
    fn set_ctime(self, host: &Host) -> Result<()> {
        let stx = stat(self.fd())?;
        let mode = RawMode::from(stx.stx_mode);
        // A change of owner without ids needs no permission, but removes a file's set-id bits; for
        // such a file the same mode is set instead.
        if mode & 0o6000 == 0 {
            self.chown(None, None)
        } else {
            self.chmod(host, mode & 0o7777)
        }
    }

    /// Removes set-id bits and file capabilities, as the kernel does when an unprivileged process
    /// changes a file.
    fn kill_privileges(self, host: &Host) -> Result<()> {
        let mode = RawMode::from(stat(self.fd())?.stx_mode);
        if Kind::from_mode(mode) != Some(Kind::File) {
            return Ok(());
        }
        let mut retained = mode & 0o7777 & !0o4000;
        // Set-gid without execute permission for the group used to mean mandatory locking.
        if mode & 0o010 != 0 {
            retained &= !0o2000;
        }
        if retained != mode & 0o7777 {
            self.chmod(host, retained)?;
        }
        match rustix::fs::removexattr(ProcPath::of(self.fd()).as_c_str(), c"security.capability") {
            // For an ordinary user's change the kernel removes them itself.
            Ok(()) | Err(Raw::NODATA | Raw::OPNOTSUPP | Raw::PERM) => Ok(()),
            Err(error) => Err(errno(error)),
        }
    }
}

fn timespec(time: Option<SetTime>) -> Timespec {
    let (tv_sec, tv_nsec) = match time {
        None => (0, UTIME_OMIT),
        Some(SetTime::Now) => (0, UTIME_NOW),
        Some(SetTime::At(time)) => (time.sec, time.nsec.into()),
    };
    Timespec { tv_sec, tv_nsec }
}

/// Returns `EINVAL` for values that system calls cannot express: an id of -1 leaves the owner in
/// chown(2), and a time has less than a second of nanoseconds.
pub(crate) fn validate(set: &SetAttr) -> Result<()> {
    let time_is_good =
        |time| !matches!(time, Some(SetTime::At(Time { nsec, .. })) if nsec > 999_999_999);
    if set.uid == Some(u32::MAX)
        || set.gid == Some(u32::MAX)
        || !time_is_good(set.atime)
        || !time_is_good(set.mtime)
    {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// Applies [`change`] on behalf of `cx`'s caller, and returns the attributes afterwards.
pub(crate) fn set(device: &Device, cx: &Cx<'_>, target: Target<'_>, set: &SetAttr) -> Result<Attr> {
    validate(set)?;
    device.allow_brief(cx.patience)?;
    device.host.identity.assume(cx)?;
    change(&device.host, target, set)?;
    read(device, target.fd(), AttrMask::STAT)
}
