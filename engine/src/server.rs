use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use transports::{Link, Listener, Poller, StreamLink};
use vfs::peer::{PeerKey, Refusals};
use vfs::{LogLimit, Origin, Peer, Trust};
use wire::Session;

use crate::lane::Lane;
use crate::look::seen;
use crate::stats::{Account, ConnectionRefusals, Snapshot, Tally};
use crate::timeouts::Timeouts;
use crate::trim::Trim;
use crate::watch::Watch;
use crate::workers::Workers;
use vfs::memory::{MemoryBudget, Minimum};

/// A service that clients connect to: creates a session for each.
pub trait Service: Send + Sync {
    /// Creates the session of a client that has just connected.
    fn session(&self) -> Box<dyn Session>;

    /// Wraps the link of its connection.
    fn link(&self, link: StreamLink) -> Box<dyn Link> {
        Box::new(link)
    }
}

/// Limits and options of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// The maximum time for which a lane polls before it sleeps; zero disables polling.
    pub poll: Duration,
    /// The maximum number of requests of a connection in flight; beyond it, the connection is not
    /// read.
    pub in_flight: usize,
    /// The maximum total size of those in bytes; a single one may be larger.
    pub held: usize,
    /// Whether file pages are sent without a copy, on connections where that pays.
    pub zerocopy: bool,
    /// The maximum number of worker threads, for requests that would block.
    pub workers: usize,
    /// The maximum number of connections; more are closed at once.
    pub connections: usize,
    /// The maximum number of connections of one client: a user of this host, a guest, or an
    /// address. `None` is half of what other clients leave of [`Tuning::connections`], so that the
    /// next client can connect.
    pub connections_per_client: Option<usize>,
    /// The times after which a connection that makes no progress is closed.
    pub timeouts: Timeouts,
    /// The memory limit for all clients in bytes: see [`MemoryBudget`].
    pub memory: usize,
    /// Whether requests are counted by type and latency ([`Engine::look`]).
    pub counts: bool,
    /// The grace period for requests in flight when the engine stops, before they are cancelled.
    pub grace: Duration,
}

impl Default for Tuning {
    /// Defaults for this machine.
    fn default() -> Tuning {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Tuning {
            poll: Poller::usual(),
            in_flight: 256,
            held: 32 << 20,
            zerocopy: true,
            workers: (processors * 4).clamp(16, 128),
            connections: 4096,
            connections_per_client: None,
            timeouts: Timeouts::default(),
            memory: 1 << 30,
            counts: false,
            grace: Duration::from_secs(5),
        }
    }
}

/// A server that accepts connections and drives each with its own thread.
pub struct Engine {
    workers: Arc<Workers>,
    watch: Arc<Watch>,
    tally: Arc<Tally>,
    tuning: Tuning,
    trust: Trust,
    refusals: Arc<Refusals>,
    /// An eventfd that is readable once the engine stops.
    stop: OwnedFd,
    stopping: AtomicBool,
    alive: Mutex<Alive>,
    changed: Condvar,
    /// Listeners that ended although the engine was not stopped.
    lost: Mutex<Vec<String>>,
    connection_refusals: ConnectionRefusals,
    budget: Arc<MemoryBudget>,
    trim: Arc<Trim>,
    /// The rate limit for log lines about refused clients and closed connections.
    complaints: LogLimit<(PeerKey, &'static str)>,
    devices: AtomicU64,
}

#[derive(Default)]
struct Alive {
    listeners: usize,
    members: HashMap<u64, Weak<Lane>>,
    /// The number of connections of each client.
    by_client: HashMap<PeerKey, usize>,
    next: u64,
}

impl Engine {
    /// The stack size of a lane's thread in bytes: requests do not recurse.
    const STACK: usize = 512 << 10;

    /// Creates an idle engine. Returns an error if no worker thread can be created.
    pub fn new(tuning: Tuning) -> io::Result<Arc<Engine>> {
        Engine::trusting(tuning, Trust::default())
    }

    /// Does the same as [`Engine::new`], and allows processes of the local users in `trust` to act
    /// as any user.
    pub fn trusting(tuning: Tuning, trust: Trust) -> io::Result<Arc<Engine>> {
        let workers = Workers::new(tuning.workers, Workers::STUCK)?;
        Ok(Arc::new(Engine {
            watch: Watch::new(&workers)?,
            workers,
            stop: eventfd(0, EventfdFlags::CLOEXEC)?,
            tally: Tally::new(tuning.counts),
            tuning,
            trust,
            refusals: Arc::default(),
            stopping: AtomicBool::new(false),
            alive: Mutex::default(),
            changed: Condvar::new(),
            lost: Mutex::default(),
            connection_refusals: ConnectionRefusals::default(),
            budget: MemoryBudget::new(tuning.memory),
            trim: Arc::default(),
            complaints: LogLimit::new(),
            devices: AtomicU64::new(0),
        }))
    }

