//! Limits on open connections, in total and per client, and the counts and log lines of those that
//! were refused or closed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};
use vfs::LogLimit;
use vfs::memory::{MemoryBudget, Minimum};
use vfs::peer::PeerKey;

use crate::trim::Trim;
use crate::tuning::Tuning;

/// The open connections of an engine, each represented by a `C`, and its listeners.
pub(crate) struct ConnectionLimits<C> {
    max: usize,
    max_per_client: Option<usize>,
    open: Mutex<OpenConnections<C>>,
    changed: Condvar,
    budget: Arc<MemoryBudget>,
    trim: Arc<Trim>,
    refusals: ConnectionRefusals,
    throttles: Throttles,
    /// The rate limit for log lines about refused clients and closed connections.
    log_limit: LogLimit<(PeerKey, &'static str)>,
}

struct OpenConnections<C> {
    listeners: usize,
    /// The connections; those that are not set up yet refer to nothing.
    connections: HashMap<u64, Weak<C>>,
    by_client: HashMap<PeerKey, usize>,
    next: u64,
}

/// The reason for a refusal, for statistics, and the error.
pub(crate) type AdmissionError = (&'static str, io::Error);

impl<C> ConnectionLimits<C> {
    pub(crate) fn new(tuning: &Tuning) -> Arc<ConnectionLimits<C>> {
        Arc::new(ConnectionLimits {
            max: tuning.connections,
            max_per_client: tuning.connections_per_client,
            open: Mutex::new(OpenConnections {
                listeners: 0,
                connections: HashMap::new(),
                by_client: HashMap::new(),
                next: 0,
            }),
            changed: Condvar::new(),
            budget: MemoryBudget::new(tuning.memory),
            trim: Arc::default(),
            refusals: ConnectionRefusals::default(),
            throttles: Throttles::default(),
            log_limit: LogLimit::new(),
        })
    }

    /// Admits a connection of `client`, unless that exceeds a limit.
    pub(crate) fn admit(self: &Arc<Self>, client: PeerKey) -> Result<Admission<C>, AdmissionError> {
        let max = self.max;
        let mut open = self.open();
        let all = open.connections.len();
        if all >= max {
            let error = format!("the limit of {max} connections is reached");
            return Err((ConnectionRefusals::CONNECTIONS, io::Error::other(error)));
        }
        let own = open.by_client.get(&client).copied().unwrap_or(0);
        let limit = self.max_per_client;
        let limit = limit.unwrap_or_else(|| (max - (all - own)).div_ceil(2));
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
        open.next += 1;
        let id = open.next;
        open.connections.insert(id, Weak::new());
        *open.by_client.entry(client).or_default() += 1;
        Ok(Admission {
            limits: self.clone(),
            id,
            client,
            listener: "".into(),
            _minimum: minimum,
        })
    }

    /// Counts a connection that was refused or closed for `reason`. Returns the number of
    /// suppressed lines if a line about it may be logged.
    pub(crate) fn count_refusal(
        &self,
        client: PeerKey,
        reason: &'static str,
    ) -> Option<Option<u64>> {
        self.refusals.count(reason);
        self.log_limit.permit((client, reason))
    }

    /// Returns the number of connections that were refused or closed, by reason.
    pub(crate) fn refusals(&self) -> &ConnectionRefusals {
        &self.refusals
    }

    /// Returns how often connections were not read because of a limit.
    pub(crate) fn throttles(&self) -> &Throttles {
        &self.throttles
    }

    /// Returns the memory budget of all clients.
    pub(crate) fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    /// Returns the number of open connections.
    pub(crate) fn len(&self) -> usize {
        self.open().connections.len()
    }

    /// Returns the number of open connections of the client with the most.
    pub(crate) fn most_of_a_client(&self) -> usize {
        self.open().by_client.values().copied().max().unwrap_or(0)
    }

    /// Returns the open connections.
    pub(crate) fn all(&self) -> Vec<Arc<C>> {
        let open = self.open();
        open.connections
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Notes that a listener starts.
    pub(crate) fn open_listener(&self) {
        self.open().listeners += 1;
    }

    /// Notes that a listener has ended.
    pub(crate) fn close_listener(&self) {
        self.open().listeners -= 1;
        self.changed.notify_all();
    }

    /// Waits until no listener and no connection is open. Returns false once the time that
    /// `deadline` returns has passed; it is called again after each change.
    pub(crate) fn wait_until_closed(&self, mut deadline: impl FnMut() -> Option<Instant>) -> bool {
        let mut open = self.open();
        while open.listeners > 0 || !open.connections.is_empty() {
            match deadline() {
                None => self.changed.wait(&mut open),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    self.changed.wait_for(&mut open, left);
                }
            }
        }
        true
    }

    /// Makes [`ConnectionLimits::wait_until_closed`] call its `deadline` again.
    pub(crate) fn recheck_deadline(&self) {
        // Under the lock, so that no waiter misses it between its check and its sleep.
        let _open = self.open();
        self.changed.notify_all();
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections<C>> {
        self.open.lock()
    }
}

/// A connection within the limits, until dropped.
pub(crate) struct Admission<C> {
    limits: Arc<ConnectionLimits<C>>,
    id: u64,
    client: PeerKey,
    /// The name of the listener that accepted it; empty without one.
    listener: Arc<str>,
    _minimum: Minimum,
}

impl<C> Admission<C> {
    /// Sets the connection that was admitted.
    pub(crate) fn set(&self, connection: &Arc<C>) {
        let connection = Arc::downgrade(connection);
        self.limits.open().connections.insert(self.id, connection);
    }

    /// Sets the name of the listener that accepted it.
    pub(crate) fn with_listener(mut self, listener: Arc<str>) -> Admission<C> {
        self.listener = listener;
        self
    }

    pub(crate) fn listener(&self) -> &str {
        &self.listener
    }

    /// Returns the connection's number.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn client(&self) -> PeerKey {
        self.client
    }

    pub(crate) fn limits(&self) -> &ConnectionLimits<C> {
        &self.limits
    }
}

impl<C> Drop for Admission<C> {
    fn drop(&mut self) {
        let mut open = self.limits.open();
        open.connections.remove(&self.id);
        if let Entry::Occupied(mut own) = open.by_client.entry(self.client) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
        drop(open);
        self.limits.changed.notify_all();
        self.limits.trim.connection_ended();
    }
}

/// Connections that the engine refused or closed, by reason.
#[derive(Default)]
pub struct ConnectionRefusals([AtomicU64; ConnectionRefusals::REASONS.len()]);

impl ConnectionRefusals {
    /// The limit on connections was reached.
    pub const CONNECTIONS: &str = "connections";
    /// The client's limit on connections was reached.
    pub const CLIENT_CONNECTIONS: &str = "client-connections";
    /// The memory for connections was used up.
    pub const MEMORY: &str = "memory";
    /// The system had no thread, descriptor or memory for it, or it failed.
    pub const SYSTEM: &str = "system";
    /// A deadline passed: see [`crate::Timeouts`].
    pub const TIMEOUT: &str = "timeout";
    /// The client sent a malformed message, or violated its protocol.
    pub const PROTOCOL: &str = "protocol";
    /// A TLS handshake failed.
    pub const TLS: &str = "tls";

    /// All reasons.
    pub const REASONS: [&str; 7] = [
        ConnectionRefusals::CONNECTIONS,
        ConnectionRefusals::CLIENT_CONNECTIONS,
        ConnectionRefusals::MEMORY,
        ConnectionRefusals::SYSTEM,
        ConnectionRefusals::TIMEOUT,
        ConnectionRefusals::PROTOCOL,
        ConnectionRefusals::TLS,
    ];

    pub(crate) fn count(&self, reason: &str) {
        let all = ConnectionRefusals::REASONS.iter().zip(&self.0);
        for (_, count) in all.filter(|(name, _)| **name == reason) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn all(&self) -> Vec<(&'static str, u64)> {
        let all = ConnectionRefusals::REASONS.into_iter().zip(&self.0);
        all.map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
            .collect()
    }
}

/// How often connections were not read for a while because of a limit, by reason.
#[derive(Default)]
pub(crate) struct Throttles([AtomicU64; Throttles::REASONS.len()]);

impl Throttles {
    /// The memory of all clients, or the client's share of it, was used up.
    pub(crate) const MEMORY: &str = "memory";
    /// The maximum number or size of requests of a connection was in flight.
    pub(crate) const IN_FLIGHT: &str = "in-flight";
    /// The client did not receive its replies.
    pub(crate) const REPLIES: &str = "replies";

    /// All reasons.
    const REASONS: [&str; 3] = [Throttles::MEMORY, Throttles::IN_FLIGHT, Throttles::REPLIES];

    pub(crate) fn count(&self, reason: &str) {
        let all = Throttles::REASONS.iter().zip(&self.0);
        for (_, count) in all.filter(|(name, _)| **name == reason) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn all(&self) -> Vec<(&'static str, u64)> {
        let all = Throttles::REASONS.into_iter().zip(&self.0);
        all.map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
            .collect()
    }
}
