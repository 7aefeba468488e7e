//! The server's state of v4 clients: their identities, sessions, opens, locks and leases (RFC 7530
//! chapter 9, RFC 8881 sections 2.10 and 8 to 9).
//!
//! v4.0 and v4.1 share it: operations on opens and locks take a [`ClientRef`] for a client of
//! either version. v4.0 gets it from an [`OwnerRequest`] or [`State::client`], v4.1 from a
//! [`SlotRequest`].
//!
//! The state deliberately excludes the messages; the file system (an open holds a [`Tree::File`]
//! that the caller opened, and a [`Tree::Node`] with which locks are released); the ranges of
//! locks, which are in the [`vfs::lock::LockTable`] shared by all protocols; and threads and a
//! clock of its own.
//!
//! Every method may be called from many threads at once. An operation that would have to wait
//! returns `DELAY`. No method holds a lock while it calls [`Release`]; [`Stable`] is called with
//! locks 1 and 2 held.
//!
//! Lock order; no lock is taken while a later one is held:
//! 1. the registry of client names: only when clients are created, destroyed or expire;
//! 2. a client's creation of sessions; a client's stable record;
//! 3. a client's state: its owners, opens and locks;
//! 4. a shard of the share reservations; the sessions of connections;
//! 5. a session: its slots and connections;
//! 6. a shard of the tables of clients, sessions or delegations; outstanding callbacks and their
//!    XIDs.
//!
//! SEQUENCE takes 5 and 6, I/O takes 3 and, in v4.0, 6.

mod callbacks;
mod client;
mod client_state;
mod connections;
mod delegations;
mod exchange_id;
mod grace;
mod lease;
mod limits;
mod lock_waits;
mod locks;
mod offloads;
mod opens;
mod owners;
mod registry;
mod released;
mod requester;
mod seqid;
mod sessions;
mod setclientid;
mod shares;
mod slots;
mod stable;
mod stateid;
mod table;
#[cfg(test)]
mod tests;
mod tree;

use core::time::Duration;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::Arc;

use vfs::Quota;

use crate::v4::{ClientId, SessionId};

use self::callbacks::AllPendingCalls;
use self::client::Client;
use self::delegations::Delegations;
use self::grace::Grace;
use self::registry::Registry;
use self::sessions::Session;
use self::shares::Shares;
use self::slots::Slots;
use self::table::Table;

pub use self::callbacks::{Callback, CallbackCredential, CallbackKind, CallbackParameters};
pub use self::client::{ClientRef, Minor};
pub use self::client_state::Share;
pub use self::connections::Direction;
pub use self::delegations::NoDelegation;
pub use self::exchange_id::{ExchangeId, ExchangedId};
pub use self::limits::Limits;
pub use self::lock_waits::{QueuePlace, Waiter};
pub use self::locks::{Locker, PendingLock, PendingUnlock};
pub use self::offloads::{Offload, OffloadArgs, OffloadResult};
pub use self::opens::{OpenArgs, Opened, PendingOpen};
pub use self::released::{NodeKey, Release, Released, Unlock};
pub use self::requester::Requester;
pub use self::seqid::OwnerRequest;
pub use self::sessions::{Channel, CreateSession, CreatedSession, Sequence, SlotRequest};
pub use self::setclientid::{CallbackClient, SetClientId, SetClientIdError};
pub use self::stable::{InMemory, Stable};
pub use self::stateid::{Special, special};
pub use self::tree::Tree;

/// The configuration of a [`State`].
pub struct Config<T: Tree> {
    /// A number that identifies this run of the server: neither 0 nor [`u32::MAX`].
    pub boot: u32,
    /// The lease time.
    pub lease: Duration,
    /// A monotonic clock: the time since an arbitrary moment.
    pub clock: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// The limits of all tables.
    pub limits: Limits,
    /// The storage of the records that survive a restart.
    pub stable: Arc<dyn Stable>,
    /// The function that closes files and releases locks that are no longer held.
    pub release: Release<T>,
}

