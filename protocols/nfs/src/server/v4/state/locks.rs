//! LOCK, LOCKU, RELEASE_LOCKOWNER, FREE_STATEID and TEST_STATEID.
//!
//! The lock table ([`vfs::lock::LockTable`]) has the ranges; this module has the lock owners'
//! permissions, and a record of their locks for releasing them. LOCK has two steps: [`State::lock`]
//! determines the owner and the file, [`PendingLock::granted`] records that the lock table has
//! granted the lock.

use std::sync::Arc;

use vfs::Charge;
use vfs::lock::{LockKind, Owner};

use crate::v4::{StateId, Status};

use super::client::{Client, ClientRef, Minor};
use super::client_state::{ClientState, LockState, Share, StateEntry};
use super::owners::LockOwner;
use super::released::{NodeKey, Released, Unlock};
use super::stateid;
use super::{State, Tree};

/// The lock owner of a LOCK: `locker4`.
#[derive(Clone, Copy, Debug)]
pub enum Locker<'a> {
    /// A lock owner without locks of this open so far (`open_to_lock_owner4`).
    New {
        /// The open's stateid.
        open: &'a StateId,
        /// The lock owner's name.
        owner: &'a [u8],
        /// v4.0: the lock owner's first seqid.
        seqid: u32,
    },
    /// A lock owner with a lock stateid (`exist_lock_owner4`).
    Known {
        /// The lock stateid.
        lock: &'a StateId,
    },
}

/// A LOCK that the lock table may grant. Dropping it has no effect on the state.
#[must_use]
pub struct PendingLock<'a, T: Tree> {
    state: &'a State<T>,
    client: Arc<Client<T>>,
    open: u32,
    key: NodeKey,
    node: T::Node,
    owner: Owner,
    first_seqid: u32,
    charge: Charge,
}

/// A LOCKU for the lock table.
#[must_use]
pub struct PendingUnlock<T: Tree> {
    client: Arc<Client<T>>,
    serial: u32,
    key: NodeKey,
    owner: Owner,
}

