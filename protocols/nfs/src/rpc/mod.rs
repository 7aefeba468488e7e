//! ONC RPC version 2 (RFC 5531): record marking, call and reply headers, credentials.

mod auth;
mod call;
mod gss;
mod record;

pub(crate) use auth::{AuthStat, Credential, OpaqueAuth, SysCredential, flavor};
pub(crate) use call::{
    CALL, Call, CallRejection, REPLY, STARTTLS, VERSION, begin_reply, begin_verified, refuse,
    start_tls,
};
pub(crate) use gss::{GssCredential, GssProcedure, InitResult, Service};
pub(crate) use record::{LAST, MARK, Record, frame};

/// The numbers of the RPC programs.
pub(crate) mod program {
    /// The portmapper.
    pub(crate) const PORTMAP: u32 = 100_000;
    /// NFS v3 and v4.
    pub(crate) const NFS: u32 = 100_003;
    /// RQUOTA v1 and v2.
    pub(crate) const RQUOTA: u32 = 100_011;
    /// MOUNT v3.
    pub(crate) const MOUNT: u32 = 100_005;
    /// NLM v4.
    pub(crate) const NLM: u32 = 100_021;
    /// NFS_ACL v3.
    pub(crate) const NFS_ACL: u32 = 100_227;
    /// NSM.
    pub(crate) const NSM: u32 = 100_024;
}
