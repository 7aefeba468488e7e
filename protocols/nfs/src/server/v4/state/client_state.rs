//! The state of one client: its owners, and its opens, locks and delegations by serial number. One
//! mutex guards it.

use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bitflags::bitflags;
use vfs::Charge;

use crate::v4::{SessionId, Status};

use super::Tree;
use super::client::{Client, Minor};
use super::delegations::{Delegation, Delegations};
use super::lock_waits::Waiting;
use super::offloads::CopyState;
use super::owners::{LockOwner, OWNER_BYTES, OpenOwner, Owners};
use super::released::{NodeKey, Released, Unlock};
use super::shares::Shares;

bitflags! {
    /// The share access or deny bits of an open: `OPEN4_SHARE_ACCESS_*` and `OPEN4_SHARE_DENY_*`,
    /// with the same values (RFC 8881 section 18.16.1).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Share: u8 {
        /// Reading.
        const READ = 1;
        /// Writing.
        const WRITE = 2;
    }
}

pub(super) struct ClientState<T: Tree> {
    /// Whether the client is destroyed: then no state may be added.
    pub(super) destroyed: bool,
    pub(super) open_owners: Owners<OpenOwner>,
    pub(super) lock_owners: Owners<LockOwner>,
    pub(super) sessions: Vec<SessionId>,
    states: HashMap<u32, StateEntry<T>>,
    last_serial: u32,
    pub(super) opens: usize,
    pub(super) locks: usize,
    pub(super) delegations: usize,
    pub(super) revoked: usize,
    /// The charge for the revoked states: [`REVOKED_BYTES`] bytes each.
    revoked_charge: Option<Charge>,
    /// The number of revoked delegations.
    revoked_delegations: usize,
    /// The delegations that are being recalled.
    pub(super) recalled: Vec<u32>,
    /// The number of delegations to keep in the next CB_RECALL_ANY, and the time of the last one.
    pub(super) recall_any_keep: Option<u32>,
    pub(super) last_recall_any: Option<Duration>,
    /// The asynchronous copies that are in progress, or whose end the client does not know yet.
    pub(super) offloads: Vec<u32>,
    /// The delegations and copies for which a callback is due.
    pub(super) to_call: VecDeque<u32>,
    /// The waiting lock owners.
    pub(super) waiting: Waiting<T::Node>,
    /// The lock owners that are to be notified of an available lock, with the files.
    pub(super) to_notify: VecDeque<(NodeKey, Arc<[u8]>)>,
}

impl<T: Tree> Default for ClientState<T> {
    fn default() -> ClientState<T> {
        ClientState {
            destroyed: false,
            open_owners: Owners::default(),
            lock_owners: Owners::default(),
            sessions: Vec::new(),
            states: HashMap::new(),
            last_serial: 0,
            opens: 0,
            locks: 0,
            delegations: 0,
            revoked: 0,
            revoked_charge: None,
            revoked_delegations: 0,
            recalled: Vec::new(),
            recall_any_keep: None,
            last_recall_any: None,
            offloads: Vec::new(),
            to_call: VecDeque::new(),
            waiting: Waiting::default(),
            to_notify: VecDeque::new(),
        }
    }
}

/// The state that a stateid names.
pub(super) enum StateEntry<T: Tree> {
    Open(Open<T>),
    Lock(LockState),
    Delegation(Delegation<T>),
    /// An asynchronous copy.
    Copy(CopyState<T::Node>),
    /// v4.0: a closed open of the open owner with this number, for a retransmitted CLOSE.
    Closed(u32),
    /// v4.1: revoked state, until the client sends FREE_STATEID.
    Revoked,
    /// A revoked delegation, until the client sends FREE_STATEID.
    RevokedDelegation,
}

pub(super) struct Open<T: Tree> {
    pub(super) owner: u32,
    pub(super) key: NodeKey,
    pub(super) node: T::Node,
    pub(super) access: Share,
    pub(super) deny: Share,
    /// The combinations of access and deny bits opened so far: bit `access * 4 + deny`.
    pub(super) modes_seen: u16,
    pub(super) seqid: u32,
    pub(super) files: FilesByAccess<T::File>,
    /// The serial numbers of its lock states.
    pub(super) locks: Vec<u32>,
    /// The charge of [`OPEN_BYTES`] bytes.
    pub(super) _charge: Charge,
}

