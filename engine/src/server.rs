//! An engine: accepts connections, starts their lanes, and stops.

use std::fmt::Display;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use transports::{Link, Listener, StreamLink};
use vfs::memory::MemoryBudget;
use vfs::peer::{PeerKey, Refusals};
use vfs::{Call, LocalUsers, Origin, Peer};
use wire::{SavedState, Session};

use crate::connection_limits::{Admission, ConnectionLimits, ConnectionRefusals};
use crate::handover::{FrozenConnection, Handover, SuspendedConnection};
use crate::kick_watcher::KickWatcher;
use crate::lane::Lane;
use crate::lane_thread;
use crate::listeners::{ListenerEntry, Listeners};
use crate::slow_log::SlowLog;
use crate::snapshot::ConnectionStatus;
use crate::stats::{StatsRegistry, Totals};
use crate::stop_signal::StopSignal;
use crate::tuning::Tuning;
use crate::workers::Workers;

/// A service that clients connect to: creates a session for each.
pub trait Service: Send + Sync {
    /// Creates the session of a client that has just connected.
    fn session(&self) -> Box<dyn Session>;

    /// Continues the session of a client of another process, which has saved `state`
    /// ([`Session::save_state`]). `call` is a call of the client. Returns the reason if that is not
    /// possible: the connection is closed then.
    fn resume(&self, call: &Call, state: &SavedState) -> Result<Box<dyn Session>, String> {
        let _ = (call, state);
        Err("its session cannot continue in another process".into())
    }

    /// Wraps the link of its connection.
    fn link(&self, link: StreamLink) -> Box<dyn Link> {
        Box::new(link)
    }
}

/// A server that accepts connections and drives each with its own thread.
pub struct Engine {
    workers: Arc<Workers>,
    kick_watcher: Arc<KickWatcher>,
    stats_registry: Arc<StatsRegistry>,
    tuning: Tuning,
    trust: LocalUsers,
    refusals: Arc<Refusals>,
    stop: StopSignal,
    pub(crate) handover: Handover,
    connections: Arc<ConnectionLimits<Lane>>,
    listeners: Arc<Listeners>,
    /// Listeners that ended although the engine was not stopped.
    failed_listeners: Mutex<Vec<String>>,
    devices: AtomicU64,
}

impl Engine {
    /// The stack size of a lane's thread in bytes: requests do not recurse.
    const STACK: usize = 512 << 10;

    /// Creates an idle engine. Returns an error if no worker thread can be created.
    pub fn new(tuning: Tuning) -> io::Result<Arc<Engine>> {
        Engine::with_trust(tuning, LocalUsers::default())
    }

    /// Does the same as [`Engine::new`], and allows processes of the local users in `trust` to act
    /// as any user.
    pub fn with_trust(tuning: Tuning, trust: LocalUsers) -> io::Result<Arc<Engine>> {
        let workers = Workers::new(tuning.workers, Workers::STUCK_AFTER)?;
        Ok(Arc::new(Engine {
            kick_watcher: KickWatcher::new(&workers)?,
            workers,
            stop: StopSignal::new()?,
            handover: Handover::default(),
            connections: ConnectionLimits::new(&tuning),
            listeners: Arc::default(),
            stats_registry: StatsRegistry::new(tuning.operation_stats, SlowLog::new(&tuning)),
            tuning,
            trust,
            refusals: Arc::default(),
            failed_listeners: Mutex::default(),
            devices: AtomicU64::new(0),
        }))
    }

    /// Serves the clients that connect to `listener`, and before these the adopted ones, until the
    /// engine stops or [`Engine::close_listener`] is called with the listener's address.
    pub fn listen(
        self: &Arc<Self>,
        listener: Listener,
        service: Arc<dyn Service>,
    ) -> io::Result<()> {
        let engine = self.clone();
        let name: Arc<str> = listener.addr().to_string().into();
        let own_name = name.clone();
        for connection in self.adopted_at(&name) {
            let peer = connection.peer.clone();
            if let Err(error) = self.resume(connection, &listener, &*service) {
                tracing::warn!(peer, "connection closed: {error}");
            }
        }
        self.spawn_listener(&name, move |stop| {
            engine.accept(&listener, &own_name, &*service, stop);
        })
    }

