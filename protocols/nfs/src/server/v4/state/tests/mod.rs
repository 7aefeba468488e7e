//! The state by itself, with a simulated clock.

mod clients;
mod delegations;
mod faulty;
mod grace;
mod leases;
mod locks;
mod opens;
mod owners;
mod random;
mod sessions;
mod threads;

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vfs::{Account, PeerKey};

use super::*;
use crate::v4::{StateId, Status};

const LEASE: Duration = Duration::from_secs(90);
const A: NodeKey = NodeKey {
    export: 0,
    node: 10,
};
const B: NodeKey = NodeKey {
    export: 0,
    node: 11,
};
const R: Share = Share::READ;
const W: Share = Share::WRITE;
const RW: Share = Share::all();
const NONE: Share = Share::empty();

/// An open file: dropped when its last holder is.
type File = Arc<&'static str>;

/// A tree whose nodes are numbers.
struct TestTree;

impl Tree for TestTree {
    type File = File;
    type Node = u64;
}

/// A state, with its clock and storage, and the files and locks that it released.
struct World {
    state: State<TestTree>,
    stable: Arc<dyn Stable>,
    clock: Arc<AtomicU64>,
    gone: Arc<Mutex<Vec<Released<TestTree>>>>,
}

impl World {
    fn new() -> World {
        World::with(Limits::default())
    }

    fn with(limits: Limits) -> World {
        World::boot(1, limits, Arc::new(InMemory::default()))
    }

    fn boot(boot: u32, limits: Limits, stable: Arc<dyn Stable>) -> World {
        let clock = Arc::new(AtomicU64::new(1_000_000));
        let gone = Arc::new(Mutex::new(Vec::new()));
        let (time, bin) = (clock.clone(), gone.clone());
        World {
            state: State::new(Config {
                boot,
                lease: LEASE,
                clock: Arc::new(move || Duration::from_millis(time.load(Ordering::SeqCst))),
                limits,
                stable: stable.clone(),
                release: Arc::new(move |gone| bin.lock().push(gone)),
            }),
            stable,
            clock,
            gone,
        }
    }

    /// Restarts the server with its stable storage.
    fn restarted(self) -> World {
        World::boot(self.state.boot + 1, self.state.limits, self.stable)
    }

    fn pass(&self, time: Duration) {
        self.clock
            .fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }

    /// Returns the locks released since the last call: the node and the owner of each.
    fn unlocked(&self) -> Vec<(u64, Vec<u8>)> {
        let gone = std::mem::take(&mut *self.gone.lock());
        let locks = gone.into_iter().flat_map(|gone| gone.locks);
        locks
            .map(|unlock| (unlock.node, unlock.owner.id.to_vec()))
            .collect()
    }

    /// Returns a confirmed v4.0 client.
    fn v40(&self, owner: &str) -> ClientRef<TestTree> {
        let (id, confirm) = self
            .state
            .set_client_id(set_client_id(owner, 1, "root"))
            .expect("a new client");
        self.state
            .set_client_id_confirm(id, confirm, b"root")
            .expect("confirmed");
        self.state.client(id).expect("known")
    }

    /// Returns a v4.1 client with a session that has finished reclaiming.
    fn v41(&self, owner: &str) -> Peer {
        let peer = self.v41_reclaiming(owner);
        let request = peer.request(self);
        let done = self.state.reclaim_complete(&request.client());
        assert_eq!(done, Ok(()));
        peer.done(request);
        peer
    }

    /// Returns a v4.1 client with a session.
    fn v41_reclaiming(&self, owner: &str) -> Peer {
        let known = self.state.exchange_id(&exchange_id(owner, 1, "root"));
        let known = known.expect("a new client");
        let created = self
            .state
            .create_session(&create_session(known, 7))
            .expect("a session");
        Peer {
            client: known.client,
            session: created.session,
            seqid: AtomicU64::new(0),
        }
    }