    /// Serves the clients that connect to `listener`, until the engine stops.
    pub fn listen(
        self: &Arc<Self>,
        listener: Listener,
        service: Arc<dyn Service>,
    ) -> io::Result<()> {
        let engine = self.clone();
        self.host(move |_| engine.accept(&listener, &*service))
    }

    /// Runs `listen` on a new thread. It must return soon after its descriptor becomes readable,
    /// when the engine stops.
    pub fn host(
        self: &Arc<Self>,
        listen: impl FnOnce(BorrowedFd<'_>) + Send + 'static,
    ) -> io::Result<()> {
        let hosted = Hosted::new(self);
        std::thread::Builder::new()
            .name("barge-accept".into())
            .spawn(move || listen(hosted.engine.stop.as_fd()))
            .map(drop)
    }

    /// Logs that the listener `name` ended because of `error`, and adds it to
    /// [`Engine::lost_listeners`].
    pub fn lose_listener(&self, name: &dyn Display, error: &dyn Display) {
        tracing::error!("no longer listening at {name}: {error}");
        self.lost().push(name.to_string());
    }

    /// Returns the listeners that failed: clients can no longer connect there.
    pub fn lost_listeners(&self) -> Vec<String> {
        self.lost().clone()
    }

    /// Returns the number of connections that were refused or closed, by reason.
    pub fn connection_refusals(&self) -> Vec<(&'static str, u64)> {
        self.connection_refusals.all()
    }

    /// Counts a connection that was refused or closed for `reason`. Returns the number of
    /// suppressed lines if a line about it may be logged.
    pub(crate) fn complain(&self, client: PeerKey, reason: &'static str) -> Option<Option<u64>> {
        self.connection_refusals.count(reason);
        self.complaints.permit((client, reason))
    }

    /// Creates the peer of a connection or datagram from `origin`.
    pub(crate) fn peer(&self, origin: Origin) -> Peer {
        let server = rustix::process::geteuid().as_raw();
        Peer::new(origin, &self.trust, server)
            .counting(self.refusals.clone())
            .reserving(&self.budget)
    }

    /// Returns the memory budget of the clients.
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    pub(crate) fn next_device(&self) -> PeerKey {
        PeerKey::Device(self.devices.fetch_add(1, Ordering::Relaxed))
    }

    /// Serves the client of `link`. Returns an error if a limit is reached.
    pub fn connect(self: &Arc<Self>, link: Box<dyn Link>, service: &dyn Service) -> io::Result<()> {
        let peer = Arc::new(self.peer(link.origin()));
        let client = peer.key();
        let place = match self.admit(client) {
            Ok(place) => place,
            Err((reason, error)) => {
                return Err(self.refuse(client, reason, error));
            }
        };
        self.start(link, service, peer, place)
            .map_err(|error| self.refuse(client, ConnectionRefusals::SYSTEM, error))
    }

    /// Counts a refusal, and logs it within the rate limit.
    fn refuse(&self, client: PeerKey, reason: &'static str, error: io::Error) -> io::Error {
        if let Some(suppressed) = self.complain(client, reason) {
            tracing::warn!(%client, suppressed, "connection refused: {error}");
        }
        error
    }

    fn start(
        self: &Arc<Self>,
        link: Box<dyn Link>,
        service: &dyn Service,
        peer: Arc<Peer>,
        place: Place,
    ) -> io::Result<()> {
        let session = service.session();
        let member = Member {
            id: place.id,
            stats: self.tally.open(session.vocabulary()),
            place,
        };
        let id = member.id;
        let lane = Lane::new(
            link,
            session,
            self.workers.clone(),
            self.tuning,
            peer,
            member,
        )?;
        lane.stats().shown_by(seen(&lane));
        self.alive().members.insert(id, Arc::downgrade(&lane));
        tracing::debug!(connection = id, peer = lane.link.peer(), "connected");
        let engine = self.clone();
        std::thread::Builder::new()
            .name(format!("barge-lane-{id}"))
            .stack_size(Engine::STACK)
            .spawn(move || {
                if engine.stopping.load(Ordering::SeqCst) {
                    lane.link.end_input();
                }
                lane.run(&engine.stopping);
            })
            .map(drop)
    }

    /// Stops the engine: no more connections or requests; requests in flight are answered. Returns
    /// at once; [`Engine::wait`] waits for the end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Cannot fail: this is the only writer.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        let lanes = self.alive().lanes();
        for lane in lanes {
            lane.link.end_input();
        }
        self.budget.close();
        self.changed.notify_all();
    }

