//! FSSTAT, FSINFO, PATHCONF.

use vfs::StatFs;
use wire::Xdr;

use super::{decode, procedure};
use crate::client::{CallArguments, ClientCall, Failure, Limits};
use crate::v3::{FsInfoOk, FsStatOk, PathConfOk};

/// Linux's `NFS_SUPER_MAGIC`.
pub(in crate::client) const MAGIC: u32 = 0x6969;

/// An FSSTAT; returns the statistics without the maximum name length.
pub struct FsStat<'a> {
    /// The handle of a node in the file system.
    pub handle: &'a [u8],
}

impl CallArguments for FsStat<'_> {
    procedure!(FsStat);

    fn put(&self, to: &mut Vec<u8>) {
        self.handle.put(to);
    }
}

impl ClientCall for FsStat<'_> {
    type Answer<'r> = StatFs;

    fn answer(&self, results: &[u8]) -> Result<StatFs, Failure> {
        let ok: FsStatOk = decode(results)?;
        const BLOCK: u64 = 4096;
        Ok(StatFs {
            magic: MAGIC,
            bsize: BLOCK as u32,
            blocks: ok.total_bytes / BLOCK,
            bfree: ok.free_bytes / BLOCK,
            bavail: ok.available_bytes / BLOCK,
            files: ok.total_files,
            ffree: ok.free_files,
            fsid: 0,
            namelen: 0,
            ..StatFs::default()
        })
    }
}

/// An FSINFO; returns the maximum I/O sizes.
pub struct FsInfo<'a> {
    /// The handle of a node in the file system.
    pub handle: &'a [u8],
}

impl CallArguments for FsInfo<'_> {
    procedure!(FsInfo);

    fn put(&self, to: &mut Vec<u8>) {
        self.handle.put(to);
    }
}

impl ClientCall for FsInfo<'_> {
    type Answer<'r> = Limits;

    fn answer(&self, results: &[u8]) -> Result<Limits, Failure> {
        let ok: FsInfoOk = decode(results)?;
        Ok(Limits {
            read: ok.read_max,
            write: ok.write_max,
        })
    }
}

/// A PATHCONF; returns the maximum name length in bytes.
pub struct PathConf<'a> {
    /// The handle of a node in the file system.
    pub handle: &'a [u8],
}

impl CallArguments for PathConf<'_> {
    procedure!(PathConf);

    fn put(&self, to: &mut Vec<u8>) {
        self.handle.put(to);
    }
}

impl ClientCall for PathConf<'_> {
    type Answer<'r> = u32;

    fn answer(&self, results: &[u8]) -> Result<u32, Failure> {
        decode(results).map(|ok: PathConfOk| ok.name_max)
    }
}
