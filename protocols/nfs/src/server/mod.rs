//! The server half: a [`wire::Session`] per connection, which answers calls over an exported tree.
//!
//! What clients share stands in the [`Server`]: nodes and files at hand, and the state of v4. A call that
//! answers [`wire::Answer::WouldBlock`] has left no trace but in the caches.
//!
//! What it lacks on purpose: the order of replies and cancellation (the driver's: RPC cancels nothing),
//! the portmapper's own sockets, encryption (a transport's business, or a mechanism's).

mod acl;
mod bound;
mod cache;
mod connection;
mod data;
mod exclusive;
mod files;
mod gss;
mod handle;
mod mount;
mod nlm;
mod portmap;
mod replay;
mod security;
mod turn;
mod v3;
pub mod v4;
mod words;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use vfs::{Call, Caller, Capabilities, Cx, Export, Node};
use wire::Voice;

use self::cache::Cache;
use self::connection::Asked;
pub use self::connection::Connection;
use self::files::Files;
use self::gss::Gss;
pub use self::gss::{Accepted, Context, Flavor, Mechanism, Principal};
use self::handle::{FileHandle, Located};
pub use self::nlm::{CallBack, Monitored};
use self::replay::Replays;
pub use self::security::{CertifiedUser, Transports};
pub(crate) use self::turn::{Stop, Turn};
pub use self::v4::referral::Referral;
use self::v4::referral::Referrals;
use self::v4::state::{Config, Gone, InMemory, Limits, Stable, State};

/// How much a client may ask for, and as whom.
#[derive(Clone)]
pub struct Options {
    /// The most bytes that READ and WRITE carry.
    pub max_io: u32,
    /// How many nodes are kept at hand.
    pub max_nodes: usize,
    /// Of how many nodes files are kept open for v3, which opens none.
    pub max_files: usize,
    /// Whom to take a caller for that does not say who it is: user and group.
    pub anonymous: (u32, u32),
    /// What MOUNT lists.
    pub listed: Vec<Listed>,
    /// What is elsewhere, for v4.
    pub referrals: Vec<Referral>,
    /// By which connections NFS may be asked for. Whoever moves the bytes can secure them if that is offered.
    pub transports: Transports,
    /// As whom the owners of certificates call.
    pub users: Arc<[CertifiedUser]>,
    /// Where a portmapper says that everything is; nothing is no portmapper.
    pub ports: Option<Ports>,
    /// What makes contexts of RPCSEC_GSS, if it is offered.
    pub mechanism: Option<Arc<dyn Mechanism>>,
    /// How callers of NFS may say who they are: the better ways first, for clients take the first that they know.
    pub flavors: Arc<[Flavor]>,
    /// What tells this run of the server from others: unstable writes of an earlier one may be lost, and
    /// what v4's clients had then is theirs only if they reclaim it. Neither 0 nor [`u32::MAX`], of which
    /// stateids are special, nor 1, of which whoever makes stateids up makes them.
    pub boot: u32,
    /// What this server is called, wherever clients meet it: two of one name are one.
    pub name: String,
    /// Which of v4's clients may reclaim after a restart.
    pub stable: Arc<dyn Stable>,
    /// Whether READ_PLUS is there (v4.2), which tells of holes instead of sending them.
    pub read_plus: bool,
    /// Whether clients of v4.2 see and set the labels of SELinux, where the source keeps extended attributes.
    pub security_labels: bool,
    /// Which of NLM's clients are to be told of a restart.
    pub monitored: Arc<dyn Stable>,
    /// Makes calls to NLM's clients, or drops them: it must not wait.
    pub call_back: Arc<dyn Fn(CallBack) + Send + Sync>,
    /// Takes work off the thread that serves a call, to be run soon on another: steps of copies that go on behind their
    /// answers. It must not wait, nor run it itself. Without it none go on.
    pub run: Option<Arc<dyn Fn(Work) + Send + Sync>>,
    /// Whether clients of v4.1 may be given files to keep to themselves until others want them.
    pub delegations: bool,
    /// How long a client of v4 may be silent before it may lose what it has.
    pub lease: Duration,
    /// How much time has passed since some moment.
    pub clock: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl Options {
    /// The usual ones.
    pub fn new(boot: u32, clock: Arc<dyn Fn() -> Duration + Send + Sync>) -> Options {
        Options {
            // What Linux asks for at most.
            max_io: 1 << 20,
            max_nodes: 1 << 16,
            max_files: 1 << 10,
            anonymous: (65534, 65534),
            listed: vec![Listed {
                path: "/".into(),
                clients: Vec::new(),
            }],
            referrals: Vec::new(),
            transports: Transports::PLAIN,
            users: Arc::default(),
            ports: None,
            mechanism: None,
            flavors: [Flavor::Sys].into(),
            boot,
            name: format!("barge-{boot:08x}"),
            stable: Arc::new(InMemory::default()),
            read_plus: true,
            security_labels: false,
            monitored: Arc::new(InMemory::default()),
            call_back: Arc::new(drop),
            run: None,
            delegations: true,
            lease: Duration::from_secs(90),
            clock,
        }
    }
}

/// Some work, of a second or so. Dropping it is ending it.
pub type Work = Box<dyn FnOnce() + Send>;

/// What may be mounted, as clients are told; who is let in is the source's to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Where.
    pub path: String,
    /// Whom it is for, as exports(5) writes them; nobody named is everybody.
    pub clients: Vec<String>,
}

