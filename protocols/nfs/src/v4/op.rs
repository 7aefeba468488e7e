//! The operations of a COMPOUND and their arguments (RFC 8881 section 18, RFC 7530 section 16, RFC
//! 7862 section 15, RFC 8276 section 8).

use wire::{xdr_struct, xdr_union};

use super::attr::{Attributes, Bitmap, SpecData};
use super::types::{
    CallbackSecurity, Channel, ClientId, Data, Implementation, LockKind, NetAddr, Owner, SessionId,
    Stable, StateId, Verifier,
};

/// The operations' names by number. There are none below 3; the first name stands for a whole
/// compound.
pub(crate) const OPERATIONS: [&str; 76] = [
    "COMPOUND",
    "",
    "",
    "ACCESS",
    "CLOSE",
    "COMMIT",
    "CREATE",
    "DELEGPURGE",
    "DELEGRETURN",
    "GETATTR",
    "GETFH",
    "LINK",
    "LOCK",
    "LOCKT",
    "LOCKU",
    "LOOKUP",
    "LOOKUPP",
    "NVERIFY",
    "OPEN",
    "OPENATTR",
    "OPEN_CONFIRM",
    "OPEN_DOWNGRADE",
    "PUTFH",
    "PUTPUBFH",
    "PUTROOTFH",
    "READ",
    "READDIR",
    "READLINK",
    "REMOVE",
    "RENAME",
    "RENEW",
    "RESTOREFH",
    "SAVEFH",
    "SECINFO",
    "SETATTR",
    "SETCLIENTID",
    "SETCLIENTID_CONFIRM",
    "VERIFY",
    "WRITE",
    "RELEASE_LOCKOWNER",
    "BACKCHANNEL_CTL",
    "BIND_CONN_TO_SESSION",
    "EXCHANGE_ID",
    "CREATE_SESSION",
    "DESTROY_SESSION",
    "FREE_STATEID",
    "GET_DIR_DELEGATION",
    "GETDEVICEINFO",
    "GETDEVICELIST",
    "LAYOUTCOMMIT",
    "LAYOUTGET",
    "LAYOUTRETURN",
    "SECINFO_NO_NAME",
    "SEQUENCE",
    "SET_SSV",
    "TEST_STATEID",
    "WANT_DELEGATION",
    "DESTROY_CLIENTID",
    "RECLAIM_COMPLETE",
    "ALLOCATE",
    "COPY",
    "COPY_NOTIFY",
    "DEALLOCATE",
    "IO_ADVISE",
    "LAYOUTERROR",
    "LAYOUTSTATS",
    "OFFLOAD_CANCEL",
    "OFFLOAD_STATUS",
    "READ_PLUS",
    "SEEK",
    "WRITE_SAME",
    "CLONE",
    "GETXATTR",
    "SETXATTR",
    "LISTXATTRS",
    "REMOVEXATTR",
];

