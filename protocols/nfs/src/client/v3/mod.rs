//! NFS v3 and MOUNT calls (RFC 1813).

mod attr;
mod data;
mod dir;
mod fs;
mod mount;
mod name;
#[cfg(test)]
mod tests;

pub use attr::{Access, GetAttr, SetAttr};
pub use data::{Commit, Read, Write};
pub use dir::ReadDir;
pub(in crate::client) use fs::MAGIC;
pub use fs::{FsInfo, FsStat, PathConf};
pub use mount::{GetPort, Mount, NlmCall, Notify};
pub use name::{Create, Link, Lookup, Make, ReadLink, Remove, Rename};

use vfs::{Attr, Errno};
use wire::{Xdr, XdrReader};

use super::{Failure, Procedure, Tree};
use crate::rpc::program;
use crate::v3::{self, Outcome, Status};

impl Tree {
    fn of_v3(self, from: &v3::Attributes) -> Attr {
        let time = |time: v3::Time| vfs::Time {
            // Times in v3 are not before 1970.
            sec: i64::from(time.sec),
            nsec: time.nsec,
        };
        let ctime = time(from.ctime);
        Attr {
            id: self.node_id(from.fsid, from.fileid),
            generation: 0,
            kind: kind(from.kind),
            mode: from.mode & 0o7777,
            nlink: from.nlink,
            uid: from.uid,
            gid: from.gid,
            rdev: vfs::Device {
                major: from.rdev.major,
                minor: from.rdev.minor,
            },
            size: from.size,
            blksize: self.blksize,
            blocks: from.used.div_ceil(512),
            atime: time(from.atime),
            mtime: time(from.mtime),
            ctime,
            btime: None,
            // v3 has no change attribute: the ctime in nanoseconds takes its place.
            change: (ctime.sec as u64)
                .wrapping_mul(1_000_000_000)
                .wrapping_add(ctime.nsec.into()),
            device: from.fsid,
        }
    }
}

fn kind(kind: v3::Kind) -> vfs::Kind {
    match kind {
        v3::Kind::File => vfs::Kind::File,
        v3::Kind::Directory => vfs::Kind::Directory,
        v3::Kind::BlockDevice => vfs::Kind::BlockDevice,
        v3::Kind::CharDevice => vfs::Kind::CharDevice,
        v3::Kind::Symlink => vfs::Kind::Symlink,
        v3::Kind::Socket => vfs::Kind::Socket,
        v3::Kind::Fifo => vfs::Kind::Fifo,
    }
}

/// Decodes the results of a procedure; returns its error if it failed.
fn decode<'r, T: Xdr<'r>>(results: &'r [u8]) -> Result<T, Failure> {
    decode_from(XdrReader::new(results))
}

fn decode_from<'r, T: Xdr<'r>>(mut from: XdrReader<'r>) -> Result<T, Failure> {
    // The results that accompany an error are not used.
    let outcome = Outcome::<T, ()>::get(&mut from)?;
    match outcome {
        Outcome::Done(value) => {
            from.end()?;
            Ok(value)
        }
        Outcome::Failed(status, ()) => Err(failure_of(status)),
    }
}

fn failure_of(status: Status) -> Failure {
    Failure::Error(match status {
        Status::Jukebox => return Failure::Delay,
        Status::Ok | Status::Io | Status::Serverfault => Errno::EIO,
        Status::Perm => Errno::EPERM,
        Status::Noent => Errno::ENOENT,
        Status::Nxio => Errno::ENXIO,
        Status::Acces => Errno::EACCES,
        Status::Exist => Errno::EEXIST,
        Status::Xdev => Errno::EXDEV,
        Status::Nodev => Errno::ENODEV,
        Status::Notdir => Errno::ENOTDIR,
        Status::Isdir => Errno::EISDIR,
        Status::Inval | Status::Badtype | Status::Toosmall | Status::NotSync => Errno::EINVAL,
        Status::Fbig => Errno::EFBIG,
        Status::Nospc => Errno::ENOSPC,
        Status::Rofs => Errno::EROFS,
        Status::Mlink => Errno::EMLINK,
        Status::Nametoolong => Errno::ENAMETOOLONG,
        Status::Notempty => Errno::ENOTEMPTY,
        Status::Dquot => Errno::EDQUOT,
        Status::Stale | Status::Badhandle | Status::Remote | Status::BadCookie => Errno::ESTALE,
        Status::Notsupp => Errno::EOPNOTSUPP,
    })
}

/// Returns the procedure of NFS v3 with this number.
fn nfs_procedure(number: u32) -> Procedure {
    Procedure {
        program: program::NFS,
        version: 3,
        number,
    }
}

macro_rules! procedure {
    ($name:ident) => {
        fn procedure(&self) -> crate::client::Procedure {
            crate::client::v3::nfs_procedure(crate::v3::Procedure::$name as u32)
        }
    };
}
use procedure;