    /// Runs `listen`, the listener `name`, on a new thread. It must return soon after its
    /// descriptor becomes readable, when the engine stops or the listener is closed.
    pub fn spawn_listener(
        self: &Arc<Self>,
        name: &str,
        listen: impl FnOnce(BorrowedFd<'_>) + Send + 'static,
    ) -> io::Result<()> {
        let thread = ListenerThread::new(self, name)?;
        std::thread::Builder::new()
            .name("barge-accept".into())
            .spawn(move || {
                thread.engine.handover.wait_until_resumed();
                listen(thread.entry.stop_fd());
            })
            .map(drop)
    }

    /// Ends the listeners `name`: they accept no more connections. A device's connection ends as
    /// well. Waits for `timeout` at most, and returns whether they have ended.
    pub fn close_listener(&self, name: &str, timeout: Duration) -> bool {
        self.listeners.stop(Some(name));
        self.listeners.wait(name, timeout)
    }

    /// Returns the open connections, without the queues of devices.
    pub fn open_connections(&self) -> Vec<ConnectionStatus> {
        let mut all: Vec<_> = self
            .connections
            .all()
            .iter()
            .map(|it| it.status())
            .collect();
        all.sort_by_key(|connection| connection.id);
        all
    }

    /// Closes the connections whose status `closes` selects. Requests in flight are cancelled.
    /// Returns their number.
    pub fn disconnect(&self, closes: impl Fn(&ConnectionStatus) -> bool) -> usize {
        let mut all = self.connections.all();
        all.retain(|lane| closes(&lane.status()));
        for lane in &all {
            lane.in_flight.cancel_all();
            lane.disconnect();
        }
        all.len()
    }

    /// Logs that the listener `name` ended because of `error`, and adds it to
    /// [`Engine::failed_listeners`].
    pub fn report_failed_listener(&self, name: &dyn Display, error: &dyn Display) {
        tracing::error!("no longer listening at {name}: {error}");
        self.lock_failed_listeners().push(name.to_string());
    }

    /// Returns the queue of requests for traces, if [`Tuning::traces`] is set.
    #[cfg(feature = "traces")]
    pub fn traces(&self) -> Option<Arc<crate::TraceQueue>> {
        self.stats_registry.slow_log().traces().cloned()
    }

    /// Returns the listeners that failed: clients can no longer connect there.
    pub fn failed_listeners(&self) -> Vec<String> {
        self.lock_failed_listeners().clone()
    }

    /// Returns the number of connections that were refused or closed, by reason.
    pub fn connection_refusals(&self) -> Vec<(&'static str, u64)> {
        self.connections.refusals().all()
    }

    /// Returns how often connections were not read for a while because of a limit, by reason.
    pub fn throttles(&self) -> Vec<(&'static str, u64)> {
        self.connections.throttles().all()
    }

    /// Creates the peer of a connection or datagram from `origin`.
    pub fn peer(&self, origin: Origin) -> Peer {
        let server = rustix::process::geteuid().as_raw();
        Peer::new(origin, &self.trust, server)
            .with_refusals(self.refusals.clone())
            .with_budget(self.budget())
    }

    /// Returns the memory budget of the clients.
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        self.connections.budget()
    }

    pub(crate) fn next_device(&self) -> PeerKey {
        PeerKey::Device(self.devices.fetch_add(1, Ordering::Relaxed))
    }

    /// Serves the client of `link`. Returns an error if a limit is reached.
    pub fn connect(self: &Arc<Self>, link: Box<dyn Link>, service: &dyn Service) -> io::Result<()> {
        self.connect_at(link, service, "".into())
    }