/// Ports where all programs are served alike; 0 where none is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Ports {
    pub tcp: u16,
    pub udp: u16,
}

/// Serves an exported tree over NFS.
pub struct Server {
    export: Arc<Export>,
    capabilities: Capabilities,
    options: Options,
    nodes: Cache<FileHandle, Arc<dyn Node>>,
    /// When those that nobody had used were forgotten.
    tended: Mutex<Duration>,
    files: Files,
    replays: Replays,
    gss: Option<Gss>,
    referrals: Referrals,
    /// What MOUNT lists now.
    listed: RwLock<Vec<Listed>>,
    clients: nlm::Clients,
    waiting: nlm::Waiting,
    recovery: nlm::Recovery,
    /// How often unstable writes may have been lost.
    losses: AtomicU32,
    connections: AtomicU64,
    state: State<v4::Files, Tree>,
    /// By which clients are called, by their connections.
    voices: Mutex<HashMap<u64, Arc<dyn Voice>>>,
}

/// The memory that clients make a server hold between their requests, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBytes {
    /// Replies that are kept for retransmissions: of v3 and v4.0, and in the slots of sessions.
    pub replies: usize,
    /// v4's sessions, owners, opens, locks and delegations, by estimate.
    pub state: usize,
}

/// What states of v4 know nodes by.
type Tree = Located;

impl Server {
    /// Serves `export`.
    pub fn new(export: Arc<Export>, options: Options) -> Arc<Server> {
        let locked = export.clone();
        let state = State::new(Config {
            boot: options.boot,
            lease: options.lease,
            clock: options.clock.clone(),
            limits: Limits::default(),
            stable: options.stable.clone(),
            release: Arc::new(move |gone| release(&locked, gone)),
        });
        let recovery = nlm::Recovery::new(options.monitored.clone());
        if recovery.is_needed() {
            state.hold_locks(nlm::Recovery::TELLING);
        }
        Arc::new(Server {
            state,
            capabilities: export.fs.capabilities(),
            nodes: Cache::new(options.max_nodes),
            tended: Mutex::new((options.clock)()),
            files: Files::new(options.max_files),
            replays: Replays::default(),
            gss: options
                .mechanism
                .as_ref()
                .map(|mechanism| Gss::new(mechanism.clone(), options.boot, options.clock.clone())),
            referrals: Referrals::new(&export, &options.referrals),
            listed: RwLock::new(options.listed.clone()),
            clients: nlm::Clients::default(),
            waiting: nlm::Waiting::default(),
            recovery,
            losses: AtomicU32::new(0),
            connections: AtomicU64::new(0),
            voices: Mutex::default(),
            export,
            options,
        })
    }

    /// A new connection.
    pub fn session(self: &Arc<Self>) -> Connection {
        Connection::of(self, true)
    }

    /// Whatever comes as datagrams: MOUNT, NLM, NSM and the portmapper, for NFS itself is too large for them.
    pub fn datagrams(self: &Arc<Self>) -> Connection {
        Connection::of(self, false)
    }

    /// Does what time asks for. To be called about once a second.
    pub fn tend(&self) {
        self.tend_files();
        self.tend_nodes();
        self.tend_monitored();
        self.tend_places();
        self.tend_callbacks();
        self.replays.expire((self.options.clock)());
        if let Some(gss) = &self.gss {
            gss.tend();
        }
        self.state.reap();
    }

    /// The memory that clients make the server hold between their requests.
    pub fn held_bytes(&self) -> HeldBytes {
        let (slots, state) = self.state.bytes();
        HeldBytes {
            replies: self.replays.bytes() + slots,
            state,
        }
    }

    /// Lists something else from now on, for what is exported has changed: nothing that was kept of it is at hand any more.
    pub fn relist(&self, listed: Vec<Listed>) {
        *self.listed.write().unwrap_or_else(PoisonError::into_inner) = listed;
        self.nodes.retain(|_, _| false);
        self.files.forget_all();
    }

    /// What `connection` is spoken to by.
    fn voice(&self, connection: u64) -> Option<Arc<dyn Voice>> {
        self.voices().get(&connection).cloned()
    }

    fn voices(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<dyn Voice>>> {
        self.voices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The largest record: a WRITE and what stands around it.
    fn max_record(&self) -> usize {
        self.options.max_io as usize + (64 << 10)
    }
}

/// Lets go of what clients of v4 no longer hold.
fn release(export: &Export, gone: Gone<v4::Files, Tree>) {
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    for lock in gone.locks {
        export
            .locks
            .release(&cx, &*lock.node.node, |owner| *owner == lock.owner);
    }
}
