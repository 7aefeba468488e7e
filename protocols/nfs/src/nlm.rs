//! NLM v4 (X/Open XNFS chapter 14, with the 64-bit ranges of RFC 1813 appendix II): advisory locks
//! for v3.

use wire::{Malformed, Put, Xdr, XdrReader, xdr_enum, xdr_struct};

/// The maximum length of a client's name (`LM_MAXSTRLEN`).
pub const MAX_NAME: usize = 1024;

/// The maximum length of an opaque value (`MAXNETOBJ_SZ`).
pub const MAX_OBJECT: usize = 1024;

xdr_enum! {
    /// The procedures. Those that end in `Msg` are answered by a separate call in the other
    /// direction, whose procedure ends in `Res`.
    #[allow(missing_docs)]
    pub enum Procedure {
        /// No operation.
        Null = 0,
        /// Takes [`TestArgs`], returns [`TestResult`].
        Test = 1,
        /// Takes [`LockArgs`], returns [`LockResult`].
        Lock = 2,
        /// Takes [`CancelArgs`], returns [`LockResult`].
        Cancel = 3,
        /// Takes [`UnlockArgs`], returns [`LockResult`].
        Unlock = 4,
        /// A call to the client: takes [`TestArgs`], returns [`LockResult`].
        Granted = 5,
        /// Takes the arguments of [`Procedure::Test`], returns no results; the others accordingly.
        TestMsg = 6,
        LockMsg = 7,
        CancelMsg = 8,
        UnlockMsg = 9,
        /// Takes the results of [`Procedure::Test`], returns no results; the others accordingly.
        TestRes = 11,
        LockRes = 12,
        CancelRes = 13,
        UnlockRes = 14,
        /// Takes [`ShareArgs`], returns [`ShareResult`].
        Share = 20,
        /// Takes [`ShareArgs`], returns [`ShareResult`].
        Unshare = 21,
        /// Takes [`LockArgs`], returns [`LockResult`]; for clients that do not report their
        /// restarts.
        NmLock = 22,
        /// Takes [`FreeArgs`], returns no results.
        FreeAll = 23,
    }
}

xdr_enum! {
    /// The status of a call (`nlm4_stats`).
    #[allow(missing_docs)]
    pub enum Status {
        Granted = 0,
        Denied = 1,
        DeniedNoLocks = 2,
        Blocked = 3,
        DeniedGracePeriod = 4,
        Deadlock = 5,
        Rofs = 6,
        StaleFh = 7,
        Fbig = 8,
        Failed = 9,
    }
}

xdr_struct! {
    /// A range of a file, and the owner of the lock (`nlm4_lock`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Lock<'a> {
        /// The name that the client claims.
        pub caller: &'a [u8],
        /// The file's handle.
        pub file: &'a [u8],
        /// The lock owner within the client.
        pub owner: &'a [u8],
        /// The process within the client.
        pub process: i32,
        /// The offset of the first byte.
        pub offset: u64,
        /// The length in bytes; 0 for up to the end of the file.
        pub len: u64,
    }

    /// The arguments of TEST and GRANTED (`nlm4_testargs`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TestArgs<'a> {
        /// The client's identifier of the call.
        pub cookie: &'a [u8],
        /// Whether the lock is exclusive.
        pub exclusive: bool,
        /// The lock.
        pub lock: Lock<'a>,
    }

    /// The arguments of LOCK (`nlm4_lockargs`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LockArgs<'a> {
        /// The client's identifier of the call.
        pub cookie: &'a [u8],
        /// Whether to wait for the lock.
        pub block: bool,
        /// Whether the lock is exclusive.
        pub exclusive: bool,
        /// The lock.
        pub lock: Lock<'a>,
        /// Whether the client held the lock before the server restarted.
        pub reclaim: bool,
        /// The client's NSM state number.
        pub state: i32,
    }

    /// The arguments of CANCEL (`nlm4_cancargs`), which ends a waiting LOCK.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CancelArgs<'a> {
        /// The client's identifier of the call.
        pub cookie: &'a [u8],
        /// As in the LOCK.
        pub block: bool,
        /// As in the LOCK.
        pub exclusive: bool,
        /// As in the LOCK.
        pub lock: Lock<'a>,
    }

    /// The arguments of UNLOCK (`nlm4_unlockargs`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct UnlockArgs<'a> {
        /// The client's identifier of the call.
        pub cookie: &'a [u8],
        /// The lock.
        pub lock: Lock<'a>,
    }

    /// The results of LOCK, CANCEL, UNLOCK and GRANTED (`nlm4_res`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LockResult<'a> {
        /// The client's identifier of the call.
        pub cookie: &'a [u8],
        /// The status.
        pub status: Status,
    }

    /// A conflicting lock (`nlm4_holder`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Holder<'a> {
        /// Whether the lock is exclusive.
        pub exclusive: bool,
        /// The process that holds it.
        pub process: i32,
        /// The owner.
        pub owner: &'a [u8],
        /// The offset of the first byte.
        pub offset: u64,
        /// The length in bytes; 0 for up to the end of the file.
        pub len: u64,
    }

    /// The results of TEST (`nlm4_testres`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TestResult<'a> {
        /// The client's identifier of the call.
        pub cookie: &'a [u8],
        /// The conflicting lock, if any.
        pub tested: Tested<'a>,
    }

    /// The arguments of SHARE and UNSHARE (`nlm4_shareargs`): DOS share reservations of whole
    /// files.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ShareArgs<'a> {
        /// The client's identifier of the call.
        pub cookie: &'a [u8],
        /// The name that the client claims.
        pub caller: &'a [u8],
        /// The file's handle.
        pub file: &'a [u8],
        /// The owner within the client.
        pub owner: &'a [u8],
        /// The access that is denied to others.
        pub deny: u32,
        /// The access that is requested.
        pub access: u32,
        /// Whether the client held the reservation before the server restarted.
        pub reclaim: bool,
    }

    /// The results of SHARE and UNSHARE (`nlm4_shareres`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ShareResult<'a> {
        /// The client's identifier of the call.
        pub cookie: &'a [u8],
        /// The status.
        pub status: Status,
        /// A sequence number without a defined use.
        pub sequence: i32,
    }

    /// The arguments of FREE_ALL (`nlm4_notify`): a client has restarted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FreeArgs<'a> {
        /// The name that the client claims.
        pub caller: &'a [u8],
        /// The client's NSM state number.
        pub state: i32,
    }
}

/// The result of testing a lock (`nlm4_testrply`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tested<'a> {
    /// There is a conflicting lock.
    Denied(Holder<'a>),
    /// There is none, or the test failed. Never [`Status::Denied`].
    Other(Status),
}

impl<'a> Xdr<'a> for Tested<'a> {
    fn get(from: &mut XdrReader<'a>) -> Result<Self, Malformed> {
        Ok(match Status::get(from)? {
            Status::Denied => Tested::Denied(Holder::get(from)?),
            status => Tested::Other(status),
        })
    }

    fn put(&self, to: &mut impl Put) {
        match self {
            Tested::Denied(holder) => {
                Status::Denied.put(to);
                holder.put(to);
            }
            Tested::Other(status) => status.put(to),
        }
    }
}