    /// Opens a file as `client`.
    fn open(
        &self,
        client: &ClientRef<TestTree>,
        owner: &str,
        key: NodeKey,
        access: Share,
        deny: Share,
    ) -> Result<StateId, Status> {
        let opening = self.state.open(client, ask(owner, key, access, deny))?;
        Ok(opening.commit(Arc::new("file"))?.stateid)
    }

    /// Locks a range for a new lock owner of an open.
    fn lock(
        &self,
        client: &ClientRef<TestTree>,
        open: &StateId,
        owner: &str,
        (start, end): (u64, u64),
    ) -> Result<StateId, Status> {
        let locker = Locker::New {
            open,
            owner: owner.as_bytes(),
            seqid: 0,
        };
        let kind = vfs::lock::LockKind::Exclusive;
        let locking = self.state.lock(client, locker, A, kind, false)?;
        locking.granted(start, end)
    }
}

/// A v4.1 client that uses one slot.
struct Peer {
    client: ClientId,
    session: SessionId,
    seqid: AtomicU64,
}

impl Peer {
    fn sequence(&self) -> Sequence {
        Sequence {
            session: self.session,
            slot: 0,
            seqid: self.seqid.load(Ordering::SeqCst) as u32 + 1,
            highest_slot: 0,
            cache_this: false,
            connection: 7,
            digest: 0,
        }
    }

    fn request(&self, world: &World) -> SlotRequest<TestTree> {
        match world.state.sequence(self.sequence(), &ROOT) {
            Ok(Started::New(request)) => request,
            Ok(Started::Replay(_)) => panic!("a replay"),
            Err(status) => panic!("{status:?}"),
        }
    }

    fn done(&self, request: SlotRequest<TestTree>) {
        request.finish(None);
        self.seqid.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the client, after a SEQUENCE.
    fn client(&self, world: &World) -> ClientRef<TestTree> {
        let request = self.request(world);
        let client = request.client();
        self.done(request);
        client
    }
}

/// The superuser, without an address.
const ROOT: Requester<'static> = Requester {
    peer: &Account::INTERNAL,
    principal: b"root",
    authenticated: false,
};

/// Returns the account of a host.
fn host(number: u8) -> &'static Account {
    Box::leak(Box::new(Account::of(PeerKey::Addr(
        [10, 0, 0, number].into(),
    ))))
}

/// Returns another user from the same address.
fn by(principal: &str) -> Requester<'_> {
    Requester {
        principal: principal.as_bytes(),
        ..ROOT
    }
}

fn set_client_id<'a>(owner: &'a str, verifier: u8, principal: &'a str) -> SetClientId<'a> {
    SetClientId {
        owner: owner.as_bytes(),
        verifier: [verifier; 8],
        by: by(principal),
        callback: CallbackClient::default(),
    }
}

fn exchange_id<'a>(owner: &'a str, verifier: u8, principal: &'a str) -> ExchangeId<'a> {
    ExchangeId {
        owner: owner.as_bytes(),
        verifier: [verifier; 8],
        by: by(principal),
        update: false,
    }
}

fn create_session(known: ExchangedId, connection: u64) -> CreateSession<'static> {
    let channel = Channel {
        max_request: 4096,
        max_response: 4096,
        max_cached: 4096,
        max_operations: 16,
        max_requests: 8,
    };
    CreateSession {
        client: known.client,
        sequence: known.sequence,
        by: ROOT,
        fore: channel,
        back: channel,
        backchannel: false,
        callback: CallbackParameters {
            minor: 2,
            ..CallbackParameters::default()
        },
        connection,
    }
}

fn ask(owner: &str, key: NodeKey, access: Share, deny: Share) -> OpenArgs<'_, u64> {
    OpenArgs {
        owner: owner.as_bytes(),
        key,
        node: key.node,
        access,
        deny,
        reclaim: false,
    }
}
