//! Delegations: files that a client may cache and open locally until they are recalled (RFC 8881
//! sections 10.2, 10.4 and 18.6).
//!
//! The source detects conflicts with a lease of the file ([`vfs::Lease`]), which is part of the `F`
//! here: dropping that returns the lease. A client that does not return a delegation in time loses
//! it, and SEQUENCE's flags show that.
//!
//! If there is hardly room for more, clients are asked to return those that they do not use (RFC
//! 8881 section 20.6). They may keep the others.
//!
//! After a recall, a file is not delegated for a while: others use it.

use core::time::Duration;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use concurrency::Shards;
use parking_lot::{Mutex, MutexGuard};
use vfs::{Charge, LogLimit, PeerKey};

use crate::v4::{ClientId, StateId, Status};

use super::Tree;
use super::client::{Client, ClientRef, Minor};
use super::client_state::{ClientState, Share, StateEntry};
use super::released::{NodeKey, Released};
use super::stateid;
use super::{State, status_flags};

/// A delegation.
pub(super) struct Delegation<T: Tree> {
    pub(super) key: NodeKey,
    pub(super) node: T::Node,
    /// The access: read, or both read and write.
    pub(super) kind: Share,
    /// The file, open for that access, and its lease.
    pub(super) file: T::File,
    /// The time of the recall.
    recalled: Option<Duration>,
    /// Whether to repeat the recall in the next second.
    pub(super) recall_due: bool,
    /// The charges against the quotas of delegations and of bytes.
    _charges: [Charge; 2],
}

/// The bytes of a delegation, with its lease.
const DELEGATION_BYTES: usize = 640;

/// The seqid of all delegation stateids, which never changes.
pub(super) const SEQID: u32 = 1;

/// The reason why there is no delegation: `why_no_delegation4` (RFC 8881 section 18.16.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoDelegation {
    /// Others use the file.
    Contention,
    /// There are too many delegations, or the client has no backchannel.
    Resource,
}

/// The delegations of all files, by file.
pub(super) struct Delegations {
    shards: Shards<Shard, SHARDS>,
    count: AtomicUsize,
    /// Whether the source refused a lease for lack of room since the last check.
    refused: AtomicBool,
    recent: Mutex<Recent>,
}

/// The delegations of each file, by client and serial number.
type Shard = HashMap<NodeKey, Vec<(ClientId, u32)>>;

/// More than the number of threads that open files at once.
const SHARDS: usize = 64;

/// The files with recent conflicts, in two halves, of which the older one expires first.
#[derive(Default)]
struct Recent {
    new: HashSet<NodeKey>,
    old: HashSet<NodeKey>,
    since: Duration,
}

impl Recent {
    /// The time for which entries are added to a half, as in Linux's server.
    const HALF_TIME: Duration = Duration::from_secs(30);

    /// The maximum number of files in a half.
    const MAX_FILES: usize = 4096;

    fn rotate(&mut self, now: Duration) {
        if self.new.len() >= Recent::MAX_FILES
            || now.saturating_sub(self.since) >= Recent::HALF_TIME
        {
            self.old = std::mem::take(&mut self.new);
            if now.saturating_sub(self.since) >= 2 * Recent::HALF_TIME {
                self.old.clear();
            }
            self.since = now;
        }
    }
}

/// The maximum time for returning a delegation: less than the host kernel waits for a lease holder.
const RETURN_TIMEOUT: Duration = Duration::from_secs(40);

/// The interval between two CB_RECALL_ANY calls, as in Linux's server.
const RECALL_ANY_INTERVAL: Duration = Duration::from_secs(5);

/// Returns whether there is hardly room for more.
fn is_tight(count: usize, most: usize) -> bool {
    count >= most - most / 8
}

impl Delegations {
    pub(super) fn new() -> Delegations {
        Delegations {
            shards: Shards::default(),
            count: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
            recent: Mutex::default(),
        }
    }

    fn add(&self, key: NodeKey, client: ClientId, serial: u32) {
        self.shard(&key)
            .entry(key)
            .or_default()
            .push((client, serial));
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, key: NodeKey, client: ClientId, serial: u32) {
        let mut part = self.shard(&key);
        if let Some(all) = part.get_mut(&key) {
            let before = all.len();
            all.retain(|one| *one != (client, serial));
            self.count.fetch_sub(before - all.len(), Ordering::Relaxed);
            if all.is_empty() {
                part.remove(&key);
            }
        }
    }

    /// Returns whether the node is delegated.
    pub(super) fn has(&self, key: NodeKey) -> bool {
        self.shard(&key).contains_key(&key)
    }

    fn of(&self, key: NodeKey) -> Vec<(ClientId, u32)> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        self.shard(&key).get(&key).cloned().unwrap_or_default()
    }

    /// Returns the number of delegations.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let count = |part: &Mutex<Shard>| part.lock().values().map(Vec::len).sum::<usize>();
        let counted: usize = self.shards.all().iter().map(count).sum::<usize>();
        assert_eq!(self.count.load(Ordering::SeqCst), counted);
        counted
    }

    fn shard(&self, key: &NodeKey) -> MutexGuard<'_, Shard> {
        self.shards.lock(key)
    }
}

