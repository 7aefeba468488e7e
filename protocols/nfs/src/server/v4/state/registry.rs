//! The registry of clients by name, confirmed or not. It has one mutex, as its operations are rare.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vfs::Account;

use crate::v4::{ClientId, StateId, Status};

use super::client::{Client, ClientRef, Minor, Recorded};
use super::released::Released;
use super::setclientid::CallbackClient;
use super::stateid::{self, Parts, client_id};
use super::{State, Tree};

pub(super) struct Registry<T: Tree> {
    /// The names, keyed by [`super::client::record`].
    names: HashMap<Box<[u8]>, NameEntry<T>>,
    /// The client IDs, keyed by the clients' numbers in the lock table.
    lockers: HashMap<u64, ClientId>,
    last_client: u32,
    last_serial: u64,
}

/// The clients of one name.
pub(super) struct NameEntry<T: Tree> {
    pub(super) confirmed: Option<RegisteredClient<T>>,
    pub(super) unconfirmed: Option<RegisteredClient<T>>,
}

pub(super) struct RegisteredClient<T: Tree> {
    pub(super) client: Arc<Client<T>>,
    /// v4.0: the verifier for SETCLIENTID_CONFIRM, and the client's callback address.
    pub(super) confirm: [u8; 8],
    pub(super) callback: CallbackClient,
}

impl<T: Tree> Clone for RegisteredClient<T> {
    fn clone(&self) -> Self {
        RegisteredClient {
            client: self.client.clone(),
            confirm: self.confirm,
            callback: self.callback.clone(),
        }
    }
}

impl<T: Tree> Default for Registry<T> {
    fn default() -> Registry<T> {
        Registry {
            names: HashMap::new(),
            lockers: HashMap::new(),
            last_client: 0,
            last_serial: 0,
        }
    }
}

impl<T: Tree> Default for NameEntry<T> {
    fn default() -> NameEntry<T> {
        NameEntry {
            confirmed: None,
            unconfirmed: None,
        }
    }
}

impl<T: Tree> Registry<T> {
    pub(super) fn name(&self, record: &[u8]) -> Option<&NameEntry<T>> {
        self.names.get(record)
    }

    pub(super) fn name_mut(&mut self, record: &[u8]) -> &mut NameEntry<T> {
        self.names.entry(record.into()).or_default()
    }

    pub(super) fn confirmed(&self, record: &[u8]) -> Option<RegisteredClient<T>> {
        self.name(record)?.confirmed.clone()
    }

    pub(super) fn unconfirmed(&self, record: &[u8]) -> Option<RegisteredClient<T>> {
        self.name(record)?.unconfirmed.clone()
    }

    /// Returns a new, unused number.
    pub(super) fn serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }

    /// Returns the number of the last client ID issued.
    pub(super) fn issued(&self) -> u32 {
        self.last_client
    }

    fn forget(&mut self, client: &Client<T>) {
        self.lockers.remove(&client.lock_client);
        let Some(name) = self.names.get_mut(&client.record) else {
            return;
        };
        for known in [&mut name.confirmed, &mut name.unconfirmed] {
            known.take_if(|known| known.client.id == client.id);
        }
        if name.confirmed.is_none() && name.unconfirmed.is_none() {
            self.names.remove(&client.record);
        }
    }
}

/// The time without requests after which a client without a connection does not return at once:
/// Linux connects again within some milliseconds, and after a failure within three seconds.
const UNCONNECTED: Duration = Duration::from_secs(10);

