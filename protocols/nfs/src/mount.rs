//! MOUNT v3 (RFC 1813 appendix I): where a tree's root is, and who asked for it.

use wire::{Malformed, Put, Xdr, XdrReader, xdr_enum, xdr_struct};

use crate::v3::{Handle, List};

/// The longest path (`MNTPATHLEN`).
pub const MAX_PATH: usize = 1024;

xdr_enum! {
    /// The procedures.
    pub enum Procedure {
        /// Nothing.
        Null = 0,
        /// A [`Path`] to a [`Mounted`].
        Mnt = 1,
        /// Nothing to a [`List`] of [`Mount`].
        Dump = 2,
        /// A [`Path`] to nothing.
        Umnt = 3,
        /// Nothing to nothing.
        UmntAll = 4,
        /// Nothing to a [`List`] of [`Export`].
        Export = 5,
    }
}

xdr_enum! {
    /// How MNT ended (`mountstat3`).
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

    /// What MNT answers if all is well (`mountres3_ok`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct MountOk {
        /// The root.
        pub root: Handle,
        /// By which flavors of RPC a caller may say who it is, the best first.
        pub flavors: Vec<u32>,
    }

    /// Who has mounted what.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Mount<'a> {
        /// The client's name.
        pub host: &'a [u8],
        /// What.
        pub path: &'a [u8],
    }

    /// What may be mounted.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Export<'a> {
        /// Where.
        pub path: &'a [u8],
        /// By whom; nobody named is everybody.
        pub groups: List<&'a [u8]>,
    }
}

/// What MNT answers (`mountres3`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mounted {
    /// It may.
    Done(MountOk),
    /// It may not. Never with [`Status::Ok`].
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
