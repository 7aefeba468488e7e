//! OPEN, OPEN_CONFIRM, OPEN_DOWNGRADE, CLOSE, and the files of stateids for I/O.
//!
//! An OPEN has two steps: [`State::open`] reserves the share access and deny modes, so that the
//! file can be opened or truncated without conflicts; [`PendingOpen::commit`] creates the stateid.
//! No lock is held in between.

use std::sync::Arc;

use vfs::Charge;

use crate::v4::{StateId, Status};

use super::client::{Client, ClientRef, Minor};
use super::client_state::{
    ClientState, FilesByAccess, OPEN_BYTES, Open, Share, StateEntry, no_room_status,
};
use super::released::{NodeKey, Released};
use super::shares::Refused;
use super::stateid::{self, INVALID, Parts};
use super::{State, Tree};

/// The arguments of OPEN.
pub struct OpenArgs<'a, N> {
    /// The open owner's name.
    pub owner: &'a [u8],
    /// The key of the node.
    pub key: NodeKey,
    /// The node, which is supplied again when its locks are to be released.
    pub node: N,
    /// The share access; never empty.
    pub access: Share,
    /// The share deny.
    pub deny: Share,
    /// Whether this reclaims an open from before the server's restart (`CLAIM_PREVIOUS`).
    pub reclaim: bool,
}

/// An OPEN with a reservation. Dropping it without [`PendingOpen::commit`] removes the reservation.
#[must_use]
pub struct PendingOpen<'a, T: Tree> {
    state: &'a State<T>,
    client: Arc<Client<T>>,
    owner: Arc<[u8]>,
    key: NodeKey,
    node: T::Node,
    access: Share,
    deny: Share,
    reclaim: bool,
    reservation: u64,
    held: Option<T::File>,
    /// The charge of a new open.
    charge: Option<Charge>,
}

/// The result of an OPEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The stateid.
    pub stateid: StateId,
    /// v4.0: whether the owner must confirm (`OPEN4_RESULT_CONFIRM`).
    pub confirm: bool,
}

