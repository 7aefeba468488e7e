//! RQUOTA versions 1 and 2: quotas of users and groups, for quota(1) of a client (`rquota.x` of
//! Linux's quota tools). There is no RFC.

use wire::{Malformed, Put, Xdr, XdrReader, xdr_enum, xdr_struct};

xdr_enum! {
    /// The procedures, with their arguments and results; the same in both versions.
    pub enum Procedure {
        /// No operation.
        Null = 0,
        /// Takes [`UserArgs`] or [`IdArgs`], returns a [`Found`].
        GetQuota = 1,
        /// The same, if the quota is in force.
        GetActiveQuota = 2,
        /// Changes limits.
        SetQuota = 3,
        /// The same, if the quota is in force.
        SetActiveQuota = 4,
    }
}

xdr_enum! {
    /// The status of a reply (`qr_status`).
    #[allow(missing_docs)]
    pub enum Status {
        Ok = 1,
        NoQuota = 2,
        Eperm = 3,
    }
}

xdr_struct! {
    /// The arguments of version 1 (`getquota_args`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct UserArgs<'a> {
        /// A path of the export.
        pub path: &'a [u8],
        /// The user.
        pub user: u32,
    }

    /// The arguments of version 2 (`ext_getquota_args`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct IdArgs<'a> {
        /// A path of the export.
        pub path: &'a [u8],
        /// 0 for a user, 1 for a group.
        pub kind: u32,
        /// The user or group.
        pub id: u32,
    }

    /// Limits and usage (`rquota`). A limit of 0 is none.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Quota {
        /// The unit of blocks in bytes.
        pub block_size: u32,
        /// Whether the quota is in force.
        pub active: bool,
        /// The hard limit of blocks.
        pub block_limit: u32,
        /// The soft limit of blocks.
        pub block_soft_limit: u32,
        /// Blocks in use.
        pub blocks: u32,
        /// The hard limit of files.
        pub file_limit: u32,
        /// The soft limit of files.
        pub file_soft_limit: u32,
        /// Files in use.
        pub files: u32,
        /// Seconds until the soft limit of blocks is in force.
        pub block_time_left: u32,
        /// Seconds until the soft limit of files is in force.
        pub file_time_left: u32,
    }
}

/// The results of the procedures (`getquota_rslt`, `setquota_rslt`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A quota.
    Quota(Quota),
    /// None, as the status says. The status is never [`Status::Ok`].
    None(Status),
}

impl<'a> Xdr<'a> for Found {
    fn get(from: &mut XdrReader<'a>) -> Result<Self, Malformed> {
        Ok(match Status::get(from)? {
            Status::Ok => Found::Quota(Quota::get(from)?),
            status => Found::None(status),
        })
    }

    fn put(&self, to: &mut impl Put) {
        match self {
            Found::Quota(quota) => {
                Status::Ok.put(to);
                quota.put(to);
            }
            Found::None(status) => status.put(to),
        }
    }
}
