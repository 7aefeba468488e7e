//! What operations are made of.

use wire::{Malformed, Put, Xdr, XdrReader, xdr_enum, xdr_struct, xdr_union};

/// A client's short name, given by the server.
pub type ClientId = u64;

/// A session's name, given by the server.
pub type SessionId = [u8; 16];

/// Eight bytes that tell one run, or one attempt, from another.
pub type Verifier = [u8; 8];

xdr_struct! {
    /// Names an open, a lock or a delegation, and which of its states (`stateid4`, RFC 8881 section 3.3.12).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct StateId {
        /// Which of its states: counts up with each change.
        pub seqid: u32,
        /// What it names.
        pub other: [u8; 12],
    }
}

impl StateId {
    /// No open at all: I/O that honours others' share reservations (RFC 8881 section 8.2.3).
    pub const ANONYMOUS: StateId = StateId {
        seqid: 0,
        other: [0; 12],
    };

    /// No open, and no share reservation either.
    pub const BYPASS: StateId = StateId {
        seqid: u32::MAX,
        other: [0xff; 12],
    };

    /// Whatever the last operation of this compound that made one made (v4.1).
    pub const CURRENT: StateId = StateId {
        seqid: 1,
        other: [0; 12],
    };
}

xdr_struct! {
    /// Who opens or locks, as its client names it (`state_owner4`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Owner<'a> {
        pub(crate) client: ClientId,
        pub(crate) name: &'a [u8],
    }

    /// A directory's change counter before and after an operation (`change_info4`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct ChangeInfo {
        /// Whether nothing else can have changed it in between.
        pub(crate) atomic: bool,
        pub(crate) before: u64,
        pub(crate) after: u64,
    }

    /// What a channel of a session carries (`channel_attrs4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct Channel {
        pub(crate) header_pad: u32,
        pub(crate) max_request: u32,
        pub(crate) max_response: u32,
        /// The most bytes of a reply that is kept to be sent again.
        pub(crate) max_cached: u32,
        pub(crate) max_operations: u32,
        pub(crate) max_requests: u32,
        /// An array of one element at most.
        pub(crate) rdma: Option<u32>,
    }

    /// Where a client of 4.0 is called back (`clientaddr4`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct NetAddr<'a> {
        pub(crate) netid: &'a [u8],
        pub(crate) addr: &'a [u8],
    }

    /// What a copy has written (`write_response4`, RFC 7862 section 4.9.4).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct WriteResponse {
        /// Names a copy that goes on; empty when it is done.
        pub(crate) callback: Vec<StateId>,
        pub(crate) count: u64,
        pub(crate) committed: Stable,
        pub(crate) verifier: Verifier,
    }

    /// What a program is called (`nfs_impl_id4`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Implementation<'a> {
        pub(crate) domain: &'a [u8],
        pub(crate) name: &'a [u8],
        pub(crate) date: super::attr::NfsTime,
    }

    /// What a server is, across its addresses (`server_owner4`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct ServerOwner<'a> {
        pub(crate) minor: u64,
        pub(crate) major: &'a [u8],
    }

    /// A lock that is in the way (`LOCK4denied`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Denied<'a> {
        pub(crate) offset: u64,
        pub(crate) length: u64,
        pub(crate) kind: LockKind,
        pub(crate) owner: Owner<'a>,
    }

    /// AUTH_SYS as callbacks use it (`authsys_parms`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct SysParms<'a> {
        pub(crate) stamp: u32,
        pub(crate) machine: &'a [u8],
        pub(crate) uid: u32,
        pub(crate) gid: u32,
        pub(crate) groups: Vec<u32>,
    }

    /// RPCSEC_GSS as callbacks use it (`gss_cb_handles4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct GssHandles<'a> {
        pub(crate) service: u32,
        pub(crate) from_server: &'a [u8],
        pub(crate) from_client: &'a [u8],
    }

    /// A mechanism of RPCSEC_GSS (`rpcsec_gss_info`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct GssInfo<'a> {
        /// Its object identifier, as DER has what is in one.
        pub(crate) oid: &'a [u8],
        pub(crate) quality: u32,
        pub(crate) service: u32,
    }
}

xdr_union! {
    /// A way to say who one is (`secinfo4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) enum SecInfo<'a> {
        None = 0,
        Sys = 1,
        Gss(GssInfo<'a>) = 6,
    }
}

xdr_union! {
    /// How callbacks say who calls (`callback_sec_parms4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) enum CallbackSecurity<'a> {
        None = 0,
        Sys(SysParms<'a>) = 1,
        Gss(GssHandles<'a>) = 6,
    }
}

xdr_enum! {
    /// How strong a lock is, and whether it is waited for (`nfs_lock_type4`).
    pub(crate) enum LockKind {
        Read = 1,
        Write = 2,
        ReadWait = 3,
        WriteWait = 4,
    }

    /// How durable a write is (`stable_how4`).
    pub(crate) enum Stable {
        Unstable = 0,
        Data = 1,
        File = 2,
    }

    /// What SEEK seeks, and what READ_PLUS finds (`data_content4`).
    pub(crate) enum Content {
        Data = 0,
        Hole = 1,
    }
}

/// Bytes that end an operation. They are not copied: what counts is where they stand.
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
