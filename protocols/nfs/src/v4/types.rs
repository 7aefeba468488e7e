//! The types of arguments and results.

use wire::{Malformed, Put, Xdr, XdrReader, xdr_enum, xdr_struct, xdr_union};

/// A client ID, assigned by the server.
pub type ClientId = u64;

/// A session ID, assigned by the server.
pub type SessionId = [u8; 16];

/// A verifier: distinguishes incarnations of a client or server, or attempts of a request.
pub type Verifier = [u8; 8];

xdr_struct! {
    /// A stateid: identifies an open, lock or delegation and its version (`stateid4`, RFC 8881
    /// section 3.3.12).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct StateId {
        /// The version, incremented by each change.
        pub seqid: u32,
        /// The identifier of the state.
        pub other: [u8; 12],
    }
}

impl StateId {
    /// The anonymous stateid: I/O without an open that honours others' share reservations (RFC 8881
    /// section 8.2.3).
    pub const ANONYMOUS: StateId = StateId {
        seqid: 0,
        other: [0; 12],
    };

    /// The stateid that is never valid: a server answers it with `NFS4ERR_BAD_STATEID` (RFC 8881
    /// section 8.2.3).
    pub const INVALID: StateId = StateId {
        seqid: u32::MAX,
        other: [0; 12],
    };

    /// The READ bypass stateid: I/O that bypasses share reservations.
    pub const BYPASS: StateId = StateId {
        seqid: u32::MAX,
        other: [0xff; 12],
    };

    /// The current stateid: the one most recently returned in this compound (v4.1).
    pub const CURRENT: StateId = StateId {
        seqid: 1,
        other: [0; 12],
    };
}

xdr_struct! {
    /// An open or lock owner, named by its client (`state_owner4`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Owner<'a> {
        pub(crate) client: ClientId,
        pub(crate) name: &'a [u8],
    }

    /// A directory's change attribute before and after an operation (`change_info4`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct ChangeInfo {
        /// Whether no other change can have happened in between.
        pub(crate) atomic: bool,
        pub(crate) before: u64,
        pub(crate) after: u64,
    }

    /// The limits of a session's channel (`channel_attrs4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct Channel {
        pub(crate) header_pad: u32,
        pub(crate) max_request: u32,
        pub(crate) max_response: u32,
        /// The maximum length in bytes of a cached reply.
        pub(crate) max_cached: u32,
        pub(crate) max_operations: u32,
        pub(crate) max_requests: u32,
        /// An array of at most one element.
        pub(crate) rdma: Option<u32>,
    }

    /// The address for callbacks to a v4.0 client (`clientaddr4`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct NetAddr<'a> {
        pub(crate) netid: &'a [u8],
        pub(crate) addr: &'a [u8],
    }

    /// The results of a copy (`write_response4`, RFC 7862 section 4.9.4).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct WriteResponse {
        /// The stateid of an asynchronous copy; empty if the copy is complete.
        pub(crate) callback: Vec<StateId>,
        pub(crate) count: u64,
        pub(crate) committed: Stable,
        pub(crate) verifier: Verifier,
    }

    /// The identity of an implementation (`nfs_impl_id4`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Implementation<'a> {
        pub(crate) domain: &'a [u8],
        pub(crate) name: &'a [u8],
        pub(crate) date: super::attr::NfsTime,
    }

    /// The identity of a server across its addresses (`server_owner4`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct ServerOwner<'a> {
        pub(crate) minor: u64,
        pub(crate) major: &'a [u8],
    }

    /// A conflicting lock (`LOCK4denied`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Denied<'a> {
        pub(crate) offset: u64,
        pub(crate) length: u64,
        pub(crate) kind: LockKind,
        pub(crate) owner: Owner<'a>,
    }

    /// The AUTH_SYS credential for callbacks (`authsys_parms`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct SysParms<'a> {
        pub(crate) stamp: u32,
        pub(crate) machine: &'a [u8],
        pub(crate) uid: u32,
        pub(crate) gid: u32,
        pub(crate) groups: Vec<u32>,
    }

    /// The RPCSEC_GSS handles for callbacks (`gss_cb_handles4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct GssHandles<'a> {
        pub(crate) service: u32,
        pub(crate) from_server: &'a [u8],
        pub(crate) from_client: &'a [u8],
    }

    /// An RPCSEC_GSS mechanism and service (`rpcsec_gss_info`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct GssInfo<'a> {
        /// The contents of its DER-encoded object identifier.
        pub(crate) oid: &'a [u8],
        pub(crate) quality: u32,
        pub(crate) service: u32,
    }
}

xdr_union! {
    /// A security flavor (`secinfo4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) enum SecInfo<'a> {
        None = 0,
        Sys = 1,
        Gss(GssInfo<'a>) = 6,
    }
}

xdr_union! {
    /// The credential of callbacks (`callback_sec_parms4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) enum CallbackSecurity<'a> {
        None = 0,
        Sys(SysParms<'a>) = 1,
        Gss(GssHandles<'a>) = 6,
    }
}

xdr_enum! {
    /// The type of a lock, and whether the client will wait (`nfs_lock_type4`).
    pub(crate) enum LockKind {
        Read = 1,
        Write = 2,
        ReadWait = 3,
        WriteWait = 4,
    }

    /// The stability of a write (`stable_how4`).
    pub(crate) enum Stable {
        Unstable = 0,
        Data = 1,
        File = 2,
    }

    /// The type of content that SEEK searches for and READ_PLUS returns (`data_content4`).
    pub(crate) enum Content {
        Data = 0,
        Hole = 1,
    }
}

/// Data at the end of an operation, in place in the message: its position matters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Data<'a>(pub(crate) &'a [u8]);

impl std::fmt::Debug for Data<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl<'a> Xdr<'a> for Data<'a> {
    fn get(from: &mut XdrReader<'a>) -> Result<Data<'a>, Malformed> {
        <&[u8]>::get(from).map(Data)
    }

    fn put(&self, to: &mut impl Put) {
        self.0.put(to);
    }
}
