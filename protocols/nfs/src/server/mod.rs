//! The server half: a [`wire::Session`] per connection, which answers calls over an exported tree.
//!
//! The [`Server`] holds the state that connections share: cached nodes and open files, and the v4
//! state. A call that returns [`wire::ServeOutcome::WouldBlock`] has changed only the caches.
//!
//! Deliberately absent: the order of replies and cancellation (the driver's task; RPC has no
//! cancellation), the portmapper's sockets, and encryption (the task of a transport or a security
//! mechanism).

mod acl;
mod cache;
mod call_names;
mod connection;
mod duplicate_request_cache;
mod exclusive_create;
mod file_cache;
mod filehandle;
mod gss;
mod mount;
mod nlm;
mod portmap;
mod reply;
mod reply_bound;
mod request;
mod rquota;
mod security;
mod target;
mod v3;
pub mod v4;
mod write;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use vfs::{Call, Caller, Capabilities, Cx, Export, Location, Node};
use wire::{Malformed, MessageSender};

use self::cache::Cache;
pub use self::connection::Connection;
use self::duplicate_request_cache::DuplicateRequestCache;
use self::file_cache::FileCache;
use self::filehandle::FileHandle;
use self::gss::Gss;
pub use self::gss::{Accepted, Context, Flavor, Mechanism, Principal};
pub use self::nlm::{Monitored, NlmCallback};
pub(crate) use self::request::{CallError, RequestContext};
pub use self::security::{CertifiedUser, Transports};
pub use self::v4::locations::Locations;
use self::v4::referral::Referrals;
use self::v4::state::{Config, InMemory, Limits, Released, Stable, State};

/// The settings of a [`Server`].
#[derive(Clone)]
pub struct Options {
    /// The maximum number of bytes of a READ or WRITE.
    pub max_io: u32,
    /// The maximum number of cached nodes.
    pub max_nodes: usize,
    /// The maximum number of nodes with cached open files, for v3, which has no OPEN.
    pub max_files: usize,
    /// The user and group ids of callers without credentials.
    pub anonymous: (u32, u32),
    /// The exports that MOUNT lists.
    pub listed: Vec<Listed>,
    /// File systems that only other servers have, to which v4 clients are referred.
    pub referrals: Vec<Locations>,
    /// The transport security that NFS calls require. If TLS is offered, the driver must be able to
    /// secure connections.
    pub transports: Transports,
    /// The users that client certificates map to.
    pub users: Arc<[CertifiedUser]>,
    /// The ports that the portmapper announces; `None` disables the portmapper.
    pub ports: Option<Ports>,
    /// Accepts RPCSEC_GSS contexts; `None` if RPCSEC_GSS is not offered.
    pub mechanism: Option<Arc<dyn Mechanism>>,
    /// The accepted security flavors, strongest first: clients choose the first one that they
    /// support.
    pub flavors: Arc<[Flavor]>,
    /// Identifies this run of the server. Unstable writes of an earlier run may be lost, and v4
    /// clients must reclaim the state that they had then. Not 0 or [`u32::MAX`], which special
    /// stateids contain, and not 1, which invented stateids commonly contain.
    pub boot: u32,
    /// The server's name, the same at all addresses: clients take two servers with one name for the
    /// same server.
    pub name: String,
    /// Stable storage: the v4 clients that may reclaim state after a restart.
    pub stable: Arc<dyn Stable>,
    /// Whether v4.2 READ_PLUS is supported, which reports holes instead of sending their zeros.
    pub read_plus: bool,
    /// Whether v4.2 clients can read and set SELinux labels, if the source keeps extended
    /// attributes.
    pub security_labels: bool,
    /// Stable storage: the NLM clients to notify of a restart.
    pub monitored: Arc<dyn Stable>,
    /// Calls an NLM client, or drops the call. Must not block.
    pub call_back: Arc<dyn Fn(NlmCallback) + Send + Sync>,
    /// Queues work to run soon on another thread: the steps of asynchronous copies. Must neither
    /// block nor run the work itself. If `None`, all copies are synchronous.
    pub run: Option<Arc<dyn Fn(Work) + Send + Sync>>,
    /// Whether v4.1 clients may be given delegations.
    pub delegations: bool,
    /// The v4 lease time.
    pub lease: Duration,
    /// A monotonic clock: the time since an arbitrary moment.
    pub clock: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// Returns whether the server may act now; `None` if it always may. It is asked before and
    /// after each call. If it may not, the call gets no reply and its connection is closed: another
    /// server may be active for the same clients.
    pub may_act: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl Options {
    /// Returns the default options.
    pub fn new(boot: u32, clock: Arc<dyn Fn() -> Duration + Send + Sync>) -> Options {
        Options {
            // The maximum that Linux asks for.
            max_io: 1 << 20,
            max_nodes: 1 << 16,
            max_files: 1 << 10,
            anonymous: (65534, 65534),
            listed: vec![Listed {
                path: "/".into(),
                clients: Vec::new(),
                replicas: Vec::new(),
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
            may_act: None,
        }
    }
}

/// Work of about a second. Dropping it cancels it.
pub type Work = Box<dyn FnOnce() + Send>;

/// An export as MOUNT lists it. The list does not control access; the source does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The path of the export.
    pub path: String,
    /// The clients that it is exported to, as in exports(5); empty for all clients.
    pub clients: Vec<String>,
    /// Where other servers have the same file system, which v4 clients may ask for.
    pub replicas: Vec<Location>,
}

/// The ports that serve all programs; 0 if a protocol is not served.
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
    /// The time of the last eviction of unused nodes.
    last_eviction: Mutex<Duration>,
    files: FileCache,
    duplicate_requests: DuplicateRequestCache,
    gss: Option<Gss>,
    referrals: Referrals,
    /// The exports that MOUNT lists at present.
    listed: RwLock<Vec<Listed>>,
    clients: nlm::Clients,
    waiting: nlm::Waiting,
    recovery: nlm::Recovery,
    /// The number of failed syncs, after each of which unstable writes may have been lost.
    sync_failures: AtomicU32,
    connections: AtomicU64,
    state: State<v4::ExportTree>,
    /// The channels for callbacks to clients, by connection.
    backchannel_writers: Mutex<HashMap<u64, Arc<dyn MessageSender>>>,
}

/// The memory in bytes that the server holds for clients between their requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBytes {
    /// Replies kept for retransmissions: of v3 and v4.0, and in session slots.
    pub replies: usize,
    /// v4 sessions, owners, opens, locks and delegations, estimated.
    pub state: usize,
}

