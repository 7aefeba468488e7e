//! ONC RPC version 2 (RFC 5531): records, calls, replies, and who calls.

mod auth;
mod call;
mod record;

pub(crate) use auth::{AuthStat, Credential, OpaqueAuth, SYS, SysCredential};
pub(crate) use call::{CALL, Call, REPLY, Refusal, begin_reply, refuse};
pub(crate) use record::{LAST, MARK, Record, frame};

/// The programs spoken here, by their numbers.
pub(crate) mod program {
    /// NFS v3 and v4.
    pub(crate) const NFS: u32 = 100_003;
    /// MOUNT.
    pub(crate) const MOUNT: u32 = 100_005;
}
