//! The requirements of the Linux client, one test for each line of the list.

mod append;
pub(super) mod locks;
mod rest;
mod sessions;
mod trees;

use std::collections::HashSet;

use p9::server::Options;
use p9::{Datasync, Dialect, Fid, Names, Qid, QidType, Rmessage, Tag, Tmessage as T, Uid};
use vfs::Errno;
use wire::{Role, Session};

use crate::net::{FREE, Net, ROOT, errno, server};

pub(super) const O_RDONLY: u32 = 0;
pub(super) const O_WRONLY: u32 = 1;
pub(super) const O_RDWR: u32 = 2;
pub(super) const O_EXCL: u32 = 0o200;
pub(super) const O_TRUNC: u32 = 0o1000;
pub(super) const O_APPEND: u32 = 0o2000;
pub(super) const O_DIRECTORY: u32 = 0o200000;

pub(super) const STAT_BASIC: u64 = 0x7ff;

pub(super) fn linux() -> Net {
    Net::attached(Dialect::Linux)
}

#[track_caller]
pub(super) fn create(net: &Net, dir: Fid, fid: Fid, name: &str, flags: u32) -> Qid {
    net.walk(dir, fid, "");
    let create = T::Lcreate {
        fid,
        name: name.as_bytes(),
        flags,
        mode: 0o644,
        gid: 0,
    };
    match net.ok(&create) {
        Rmessage::Lcreate { qid, iounit: 0 } => qid,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
pub(super) fn make_file(net: &Net, name: &str, contents: &[u8]) {
    create(net, ROOT, FREE, name, O_WRONLY);
    assert_eq!(net.write(FREE, 0, contents), contents.len() as u32);
    net.clunk(FREE);
}

#[track_caller]
pub(super) fn mkdir(net: &Net, dfid: Fid, name: &str) -> Qid {
    let mkdir = T::Mkdir {
        dfid,
        name: name.as_bytes(),
        mode: 0o755,
        gid: 0,
    };
    match net.ok(&mkdir) {
        Rmessage::Mkdir { qid } => qid,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
pub(super) fn open(net: &Net, fid: Fid, flags: u32) -> Qid {
    match net.ok(&T::Lopen { fid, flags }) {
        Rmessage::Lopen { qid, iounit: 0 } => qid,
        other => panic!("{other:?}"),
    }
}

/// The fields of Rgetattr that the tests check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) valid: u64,
    pub(super) qid: Qid,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) nlink: u64,
    pub(super) size: u64,
    pub(super) blksize: u64,
    mtime: (u64, u64),
    pub(super) generation: u64,
}

#[track_caller]
pub(super) fn getattr(net: &Net, fid: Fid, mask: u64) -> Stat {
    match net.ok(&T::Getattr { fid, mask }) {
        Rmessage::Getattr {
            valid,
            qid,
            mode,
            uid,
            gid,
            nlink,
            size,
            blksize,
            mtime_sec,
            mtime_nsec,
            generation,
            ..
        } => Stat {
            valid,
            qid,
            mode,
            uid,
            gid,
            nlink,
            size,
            blksize,
            mtime: (mtime_sec, mtime_nsec),
            generation,
        },
        other => panic!("{other:?}"),
    }
}

/// Returns a Tsetattr of a mode and a size, selected by `valid`.
pub(super) fn setattr(fid: Fid, valid: u32, mode: u32, size: u64) -> T<'static> {
    T::Setattr {
        fid,
        valid,
        mode,
        uid: 0,
        gid: 0,
        size,
        atime_sec: 0,
        atime_nsec: 0,
        mtime_sec: 5,
        mtime_nsec: 6,
    }
}

#[derive(Debug)]
pub(super) struct DirEntry {
    pub(super) qid: Qid,
    pub(super) offset: u64,
    pub(super) d_type: u8,
    pub(super) name: String,
}

#[track_caller]
pub(super) fn readdir(net: &Net, fid: Fid, offset: u64, count: u32) -> Vec<DirEntry> {
    let data = match net.ok(&T::Readdir { fid, offset, count }) {
        Rmessage::Readdir { data } => data.0,
        other => panic!("{other:?}"),
    };
    assert!(data.len() <= count as usize);
    let mut from = wire::Reader::new(data);
    let mut entries = Vec::new();
    while !from.rest().is_empty() {
        let mut entry = || -> Result<DirEntry, wire::Malformed> {
            Ok(DirEntry {
                qid: Qid {
                    kind: QidType::from_bits_retain(from.u8()?),
                    version: from.u32()?,
                    path: from.u64()?,
                },
                offset: from.u64()?,
                d_type: from.u8()?,
                name: {
                    let len = from.u16()?;
                    String::from_utf8_lossy(from.bytes(len.into())?).into_owned()
                },
            })
        };
        entries.push(entry().expect("whole entries"));
    }
    entries
}