impl<T: Tree> State<T> {
    /// Starts an OPEN (RFC 7530 section 16.16, RFC 8881 section 18.16). Returns `SHARE_DENIED`
    /// (`RECLAIM_CONFLICT` for a reclaim) if another open conflicts, even one of the same owner; if
    /// it is an expired client's, that client loses its state instead. Returns `GRACE`, `NO_GRACE`
    /// and `RECLAIM_BAD` as described at [`State::in_grace`]. Does not check permissions on the
    /// node.
    pub fn open(
        &self,
        client: &ClientRef<T>,
        args: OpenArgs<'_, T::Node>,
    ) -> Result<PendingOpen<'_, T>, Status> {
        let client = &client.0;
        if args.access.is_empty() {
            return Err(Status::Inval);
        }
        self.may_open(client, args.reclaim)?;
        let owner: Arc<[u8]> = args.owner.into();
        let (held, is_new) = {
            let client_state = client.client_state.lock();
            client_state.check_live()?;
            match client_state.opened(&owner, args.key) {
                Some((_, open)) => (open.files.get(args.access).cloned(), false),
                None if client_state.opens + client_state.revoked >= self.limits.opens => {
                    return Err(no_room_status(client.minor));
                }
                None => (None, true),
            }
        };
        let charge = is_new
            .then(|| self.charge(client, OPEN_BYTES))
            .transpose()?;
        let pending = loop {
            let reserved = self
                .shares
                .reserve(args.key, client.id, &owner, args.access, args.deny);
            match reserved {
                Ok(pending) => break pending,
                Err(Refused::Conflict(other)) if self.revoke_if_expired(other, args.key) => {}
                Err(Refused::Conflict(_)) if args.reclaim => return Err(Status::ReclaimConflict),
                Err(Refused::Conflict(_)) => return Err(Status::ShareDenied),
                Err(Refused::Full) if self.expire_oldest(None) => {}
                Err(Refused::Full) => return Err(no_room_status(client.minor)),
            }
        };
        Ok(PendingOpen {
            state: self,
            client: client.clone(),
            owner,
            key: args.key,
            node: args.node,
            access: args.access,
            deny: args.deny,
            reclaim: args.reclaim,
            reservation: pending,
            held,
            charge,
        })
    }

    /// Charges `bytes` of state to `client`. If there is no room, expired clients lose their state.
    fn charge(&self, client: &Client<T>, bytes: usize) -> Result<Charge, Status> {
        loop {
            match client.charge(bytes) {
                Ok(charge) => return Ok(charge),
                Err(full) if self.expire_oldest(full.is_per_client().then_some(&client.peer)) => {}
                Err(_) => return Err(no_room_status(client.minor)),
            }
        }
    }

    /// Runs OPEN_CONFIRM (RFC 7530 section 16.18), during the owner's [`super::OwnerRequest`].
    pub fn open_confirm(
        &self,
        client: &ClientRef<T>,
        stateid: &StateId,
        key: NodeKey,
    ) -> Result<StateId, Status> {
        let client = &client.0;
        let serial = self.serial_of(client, stateid)?;
        let mut client_state = client.client_state.lock();
        let open = client_state.open(serial)?;
        let owner = open.owner;
        open.check(client, stateid, key)?;
        let owner = client_state.open_owners.get_mut(owner);
        let owner = owner.filter(|owner| !owner.confirmed);
        owner.ok_or(Status::BadStateid)?.confirmed = true;
        Ok(client_state.open_mut(serial)?.changed(client, serial))
    }

    /// Runs OPEN_DOWNGRADE (RFC 7530 section 16.19, RFC 8881 section 18.18). Returns `INVAL` unless
    /// the new modes are the union of some of the owner's OPENs.
    pub fn open_downgrade(
        &self,
        client: &ClientRef<T>,
        stateid: &StateId,
        key: NodeKey,
        access: Share,
        deny: Share,
    ) -> Result<StateId, Status> {
        let client = &client.0;
        let mut released = Released::default();
        let stateid = {
            let mut client_state = client.client_state.lock();
            let serial = self.confirmed_open(client, &client_state, stateid, key)?;
            let owner = client_state.open(serial)?.owner;
            let name = client_state
                .open_owners
                .get(owner)
                .map(|owner| owner.name.clone());
            let open = client_state.open_mut(serial)?;
            let within = open.modes_seen & combinations_within(access, deny);
            if access.is_empty() || union(within) != (access, deny) {
                return Err(Status::Inval);
            }
            (open.modes_seen, open.access, open.deny) = (within, access, deny);
            released.files = open.files.keep(access);
            let name = name.ok_or(Status::Serverfault)?;
            self.shares.set(key, client.id, &name, access, deny);
            open.changed(client, serial)
        };
        self.release(released);
        Ok(stateid)
    }

    /// Runs CLOSE (RFC 7530 section 16.2, RFC 8881 section 18.2). Releases the locks still held
    /// through the open.
    pub fn close(
        &self,
        client: &ClientRef<T>,
        stateid: &StateId,
        key: NodeKey,
    ) -> Result<StateId, Status> {
        let client = &client.0;
        let mut released = Released::default();
        let stateid = {
            let mut client_state = client.client_state.lock();
            let serial = self.confirmed_open(client, &client_state, stateid, key)?;
            let open = client_state.open_mut(serial)?;
            let (number, last) = (open.owner, open.changed(client, serial));
            client_state.close(client, serial, &self.shares, &mut released);
            match client.minor {
                Minor::V41 => INVALID,
                Minor::V40 => {
                    if let Some(owner) = client_state.open_owners.get_mut(number) {
                        let before = owner.closed.replace(serial);
                        owner.used = self.now();
                        before.map(|before| client_state.remove(before));
                        client_state.mark_closed(serial, number);
                    }
                    last
                }
            }
        };
        self.release(released);
        Ok(stateid)
    }

    /// Returns the file of an open, lock or delegation stateid, for `access` (one of the two) by
    /// READ, WRITE and similar operations. `client` is the session's; v4.0 has none, so the
    /// stateid's client is used and its lease renewed. Returns `OPENMODE` if the file is not open
    /// for that. Special stateids are handled by [`State::anonymous`].
    pub fn io(
        &self,
        client: Option<&ClientRef<T>>,
        stateid: &StateId,
        key: NodeKey,
        access: Share,
    ) -> Result<T::File, Status> {
        let found;
        let client = match client {
            Some(client) => &client.0,
            None => {
                found = self.client_of(stateid)?;
                &found
            }
        };
        let serial = self.serial_of(client, stateid)?;
        let client_state = client.client_state.lock();
        let open = match client_state.get(serial) {
            Some(StateEntry::Lock(state)) => {
                stateid::check(client, stateid.seqid, state.seqid)?;
                let open = client_state.open(state.open)?;
                open.check_key(key)?;
                open
            }
            Some(StateEntry::Delegation(_) | StateEntry::RevokedDelegation) => {
                let delegation = client_state.delegation(client, serial, stateid, key)?;
                return match delegation.kind.contains(access) {
                    true => Ok(delegation.file.clone()),
                    false => Err(Status::Openmode),
                };
            }
            _ => {
                let serial = self.confirmed_open(client, &client_state, stateid, key)?;
                client_state.open(serial)?
            }
        };
        if !open.access.contains(access) {
            return Err(Status::Openmode);
        }
        open.files.get(access).cloned().ok_or(Status::Openmode)
    }

    /// Checks whether I/O without an open is allowed (RFC 7530 section 9.1.4.3, RFC 8881 section
    /// 9.1.3). Returns `LOCKED` if a deny mode conflicts, `GRACE` during the grace period, as one
    /// may be reclaimed. Not for a READ with [`super::Special::Bypass`].
    pub fn anonymous(&self, key: NodeKey, access: Share) -> Result<(), Status> {
        if self.in_grace() {
            return Err(Status::Grace);
        }
        while let Some(client) = self.shares.denier(key, access) {
            if !self.revoke_if_expired(client, key) {
                return Err(Status::Locked);
            }
        }
        Ok(())
    }

    /// Returns whether a client has `key` open or delegated.
    pub fn is_held(&self, key: NodeKey) -> bool {
        self.shares.has(key) || self.delegations.has(key)
    }

    /// Returns the serial number of `stateid` if it is the current stateid of an open of `client`
    /// on `key` with a confirmed owner.
    pub(super) fn confirmed_open(
        &self,
        client: &Client<T>,
        client_state: &ClientState<T>,
        stateid: &StateId,
        key: NodeKey,
    ) -> Result<u32, Status> {
        let serial = self.serial_of(client, stateid)?;
        let open = client_state.open(serial)?;
        open.check(client, stateid, key)?;
        let owner = client_state.open_owners.get(open.owner);
        if client.minor == Minor::V40 && !owner.is_some_and(|owner| owner.confirmed) {
            return Err(Status::BadStateid);
        }
        Ok(serial)
    }
}

