//! The connections of sessions (RFC 8881 sections 2.10.3.1, 2.10.5, 18.34).

use std::sync::atomic::Ordering;

use crate::v4::{ClientId, SessionId, Status};

use super::requester::Requester;
use super::sessions::Session;
use super::{State, Tree};

/// The use of a connection by a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The connection carries the client's requests.
    Fore,
    /// The connection carries the server's requests.
    Back,
    /// The connection carries both.
    Both,
}

/// A session's connections, newest last.
#[derive(Default)]
pub(super) struct Connections(Vec<BoundConnection>);

struct BoundConnection {
    connection: u64,
    fore: bool,
    back: bool,
}

impl Connections {
    pub(super) fn has(&self, connection: u64) -> bool {
        self.0.iter().any(|bound| bound.connection == connection)
    }

    pub(super) fn has_fore(&self, connection: u64) -> bool {
        self.0
            .iter()
            .any(|bound| bound.connection == connection && bound.fore)
    }

    pub(super) fn has_back(&self) -> bool {
        self.back_count() > 0
    }

    fn back_count(&self) -> u32 {
        self.0.iter().filter(|bound| bound.back).count() as u32
    }
}

impl<T: Tree> State<T> {
    /// Runs BIND_CONN_TO_SESSION, for any `direction` that the client requests or also accepts
    /// (`CDFC4_FORE_OR_BOTH`, `CDFC4_BACK_OR_BOTH`: [`Direction::Both`]). Returns the direction and
    /// the session's client. Returns `BADSESSION` if the session belongs to another client.
    pub fn bind_connection(
        &self,
        session: &SessionId,
        (connection, by): (u64, &Requester<'_>),
        direction: Direction,
    ) -> Result<(Direction, ClientId), Status> {
        let session = self.sessions.get(session);
        let session = session.filter(|session| session.client.accepts(by));
        let session = session.ok_or(Status::Badsession)?;
        let (fore, back) = match direction {
            Direction::Fore => (true, false),
            Direction::Back => (false, true),
            Direction::Both => (true, true),
        };
        self.bind(&session, connection, fore, back);
        session.client.renew(self.now());
        Ok((direction, session.client.id))
    }

    /// Binds a connection, in addition to its existing uses. If there are too many, unbinds one
    /// that only carries the client's requests: its next request binds it again.
    pub(super) fn bind(&self, session: &Session<T>, connection: u64, fore: bool, back: bool) {
        if back {
            session.clear_fault();
            session.wants_backchannel.store(true, Ordering::Release);
            session
                .client
                .wants_backchannel
                .store(true, Ordering::Release);
        }
        let mut by_connection = self.connections.lock();
        let forgotten = session.change_connections(|bound| {
            if let Some(known) = bound.iter_mut().find(|one| one.connection == connection) {
                known.fore |= fore;
                known.back |= back;
                return None;
            }
            let mut forgotten = None;
            if bound.len() >= self.limits.connections {
                let least = bound.iter().position(|bound| !bound.back).unwrap_or(0);
                forgotten = Some(bound.remove(least).connection);
            }
            bound.push(BoundConnection {
                connection,
                fore,
                back,
            });
            forgotten
        });
        let sessions = by_connection.entry(connection).or_default();
        if !sessions.contains(&session.id) {
            sessions.push(session.id);
        }
        if let Some(forgotten) = forgotten {
            forget(&mut by_connection, forgotten, &session.id);
        }
    }

    /// Unbinds a closed connection. Returns the clients whose callbacks must be sent again over
    /// other connections.
    pub fn disconnected(&self, connection: u64) -> Vec<ClientId> {
        let sessions = self.connections.lock().remove(&connection);
        for session in sessions.into_iter().flatten() {
            if let Some(session) = self.sessions.get(&session) {
                session.change_connections(|bound| {
                    bound.retain(|bound| bound.connection != connection);
                });
            }
        }
        self.reschedule_lost_calls(connection)
    }

    /// Unbinds all connections of a removed session.
    pub(super) fn unbind_all(&self, session: &Session<T>) {
        let mut by_connection = self.connections.lock();
        let bound = session.change_connections(std::mem::take);
        for bound in bound {
            forget(&mut by_connection, bound.connection, &session.id);
        }
    }

    /// Returns the sessions that a connection is bound to.
    pub fn sessions_of(&self, connection: u64) -> Vec<SessionId> {
        self.connections
            .lock()
            .get(&connection)
            .cloned()
            .unwrap_or_default()
    }
}

fn forget(
    by_connection: &mut std::collections::HashMap<u64, Vec<SessionId>>,
    connection: u64,
    session: &SessionId,
) {
    if let Some(sessions) = by_connection.get_mut(&connection) {
        sessions.retain(|one| one != session);
        if sessions.is_empty() {
            by_connection.remove(&connection);
        }
    }
}

impl<T: Tree> Session<T> {
    /// Changes the session's connections, and the client's number of backchannels.
    fn change_connections<R>(&self, change: impl FnOnce(&mut Vec<BoundConnection>) -> R) -> R {
        let mut inner = self.inner.lock();
        let before = inner.connections.back_count();
        let changed = change(&mut inner.connections.0);
        let after = inner.connections.back_count();
        // Wraps around zero, so that the sum is right in between too.
        self.client
            .backchannels
            .fetch_add(after.wrapping_sub(before), Ordering::AcqRel);
        changed
    }

    /// Returns whether a connection is bound to the session, or a request of it is in progress.
    pub(super) fn is_connected(&self) -> bool {
        let inner = self.inner.lock();
        !inner.connections.0.is_empty() || inner.slots.busy() > 0
    }

    /// Returns the newest connection of the backchannel.
    pub(super) fn newest_back(&self) -> Option<u64> {
        let inner = self.inner.lock();
        let newest = inner.connections.0.iter().rev().find(|bound| bound.back)?;
        Some(newest.connection)
    }
}