/// The state of all v4 clients, with the files and nodes of a [`Tree`].
pub struct State<T: Tree> {
    boot: u32,
    lease: Duration,
    clock: Arc<dyn Fn() -> Duration + Send + Sync>,
    limits: Limits,
    stable: Arc<dyn Stable>,
    release: Release<T>,
    grace: Grace,
    registry: Mutex<Registry<T>>,
    clients: Table<ClientId, Arc<Client<T>>>,
    sessions: Table<SessionId, Arc<Session<T>>>,
    connections: Mutex<HashMap<u64, Vec<SessionId>>>,
    shares: Shares,
    delegations: Delegations,
    pending_calls: AllPendingCalls,
    quotas: Quotas,
    /// The key of the unguessable numbers.
    secret: RandomState,
}

/// The estimated bytes of a client's record and the data that always comes with it.
const CLIENT_BYTES: usize = 2048;

/// The quotas of the resources that are limited per peer, and their shares of the memory budget.
struct Quotas {
    clients: Arc<Quota>,
    slots: Arc<Quota>,
    /// Bytes of cached replies in slots.
    cached_bytes: Arc<Quota>,
    /// Bytes of owners and states.
    state_bytes: Arc<Quota>,
    delegations: Arc<Quota>,
    /// Asynchronous copies.
    offloads: Arc<Quota>,
}

impl Quotas {
    fn new(limits: &Limits) -> Quotas {
        Quotas {
            clients: Quota::new(limits.clients, limits.clients_of_a_peer, CLIENT_BYTES),
            slots: Quota::new(limits.all_slots, limits.slots_of_a_peer, Slots::SLOT_BYTES),
            cached_bytes: Quota::new(limits.all_cached_bytes, limits.cached_bytes_of_a_peer, 1),
            state_bytes: Quota::new(limits.all_state_bytes, limits.state_bytes_of_a_peer, 1),
            // Their bytes are part of `held`.
            delegations: Quota::new(limits.all_delegations, limits.delegations_of_a_peer, 0),
            offloads: Quota::new(limits.all_offloads, limits.offloads_of_a_peer, 1024),
        }
    }
}

/// The result of starting a request that is numbered so that it is served only once.
#[derive(Debug)]
pub enum Started<T> {
    /// A new request.
    New(T),
    /// A repeated request, with its cached reply.
    Replay(Arc<[u8]>),
}

/// The client's status flags in SEQUENCE's result: `SEQ4_STATUS_*` (RFC 8881 section 18.46.1).
pub mod status_flags {
    /// None of the client's sessions has a backchannel any more.
    pub const CB_PATH_DOWN: u32 = 0x1;
    /// The lease expired, and all of the client's state was revoked.
    pub const EXPIRED_ALL_STATE_REVOKED: u32 = 0x8;
    /// A delegation was not returned in time, and was revoked.
    pub const RECALLABLE_STATE_REVOKED: u32 = 0x40;
    /// The server has restarted, and the client may reclaim its state.
    pub const RESTART_RECLAIM_NEEDED: u32 = 0x100;
    /// This session has lost its backchannel.
    pub const CB_PATH_DOWN_SESSION: u32 = 0x200;
    /// The client does not accept calls over this session's backchannel as configured.
    pub const BACKCHANNEL_FAULT: u32 = 0x400;
}

impl<T: Tree> State<T> {
    /// Creates the state of a starting server: in the grace period if the stable storage lists
    /// clients.
    pub fn new(config: Config<T>) -> State<T> {
        assert!(
            ![0, u32::MAX].contains(&config.boot),
            "stateids of such a boot would be special"
        );
        let now = (config.clock)();
        State {
            boot: config.boot,
            lease: config.lease,
            clock: config.clock,
            grace: Grace::new(config.stable.list(), now, config.lease),
            quotas: Quotas::new(&config.limits),
            secret: RandomState::new(),
            stable: config.stable,
            release: config.release,
            registry: Mutex::default(),
            clients: Table::new(),
            sessions: Table::new(),
            connections: Mutex::default(),
            limits: config.limits.clone(),
            shares: Shares::new(config.limits.all_opens),
            delegations: Delegations::new(),
            pending_calls: AllPendingCalls::default(),
        }
    }

    /// Returns the lease time (the attribute `lease_time`).
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns the bytes of the cached replies, and those of the clients' state.
    pub(in crate::server) fn held_bytes(&self) -> (usize, usize) {
        (
            self.quotas.cached_bytes.in_use(),
            self.quotas.state_bytes.in_use(),
        )
    }

    fn now(&self) -> Duration {
        (self.clock)()
    }

    fn release(&self, released: Released<T>) {
        if !released.is_empty() {
            (self.release)(released);
        }
    }
}