impl<T: Tree> State<T> {
    /// Returns the serial number in `stateid`, if it is of this boot and of `client`.
    pub(super) fn serial_of(&self, client: &Client<T>, stateid: &StateId) -> Result<u32, Status> {
        let parts = Parts::of(stateid);
        if stateid::client_id(parts.boot, parts.client) == client.id {
            return Ok(parts.serial);
        }
        let is_stale = client.minor == Minor::V40
            && parts.boot != self.boot
            && stateid::special(stateid).is_none();
        Err(if is_stale {
            Status::StaleStateid
        } else {
            // RFC 8881 section 15.1.16.5: clients with sessions notice a restart earlier.
            Status::BadStateid
        })
    }
}

impl<T: Tree> PendingOpen<'_, T> {
    /// Returns a suitable file that the owner already has open: pass a clone of it to
    /// [`PendingOpen::commit`] instead of opening another.
    pub fn held(&self) -> Option<&T::File> {
        self.held.as_ref()
    }

    /// Completes the OPEN: `file` is open as requested. Fails only if the client was destroyed
    /// meanwhile, its tables became full, or it cannot be recorded ([`Stable::is_required`]).
    ///
    /// [`Stable::is_required`]: super::Stable::is_required
    pub fn commit(mut self, file: T::File) -> Result<Opened, Status> {
        let client = self.client.clone();
        self.state.record(&client)?;
        let mut spare = None;
        let opened = {
            let mut client_state = client.client_state.lock();
            self.insert(&mut client_state, file, &mut spare)
        };
        // It is dropped with no lock held.
        drop(spare);
        opened
    }

    fn insert(
        &mut self,
        client_state: &mut ClientState<T>,
        file: T::File,
        spare: &mut Option<T::File>,
    ) -> Result<Opened, Status> {
        let client = &self.client;
        let limits = &self.state.limits;
        let known = client_state
            .opened(&self.owner, self.key)
            .map(|(serial, _)| serial);
        let has_room = known.is_some() || client_state.opens + client_state.revoked < limits.opens;
        let checked = client_state.check_live().and(if has_room {
            Ok(())
        } else {
            Err(no_room_status(client.minor))
        });
        let charge = checked.and_then(|()| match (known, self.charge.take()) {
            (None, None) => client.charged(OPEN_BYTES).map(Some),
            (_, charge) => Ok(charge),
        });
        let owner = charge.and_then(|charge| {
            let now = self.state.now();
            let owner = client_state.open_owner(client, &self.owner, limits.opens, now)?;
            Ok((owner, charge))
        });
        let (owner, charge) = match owner {
            Ok(settled) if self.state.shares.confirm(self.key, self.reservation) => settled,
            Ok(_) => {
                *spare = Some(file);
                return Err(Status::Expired);
            }
            Err(status) => {
                *spare = Some(file);
                return Err(status);
            }
        };
        let serial = match known.ok_or(charge) {
            Ok(serial) => {
                let open = client_state.open_mut(serial)?;
                open.access |= self.access;
                open.deny |= self.deny;
                open.modes_seen |= combination(self.access, self.deny);
                *spare = open.files.add(self.access, file);
                serial
            }
            Err(charge) => {
                let serial = client_state.insert(StateEntry::Open(Open {
                    owner,
                    key: self.key,
                    node: self.node.clone(),
                    access: self.access,
                    deny: self.deny,
                    modes_seen: combination(self.access, self.deny),
                    seqid: 0,
                    files: FilesByAccess::new(self.access, file),
                    locks: Vec::new(),
                    _charge: charge.ok_or(Status::Serverfault)?,
                }));
                if let Some(owner) = client_state.open_owners.get_mut(owner) {
                    owner.opens.insert(self.key, serial);
                }
                serial
            }
        };
        let confirmed = client_state
            .open_owners
            .get_mut(owner)
            .is_some_and(|owner| {
                // RFC 7530 section 9.1.11: a reclaim needs no confirmation.
                owner.confirmed |= self.reclaim;
                owner.confirmed
            });
        Ok(Opened {
            stateid: client_state.open_mut(serial)?.changed(client, serial),
            confirm: client.minor == Minor::V40 && !confirmed,
        })
    }
}