/// The bytes of an open, with its reservation and the source's file.
pub(super) const OPEN_BYTES: usize = 640;

/// The bytes of a revoked state.
pub(super) const REVOKED_BYTES: usize = 256;

/// The files of an open: one for each access mode with which it was opened.
pub(super) struct FilesByAccess<F> {
    read: Option<F>,
    write: Option<F>,
    both: Option<F>,
}

pub(super) struct LockState {
    pub(super) open: u32,
    pub(super) owner: u32,
    pub(super) seqid: u32,
}

impl<F> FilesByAccess<F> {
    pub(super) fn new(access: Share, file: F) -> FilesByAccess<F> {
        let mut files = FilesByAccess {
            read: None,
            write: None,
            both: None,
        };
        files.add(access, file);
        files
    }

    /// Returns a file that is open for all of `access`.
    pub(super) fn get(&self, access: Share) -> Option<&F> {
        let exactly = match access {
            Share::READ => &self.read,
            Share::WRITE => &self.write,
            _ => &self.both,
        };
        exactly.as_ref().or(self.both.as_ref())
    }

    /// Stores `file` unless there already is a suitable one. Returns the superfluous file.
    pub(super) fn add(&mut self, access: Share, file: F) -> Option<F> {
        if self.get(access).is_some() {
            return Some(file);
        }
        match access {
            Share::READ => self.read.replace(file),
            Share::WRITE => self.write.replace(file),
            _ => self.both.replace(file),
        }
    }

    /// Keeps only the files that `access` still needs. Returns the others.
    pub(super) fn keep(&mut self, access: Share) -> Vec<F> {
        let unneeded = match access {
            Share::READ if self.read.is_some() => [self.write.take(), self.both.take()],
            Share::READ => [self.write.take(), None],
            Share::WRITE if self.write.is_some() => [self.read.take(), self.both.take()],
            Share::WRITE => [self.read.take(), None],
            _ => [None, None],
        };
        unneeded.into_iter().flatten().collect()
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        [&self.read, &self.write, &self.both]
            .into_iter()
            .flatten()
            .count()
    }

    pub(super) fn all(self) -> impl Iterator<Item = F> {
        [self.read, self.write, self.both].into_iter().flatten()
    }
}

impl<T: Tree> ClientState<T> {
    pub(super) fn get(&self, serial: u32) -> Option<&StateEntry<T>> {
        self.states.get(&serial)
    }

