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

/// What clients connect to: makes a session for each.
pub trait Service: Send + Sync {
    /// The session of a client that has just connected.
    fn session(&self) -> Box<dyn Session>;

    /// What carries its connection.
    fn link(&self, link: StreamLink) -> Box<dyn Link> {
        Box::new(link)
    }
}

/// How much of what the engine may use.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// How long a lane polls at most before it sleeps; zero is not at all.
    pub poll: Duration,
    /// How many requests of a connection may wait for workers before it is not heard any more.
    pub in_flight: usize,
    /// How many bytes those may be together; one may be larger if it is the only one.
    pub held: usize,
    /// Whether pages of files are sent as they are, where a connection says that this pays.
    pub zerocopy: bool,
    /// How many threads there may be for what would block.
    pub workers: usize,
    /// How many connections there may be; more are closed at once.
    pub connections: usize,
    /// How many of them one client may have: a user of this host, a guest, or an address. If none
    /// is given, half of what other clients leave of [`Tuning::connections`], so that the next
    /// client finds a place.
    pub connections_per_client: Option<usize>,
    /// When a connection that makes no progress is closed.
    pub timeouts: Timeouts,
    /// How many bytes of memory the messages of all clients may take together: see
    /// [`MemoryBudget`].
    pub memory: usize,
    /// Whether requests are counted by what they are and how long they take ([`Engine::look`]).
    pub counts: bool,
    /// How long requests in flight get when the engine stops, before they are cancelled.
    pub grace: Duration,
}

impl Default for Tuning {
    /// What suits this machine.
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

/// Accepts connections and drives them, each in a thread of its own.
pub struct Engine {
    workers: Arc<Workers>,
    watch: Arc<Watch>,
    tally: Arc<Tally>,
    tuning: Tuning,
    trust: Trust,
    refusals: Arc<Refusals>,
    /// Readable once the engine stops.
    stop: OwnedFd,
    stopping: AtomicBool,
    alive: Mutex<Alive>,
    changed: Condvar,
    /// Listeners that ended though the engine was not stopped.
    lost: Mutex<Vec<String>>,
    connection_refusals: ConnectionRefusals,
    budget: Arc<MemoryBudget>,
    trim: Arc<Trim>,
    /// Limits the lines about clients that are refused or whose connections are closed.
    complaints: LogLimit<(PeerKey, &'static str)>,
    devices: AtomicU64,
}

#[derive(Default)]
struct Alive {
    listeners: usize,
    members: HashMap<u64, Weak<Lane>>,
    /// How many of them each client has.
    by_client: HashMap<PeerKey, usize>,
    next: u64,
}

impl Engine {
    /// What a lane's thread needs at most: requests do not recurse.
    const STACK: usize = 512 << 10;

    /// An engine without anything to do yet. Errs if there can be no thread for what would block.
    pub fn new(tuning: Tuning) -> io::Result<Arc<Engine>> {
        Engine::trusting(tuning, Trust::default())
    }

    /// The same, where the processes of these local users may act as any user.
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

    /// Serves the clients that come to `listener`, until the engine stops.
    pub fn listen(
        self: &Arc<Self>,
        listener: Listener,
        service: Arc<dyn Service>,
    ) -> io::Result<()> {
        let engine = self.clone();
        self.host(move |_| engine.accept(&listener, &*service))
    }

    /// Runs `listen` in a thread of its own; it has to end soon after the descriptor that it is given is
    /// readable: then the engine stops.
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

    /// Logs that the listener `name` has ended because of `error`, and lists it in
    /// [`Engine::lost_listeners`].
    pub fn lose_listener(&self, name: &dyn Display, error: &dyn Display) {
        tracing::error!("no longer listening at {name}: {error}");
        self.lost().push(name.to_string());
    }

    /// The listeners that have ended by themselves: clients cannot connect there any more.
    pub fn lost_listeners(&self) -> Vec<String> {
        self.lost().clone()
    }

    /// The connections that were refused or closed, by reason.
    pub fn connection_refusals(&self) -> Vec<(&'static str, u64)> {
        self.connection_refusals.all()
    }

    /// Counts a connection that was refused or closed for `reason`. If a line about it may be
    /// logged, returns the number of those that were left out before it.
    pub(crate) fn complain(&self, client: PeerKey, reason: &'static str) -> Option<Option<u64>> {
        self.connection_refusals.count(reason);
        self.complaints.permit((client, reason))
    }

    /// The peer of a connection or datagram from `origin`.
    pub(crate) fn peer(&self, origin: Origin) -> Peer {
        let server = rustix::process::geteuid().as_raw();
        Peer::new(origin, &self.trust, server)
            .counting(self.refusals.clone())
            .reserving(&self.budget)
    }

    /// The memory of clients.
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    pub(crate) fn next_device(&self) -> PeerKey {
        PeerKey::Device(self.devices.fetch_add(1, Ordering::Relaxed))
    }

    /// Serves the client at the other end of `link`. Errs if there is no room for it.
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

    /// Counts a refusal, and logs it unless it is one of many.
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

    /// Stops: no more connections, no more requests; what is in flight is answered. Returns at
    /// once; [`Engine::wait`] waits for the end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Cannot fail: nobody else adds to it.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        let lanes = self.alive().lanes();
        for lane in lanes {
            lane.link.end_input();
        }
        self.budget.close();
        self.changed.notify_all();
    }

    /// Waits until there is neither a listener nor a connection any more. What a stop leaves
    /// unanswered beyond the time of grace is cancelled.
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

    /// How many connections there are, and what those and the queues, of now and before, have done.
    pub fn stats(&self) -> (usize, Snapshot) {
        (self.alive().members.len(), self.tally.sum())
    }

    /// The number of clients that exports refused, by reason.
    pub fn refusals(&self) -> &Arc<Refusals> {
        &self.refusals
    }

    fn admit(self: &Arc<Self>, client: PeerKey) -> Result<Place, (&'static str, io::Error)> {
        let most = self.tuning.connections;
        let mut alive = self.alive();
        let all = alive.members.len();
        if all >= most {
            let error = format!("there are {most} connections already");
            return Err((ConnectionRefusals::CONNECTIONS, io::Error::other(error)));
        }
        let own = alive.by_client.get(&client).copied().unwrap_or(0);
        let limit = self.tuning.connections_per_client;
        let limit = limit.unwrap_or_else(|| (most - (all - own)).div_ceil(2));
        if own >= limit {
            let error = format!("the client has {own} connections already");
            return Err((
                ConnectionRefusals::CLIENT_CONNECTIONS,
                io::Error::other(error),
            ));
        }
        let Some(minimum) = self.budget.connect() else {
            let error = "there is no memory for more connections";
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
                    // A refusal is logged and counted there.
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

/// A thread that listens.
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

/// A connection's place among those alive.
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

/// A connection among those alive; dropped last of all that a connection has.
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