impl<T: Tree> Drop for PendingOpen<'_, T> {
    fn drop(&mut self) {
        self.state.shares.cancel(self.key, self.reservation);
    }
}

impl<T: Tree> ClientState<T> {
    /// Returns the open of `key` by `owner`.
    fn opened(&self, owner: &[u8], key: NodeKey) -> Option<(u32, &Open<T>)> {
        let owner = self.open_owners.get(self.open_owners.find(owner)?)?;
        let serial = *owner.opens.get(&key)?;
        Some((serial, self.open(serial).ok()?))
    }
}

impl<T: Tree> Open<T> {
    /// Returns `BAD_STATEID` unless this is an open of `key`.
    fn check_key(&self, key: NodeKey) -> Result<(), Status> {
        if self.key == key {
            Ok(())
        } else {
            Err(Status::BadStateid)
        }
    }

    fn check(&self, client: &Client<T>, given: &StateId, key: NodeKey) -> Result<(), Status> {
        self.check_key(key)?;
        stateid::check(client, given.seqid, self.seqid)
    }

    /// Increments the seqid and returns the new stateid.
    fn changed(&mut self, client: &Client<T>, serial: u32) -> StateId {
        self.seqid = stateid::next(self.seqid);
        stateid::stateid(client.id, serial, self.seqid)
    }
}

/// Returns the bit of [`Open::modes_seen`] that an OPEN sets.
fn combination(access: Share, deny: Share) -> u16 {
    1 << (access.bits() * 4 + deny.bits())
}

/// Returns the bits of the OPENs with no more than `access` and `deny`.
fn combinations_within(access: Share, deny: Share) -> u16 {
    let within = each().filter(|&(a, d)| access.contains(a) && deny.contains(d));
    within.fold(0, |all, (a, d)| all | combination(a, d))
}

/// Returns the union of the OPENs' modes.
fn union(seen: u16) -> (Share, Share) {
    let were = each().filter(|&(a, d)| seen & combination(a, d) != 0);
    were.fold((Share::empty(), Share::empty()), |all, one| {
        (all.0 | one.0, all.1 | one.1)
    })
}

fn each() -> impl Iterator<Item = (Share, Share)> {
    (0..16).map(|bit| {
        (
            Share::from_bits_truncate(bit / 4),
            Share::from_bits_truncate(bit % 4),
        )
    })
}
