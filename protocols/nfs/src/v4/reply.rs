//! The results of successful operations, after operation number and status. Those of READ, READDIR
//! and READ_PLUS are encoded piecewise instead.

use wire::{xdr_struct, xdr_union};

use super::Status;
use super::attr::Bitmap;
use super::types::{
    ChangeInfo, Channel, ClientId, Implementation, ServerOwner, SessionId, Stable, StateId,
    Verifier, WriteResponse,
};

xdr_struct! {
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Accessible {
        /// The requested bits that the server can evaluate.
        pub(crate) supported: u32,
        pub(crate) access: u32,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Created {
        pub(crate) change: ChangeInfo,
        pub(crate) set: Bitmap,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Renamed {
        pub(crate) from: ChangeInfo,
        pub(crate) to: ChangeInfo,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Opened<'a> {
        pub(crate) state: StateId,
        pub(crate) change: ChangeInfo,
        pub(crate) flags: u32,
        pub(crate) set: Bitmap,
        pub(crate) delegation: Delegation<'a>,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Written {
        pub(crate) count: u32,
        pub(crate) committed: Stable,
        pub(crate) verifier: Verifier,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct ClientIdSet {
        pub(crate) client: ClientId,
        pub(crate) confirm: Verifier,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Bound {
        pub(crate) session: SessionId,
        pub(crate) direction: u32,
        pub(crate) rdma: bool,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Exchanged<'a> {
        pub(crate) client: ClientId,
        pub(crate) sequence: u32,
        pub(crate) flags: u32,
        /// SP4_NONE, the only state protection that is supported.
        pub(crate) protect: u32,
        pub(crate) owner: ServerOwner<'a>,
        pub(crate) scope: &'a [u8],
        pub(crate) implementation: Option<Implementation<'a>>,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct SessionCreated {
        pub(crate) session: SessionId,
        pub(crate) sequence: u32,
        pub(crate) flags: u32,
        pub(crate) fore: Channel,
        pub(crate) back: Channel,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Sequenced {
        pub(crate) session: SessionId,
        pub(crate) sequence: u32,
        pub(crate) slot: u32,
        pub(crate) highest_slot: u32,
        pub(crate) target_highest_slot: u32,
        pub(crate) flags: u32,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Copied {
        pub(crate) written: WriteResponse,
        pub(crate) consecutive: bool,
        pub(crate) synchronous: bool,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct OffloadState {
        pub(crate) count: u64,
        /// The final status if the copy is complete, otherwise empty.
        pub(crate) complete: Vec<Status>,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Sought {
        pub(crate) eof: bool,
        pub(crate) offset: u64,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct XattrNames<'a> {
        pub(crate) cookie: u64,
        pub(crate) names: Vec<&'a [u8]>,
        pub(crate) eof: bool,
    }
}

xdr_union! {
    /// The delegation granted by an OPEN (`open_delegation4`).
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) enum Delegation<'a> {
        None = 0,
        Read(ReadDelegation<'a>) = 1,
        Write(WriteDelegation<'a>) = 2,
        /// The reason for which there is none (v4.1).
        NoneBecause(WhyNone) = 3,
    }

    /// The reason for which no delegation was granted (`open_none_delegation4`), and whether the
    /// server will signal when one is available.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) enum WhyNone {
        NotWanted = 0,
        Contention(bool) = 1,
        Resource(bool) = 2,
        FileType = 3,
        FileTypeToWrite = 4,
        Upgrade = 5,
        Downgrade = 6,
        Cancelled = 7,
        Directory = 8,
    }

    /// The limit on the growth of a file under a write delegation (`nfs_space_limit4`).
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) enum SpaceLimit {
        Size(u64) = 1,
        Blocks(super::attr::SpecData) = 2,
    }
}

xdr_struct! {
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct ReadDelegation<'a> {
        pub(crate) state: StateId,
        pub(crate) recall: bool,
        pub(crate) permissions: super::attr::Ace<'a>,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct WriteDelegation<'a> {
        pub(crate) state: StateId,
        pub(crate) recall: bool,
        pub(crate) limit: SpaceLimit,
        pub(crate) permissions: super::attr::Ace<'a>,
    }
}
