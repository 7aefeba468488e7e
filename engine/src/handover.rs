//! Connections that continue in another process: an engine that [hands
//! over](crate::Engine::hand_over) returns them instead of closing them, and another engine that
//! [adopts](crate::Engine::adopt) them serves them at the listeners of the same names.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use wire::SavedState;

/// A client's connection, or that of a device's monitor, between two processes.
#[derive(Debug)]
pub struct HandedConnection {
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

/// The connections that an engine hands over, and those that it has adopted.
#[derive(Default)]
pub(crate) struct Handover {
    requested: AtomicBool,
    handed: Mutex<Vec<HandedConnection>>,
    adopted: Mutex<Vec<HandedConnection>>,
}

impl Handover {
    pub(crate) fn request(&self) {
        self.requested.store(true, Ordering::SeqCst);
    }

    /// Returns whether connections are handed over instead of closed.
    pub(crate) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }

    pub(crate) fn add(&self, connection: HandedConnection) {
        self.handed.lock().push(connection);
    }

    pub(crate) fn take(&self) -> Vec<HandedConnection> {
        std::mem::take(&mut self.handed.lock())
    }

    pub(crate) fn adopt(&self, connections: Vec<HandedConnection>) {
        self.adopted.lock().extend(connections);
    }

    /// Removes and returns the adopted connections of the listener `name`.
    pub(crate) fn adopted_at(&self, name: &str) -> Vec<HandedConnection> {
        let is_own = |connection: &mut HandedConnection| connection.listener == name;
        self.adopted.lock().extract_if(.., is_own).collect()
    }
}