/// Returns the client that is idle for longest, of the peer that has the most of `clients`.
fn longest_idle_of_most<T: Tree>(
    clients: Vec<Arc<Client<T>>>,
    now: Duration,
) -> Option<Arc<Client<T>>> {
    let mut counts = HashMap::new();
    for client in &clients {
        *counts.entry(client.peer.client()).or_insert(0) += 1;
    }
    let (most, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    let of_most = clients
        .into_iter()
        .filter(|client| client.peer.client() == most);
    of_most.max_by_key(|client| client.idle_time(now))
}

impl<T: Tree> State<T> {
    /// Returns the v4.0 client `id` and renews its lease. Returns `STALE_CLIENTID` if the ID is
    /// from another boot or unconfirmed, `EXPIRED` if the client is gone.
    pub fn client(&self, id: ClientId) -> Result<ClientRef<T>, Status> {
        if (id >> 32) as u32 != self.boot {
            return Err(Status::StaleClientid);
        }
        let Some(client) = self.clients.get(&id) else {
            let was_given = id as u32 <= self.registry.lock().issued();
            return Err(if was_given {
                Status::Expired
            } else {
                Status::StaleClientid
            });
        };
        if client.minor != Minor::V40 || !client.is_confirmed() {
            return Err(Status::StaleClientid);
        }
        client.renew(self.now());
        Ok(ClientRef(client))
    }

    /// Returns the v4.0 client of a stateid. Renews its lease.
    pub(super) fn client_of(&self, stateid: &StateId) -> Result<Arc<Client<T>>, Status> {
        let parts = Parts::of(stateid);
        if stateid::special(stateid).is_some() {
            return Err(Status::BadStateid);
        }
        if parts.boot != self.boot {
            return Err(Status::StaleStateid);
        }
        match self.client(client_id(parts.boot, parts.client)) {
            Ok(ClientRef(client)) => Ok(client),
            Err(Status::Expired) => Err(Status::Expired),
            Err(_) => Err(Status::BadStateid),
        }
    }

    /// Returns the ID of the client that has this number in the lock table, if it is an NFSv4
    /// client.
    pub fn client_of_lock(&self, number: u64) -> Option<ClientId> {
        self.registry.lock().lockers.get(&number).copied()
    }

    /// Creates a client of `peer`, unconfirmed and not yet named. Returns `full` if there is no
    /// room.
    pub(super) fn new_client(
        &self,
        registry: &mut Registry<T>,
        peer: &Account,
        make: impl FnOnce(ClientId) -> Client<T>,
        full: Status,
        released: &mut Released<T>,
    ) -> Result<Arc<Client<T>>, Status> {
        let charge = loop {
            match self.quotas.clients.take(peer, 1) {
                Ok(charge) => break charge,
                Err(full)
                    if self.make_room(registry, full.is_per_client().then_some(peer), released) => {
                }
                Err(_) => return Err(full),
            }
        };
        loop {
            registry.last_client = registry.last_client.checked_add(1).unwrap_or(1);
            let id = client_id(self.boot, registry.last_client);
            if self.clients.get(&id).is_none() {
                let client = Arc::new(make(id));
                *client.quota_charge.lock() = Some(charge);
                registry.lockers.insert(client.lock_client, id);
                self.clients.insert(id, client.clone());
                return Ok(client);
            }
        }
    }

    /// Destroys the most dispensable client, of `peer` or of all: an unconfirmed one, else one that
    /// would lose nothing ([`State::is_dispensable`]), both of the peer that has the most of those;
    /// else an expired one. The one idle for longest goes first.
    fn make_room(
        &self,
        registry: &mut Registry<T>,
        peer: Option<&Account>,
        released: &mut Released<T>,
    ) -> bool {
        let now = self.now();
        let silent = |client: &Arc<Client<T>>| client.idle_time(now);
        let mut all = self.clients.all();
        all.retain(|client| peer.is_none_or(|peer| client.peer == *peer));
        let (confirmed, unconfirmed): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|client| client.is_confirmed());
        let dispensable = || {
            let all = confirmed.iter();
            let dispensable = all.filter(|client| self.is_dispensable(client, now));
            longest_idle_of_most(dispensable.cloned().collect(), now)
        };
        let expired = || {
            let expired = confirmed.iter().filter(|client| self.is_expired(client));
            expired.max_by_key(|client| silent(client)).cloned()
        };
        let chosen = longest_idle_of_most(unconfirmed, now);
        match chosen.or_else(dispensable).or_else(expired) {
            Some(client) => {
                self.destroy(registry, &client, released);
                true
            }
            None => false,
        }
    }

    /// Destroys a client other than `except` that would lose nothing, of `peer`, or else of the
    /// peer that has the most of those: the one idle for longest. Returns `false` if there is none.
    pub(super) fn destroy_dispensable(
        &self,
        registry: &mut Registry<T>,
        peer: Option<&Account>,
        except: &Client<T>,
        released: &mut Released<T>,
    ) -> bool {
        let now = self.now();
        let mut all = self.clients.all();
        all.retain(|client| {
            peer.is_none_or(|peer| client.peer == *peer)
                && client.id != except.id
                && client.is_confirmed()
                && self.is_dispensable(client, now)
        });
        let Some(client) = longest_idle_of_most(all, now) else {
            return false;
        };
        self.destroy(registry, &client, released);
        true
    }

    /// Returns whether a client would notice nothing but that it has to create a session, or
    /// a client ID, again: it has no state, and it has expired, or has no session, or for
    /// [`UNCONNECTED`] none of its sessions had a connection.
    fn is_dispensable(&self, client: &Client<T>, now: Duration) -> bool {
        let idle = client.idle_time(now);
        let sessions = {
            let client_state = client.client_state.lock();
            if client_state.has_state() {
                return false;
            }
            if client_state.sessions.is_empty() || idle > self.lease {
                return true;
            }
            if idle < UNCONNECTED {
                return false;
            }
            client_state.sessions.clone()
        };
        let mut sessions = sessions.iter().filter_map(|id| self.sessions.get(id));
        !sessions.any(|session| session.is_connected())
    }

    /// Destroys a client and all of its state.
    pub(super) fn destroy(
        &self,
        registry: &mut Registry<T>,
        client: &Arc<Client<T>>,
        released: &mut Released<T>,
    ) {
        let mut recorded = client.recorded.lock();
        if *recorded == Recorded::Yes {
            // If the record stays, the only consequence is a needless grace period.
            let _ = self.stable.remove(&client.record);
        }
        *recorded = Recorded::Never;
        self.remove_client(registry, client, released);
    }

    /// Removes a client whose stable record is already handled: the rest of [`State::destroy`].
    pub(super) fn remove_client(
        &self,
        registry: &mut Registry<T>,
        client: &Arc<Client<T>>,
        released: &mut Released<T>,
    ) {
        registry.forget(client);
        self.clients.remove(&client.id);
        client.quota_charge.lock().take();
        let sessions = {
            let mut client_state = client.client_state.lock();
            client_state.destroyed = true;
            client_state.clear(client, false, &self.shares, &self.delegations, released);
            std::mem::take(&mut client_state.sessions)
        };
        for session in sessions {
            self.forget_session(&session);
        }
    }

    /// Makes the client of `known` the confirmed one of its name, and destroys the previous one.
    pub(super) fn set_confirmed(
        &self,
        registry: &mut Registry<T>,
        known: RegisteredClient<T>,
        released: &mut Released<T>,
    ) {
        let client = known.client.clone();
        let before = registry.confirmed(&client.record);
        if let Some(before) = before.filter(|before| before.client.id != client.id) {
            self.destroy(registry, &before.client, released);
        }
        let name = registry.name_mut(&client.record);
        name.unconfirmed = None;
        name.confirmed = Some(known);
        client.confirmed.store(true, Ordering::Release);
        client.renew(self.now());
    }

    /// Makes the client of `known` the unconfirmed one of its name, and destroys the previous one.
    pub(super) fn set_unconfirmed(
        &self,
        registry: &mut Registry<T>,
        known: RegisteredClient<T>,
        released: &mut Released<T>,
    ) {
        let record = known.client.record.clone();
        if let Some(before) = registry.unconfirmed(&record)
            && !before.client.is_confirmed()
            && before.client.id != known.client.id
        {
            self.destroy(registry, &before.client, released);
        }
        registry.name_mut(&record).unconfirmed = Some(known);
    }

    /// Returns whether a client has any state that it could lose.
    pub(super) fn has_state(&self, client: &Client<T>) -> bool {
        client.client_state.lock().has_state()
    }

    /// Records that the client may reclaim after a restart, before its first open is answered.
    /// Returns `DELAY` if that fails and clients need a record.
    pub(super) fn record(&self, client: &Client<T>) -> Result<(), Status> {
        let mut recorded = client.recorded.lock();
        // A client that has lost state must not reclaim it.
        if *recorded == Recorded::No && client.client_state.lock().revoked == 0 {
            match self.stable.put(&client.record) {
                Ok(()) => *recorded = Recorded::Yes,
                Err(_) if self.stable.is_required() => return Err(Status::Delay),
                Err(_) => {}
            }
        }
        Ok(())
    }
}
