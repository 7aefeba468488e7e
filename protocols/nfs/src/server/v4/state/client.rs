//! A client: its identity, its lease and its state.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use vfs::lock::Owner;
use vfs::{Account, Charge, Quota, QuotaExceeded};

use crate::v4::{ClientId, Status};

use super::Tree;
use super::client_state::{ClientState, no_room_status};
use super::requester::Requester;
use super::sessions::Creation;

/// The kind of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Minor {
    /// v4.0: SETCLIENTID, owners' seqids.
    V40,
    /// v4.1 and v4.2: EXCHANGE_ID, sessions.
    V41,
}

/// A client known to the server, as a parameter of the operations on state. The reference does not
/// keep the client: if it has been destroyed meanwhile, those operations fail.
pub struct ClientRef<T: Tree>(pub(super) Arc<Client<T>>);

impl<T: Tree> Clone for ClientRef<T> {
    fn clone(&self) -> Self {
        ClientRef(self.0.clone())
    }
}

impl<T: Tree> fmt::Debug for ClientRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientRef({:#x})", self.0.id)
    }
}

impl<T: Tree> ClientRef<T> {
    /// Returns the client ID.
    pub fn id(&self) -> ClientId {
        self.0.id
    }

    /// Returns whether the client uses v4.0 or later.
    pub fn minor(&self) -> Minor {
        self.0.minor
    }

    /// Returns the lock table's owner for the lock owner `owner`, for LOCKT.
    pub fn lock_owner(&self, owner: &[u8]) -> Owner {
        self.0.lock_owner(owner.into())
    }
}

pub(super) struct Client<T: Tree> {
    pub(super) id: ClientId,
    pub(super) minor: Minor,
    /// The client's name in the registry and in the stable storage: [`record`].
    pub(super) record: Box<[u8]>,
    pub(super) verifier: [u8; 8],
    pub(super) principal: Box<[u8]>,
    /// The peer whose quotas the client counts against: that of its first request.
    pub(super) peer: Account,
    /// All peers that the client has used.
    pub(super) peers: Mutex<Vec<Account>>,
    /// The client's share of the quota of clients, until it is destroyed.
    pub(super) quota_charge: Mutex<Option<Charge>>,
    /// The quota of the bytes of its state.
    state_quota: Arc<Quota>,
    /// The client's number in the lock table.
    pub(super) lock_client: u64,
    pub(super) confirmed: AtomicBool,
    /// v4.1: whether RECLAIM_COMPLETE was received.
    pub(super) reclaimed: AtomicBool,
    /// The time of the last lease renewal, in milliseconds of the clock.
    renewed: AtomicU64,
    /// The number of requests in progress.
    in_progress: AtomicU32,
    /// v4.1: whether the client has ever asked for a backchannel, and the number of connections
    /// that are one.
    pub(super) wants_backchannel: AtomicBool,
    pub(super) backchannels: AtomicU32,
    /// The flags of [`super::status_flags`] for revoked state.
    pub(super) flags: AtomicU32,
    pub(super) recorded: Mutex<Recorded>,
    pub(super) creation: Mutex<Creation>,
    pub(super) client_state: Mutex<ClientState<T>>,
}

/// Whether the stable storage has a client's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    No,
    Yes,
    /// The client is gone, and must not be recorded.
    Never,
}

impl<T: Tree> Client<T> {
    pub(super) fn new(
        id: ClientId,
        (minor, record): (Minor, &[u8]),
        verifier: [u8; 8],
        by: &Requester<'_>,
        held: &Arc<Quota>,
        now: Duration,
    ) -> Client<T> {
        Client {
            id,
            minor,
            record: record.into(),
            verifier,
            principal: by.principal.into(),
            peer: by.peer.clone(),
            peers: Mutex::new(vec![by.peer.clone()]),
            quota_charge: Mutex::default(),
            state_quota: held.clone(),
            lock_client: Owner::new_client(),
            confirmed: AtomicBool::new(false),
            reclaimed: AtomicBool::new(false),
            renewed: AtomicU64::new(now.as_millis() as u64),
            in_progress: AtomicU32::new(0),
            wants_backchannel: AtomicBool::new(false),
            backchannels: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            recorded: Mutex::new(Recorded::No),
            creation: Mutex::default(),
            client_state: Mutex::default(),
        }
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed.load(Ordering::Acquire)
    }

    pub(super) fn renew(&self, now: Duration) {
        self.renewed
            .fetch_max(now.as_millis() as u64, Ordering::Relaxed);
    }

    /// Returns the time since the last renewal: zero while a request of the client is in progress.
    pub(super) fn idle_time(&self, now: Duration) -> Duration {
        if self.in_progress.load(Ordering::Acquire) > 0 {
            return Duration::ZERO;
        }
        now.saturating_sub(Duration::from_millis(self.renewed.load(Ordering::Relaxed)))
    }

    /// Counts a request in progress, until [`Client::end_request`].
    pub(super) fn begin_request(&self) {
        self.in_progress.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn end_request(&self) {
        self.in_progress.fetch_sub(1, Ordering::AcqRel);
    }

    /// Charges `bytes` of state to the client.
    pub(super) fn charge(&self, bytes: usize) -> Result<Charge, QuotaExceeded> {
        self.state_quota.take(&self.peer, bytes)
    }

    /// Does the same as [`Client::charge`], but fails with the status for an operation without
    /// room.
    pub(super) fn charged(&self, bytes: usize) -> Result<Charge, Status> {
        self.charge(bytes).map_err(|_| no_room_status(self.minor))
    }

    pub(super) fn lock_owner(&self, id: Arc<[u8]>) -> Owner {
        Owner {
            client: self.lock_client,
            id,
            pid: 0,
        }
    }
}

/// Returns the key of a client: the names of v4.0 and v4.1 are separate.
pub(super) fn record(minor: Minor, owner: &[u8]) -> Box<[u8]> {
    let minor = match minor {
        Minor::V40 => 0,
        Minor::V41 => 1,
    };
    [&[minor], owner].concat().into()
}