xdr_struct! {
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Close {
        pub(crate) seqid: u32,
        pub(crate) state: StateId,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Commit {
        pub(crate) offset: u64,
        pub(crate) count: u32,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Create<'a> {
        pub(crate) what: CreateWhat<'a>,
        pub(crate) name: &'a [u8],
        pub(crate) attributes: Attributes<'a>,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Lock<'a> {
        pub(crate) kind: LockKind,
        pub(crate) reclaim: bool,
        pub(crate) offset: u64,
        pub(crate) length: u64,
        pub(crate) locker: Locker<'a>,
    }

    /// The first lock of a lock owner in a file (`open_to_lock_owner4`).
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct NewLocker<'a> {
        pub(crate) open_seqid: u32,
        pub(crate) open: StateId,
        pub(crate) lock_seqid: u32,
        pub(crate) owner: Owner<'a>,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct OldLocker {
        pub(crate) state: StateId,
        pub(crate) seqid: u32,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct TestLock<'a> {
        pub(crate) kind: LockKind,
        pub(crate) offset: u64,
        pub(crate) length: u64,
        pub(crate) owner: Owner<'a>,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Unlock {
        pub(crate) kind: LockKind,
        pub(crate) seqid: u32,
        pub(crate) state: StateId,
        pub(crate) offset: u64,
        pub(crate) length: u64,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Open<'a> {
        pub(crate) seqid: u32,
        pub(crate) access: u32,
        pub(crate) deny: u32,
        pub(crate) owner: Owner<'a>,
        pub(crate) how: OpenHow<'a>,
        pub(crate) claim: Claim<'a>,
    }

    /// An exclusive create with attributes (v4.1, `creatverfattr`).
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Exclusive41<'a> {
        pub(crate) verifier: Verifier,
        pub(crate) attributes: Attributes<'a>,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct ClaimDelegated<'a> {
        pub(crate) state: StateId,
        pub(crate) name: &'a [u8],
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct OpenConfirm {
        pub(crate) state: StateId,
        pub(crate) seqid: u32,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct OpenDowngrade {
        pub(crate) state: StateId,
        pub(crate) seqid: u32,
        pub(crate) access: u32,
        pub(crate) deny: u32,
    }

    /// The arguments of READ and READ_PLUS.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Read {
        pub(crate) state: StateId,
        pub(crate) offset: u64,
        pub(crate) count: u32,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Readdir {
        pub(crate) cookie: u64,
        pub(crate) verifier: Verifier,
        pub(crate) dir_count: u32,
        pub(crate) max_count: u32,
        pub(crate) attributes: Bitmap,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Rename<'a> {
        pub(crate) from: &'a [u8],
        pub(crate) to: &'a [u8],
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Setattr<'a> {
        pub(crate) state: StateId,
        pub(crate) attributes: Attributes<'a>,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct SetClientId<'a> {
        pub(crate) verifier: Verifier,
        pub(crate) id: &'a [u8],
        pub(crate) program: u32,
        pub(crate) addr: NetAddr<'a>,
        pub(crate) ident: u32,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct SetClientIdConfirm {
        pub(crate) client: ClientId,
        pub(crate) verifier: Verifier,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Write<'a> {
        pub(crate) state: StateId,
        pub(crate) offset: u64,
        pub(crate) stable: Stable,
        pub(crate) data: Data<'a>,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct BackchannelCtl<'a> {
        pub(crate) program: u32,
        pub(crate) security: Vec<CallbackSecurity<'a>>,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct BindConnToSession {
        pub(crate) session: SessionId,
        /// 1: fore channel, 2: backchannel, 3 and 7: both, or either.
        pub(crate) direction: u32,
        pub(crate) rdma: bool,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct ExchangeId<'a> {
        pub(crate) verifier: Verifier,
        pub(crate) owner: &'a [u8],
        pub(crate) flags: u32,
        pub(crate) protect: Protect<'a>,
        /// The client's implementation: an array of at most one element.
        pub(crate) implementation: Option<Implementation<'a>>,
    }

    /// Operations that require the machine credential (`state_protect_ops4`).
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct ProtectOps {
        pub(crate) enforce: Bitmap,
        pub(crate) allow: Bitmap,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct ProtectSsv<'a> {
        pub(crate) operations: ProtectOps,
        pub(crate) hashes: Vec<&'a [u8]>,
        pub(crate) ciphers: Vec<&'a [u8]>,
        pub(crate) window: u32,
        pub(crate) handles: u32,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct CreateSession<'a> {
        pub(crate) client: ClientId,
        pub(crate) sequence: u32,
        pub(crate) flags: u32,
        pub(crate) fore: Channel,
        pub(crate) back: Channel,
        pub(crate) program: u32,
        pub(crate) security: Vec<CallbackSecurity<'a>>,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Sequence {
        pub(crate) session: SessionId,
        pub(crate) sequence: u32,
        pub(crate) slot: u32,
        pub(crate) highest_slot: u32,
        pub(crate) cache_this: bool,
    }

    /// The arguments of ALLOCATE and DEALLOCATE.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Space {
        pub(crate) state: StateId,
        pub(crate) offset: u64,
        pub(crate) length: u64,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Copy<'a> {
        pub(crate) from: StateId,
        pub(crate) to: StateId,
        pub(crate) from_offset: u64,
        pub(crate) to_offset: u64,
        /// 0 for up to the end of the file.
        pub(crate) count: u64,
        pub(crate) consecutive: bool,
        pub(crate) synchronous: bool,
        pub(crate) servers: Vec<NetLoc<'a>>,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct IoAdvise {
        pub(crate) state: StateId,
        pub(crate) offset: u64,
        pub(crate) count: u64,
        pub(crate) hints: Bitmap,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Seek {
        pub(crate) state: StateId,
        pub(crate) offset: u64,
        pub(crate) what: u32,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Clone {
        pub(crate) from: StateId,
        pub(crate) to: StateId,
        pub(crate) from_offset: u64,
        pub(crate) to_offset: u64,
        /// 0 for up to the end of the file.
        pub(crate) count: u64,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct SetXattr<'a> {
        /// 0: either, 1: must be new, 2: must exist.
        pub(crate) option: u32,
        pub(crate) name: &'a [u8],
        pub(crate) value: &'a [u8],
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct ListXattrs {
        pub(crate) cookie: u64,
        pub(crate) max_count: u32,
    }
}

xdr_union! {
    /// The type of node that CREATE makes (`createtype4`).
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) enum CreateWhat<'a> {
        /// Invalid in CREATE: regular files are created by OPEN, named attributes not at all.
        Regular = 1,
        AttributeDirectory = 8,
        NamedAttribute = 9,
        Link(&'a [u8]) = 5,
        Block(SpecData) = 3,
        Character(SpecData) = 4,
        Socket = 6,
        Fifo = 7,
        Directory = 2,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) enum Locker<'a> {
        Old(OldLocker) = 0,
        New(NewLocker<'a>) = 1,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) enum OpenHow<'a> {
        NoCreate = 0,
        Create(CreateHow<'a>) = 1,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) enum CreateHow<'a> {
        Unchecked(Attributes<'a>) = 0,
        Guarded(Attributes<'a>) = 1,
        Exclusive(Verifier) = 2,
        Exclusive41(Exclusive41<'a>) = 3,
    }

    /// The file to open, and the claim to it (`open_claim4`).
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) enum Claim<'a> {
        /// A name in the current directory.
        Null(&'a [u8]) = 0,
        /// The current file, reclaimed after a restart of the server; with the type of delegation.
        Previous(u32) = 1,
        DelegateCurrent(ClaimDelegated<'a>) = 2,
        DelegatePrevious(&'a [u8]) = 3,
        /// The current file (v4.1).
        Handle = 4,
        DelegateCurrentHandle(StateId) = 5,
        DelegatePreviousHandle = 6,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub(crate) enum Protect<'a> {
        None = 0,
        Machine(ProtectOps) = 1,
        Ssv(ProtectSsv<'a>) = 2,
    }

    /// The location of a server (`netloc4`).
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) enum NetLoc<'a> {
        Name(&'a [u8]) = 1,
        Url(&'a [u8]) = 2,
        Addr(NetAddr<'a>) = 3,
    }

    /// An operation with its arguments, by operation number. Missing operations return NOTSUPP for
    /// all arguments.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) enum Op<'a> {
        Access(u32) = 3,
        Close(Close) = 4,
        Commit(Commit) = 5,
        Create(Create<'a>) = 6,
        DelegReturn(StateId) = 8,
        Getattr(Bitmap) = 9,
        Getfh = 10,
        Link(&'a [u8]) = 11,
        Lock(Lock<'a>) = 12,
        TestLock(TestLock<'a>) = 13,
        Unlock(Unlock) = 14,
        Lookup(&'a [u8]) = 15,
        LookupParent = 16,
        Nverify(Attributes<'a>) = 17,
        Open(Open<'a>) = 18,
        OpenConfirm(OpenConfirm) = 20,
        OpenDowngrade(OpenDowngrade) = 21,
        Putfh(&'a [u8]) = 22,
        Putpubfh = 23,
        Putrootfh = 24,
        Read(Read) = 25,
        Readdir(Readdir) = 26,
        Readlink = 27,
        Remove(&'a [u8]) = 28,
        Rename(Rename<'a>) = 29,
        Renew(ClientId) = 30,
        Restorefh = 31,
        Savefh = 32,
        Secinfo(&'a [u8]) = 33,
        Setattr(Setattr<'a>) = 34,
        SetClientId(SetClientId<'a>) = 35,
        SetClientIdConfirm(SetClientIdConfirm) = 36,
        Verify(Attributes<'a>) = 37,
        Write(Write<'a>) = 38,
        ReleaseLockOwner(Owner<'a>) = 39,
        BackchannelCtl(BackchannelCtl<'a>) = 40,
        BindConnToSession(BindConnToSession) = 41,
        ExchangeId(ExchangeId<'a>) = 42,
        CreateSession(CreateSession<'a>) = 43,
        DestroySession(SessionId) = 44,
        FreeStateId(StateId) = 45,
        SecinfoNoName(u32) = 52,
        Sequence(Sequence) = 53,
        TestStateId(Vec<StateId>) = 55,
        DestroyClientId(ClientId) = 57,
        ReclaimComplete(bool) = 58,
        Allocate(Space) = 59,
        Copy(Copy<'a>) = 60,
        Deallocate(Space) = 62,
        IoAdvise(IoAdvise) = 63,
        OffloadCancel(StateId) = 66,
        OffloadStatus(StateId) = 67,
        ReadPlus(Read) = 68,
        Seek(Seek) = 69,
        Clone(Clone) = 71,
        GetXattr(&'a [u8]) = 72,
        SetXattr(SetXattr<'a>) = 73,
        ListXattrs(ListXattrs) = 74,
        RemoveXattr(&'a [u8]) = 75,
    }
}
