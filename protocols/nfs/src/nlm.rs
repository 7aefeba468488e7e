//! NLM v4 (X/Open XNFS chapter 14, with the 64-bit ranges of RFC 1813 appendix II): v3's advisory locks.

use wire::{Malformed, Put, Xdr, XdrReader, xdr_enum, xdr_struct};

/// The longest name of a client (`LM_MAXSTRLEN`).
pub const MAX_NAME: usize = 1024;

/// The longest opaque value (`MAXNETOBJ_SZ`).
pub const MAX_OBJECT: usize = 1024;

xdr_enum! {
    /// The procedures. Those that end in `Msg` are answered by a call of their own in the other direction.
    #[allow(missing_docs)]
    pub enum Procedure {
        /// Nothing.
        Null = 0,
        /// [`TestArgs`] to [`TestResult`].
        Test = 1,
        /// [`LockArgs`] to [`LockResult`].
        Lock = 2,
        /// [`CancelArgs`] to [`LockResult`].
        Cancel = 3,
        /// [`UnlockArgs`] to [`LockResult`].
        Unlock = 4,
        /// A server's call to its client: [`TestArgs`] to [`LockResult`].
        Granted = 5,
        /// The arguments of [`Procedure::Test`] to nothing, and so on.
        TestMsg = 6,
        LockMsg = 7,
        CancelMsg = 8,
        UnlockMsg = 9,
        /// The results of [`Procedure::Test`] to nothing, and so on.
        TestRes = 11,
        LockRes = 12,
        CancelRes = 13,
        UnlockRes = 14,
        /// [`ShareArgs`] to [`ShareResult`].
        Share = 20,
        /// [`ShareArgs`] to [`ShareResult`].
        Unshare = 21,
        /// [`LockArgs`] to [`LockResult`], of a client that tells nobody when it restarts.
        NmLock = 22,
        /// [`FreeArgs`] to nothing.
        FreeAll = 23,
    }
}

xdr_enum! {
    /// How it ended (`nlm4_stats`).
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
    /// A range of a file, and whose it is or shall be (`nlm4_lock`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Lock<'a> {
        /// The client's name for itself.
        pub caller: &'a [u8],
        /// The file's handle.
        pub file: &'a [u8],
        /// Which of the client's owners.
        pub owner: &'a [u8],
        /// And which of its processes.
        pub process: i32,
        /// From where.
        pub offset: u64,
        /// How many bytes; 0 is to the end.
        pub len: u64,
    }

    /// TEST, and what GRANTED tells (`nlm4_testargs`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TestArgs<'a> {
        /// The client's name for the call.
        pub cookie: &'a [u8],
        /// Nobody else.
        pub exclusive: bool,
        /// What.
        pub lock: Lock<'a>,
    }

    /// LOCK (`nlm4_lockargs`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LockArgs<'a> {
        /// The client's name for the call.
        pub cookie: &'a [u8],
        /// Wait for it.
        pub block: bool,
        /// Nobody else.
        pub exclusive: bool,
        /// What.
        pub lock: Lock<'a>,
        /// It had it before the server restarted.
        pub reclaim: bool,
        /// Which of the client's lives this is.
        pub state: i32,
    }

    /// CANCEL (`nlm4_cancargs`): a LOCK that may wait.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CancelArgs<'a> {
        /// The client's name for the call.
        pub cookie: &'a [u8],
        /// As of the LOCK.
        pub block: bool,
        /// As of the LOCK.
        pub exclusive: bool,
        /// As of the LOCK.
        pub lock: Lock<'a>,
    }

    /// UNLOCK (`nlm4_unlockargs`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct UnlockArgs<'a> {
        /// The client's name for the call.
        pub cookie: &'a [u8],
        /// What.
        pub lock: Lock<'a>,
    }

    /// What LOCK, CANCEL, UNLOCK and GRANTED answer (`nlm4_res`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LockResult<'a> {
        /// The call's.
        pub cookie: &'a [u8],
        /// How it ended.
        pub status: Status,
    }

    /// What is in the way (`nlm4_holder`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Holder<'a> {
        /// Nobody else.
        pub exclusive: bool,
        /// Which process.
        pub process: i32,
        /// Which owner.
        pub owner: &'a [u8],
        /// From where.
        pub offset: u64,
        /// How many bytes; 0 is to the end.
        pub len: u64,
    }

    /// What TEST answers (`nlm4_testres`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TestResult<'a> {
        /// The call's.
        pub cookie: &'a [u8],
        /// What is in the way.
        pub tested: Tested<'a>,
    }

    /// SHARE and UNSHARE (`nlm4_shareargs`): DOS's reservations of whole files.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ShareArgs<'a> {
        /// The client's name for the call.
        pub cookie: &'a [u8],
        /// The client's name for itself.
        pub caller: &'a [u8],
        /// The file's handle.
        pub file: &'a [u8],
        /// Which of the client's owners.
        pub owner: &'a [u8],
        /// What is denied to others.
        pub deny: u32,
        /// What is wanted.
        pub access: u32,
        /// It had it before the server restarted.
        pub reclaim: bool,
    }

    /// What SHARE and UNSHARE answer (`nlm4_shareres`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ShareResult<'a> {
        /// The call's.
        pub cookie: &'a [u8],
        /// How it ended.
        pub status: Status,
        /// Nobody knows.
        pub sequence: i32,
    }

    /// FREE_ALL (`nlm4_notify`): a client has restarted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FreeArgs<'a> {
        /// The client's name for itself.
        pub caller: &'a [u8],
        /// Which of its lives this is.
        pub state: i32,
    }
}

/// What a lock would meet (`nlm4_testrply`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tested<'a> {
    /// This.
    Denied(Holder<'a>),
    /// Nothing, or nobody knows. Never [`Status::Denied`].
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