impl Server {
    /// Creates a server of `export`.
    pub fn new(export: Arc<Export>, options: Options) -> Arc<Server> {
        let locked = export.clone();
        let state = State::new(Config {
            boot: options.boot,
            lease: options.lease,
            clock: options.clock.clone(),
            limits: Limits::default(),
            stable: options.stable.clone(),
            release: Arc::new(move |released| release(&locked, released)),
        });
        let recovery = nlm::Recovery::new(options.monitored.clone());
        if recovery.is_needed() {
            state.extend_lock_grace(nlm::Recovery::NOTIFICATION_TIME);
        }
        Arc::new(Server {
            state,
            capabilities: export.fs.capabilities(),
            nodes: Cache::new(options.max_nodes),
            last_eviction: Mutex::new((options.clock)()),
            files: FileCache::new(options.max_files),
            duplicate_requests: DuplicateRequestCache::default(),
            gss: options
                .mechanism
                .as_ref()
                .map(|mechanism| Gss::new(mechanism.clone(), options.boot, options.clock.clone())),
            referrals: Referrals::new(&export, &options.referrals),
            listed: RwLock::new(options.listed.clone()),
            clients: nlm::Clients::default(),
            waiting: nlm::Waiting::default(),
            recovery,
            sync_failures: AtomicU32::new(0),
            connections: AtomicU64::new(0),
            backchannel_writers: Mutex::default(),
            export,
            options,
        })
    }

    /// Creates the session of a new stream connection.
    pub fn session(self: &Arc<Self>) -> Connection {
        Connection::of(self, true)
    }

    /// Creates the session that serves datagrams: MOUNT, NLM, NSM and the portmapper. NFS itself is
    /// not served over UDP because its messages are too large.
    pub fn datagrams(self: &Arc<Self>) -> Connection {
        Connection::of(self, false)
    }

    /// Runs periodic maintenance. To be called about once a second.
    pub fn maintain(&self) {
        self.maintain_files();
        self.maintain_nodes();
        self.maintain_nlm_clients();
        self.maintain_lock_waiters();
        self.maintain_callbacks();
        self.duplicate_requests.expire((self.options.clock)());
        if let Some(gss) = &self.gss {
            gss.maintain();
        }
        self.state.reap();
    }

    /// Returns the memory that the server holds for clients between their requests.
    pub fn held_bytes(&self) -> HeldBytes {
        let (slots, state) = self.state.held_bytes();
        HeldBytes {
            replies: self.duplicate_requests.bytes() + slots,
            state,
        }
    }

    /// Replaces the list of exports, and empties the caches of nodes and files.
    pub fn set_exports(&self, listed: Vec<Listed>) {
        *self.listed.write() = listed;
        self.nodes.retain(|_, _| false);
        self.files.forget_all();
    }

    /// Checks that the server may act now.
    fn check_may_act(&self) -> Result<(), Malformed> {
        match &self.options.may_act {
            Some(may_act) if !may_act() => {
                Err(Malformed::new("this server is no longer the active one"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the channel for callbacks over `connection`.
    fn backchannel_writer(&self, connection: u64) -> Option<Arc<dyn MessageSender>> {
        self.backchannel_writers().get(&connection).cloned()
    }

    fn backchannel_writers(
        &self,
    ) -> parking_lot::MutexGuard<'_, HashMap<u64, Arc<dyn MessageSender>>> {
        self.backchannel_writers.lock()
    }

    /// Returns the maximum length of a record: a WRITE with its headers.
    fn max_record(&self) -> usize {
        self.options.max_io as usize + (64 << 10)
    }
}

/// Releases the byte-range locks of v4 clients that have lost them.
fn release(export: &Export, released: Released<v4::ExportTree>) {
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    for lock in released.locks {
        export
            .locks
            .release(&cx, &*lock.node.node, |owner| *owner == lock.owner);
    }
}