    /// Does the same for a client of the listener `listener`.
    fn connect_at(
        self: &Arc<Self>,
        link: Box<dyn Link>,
        service: &dyn Service,
        listener: Arc<str>,
    ) -> io::Result<()> {
        let peer = Arc::new(self.peer(link.origin()));
        let admission = self.admit(&peer, listener)?;
        let client = peer.key();
        self.start(link, service.session(), peer, admission, Vec::new())
            .map_err(|error| self.refuse(client, ConnectionRefusals::SYSTEM, error))
    }

    /// Serves a client that another process has accepted at `listener`.
    fn resume(
        self: &Arc<Self>,
        mut connection: SuspendedConnection,
        listener: &Listener,
        service: &dyn Service,
    ) -> io::Result<()> {
        let socket = connection.fds.drain(..).next();
        let socket = socket.ok_or_else(|| io::Error::other("its descriptor is missing"))?;
        let link = service.link(listener.adopt(socket, connection.peer)?);
        let peer = Arc::new(self.peer(link.origin()));
        let admission = self.admit(&peer, connection.listener.into())?;
        lane_thread::find_owner(&peer);
        let call = Call::detached().with_peer(peer.clone());
        let session = service.resume(&call, &connection.session);
        let session = session.map_err(io::Error::other)?;
        self.start(link, session, peer, admission, connection.transport)
    }

    /// Admits a connection of `peer` that `listener` has accepted.
    fn admit(&self, peer: &Peer, listener: Arc<str>) -> io::Result<Admission<Lane>> {
        let client = peer.key();
        match self.connections.admit(client) {
            Ok(admission) => Ok(admission.with_listener(listener)),
            Err((reason, error)) => Err(self.refuse(client, reason, error)),
        }
    }

    /// Counts a refusal, and logs it within the rate limit.
    fn refuse(&self, client: PeerKey, reason: &'static str, error: io::Error) -> io::Error {
        if let Some(suppressed) = self.connections.count_refusal(client, reason) {
            tracing::warn!(%client, suppressed, "connection refused: {error}");
        }
        error
    }

    fn start(
        self: &Arc<Self>,
        link: Box<dyn Link>,
        session: Box<dyn Session>,
        peer: Arc<Peer>,
        admission: Admission<Lane>,
        received: Vec<u8>,
    ) -> io::Result<()> {
        let id = admission.id();
        let lane = Lane::new(
            link,
            session.into(),
            self.workers.clone(),
            self.tuning,
            peer,
            &self.stats_registry,
            admission,
        )?;
        tracing::debug!(connection = id, peer = lane.link.peer(), "connected");
        let engine = self.clone();
        std::thread::Builder::new()
            .name(format!("barge-lane-{id}"))
            .stack_size(Engine::STACK)
            .spawn(move || {
                engine.handover.wait_until_resumed();
                if engine.stop.is_raised() && !engine.handover.is_requested() {
                    lane.link.end_input();
                }
                lane_thread::run(&lane, &engine.stop, &engine.handover, &received);
            })
            .map(drop)
    }

    /// Stops the engine: no more connections or requests; requests in flight are answered. Returns
    /// at once; [`Engine::wait`] waits for the end.
    pub fn stop(&self) {
        self.stop.raise();
        self.handover.end_resuming();
        self.listeners.stop(None);
        for lane in self.connections.all() {
            lane.link.end_input();
        }
        self.budget().close();
        self.connections.recheck_deadline();
    }

    /// Stops the engine like [`Engine::stop`], but keeps the connections whose sessions can
    /// continue in another process: [`Engine::suspended`] returns them after [`Engine::wait`].
    pub fn hand_over(&self) {
        self.handover.request();
        self.stop.raise();
        self.handover.end_resuming();
        self.listeners.stop(None);
        self.budget().close();
        self.connections.recheck_deadline();
    }

    /// Returns whether [`Engine::hand_over`] was called.
    pub fn is_handing_over(&self) -> bool {
        self.handover.is_requested()
    }

    /// Adds a connection to those that [`Engine::suspended`] returns.
    pub fn hand_over_connection(&self, connection: FrozenConnection) {
        self.handover.add(connection);
    }

