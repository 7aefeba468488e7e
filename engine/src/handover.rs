//! Connections that continue in another process: an engine that [hands
//! over](crate::Engine::hand_over) returns them instead of closing them, and another engine that
//! [adopts](crate::Engine::adopt) them serves them at the listeners of the same names.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};
use wire::SavedState;

/// A client's connection, or that of a device's monitor, between two processes.
#[derive(Debug)]
pub struct SuspendedConnection {
    /// The name of the listener that accepted it.
    pub listener: String,
    /// The name of its peer, for logs.
    pub peer: String,
    /// The state of its session ([`wire::Session::save_state`]).
    pub session: SavedState,
    /// The state of its transport: of a stream the bytes that were received and not served, of a
    /// device that of its queues.
    pub transport: Vec<u8>,
    /// Its descriptors, the connection's own first.
    pub fds: Vec<OwnedFd>,
}

/// A connection that is served no more, and whose state has not been saved.
pub struct FrozenConnection {
    /// See [`SuspendedConnection::listener`].
    pub listener: String,
    /// See [`SuspendedConnection::peer`].
    pub peer: String,
    /// See [`SuspendedConnection::transport`].
    pub transport: Vec<u8>,
    /// See [`SuspendedConnection::fds`].
    pub fds: Vec<OwnedFd>,
    /// Saves the state of its session, and drops that. Returns `None` if it cannot continue.
    pub save: Box<dyn FnOnce() -> Option<SavedState> + Send>,
}

/// The connections that an engine suspends, and those that it has adopted.
#[derive(Default)]
pub(crate) struct Handover {
    requested: AtomicBool,
    frozen: Mutex<Vec<FrozenConnection>>,
    adopted: Mutex<Vec<SuspendedConnection>>,
    /// Whether no request is served: adopted sessions are being resumed, or this process may not
    /// serve yet.
    resuming: Mutex<bool>,
    resumed: Condvar,
}

impl Handover {
    pub(crate) fn request(&self) {
        self.requested.store(true, Ordering::SeqCst);
    }

    /// Returns whether connections are suspended instead of closed.
    pub(crate) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }

    pub(crate) fn add(&self, connection: FrozenConnection) {
        self.frozen.lock().push(connection);
    }

    /// Saves the states of all connections.
    pub(crate) fn save(&self) -> Vec<SuspendedConnection> {
        let frozen = std::mem::take(&mut *self.frozen.lock());
        let save = |connection: FrozenConnection| {
            Some(SuspendedConnection {
                session: (connection.save)()?,
                listener: connection.listener,
                peer: connection.peer,
                transport: connection.transport,
                fds: connection.fds,
            })
        };
        frozen.into_iter().filter_map(save).collect()
    }

    pub(crate) fn adopt(&self, connections: Vec<SuspendedConnection>) {
        *self.resuming.lock() = true;
        self.adopted.lock().extend(connections);
    }

    /// Ends the waits of [`Handover::wait_until_resumed`].
    pub(crate) fn end_resuming(&self) {
        // Those of listeners that no longer exist.
        self.adopted.lock().clear();
        *self.resuming.lock() = false;
        self.resumed.notify_all();
    }

    /// Waits until all adopted sessions have been resumed.
    pub(crate) fn wait_until_resumed(&self) {
        self.resumed
            .wait_while(&mut self.resuming.lock(), |resuming| *resuming);
    }

    /// Does the same as [`Handover::wait_until_resumed`], and returns `true`. Returns `false` if
    /// `ended` is set before, and [`Handover::wake`] called.
    pub(crate) fn wait_unless(&self, ended: &AtomicBool) -> bool {
        let mut resuming = self.resuming.lock();
        let waits = |resuming: &mut bool| *resuming && !ended.load(Ordering::SeqCst);
        self.resumed.wait_while(&mut resuming, waits);
        !*resuming
    }

    /// Makes the waits of [`Handover::wait_unless`] look at their flags again.
    pub(crate) fn wake(&self) {
        let _resuming = self.resuming.lock();
        self.resumed.notify_all();
    }

    /// Removes and returns the adopted connections of the listener `name`.
    pub(crate) fn adopted_at(&self, name: &str) -> Vec<SuspendedConnection> {
        let is_own = |connection: &mut SuspendedConnection| connection.listener == name;
        self.adopted.lock().extract_if(.., is_own).collect()
    }
}
