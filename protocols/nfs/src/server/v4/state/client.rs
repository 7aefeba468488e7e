//! A client: who it is, its lease, and what it holds.

use core::fmt;
use core::time::Duration;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vfs::lock::Owner;
use vfs::{Account, Charge, Full, Quota};

use crate::v4::{ClientId, Status};

use super::holdings::{Holdings, full};
use super::requester::Requester;
use super::sessions::Creation;

/// Which of the two ways of being a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Minor {
    /// v4.0: SETCLIENTID, owners' seqids.
    V40,
    /// v4.1 and v4.2: EXCHANGE_ID, sessions.
    V41,
}

/// A client that an operation is of: the proof that it is known, and what the operations on state
/// want. Holding it keeps nothing alive: a client may be gone meanwhile, which those operations say.
pub struct ClientRef<F, N>(pub(super) Arc<Client<F, N>>);

impl<F, N> Clone for ClientRef<F, N> {
    fn clone(&self) -> Self {
        ClientRef(self.0.clone())
    }
}

impl<F, N> fmt::Debug for ClientRef<F, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientRef({:#x})", self.0.id)
    }
}

impl<F, N> ClientRef<F, N> {
    /// Its client id.
    pub fn id(&self) -> ClientId {
        self.0.id
    }

    /// Whether it came by v4.0 or later.
    pub fn minor(&self) -> Minor {
        self.0.minor
    }

    /// Who its lock owner `owner` is to the lock table: for LOCKT.
    pub fn lock_owner(&self, owner: &[u8]) -> Owner {
        self.0.lock_owner(owner.into())
    }
}

pub(super) struct Client<F, N> {
    pub(super) id: ClientId,
    pub(super) minor: Minor,
    /// Its name in the registry and in the stable store: [`record`].
    pub(super) record: Box<[u8]>,
    pub(super) verifier: [u8; 8],
    pub(super) principal: Box<[u8]>,
    /// The peer that it counts for: the one that it came from first.
    pub(super) peer: Account,
    /// All peers that it has come from.
    pub(super) peers: Mutex<Vec<Account>>,
    /// Its place among the clients, until it is no more.
    pub(super) place: Mutex<Option<Charge>>,
    /// Bounds what it holds, in bytes.
    held: Arc<Quota>,
    /// Its number in the lock table.
    pub(super) locker: u64,
    pub(super) confirmed: AtomicBool,
    /// v4.1: it has said RECLAIM_COMPLETE.
    pub(super) reclaimed: AtomicBool,
    /// When the lease was last renewed, in milliseconds of the clock.
    renewed: AtomicU64,
    /// How many of its requests are being served.
    turns: AtomicU32,
    /// v4.1: whether it has ever asked for a backchannel, and how many connections are one.
    pub(super) wants_backchannel: AtomicBool,
    pub(super) backchannels: AtomicU32,
    /// Flags of [`super::status_flags`] about what was revoked.
    pub(super) flags: AtomicU32,
    pub(super) recorded: Mutex<Recorded>,
    pub(super) creation: Mutex<Creation>,
    pub(super) holdings: Mutex<Holdings<F, N>>,
}

/// Whether the stable store has a client's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    No,
    Yes,
    /// The client is gone.
    Never,
}

impl<F, N> Client<F, N> {
    pub(super) fn new(
        id: ClientId,
        (minor, record): (Minor, &[u8]),
        verifier: [u8; 8],
        by: &Requester<'_>,
        held: &Arc<Quota>,
        now: Duration,
    ) -> Client<F, N> {
        Client {
            id,
            minor,
            record: record.into(),
            verifier,
            principal: by.principal.into(),
            peer: by.peer.clone(),
            peers: Mutex::new(vec![by.peer.clone()]),
            place: Mutex::default(),
            held: held.clone(),
            locker: Owner::new_client(),
            confirmed: AtomicBool::new(false),
            reclaimed: AtomicBool::new(false),
            renewed: AtomicU64::new(now.as_millis() as u64),
            turns: AtomicU32::new(0),
            wants_backchannel: AtomicBool::new(false),
            backchannels: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            recorded: Mutex::new(Recorded::No),
            creation: Mutex::default(),
            holdings: Mutex::default(),
        }
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed.load(Ordering::Acquire)
    }

    pub(super) fn renew(&self, now: Duration) {
        self.renewed
            .fetch_max(now.as_millis() as u64, Ordering::Relaxed);
    }

    /// How long it has been silent. Not at all while a request of its own is being served.
    pub(super) fn silent(&self, now: Duration) -> Duration {
        if self.turns.load(Ordering::Acquire) > 0 {
            return Duration::ZERO;
        }
        now.saturating_sub(Duration::from_millis(self.renewed.load(Ordering::Relaxed)))
    }

    /// A request of its is being served until [`Client::leave`].
    pub(super) fn enter(&self) {
        self.turns.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn leave(&self) {
        self.turns.fetch_sub(1, Ordering::AcqRel);
    }

    /// Takes `bytes` for something that the client is to hold.
    pub(super) fn charge(&self, bytes: usize) -> Result<Charge, Full> {
        self.held.take(&self.peer, bytes)
    }

    /// [`Client::charge`], with the status of an operation that there is no room for.
    pub(super) fn charged(&self, bytes: usize) -> Result<Charge, Status> {
        self.charge(bytes).map_err(|_| full(self.minor))
    }

    pub(super) fn lock_owner(&self, id: Arc<[u8]>) -> Owner {
        Owner {
            client: self.locker,
            id,
            pid: 0,
        }
    }
}

/// What a client is known by: v4.0's and v4.1's names are apart.
pub(super) fn record(minor: Minor, owner: &[u8]) -> Box<[u8]> {
    let minor = match minor {
        Minor::V40 => 0,
        Minor::V41 => 1,
    };
    [&[minor], owner].concat().into()
}