impl<T: Tree> State<T> {
    /// Returns whether `client` may get a delegation of `key`, provided that the source grants a
    /// lease. `again` means that it reclaims one from before the server's restart.
    pub fn may_delegate(
        &self,
        client: &ClientRef<T>,
        key: NodeKey,
        again: bool,
    ) -> Result<(), NoDelegation> {
        let client = &client.0;
        if client.minor == Minor::V40
            || client.backchannels.load(Ordering::Acquire) == 0
            || self.delegations.count.load(Ordering::Relaxed) >= self.limits.all_delegations
            || client.client_state.lock().delegations >= self.limits.delegations
            || !self.quotas.delegations.has_room(&client.peer, 1)
        {
            return Err(NoDelegation::Resource);
        }
        if self.shares.denier(key, Share::all()).is_some() {
            return Err(NoDelegation::Contention);
        }
        let was_wanted = {
            let mut recent = self.delegations.recent.lock();
            recent.rotate(self.now());
            recent.new.contains(&key) || recent.old.contains(&key)
        };
        // One delegation per file and client is enough.
        let has = self
            .delegations
            .of(key)
            .iter()
            .any(|one| one.0 == client.id);
        match has || was_wanted && !again {
            true => Err(NoDelegation::Contention),
            false => Ok(()),
        }
    }

    /// Adds a delegation: `file` is open for `kind` and has a lease.
    pub fn delegate(
        &self,
        client: &ClientRef<T>,
        key: NodeKey,
        node: T::Node,
        kind: Share,
        file: T::File,
    ) -> Result<StateId, Status> {
        let client = &client.0;
        let one = self.quotas.delegations.take(&client.peer, 1);
        let charges = [
            one.map_err(|_| Status::Resource)?,
            client.charged(DELEGATION_BYTES)?,
        ];
        let mut client_state = client.client_state.lock();
        client_state.check_live()?;
        let serial = client_state.insert(StateEntry::Delegation(Delegation {
            key,
            node,
            kind,
            file,
            recalled: None,
            recall_due: false,
            _charges: charges,
        }));
        self.delegations.add(key, client.id, serial);
        Ok(stateid::stateid(client.id, serial, SEQID))
    }

    /// Records that the source has no room for another lease.
    pub fn no_room_for_delegations(&self) {
        self.delegations.refused.store(true, Ordering::Relaxed);
    }

    /// Recalls the delegations of `key` because of a conflict. Returns the clients to call
    /// ([`State::callbacks`]).
    pub fn recall(&self, key: NodeKey) -> Vec<ClientId> {
        let now = self.now();
        let all = self.delegations.of(key);
        if !all.is_empty() {
            let mut recent = self.delegations.recent.lock();
            recent.rotate(now);
            recent.new.insert(key);
        }
        let mut clients = Vec::new();
        for (id, serial) in all {
            let Some(client) = self.clients.get(&id) else {
                continue;
            };
            let mut client_state = client.client_state.lock();
            if let Some(StateEntry::Delegation(delegation)) = client_state.get_mut(serial)
                && delegation.recalled.is_none()
            {
                delegation.recalled = Some(now);
                client_state.to_call.push_back(serial);
                client_state.recalled.push(serial);
                clients.push(id);
            }
        }
        clients
    }

    /// Runs DELEGRETURN (RFC 8881 section 18.6).
    pub fn delegation_return(
        &self,
        client: &ClientRef<T>,
        stateid: &StateId,
        key: NodeKey,
    ) -> Result<(), Status> {
        let client = &client.0;
        let serial = self.serial_of(client, stateid)?;
        let mut released = Released::default();
        {
            let mut client_state = client.client_state.lock();
            client_state.delegation(client, serial, stateid, key)?;
            client_state.end_delegation(client, serial, &self.delegations, &mut released);
        }
        self.release(released);
        Ok(())
    }

    /// Returns whether a client other than `client` may locally open `key` in a mode that `deny`
    /// denies.
    pub fn is_delegated(&self, client: &ClientRef<T>, key: NodeKey, deny: Share) -> bool {
        let all = self.delegations.of(key);
        let mut others = all.into_iter().filter(|one| one.0 != client.0.id);
        others.any(|(id, serial)| {
            let other = self.clients.get(&id);
            other.is_some_and(|other| match other.client_state.lock().get(serial) {
                Some(StateEntry::Delegation(delegation)) => delegation.kind.intersects(deny),
                _ => false,
            })
        })
    }

    /// Returns the file of the delegation `stateid` of `key`, which must cover `access`, for an
    /// OPEN that the client has done locally (`CLAIM_DELEGATE_CUR`).
    pub fn delegated(
        &self,
        client: &ClientRef<T>,
        stateid: &StateId,
        key: NodeKey,
        access: Share,
    ) -> Result<T::File, Status> {
        let client = &client.0;
        let serial = self.serial_of(client, stateid)?;
        let client_state = client.client_state.lock();
        let delegation = client_state.delegation(client, serial, stateid, key)?;
        match delegation.kind.contains(access) {
            true => Ok(delegation.file.clone()),
            false => Err(Status::BadStateid),
        }
    }