impl<T: Tree> State<T> {
    /// Starts a LOCK (RFC 7530 section 16.10, RFC 8881 section 18.10). Returns `OPENMODE` if the
    /// file is not open for that kind of lock. `reclaim` is the same as for an OPEN.
    pub fn lock(
        &self,
        client: &ClientRef<T>,
        locker: Locker<'_>,
        key: NodeKey,
        kind: LockKind,
        reclaim: bool,
    ) -> Result<PendingLock<'_, T>, Status> {
        let client = &client.0;
        self.may_lock(client, reclaim)?;
        let client_state = client.client_state.lock();
        client_state.check_live()?;
        let (open, name, first_seqid) = match locker {
            Locker::New { open, owner, seqid } => {
                let open = self.confirmed_open(client, &client_state, open, key)?;
                let known = client_state.lock_owners.find(owner);
                let known = known.and_then(|number| client_state.lock_owners.get(number));
                if known
                    .is_some_and(|owner| client.minor == Minor::V40 && !owner.seq.expects(seqid))
                {
                    return Err(Status::BadSeqid);
                }
                if client_state.locks + client_state.revoked >= self.limits.locks {
                    return Err(no_room_status(client.minor));
                }
                (
                    open,
                    known.map_or_else(|| owner.into(), |owner| owner.name.clone()),
                    seqid,
                )
            }
            Locker::Known { lock } => {
                let serial = self.lock_serial(client, &client_state, lock, key)?;
                let state = client_state.lock(serial)?;
                let owner = client_state.lock_owners.get(state.owner);
                (
                    state.open,
                    owner.ok_or(Status::Serverfault)?.name.clone(),
                    0,
                )
            }
        };
        let opened = client_state.open(open)?;
        let needed = match kind {
            LockKind::Shared => Share::READ,
            LockKind::Exclusive => Share::WRITE,
        };
        if !opened.access.contains(needed) {
            return Err(Status::Openmode);
        }
        let charge = client.charge(LockOwner::bytes_of_one(&name));
        let charge = charge.map_err(|_| no_room_status(client.minor))?;
        Ok(PendingLock {
            state: self,
            client: client.clone(),
            open,
            key,
            node: opened.node.clone(),
            owner: client.lock_owner(name),
            first_seqid,
            charge,
        })
    }

    /// Starts a LOCKU (RFC 7530 section 16.12, RFC 8881 section 18.12).
    pub fn unlock(
        &self,
        client: &ClientRef<T>,
        stateid: &StateId,
        key: NodeKey,
    ) -> Result<PendingUnlock<T>, Status> {
        let client = &client.0;
        let client_state = client.client_state.lock();
        let serial = self.lock_serial(client, &client_state, stateid, key)?;
        let state = client_state.lock(serial)?;
        let owner = client_state.lock_owners.get(state.owner);
        Ok(PendingUnlock {
            client: client.clone(),
            serial,
            key,
            owner: client.lock_owner(owner.ok_or(Status::Serverfault)?.name.clone()),
        })
    }

    /// Runs RELEASE_LOCKOWNER (RFC 7530 section 16.37). Returns `LOCKS_HELD` if the owner has
    /// locks.
    pub fn release_lock_owner(&self, client: &ClientRef<T>, owner: &[u8]) -> Result<(), Status> {
        let client = &client.0;
        let mut client_state = client.client_state.lock();
        client_state.check_live()?;
        let Some(number) = client_state.lock_owners.find(owner) else {
            return Ok(());
        };
        let owner = client_state
            .lock_owners
            .get(number)
            .ok_or(Status::Serverfault)?;
        if owner.holds_any() || owner.seq.is_busy() {
            return Err(Status::LocksHeld);
        }
        for serial in owner.states.clone() {
            client_state.forget_free_lock(client, serial);
        }
        Ok(())
    }

    /// Runs FREE_STATEID (RFC 8881 section 18.38), for lock states without locks and for revoked
    /// state.
    pub fn free_stateid(&self, client: &ClientRef<T>, stateid: &StateId) -> Result<(), Status> {
        let client = &client.0;
        let serial = self.serial_of(client, stateid)?;
        let mut client_state = client.client_state.lock();
        match client_state.get(serial) {
            Some(StateEntry::Open(_)) => Err(Status::LocksHeld),
            Some(StateEntry::Lock(state)) => {
                stateid::check(client, stateid.seqid, state.seqid)?;
                let key = client_state.open(state.open)?.key;
                let owner = client_state.lock_owners.get(state.owner);
                if owner.is_some_and(|owner| {
                    owner.locked.get(&key).is_some_and(|held| !held.is_empty())
                }) {
                    return Err(Status::LocksHeld);
                }
                client_state.forget_free_lock(client, serial);
                Ok(())
            }
            Some(StateEntry::Revoked) => {
                client_state.remove(serial);
                if client_state.revoked == 0 {
                    super::lease::clear_revoked_flag(client);
                }
                Ok(())
            }
            Some(StateEntry::Delegation(_) | StateEntry::Copy(_)) => Err(Status::LocksHeld),
            Some(StateEntry::RevokedDelegation) => {
                client_state.remove(serial);
                if client_state.has_no_revoked_delegation() {
                    super::delegations::clear_delegation_flag(client);
                }
                Ok(())
            }
            Some(StateEntry::Closed(_)) | None => Err(Status::BadStateid),
        }
    }

    /// Returns TEST_STATEID's result for one stateid (RFC 8881 section 18.48).
    pub fn test_stateid(&self, client: &ClientRef<T>, stateid: &StateId) -> Status {
        let client = &client.0;
        let tested = self.serial_of(client, stateid).and_then(|serial| {
            let client_state = client.client_state.lock();
            let seqid = match client_state.get(serial) {
                Some(StateEntry::Open(open)) => open.seqid,
                Some(StateEntry::Lock(state)) => state.seqid,
                Some(StateEntry::Delegation(_) | StateEntry::Copy(_)) => super::delegations::SEQID,
                Some(StateEntry::Revoked) => return Err(Status::Expired),
                Some(StateEntry::RevokedDelegation) => return Err(Status::DelegRevoked),
                Some(StateEntry::Closed(_)) | None => return Err(Status::BadStateid),
            };
            stateid::check(client, stateid.seqid, seqid)
        });
        tested.err().unwrap_or(Status::Ok)
    }

    /// Returns the serial number of `stateid` if it is the current stateid of a lock state of
    /// `client` on `key`.
    fn lock_serial(
        &self,
        client: &Client<T>,
        client_state: &ClientState<T>,
        stateid: &StateId,
        key: NodeKey,
    ) -> Result<u32, Status> {
        let serial = self.serial_of(client, stateid)?;
        let state = client_state.lock(serial)?;
        if client_state.open(state.open)?.key != key {
            return Err(Status::BadStateid);
        }
        stateid::check(client, stateid.seqid, state.seqid)?;
        Ok(serial)
    }
}

