//! MOUNT v3 (RFC 1813 appendix I): file handles of exported directories, and lists of exports and
//! mounts.

use wire::{Malformed, Put, Xdr, XdrReader, xdr_enum, xdr_struct};

use crate::v3::{Handle, List};

/// The maximum length of a path (`MNTPATHLEN`).
pub const MAX_PATH: usize = 1024;

xdr_enum! {
    /// The procedures, with their arguments and results.
    pub enum Procedure {
        /// No operation.
        Null = 0,
        /// Takes a [`Path`], returns a [`Mounted`].
        Mnt = 1,
        /// Returns a [`List`] of [`Mount`].
        Dump = 2,
        /// Takes a [`Path`], returns no results.
        Umnt = 3,
        /// Takes no arguments, returns no results.
        UmntAll = 4,
        /// Returns a [`List`] of [`Export`].
        Export = 5,
    }
}

xdr_enum! {
    /// The status of MNT (`mountstat3`).
    #[allow(missing_docs)]
    pub enum Status {
        Ok = 0,
        Perm = 1,
        Noent = 2,
        Io = 5,
        Acces = 13,
        Notdir = 20,
        Inval = 22,
        Nametoolong = 63,
        Notsupp = 10004,
        Serverfault = 10006,
    }
}

xdr_struct! {
    /// A path (`dirpath`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Path<'a> {
        /// Its bytes.
        pub bytes: &'a [u8],
    }

    /// The results of a successful MNT (`mountres3_ok`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct MountOk {
        /// The root's handle.
        pub root: Handle,
        /// The accepted RPC security flavors, the preferred one first.
        pub flavors: Vec<u32>,
    }

    /// A mount of a client.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Mount<'a> {
        /// The client's name.
        pub host: &'a [u8],
        /// The path.
        pub path: &'a [u8],
    }

    /// An export.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Export<'a> {
        /// The path.
        pub path: &'a [u8],
        /// The clients that it is exported to; empty for all clients.
        pub groups: List<&'a [u8]>,
    }
}

/// The results of MNT (`mountres3`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mounted {
    /// Success.
    Done(MountOk),
    /// Failure. The status is never [`Status::Ok`].
    Failed(Status),
}

impl<'a> Xdr<'a> for Mounted {
    fn get(from: &mut XdrReader<'a>) -> Result<Self, Malformed> {
        Ok(match Status::get(from)? {
            Status::Ok => Mounted::Done(MountOk::get(from)?),
            status => Mounted::Failed(status),
        })
    }

    fn put(&self, to: &mut impl Put) {
        match self {
            Mounted::Done(value) => {
                Status::Ok.put(to);
                value.put(to);
            }
            Mounted::Failed(status) => status.put(to),
        }
    }
}