    /// Returns the file of the delegation that `client` has of `key`, if that covers `access`: it
    /// need not be opened again.
    pub fn delegated_file(
        &self,
        client: &ClientRef<T>,
        key: NodeKey,
        access: Share,
    ) -> Option<T::File> {
        let client = &client.0;
        let all = self.delegations.of(key);
        let (_, serial) = all.into_iter().find(|one| one.0 == client.id)?;
        match client.client_state.lock().get(serial) {
            Some(StateEntry::Delegation(delegation)) if delegation.kind.contains(access) => {
                Some(delegation.file.clone())
            }
            _ => None,
        }
    }
}

impl<T: Tree> State<T> {
    /// Revokes delegations that were not returned in time. Returns the clients to call, or to call
    /// again. Must be called about once a second.
    pub fn maintain_callbacks(&self) -> Vec<ClientId> {
        let now = self.now();
        let in_time = self.lease.min(RETURN_TIMEOUT);
        let count = self.delegations.count.load(Ordering::Relaxed);
        let refused = self.delegations.refused.swap(false, Ordering::Relaxed);
        let all_tight = refused || is_tight(count, self.limits.all_delegations);
        let mut released = Released::default();
        let mut clients = Vec::new();
        for client in self.clients.all() {
            let tells = self.notify_unseen(&client);
            let is_expired = self.is_expired(&client);
            let mut client_state = client.client_state.lock();
            for serial in client_state.recalled.clone() {
                let Some(StateEntry::Delegation(delegation)) = client_state.get_mut(serial) else {
                    continue;
                };
                let since = delegation.recalled.unwrap_or(now);
                if is_expired || now.saturating_sub(since) > in_time {
                    self.revoke_delegation(&client, &mut client_state, serial, &mut released);
                } else if std::mem::take(&mut delegation.recall_due) {
                    client_state.to_call.push_back(serial);
                }
            }
            client_state.maintain_copies(now, self.lease, is_expired);
            let count = client_state.delegations;
            let last_recall = client_state.last_recall_any;
            if count > 0
                && (all_tight || is_tight(count, self.limits.delegations))
                && last_recall.is_none_or(|last_recall| {
                    now.saturating_sub(last_recall) >= RECALL_ANY_INTERVAL
                })
            {
                client_state.last_recall_any = Some(now);
                client_state.recall_any_keep = Some((count * 3 / 4) as u32);
            }
            if tells || client_state.recall_any_keep.is_some() || !client_state.to_call.is_empty() {
                clients.push(client.id);
            }
        }
        self.release(released);
        clients
    }

    fn revoke_delegation(
        &self,
        client: &Arc<Client<T>>,
        client_state: &mut ClientState<T>,
        serial: u32,
        released: &mut Released<T>,
    ) {
        static REVOKED: LogLimit<Option<PeerKey>> = LogLimit::new();
        if let Some(suppressed) = REVOKED.permit(client.peer.client()) {
            let client = client.id;
            tracing::warn!(
                client,
                suppressed,
                "delegation revoked: the client did not return it"
            );
        }
        client_state.end_delegation(client, serial, &self.delegations, released);
        client_state.record_revoked_delegation(serial);
        let flag = status_flags::RECALLABLE_STATE_REVOKED;
        client.flags.fetch_or(flag, Ordering::AcqRel);
    }
}

impl<T: Tree> ClientState<T> {
    /// Returns the delegation `serial` if `given` is the stateid of a delegation of `key`.
    pub(super) fn delegation(
        &self,
        client: &Client<T>,
        serial: u32,
        given: &StateId,
        key: NodeKey,
    ) -> Result<&Delegation<T>, Status> {
        match self.get(serial) {
            Some(StateEntry::Delegation(delegation)) if delegation.key == key => {
                stateid::check(client, given.seqid, SEQID)?;
                Ok(delegation)
            }
            Some(StateEntry::RevokedDelegation) => Err(Status::DelegRevoked),
            Some(StateEntry::Revoked) => Err(Status::Expired),
            _ => Err(Status::BadStateid),
        }
    }

    /// Removes the delegation `serial`.
    pub(super) fn end_delegation(
        &mut self,
        client: &Client<T>,
        serial: u32,
        delegations: &Delegations,
        released: &mut Released<T>,
    ) {
        if let Some(StateEntry::Delegation(delegation)) = self.remove(serial) {
            self.recalled.retain(|&one| one != serial);
            delegations.remove(delegation.key, client.id, serial);
            released.files.push(delegation.file);
        }
    }
}

/// Clears the flag after the client has sent FREE_STATEID for all revoked delegations.
pub(super) fn clear_delegation_flag<T: Tree>(client: &Client<T>) {
    client
        .flags
        .fetch_and(!status_flags::RECALLABLE_STATE_REVOKED, Ordering::AcqRel);
}