    /// Waits until all listeners and connections have ended. Cancels requests that are still in
    /// flight when the grace period after a stop ends.
    pub fn wait(&self) {
        let mut alive = self.alive();
        let mut deadline = None;
        while alive.listeners > 0 || !alive.members.is_empty() {
            if !self.stopping.load(Ordering::SeqCst) {
                alive = self.changed.wait(alive).expect("no panic holds it");
                continue;
            }
            let now = Instant::now();
            let deadline = deadline.get_or_insert(now + self.tuning.grace);
            if now >= *deadline {
                let lanes = alive.lanes();
                drop(alive);
                for lane in lanes {
                    lane.cancel_all();
                    lane.leave();
                }
                alive = self.alive();
                *deadline = now + self.tuning.grace.max(Duration::from_secs(1));
            }
            let left = *deadline - now.min(*deadline);
            alive = self
                .changed
                .wait_timeout(alive, left)
                .expect("no panic holds it")
                .0;
        }
    }

    /// Returns the number of connections, and the totals of all connections and queues, including
    /// those that ended.
    pub fn stats(&self) -> (usize, Snapshot) {
        (self.alive().members.len(), self.tally.sum())
    }

    /// Returns the number of clients that exports refused, by reason.
    pub fn refusals(&self) -> &Arc<Refusals> {
        &self.refusals
    }

    fn admit(self: &Arc<Self>, client: PeerKey) -> Result<Place, (&'static str, io::Error)> {
        let most = self.tuning.connections;
        let mut alive = self.alive();
        let all = alive.members.len();
        if all >= most {
            let error = format!("the limit of {most} connections is reached");
            return Err((ConnectionRefusals::CONNECTIONS, io::Error::other(error)));
        }
        let own = alive.by_client.get(&client).copied().unwrap_or(0);
        let limit = self.tuning.connections_per_client;
        let limit = limit.unwrap_or_else(|| (most - (all - own)).div_ceil(2));
        if own >= limit {
            let error = format!("the limit of {own} connections of this client is reached");
            return Err((
                ConnectionRefusals::CLIENT_CONNECTIONS,
                io::Error::other(error),
            ));
        }
        let Some(minimum) = self.budget.connect() else {
            let error = "not enough memory for more connections";
            return Err((ConnectionRefusals::MEMORY, io::Error::other(error)));
        };
        alive.next += 1;
        let id = alive.next;
        alive.members.insert(id, Weak::new());
        *alive.by_client.entry(client).or_default() += 1;
        Ok(Place {
            engine: self.clone(),
            id,
            client,
            _minimum: minimum,
        })
    }

    fn accept(self: &Arc<Self>, listener: &Listener, service: &dyn Service) {
        loop {
            match listener.accept(self.stop.as_fd()) {
                Ok(Some(link)) => {
                    // `connect` logs and counts refusals.
                    let _ = self.connect(service.link(link), service);
                }
                Ok(None) => return,
                Err(error) => return self.lose_listener(listener.addr(), &error),
            }
        }
    }

    pub(crate) fn workers(&self) -> &Arc<Workers> {
        &self.workers
    }

    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    pub(crate) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    pub(crate) fn stop_fd(&self) -> BorrowedFd<'_> {
        self.stop.as_fd()
    }

    fn lost(&self) -> MutexGuard<'_, Vec<String>> {
        self.lost.lock().expect("no panic holds it")
    }

    fn alive(&self) -> MutexGuard<'_, Alive> {
        self.alive.lock().expect("no panic holds it")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.workers.close();
    }
}

impl Alive {
    fn lanes(&self) -> Vec<Arc<Lane>> {
        self.members.values().filter_map(Weak::upgrade).collect()
    }
}

/// A listener thread.
struct Hosted {
    engine: Arc<Engine>,
}

impl Hosted {
    fn new(engine: &Arc<Engine>) -> Hosted {
        engine.alive().listeners += 1;
        Hosted {
            engine: engine.clone(),
        }
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.engine
                .lose_listener(&"one of the addresses", &"its thread has panicked");
        }
        self.engine.alive().listeners -= 1;
        self.engine.changed.notify_all();
    }
}

/// An open connection in the limits.
struct Place {
    engine: Arc<Engine>,
    id: u64,
    client: PeerKey,
    _minimum: Minimum,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut alive = self.engine.alive();
        alive.members.remove(&self.id);
        if let Entry::Occupied(mut own) = alive.by_client.entry(self.client) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
        drop(alive);
        self.engine.changed.notify_all();
        self.engine.trim.connection_ended();
    }
}

/// An open connection in the statistics; dropped last of all parts of a connection.
pub(crate) struct Member {
    pub(crate) id: u64,
    pub(crate) stats: Account,
    place: Place,
}

impl Member {
    pub(crate) fn engine(&self) -> &Engine {
        &self.place.engine
    }

    pub(crate) fn client(&self) -> PeerKey {
        self.place.client
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let done = self.stats.snapshot();
        tracing::debug!(
            connection = self.id,
            requests = done.requests,
            offloaded = done.offloaded,
            cancelled = done.cancelled,
            received = done.received,
            sent = done.sent,
            "disconnected"
        );
    }
}
