//! What the server remembers of v4 clients: who they are, their sessions, what they have open and
//! locked, and for how long (RFC 7530 chapter 9, RFC 8881 sections 2.10 and 8 to 9).
//!
//! v4.0 and v4.1 alike: a client of either is a [`ClientRef`] to the operations on opens and locks.
//! v4.0 has it from an [`OwnerTurn`] or [`State::client`], v4.1 from a [`SlotTurn`].
//!
//! What it lacks on purpose: the messages; the file system (an open holds an `F` that the caller
//! opened, and an `N` by which locks are released); the ranges of locks, which stand in the
//! [`vfs::lock::LockTable`] that all protocols share; threads and a clock of its own.
//!
//! Every method may be called from many threads at once. What would have to wait is answered `DELAY`.
//! No method holds a lock while it calls [`Release`]; [`Stable`] is called with locks 1 and 2 held.
//!
//! Lock order, none taken while a later one is held:
//! 1. the registry, of who is who: only where clients come, go and expire;
//! 2. a client's creation of sessions; a client's record;
//! 3. a client's holdings: its owners, opens and locks;
//! 4. a part of the share reservations; the sessions of connections;
//! 5. a session: its slots and connections;
//! 6. a part of the tables of clients and sessions, of the delegations; calls to clients and their ids.
//!
//! SEQUENCE takes 5 and 6, I/O takes 3 and, in v4.0, 6.

mod callbacks;
mod client;
mod connections;
mod delegations;
mod exchange_id;
mod gone;
mod grace;
mod holdings;
mod lease;
mod limits;
mod locks;
mod offloads;
mod opens;
mod owners;
mod registry;
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
mod waiting;

use core::time::Duration;
use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::{Arc, Mutex};

use vfs::Quota;

use crate::v4::{ClientId, SessionId};

use self::callbacks::AllFlights;
use self::client::Client;
use self::delegations::Delegations;
use self::grace::Grace;
use self::registry::Registry;
use self::sessions::Session;
use self::shares::Shares;
use self::slots::Slots;
use self::table::Table;

pub use self::callbacks::{CallAs, CallHow, Calling, What};
pub use self::client::{ClientRef, Minor};
pub use self::connections::Direction;
pub use self::delegations::NoDelegation;
pub use self::exchange_id::{ExchangeId, ExchangedId};
pub use self::gone::{Gone, NodeKey, Release, Unlock};
pub use self::holdings::Share;
pub use self::limits::Limits;
pub use self::locks::{Locker, Locking, Unlocking};
pub use self::offloads::{Ended, Offload, Offloading};
pub use self::opens::{OpenAsk, Opened, Opening};
pub use self::requester::Requester;
pub use self::seqid::OwnerTurn;
pub use self::sessions::{Channel, CreateSession, CreatedSession, Sequence, SlotTurn};
pub use self::setclientid::{Callback, SetClientId, SetClientIdError};
pub use self::stable::{InMemory, Stable};
pub use self::stateid::{Special, special};
pub use self::waiting::{Place, Waiter};

/// How a [`State`] is made.
pub struct Config<F, N> {
    /// What tells this run of the server from all others: neither 0 nor [`u32::MAX`].
    pub boot: u32,
    /// How long a client may be silent.
    pub lease: Duration,
    /// How much time has passed since some moment.
    pub clock: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// How much clients may make the server remember.
    pub limits: Limits,
    /// What survives the server.
    pub stable: Arc<dyn Stable>,
    /// Takes what is no longer held.
    pub release: Release<F, N>,
}

/// What the server remembers of all v4 clients. An open holds an `F`, the open file, and an `N`, the
/// node.
pub struct State<F, N> {
    boot: u32,
    lease: Duration,
    clock: Arc<dyn Fn() -> Duration + Send + Sync>,
    limits: Limits,
    stable: Arc<dyn Stable>,
    release: Release<F, N>,
    grace: Grace,
    registry: Mutex<Registry<F, N>>,
    clients: Table<ClientId, Arc<Client<F, N>>>,
    sessions: Table<SessionId, Arc<Session<F, N>>>,
    connections: Mutex<HashMap<u64, Vec<SessionId>>>,
    shares: Shares,
    delegations: Delegations,
    flights: AllFlights,
    quotas: Quotas,
    /// Makes what nobody guesses.
    secret: RandomState,
}

/// The bytes of a client's record and of what is always with it, by estimate.
const CLIENT: usize = 2048;

/// The quotas of every resource that is bounded for each peer, and what of the memory budget each
/// takes.
struct Quotas {
    clients: Arc<Quota>,
    slots: Arc<Quota>,
    /// Bytes of replies in slots.
    cached: Arc<Quota>,
    /// Bytes of owners and states.
    held: Arc<Quota>,
    delegations: Arc<Quota>,
    /// Copies that go on.
    offloads: Arc<Quota>,
}

impl Quotas {
    fn new(limits: &Limits) -> Quotas {
        Quotas {
            clients: Quota::new(limits.clients, limits.clients_of_a_peer, CLIENT),
            slots: Quota::new(limits.all_slots, limits.slots_of_a_peer, Slots::SLOT),
            cached: Quota::new(limits.all_cached, limits.cached_of_a_peer, 1),
            held: Quota::new(limits.all_held, limits.held_of_a_peer, 1),
            // Their bytes are among those of what is held.
            delegations: Quota::new(limits.all_delegations, limits.delegations_of_a_peer, 0),
            offloads: Quota::new(limits.all_offloads, limits.offloads_of_a_peer, 1024),
        }
    }
}

/// A request that is numbered so that it is served once.
#[derive(Debug)]
pub enum Begun<T> {
    /// It is new.
    New(T),
    /// It was served before, and answered so.
    Replay(Arc<[u8]>),
}

/// What SEQUENCE tells of a client's state: `SEQ4_STATUS_*` (RFC 8881 section 18.46.1).
pub mod status_flags {
    /// No session of the client's that had a backchannel has one.
    pub const CB_PATH_DOWN: u32 = 0x1;
    /// The lease expired, and the client lost all it had.
    pub const EXPIRED_ALL_STATE_REVOKED: u32 = 0x8;
    /// A delegation was not given back in time, and the client has lost it.
    pub const RECALLABLE_STATE_REVOKED: u32 = 0x40;
    /// The server was restarted, and the client may reclaim.
    pub const RESTART_RECLAIM_NEEDED: u32 = 0x100;
    /// This session, which had a backchannel, has none.
    pub const CB_PATH_DOWN_SESSION: u32 = 0x200;
    /// The client does not take calls by this session's backchannel as they are.
    pub const BACKCHANNEL_FAULT: u32 = 0x400;
}

impl<F, N> State<F, N> {
    /// A server that begins: in grace if the stable store knows of clients that may reclaim.
    pub fn new(config: Config<F, N>) -> State<F, N> {
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
            flights: AllFlights::default(),
        }
    }

    /// How long a client may be silent: `lease_time`.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// The bytes of the replies that are kept for retries, and of what clients hold.
    pub(in crate::server) fn bytes(&self) -> (usize, usize) {
        (self.quotas.cached.in_use(), self.quotas.held.in_use())
    }

    fn now(&self) -> Duration {
        (self.clock)()
    }

    fn release(&self, gone: Gone<F, N>) {
        if !gone.is_empty() {
            (self.release)(gone);
        }
    }
}