    /// Saves the states of the suspended connections, and returns them. Called after
    /// [`Engine::wait`]: a session holds its locks until all are frozen, so that none of them gets
    /// a lock of another one that is to continue.
    pub fn suspended(&self) -> Vec<SuspendedConnection> {
        self.handover.save()
    }

    /// Takes the connections of another process. Those of a listener that starts later are served
    /// there. Called before any listener starts. No connection is accepted, no request served and
    /// no queue of a device read until [`Engine::end_resuming`]: no client gets a lock that a
    /// session is about to acquire again, and if this process ends before, another one can continue
    /// the same connections.
    pub fn adopt(&self, connections: Vec<SuspendedConnection>) {
        self.handover.adopt(connections);
    }

    /// Begins to serve clients, after [`Engine::adopt`].
    pub fn end_resuming(&self) {
        self.handover.end_resuming();
    }

    /// Removes and returns the adopted connections of the listener `name`.
    pub fn adopted_at(&self, name: &str) -> Vec<SuspendedConnection> {
        self.handover.adopted_at(name)
    }

    /// Waits until [`Engine::stop`] is called, also while there is no listener and no connection.
    /// Returns an error if the wait fails.
    pub fn wait_for_stop(&self) -> io::Result<()> {
        self.stop.wait()
    }

    /// Waits until all listeners and connections have ended. Cancels requests that are still in
    /// flight when the grace period after a stop ends.
    pub fn wait(&self) {
        let mut deadline = None;
        let grace = self.tuning.grace;
        while !self.connections.wait_until_closed(|| {
            let stopping = self.stop.is_raised();
            stopping.then(|| *deadline.get_or_insert_with(|| Instant::now() + grace))
        }) {
            for lane in self.connections.all() {
                lane.in_flight.cancel_all();
                lane.disconnect();
            }
            deadline = Some(Instant::now() + grace.max(Duration::from_secs(1)));
        }
    }

    /// Returns whether [`Engine::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_raised()
    }

    /// Returns the number of connections, and the totals of all connections and queues, including
    /// those that ended.
    pub fn stats(&self) -> (usize, Totals) {
        (self.connections.len(), self.stats_registry.sum())
    }

    /// Returns the number of clients that exports refused, by reason.
    pub fn refusals(&self) -> &Arc<Refusals> {
        &self.refusals
    }

    fn accept(
        self: &Arc<Self>,
        listener: &Listener,
        name: &Arc<str>,
        service: &dyn Service,
        stop: BorrowedFd<'_>,
    ) {
        loop {
            match listener.accept(stop) {
                Ok(Some(link)) => {
                    // `connect_at` logs and counts refusals.
                    let _ = self.connect_at(service.link(link), service, name.clone());
                }
                Ok(None) => return,
                Err(error) => return self.report_failed_listener(listener.addr(), &error),
            }
        }
    }

    pub(crate) fn workers(&self) -> &Arc<Workers> {
        &self.workers
    }

    pub(crate) fn kick_watcher(&self) -> &Arc<KickWatcher> {
        &self.kick_watcher
    }

    pub(crate) fn stats_registry(&self) -> &Arc<StatsRegistry> {
        &self.stats_registry
    }

    /// Returns the limits and options.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Returns the number of open connections of the client with the most.
    pub fn most_connections_of_a_client(&self) -> usize {
        self.connections.most_of_a_client()
    }

    fn lock_failed_listeners(&self) -> MutexGuard<'_, Vec<String>> {
        self.failed_listeners.lock()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.workers.close();
    }
}

/// A listener thread.
struct ListenerThread {
    engine: Arc<Engine>,
    entry: ListenerEntry,
}

impl ListenerThread {
    fn new(engine: &Arc<Engine>, name: &str) -> io::Result<ListenerThread> {
        let entry = engine.listeners.add(name)?;
        engine.connections.open_listener();
        if engine.stop.is_raised() {
            entry.stop();
        }
        Ok(ListenerThread {
            engine: engine.clone(),
            entry,
        })
    }
}

impl Drop for ListenerThread {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.engine
                .report_failed_listener(&"one of the addresses", &"its thread has panicked");
        }
        self.engine.connections.close_listener();
    }
}