    pub(super) fn get_mut(&mut self, serial: u32) -> Option<&mut StateEntry<T>> {
        self.states.get_mut(&serial)
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = (&u32, &StateEntry<T>)> {
        self.states.iter()
    }

    pub(super) fn insert(&mut self, state: StateEntry<T>) -> u32 {
        let serial = self.next_serial();
        self.insert_as(serial, state);
        serial
    }

    /// Returns the number of the next state.
    pub(super) fn next_serial(&mut self) -> u32 {
        loop {
            // Never 0; after four billion numbers, skips those in use.
            self.last_serial = self.last_serial.checked_add(1).unwrap_or(1);
            if !self.states.contains_key(&self.last_serial) {
                return self.last_serial;
            }
        }
    }

    pub(super) fn insert_as(&mut self, serial: u32, state: StateEntry<T>) {
        match &state {
            StateEntry::Open(_) => self.opens += 1,
            StateEntry::Lock(_) => self.locks += 1,
            StateEntry::Delegation(_) => self.delegations += 1,
            StateEntry::Revoked => self.revoked += 1,
            StateEntry::RevokedDelegation => self.revoked_delegations += 1,
            StateEntry::Copy(_) | StateEntry::Closed(_) => {}
        }
        self.states.insert(serial, state);
    }

    pub(super) fn remove(&mut self, serial: u32) -> Option<StateEntry<T>> {
        let state = self.states.remove(&serial)?;
        match &state {
            StateEntry::Open(_) => self.opens -= 1,
            StateEntry::Lock(_) => self.locks -= 1,
            StateEntry::Delegation(_) => self.delegations -= 1,
            StateEntry::Revoked => {
                self.revoked -= 1;
                if self.revoked == 0 {
                    self.revoked_charge = None;
                }
            }
            StateEntry::RevokedDelegation => self.revoked_delegations -= 1,
            StateEntry::Copy(_) | StateEntry::Closed(_) => {}
        }
        Some(state)
    }

    /// Marks the removed delegation `serial` as revoked.
    pub(super) fn record_revoked_delegation(&mut self, serial: u32) {
        self.states.insert(serial, StateEntry::RevokedDelegation);
        self.revoked_delegations += 1;
    }

    /// Returns whether no revoked delegation awaits a FREE_STATEID.
    pub(super) fn has_no_revoked_delegation(&self) -> bool {
        self.revoked_delegations == 0
    }

    /// v4.0: marks `serial` as a closed open of `owner`.
    pub(super) fn mark_closed(&mut self, serial: u32, owner: u32) {
        self.states.insert(serial, StateEntry::Closed(owner));
    }

    /// Returns the open `serial`, if it exists.
    pub(super) fn open(&self, serial: u32) -> Result<&Open<T>, Status> {
        match self.states.get(&serial) {
            Some(StateEntry::Open(open)) => Ok(open),
            Some(StateEntry::Revoked) => Err(Status::Expired),
            Some(StateEntry::RevokedDelegation) => Err(Status::DelegRevoked),
            _ => Err(Status::BadStateid),
        }
    }

    pub(super) fn open_mut(&mut self, serial: u32) -> Result<&mut Open<T>, Status> {
        match self.states.get_mut(&serial) {
            Some(StateEntry::Open(open)) => Ok(open),
            Some(StateEntry::Revoked) => Err(Status::Expired),
            Some(StateEntry::RevokedDelegation) => Err(Status::DelegRevoked),
            _ => Err(Status::BadStateid),
        }
    }

    /// Returns the lock state `serial`, if it exists.
    pub(super) fn lock(&self, serial: u32) -> Result<&LockState, Status> {
        match self.states.get(&serial) {
            Some(StateEntry::Lock(lock)) => Ok(lock),
            Some(StateEntry::Revoked) => Err(Status::Expired),
            Some(StateEntry::RevokedDelegation) => Err(Status::DelegRevoked),
            _ => Err(Status::BadStateid),
        }
    }

    pub(super) fn lock_mut(&mut self, serial: u32) -> Result<&mut LockState, Status> {
        match self.states.get_mut(&serial) {
            Some(StateEntry::Lock(lock)) => Ok(lock),
            Some(StateEntry::Revoked) => Err(Status::Expired),
            Some(StateEntry::RevokedDelegation) => Err(Status::DelegRevoked),
            _ => Err(Status::BadStateid),
        }
    }

    /// Returns whether there is anything that the client could lose.
    pub(super) fn has_state(&self) -> bool {
        self.opens + self.locks + self.delegations > 0
    }

    /// Returns `EXPIRED` if the client is destroyed.
    pub(super) fn check_live(&self) -> Result<(), Status> {
        if self.destroyed {
            Err(Status::Expired)
        } else {
            Ok(())
        }
    }

    /// Removes the open `serial`, with its locks and its share reservation.
    pub(super) fn close(
        &mut self,
        client: &Client<T>,
        serial: u32,
        shares: &Shares,
        released: &mut Released<T>,
    ) {
        let Some(StateEntry::Open(open)) = self.remove(serial) else {
            return;
        };
        for &lock in &open.locks {
            self.forget_lock(client, lock, open.key, &open.node, released);
        }
        if let Some(owner) = self.open_owners.get_mut(open.owner) {
            owner.opens.remove(&open.key);
            shares.remove(open.key, client.id, &owner.name);
            if client.minor == Minor::V41 && owner.opens.is_empty() {
                self.open_owners.remove(open.owner);
            }
        }
        released.files.extend(open.files.all());
    }

    /// Removes the lock state `serial` of an open of `key`, and all locks that its owner has on the
    /// node: as with close(2), also those acquired through another open.
    pub(super) fn forget_lock(
        &mut self,
        client: &Client<T>,
        serial: u32,
        key: NodeKey,
        node: &T::Node,
        released: &mut Released<T>,
    ) {
        let Some(StateEntry::Lock(lock)) = self.remove(serial) else {
            return;
        };
        let Some(owner) = self.lock_owners.get_mut(lock.owner) else {
            return;
        };
        owner.states.retain(|&state| state != serial);
        if owner.forget(key).is_some_and(|held| !held.is_empty()) {
            released.locks.push(Unlock {
                key,
                node: node.clone(),
                owner: client.lock_owner(owner.name.clone()),
            });
        }
        if owner.states.is_empty() && !owner.seq.is_busy() {
            self.lock_owners.remove(lock.owner);
        }
    }

    /// Removes all state. The stateids stay known as revoked if `revoke` is set.
    pub(super) fn clear(
        &mut self,
        client: &Client<T>,
        revoke: bool,
        shares: &Shares,
        delegations: &Delegations,
        released: &mut Released<T>,
    ) {
        let delegated: Vec<u32> = self
            .states
            .iter()
            .filter(|(_, state)| matches!(state, StateEntry::Delegation(_)))
            .map(|(serial, _)| *serial)
            .collect();
        for &serial in &delegated {
            self.end_delegation(client, serial, delegations, released);
        }
        self.end_copies();
        self.to_call.clear();
        self.recall_any_keep = None;
        self.to_notify.clear();
        for ((key, name), wait) in self.waiting.drain() {
            // Otherwise a request in progress could enter the queue, and would never leave it.
            wait.call.cancel();
            released.locks.push(Unlock {
                key,
                node: wait.node,
                owner: client.lock_owner(name),
            });
        }
        let serials: Vec<u32> = self.states.keys().copied().collect();
        let is_open = |state: &StateEntry<T>| matches!(state, StateEntry::Open(_));
        let (opens, locks): (Vec<u32>, Vec<u32>) = serials
            .iter()
            .filter(|serial| {
                matches!(
                    self.states[serial],
                    StateEntry::Open(_) | StateEntry::Lock(_)
                )
            })
            .partition(|serial| is_open(&self.states[*serial]));
        for &serial in &opens {
            self.close(client, serial, shares, released);
        }
        self.open_owners.clear();
        self.lock_owners.clear();
        if revoke {
            let all = opens.into_iter().chain(locks).chain(delegated);
            self.revoke(client, all.collect());
        } else {
            self.states = HashMap::new();
            (self.revoked, self.revoked_delegations) = (0, 0);
            self.revoked_charge = None;
        }
    }

    /// Marks removed states as revoked. If there is no room for that, they cause `BAD_STATEID`
    /// instead of `EXPIRED`.
    fn revoke(&mut self, client: &Client<T>, serials: Vec<u32>) {
        // The states' own charges have been returned already.
        let Ok(charge) = client.charge(serials.len() * REVOKED_BYTES) else {
            return;
        };
        match &mut self.revoked_charge {
            Some(all) => all.join(charge),
            none => *none = Some(charge),
        }
        self.revoked += serials.len();
        let revoked = serials
            .into_iter()
            .map(|serial| (serial, StateEntry::Revoked));
        self.states.extend(revoked);
    }

    /// Removes the v4.0 open owners without opens since before `before` (RFC 7530 section 9.1.10).
    pub(super) fn forget_idle_owners(&mut self, before: Duration) {
        let idle = |owner: &OpenOwner| owner.is_idle() && owner.used < before;
        for number in self.open_owners.which(idle) {
            self.forget_open_owner(number);
        }
    }

    /// Removes an open owner without opens.
    pub(super) fn forget_open_owner(&mut self, number: u32) {
        if let Some(closed) = self
            .open_owners
            .remove(number)
            .and_then(|owner| owner.closed)
        {
            self.remove(closed);
        }
    }

    /// Returns the number of the open owner `name`, created if there is room.
    pub(super) fn open_owner(
        &mut self,
        client: &Client<T>,
        name: &Arc<[u8]>,
        most: usize,
        now: Duration,
    ) -> Result<u32, Status> {
        if let Some(number) = self.open_owners.find(name) {
            return Ok(number);
        }
        if self.open_owners.len() >= most {
            let oldest = self
                .open_owners
                .least(OpenOwner::is_idle, |owner| owner.used);
            self.forget_open_owner(oldest.ok_or(no_room_status(client.minor))?);
        }
        let charge = client.charged(OWNER_BYTES + name.len())?;
        let owner = OpenOwner::new(name, now, charge);
        Ok(self.open_owners.insert(name, owner))
    }
}

/// Returns the status of an OPEN that there is no room for.
pub(super) fn no_room_status(minor: Minor) -> Status {
    match minor {
        Minor::V40 => Status::Resource,
        // v4.1 does not have `RESOURCE` any more.
        Minor::V41 => Status::Nospc,
    }
}