impl<T: Tree> PendingLock<'_, T> {
    /// Returns the owner for the lock table.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Completes the LOCK after the lock table has locked `start..=end`. Fails only if the open or
    /// the client was removed meanwhile, or if its tables became full; then the locks are released.
    pub fn granted(self, start: u64, end: u64) -> Result<StateId, Status> {
        let (state, client) = (self.state, self.client.clone());
        let unlock = Unlock {
            key: self.key,
            node: self.node.clone(),
            owner: self.owner.clone(),
        };
        let granted = self.insert(&mut client.client_state.lock(), start, end);
        if granted.is_err() {
            state.release(Released {
                files: Vec::new(),
                locks: vec![unlock],
            });
        }
        granted
    }

    fn insert(
        self,
        client_state: &mut ClientState<T>,
        start: u64,
        end: u64,
    ) -> Result<StateId, Status> {
        client_state.check_live()?;
        client_state.open(self.open)?;
        let name = &self.owner.id;
        let number = match client_state.lock_owners.find(name) {
            Some(number) => {
                if let Some(owner) = client_state.lock_owners.get_mut(number) {
                    owner.charge(self.charge);
                }
                number
            }
            None => {
                let mut owner = LockOwner::new(name, self.charge);
                owner.seq.set(self.first_seqid);
                client_state.lock_owners.insert(name, owner)
            }
        };
        let owner = client_state
            .lock_owners
            .get(number)
            .ok_or(Status::Serverfault)?;
        let mut known = owner.states.iter().copied();
        let known = known.find(|&serial| {
            client_state
                .lock(serial)
                .is_ok_and(|lock| lock.open == self.open)
        });
        let serial = known.unwrap_or_else(|| {
            let state = LockState {
                open: self.open,
                owner: number,
                seqid: 0,
            };
            client_state.insert(StateEntry::Lock(state))
        });
        if known.is_none() {
            client_state.open_mut(self.open)?.locks.push(serial);
        }
        let owner = client_state
            .lock_owners
            .get_mut(number)
            .ok_or(Status::Serverfault)?;
        if known.is_none() {
            owner.states.push(serial);
        }
        owner.change(self.key, |held| held.insert(start, end));
        Ok(client_state.lock_mut(serial)?.changed(&self.client, serial))
    }
}

impl<T: Tree> PendingUnlock<T> {
    /// Returns the owner for the lock table.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Completes the LOCKU after the lock table has unlocked `start..=end`.
    pub fn done(self, start: u64, end: u64) -> Result<StateId, Status> {
        let mut client_state = self.client.client_state.lock();
        let state = client_state.lock_mut(self.serial)?;
        let (number, stateid) = (state.owner, state.changed(&self.client, self.serial));
        let owner = client_state.lock_owners.get_mut(number);
        if let Some(owner) = owner.filter(|owner| owner.locked.contains_key(&self.key)) {
            owner.change(self.key, |held| held.remove(start, end));
        }
        Ok(stateid)
    }
}

impl LockOwner {
    fn holds_any(&self) -> bool {
        self.locked.values().any(|held| !held.is_empty())
    }
}

impl LockState {
    /// Increments the seqid and returns the new stateid.
    fn changed<T: Tree>(&mut self, client: &Client<T>, serial: u32) -> StateId {
        self.seqid = stateid::next(self.seqid);
        stateid::stateid(client.id, serial, self.seqid)
    }
}

impl<T: Tree> ClientState<T> {
    /// Removes the lock state `serial`, whose owner has no locks.
    fn forget_free_lock(&mut self, client: &Client<T>, serial: u32) {
        let Ok(open) = self.lock(serial).map(|state| state.open) else {
            return;
        };
        if let Ok(open) = self.open_mut(open) {
            open.locks.retain(|&lock| lock != serial);
            let (key, node) = (open.key, open.node.clone());
            let mut released = Released::default();
            self.forget_lock(client, serial, key, &node, &mut released);
            debug_assert!(released.is_empty(), "it had locked something");
        }
    }
}

/// Returns the status of a LOCK that there is no room for: v4.1 has no better one than `DELAY`.
fn no_room_status(minor: Minor) -> Status {
    match minor {
        Minor::V40 => Status::Resource,
        Minor::V41 => Status::Delay,
    }
}
