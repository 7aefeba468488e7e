//! Converts a server's replies to `vfs` types.

use vfs::{Attr, Errno, Kind, Result, StatFs, Time};

use crate::convert::decode_device;
use crate::layout;

/// Converts attributes. Returns `EIO` if the mode has an unknown file type.
///
/// The change counter is ctime in nanoseconds: FUSE has none.
pub fn of(attr: &layout::Attr, generation: u64) -> Result<Attr> {
    let ctime = time(attr.ctime as i64, attr.ctimensec);
    Ok(Attr {
        id: attr.ino.max(1),
        generation,
        kind: Kind::from_mode(attr.mode).ok_or(Errno::EIO)?,
        mode: attr.mode & 0o7777,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: decode_device(attr.rdev),
        size: attr.size,
        blksize: attr.blksize.max(1),
        blocks: attr.blocks,
        atime: time(attr.atime as i64, attr.atimensec),
        mtime: time(attr.mtime as i64, attr.mtimensec),
        ctime,
        btime: None,
        change: (ctime.sec as u64)
            .wrapping_mul(1_000_000_000)
            .wrapping_add(ctime.nsec.into()),
        device: 0,
    })
}

/// Returns the birth time, if the server sent it.
pub fn birth(stat: &layout::Statx) -> Option<Time> {
    let has_btime = stat.mask & crate::numbers::statx::BTIME != 0;
    has_btime.then(|| time(stat.btime.sec, stat.btime.nsec))
}

/// Converts the reply to STATFS.
pub fn statfs(stat: &layout::StatFs) -> StatFs {
    /// `FUSE_SUPER_MAGIC`
    const KIND: u32 = 0x6573_5546;
    StatFs {
        magic: KIND,
        // The unit of the counts.
        bsize: match stat.frsize {
            0 => stat.bsize,
            size => size,
        },
        blocks: stat.blocks,
        bfree: stat.bfree,
        bavail: stat.bavail,
        files: stat.files,
        ffree: stat.ffree,
        fsid: 0,
        namelen: stat.namelen,
        ..StatFs::default()
    }
}

fn time(sec: i64, nsec: u32) -> Time {
    Time {
        sec,
        nsec: nsec.min(999_999_999),
    }
}
