//! Asynchronous copies (RFC 7862 sections 4, 15.8 and 15.9): their progress and result, until the
//! client knows it.
//!
//! The executor of a copy holds an [`Offload`] and checks whether its call is cancelled. A finished
//! copy keeps no files open.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vfs::{Call, Charge};

use crate::v4::{ClientId, StateId, Status, Verifier};

use super::client::{Client, ClientRef};
use super::client_state::{ClientState, StateEntry};
use super::delegations::SEQID;
use super::released::NodeKey;
use super::stateid;
use super::{State, Tree};

/// The parameters of a copy that becomes asynchronous.
pub struct OffloadArgs<N> {
    /// The key of the target file.
    pub key: NodeKey,
    /// The target file.
    pub node: N,
    /// The call with which it can be cancelled.
    pub call: Call,
    /// The number of bytes copied so far.
    pub count: u64,
    /// The write verifier at its start.
    pub verifier: Verifier,
}

/// An asynchronous copy.
pub struct Offload {
    client: ClientId,
    serial: u32,
    call: Call,
    count: AtomicU64,
    /// Its share of the quota of copies in progress, until it has ended.
    quota_charge: Mutex<Option<Charge>>,
}

/// The result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadResult {
    /// The error; `OK` if anything was copied, as the client gets the error when it asks for the
    /// rest.
    pub status: Status,
    /// The number of bytes copied.
    pub count: u64,
    /// The write verifier at its start.
    pub verifier: Verifier,
}

/// The state of a copy.
pub(super) struct CopyState<N> {
    key: NodeKey,
    pub(super) node: N,
    offload: Arc<Offload>,
    verifier: Verifier,
    /// The result and the time of its end.
    ended: Option<(Status, Duration)>,
    /// Whether the client has cancelled it and expects no notification.
    cancelled: bool,
    /// Whether the client answered the notification with an error.
    refused: bool,
    /// Whether to repeat the notification in the next second.
    pub(super) notification_due: bool,
}

impl Offload {
    /// Returns the call that its operations are part of, which is cancelled to end the copy.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Records that `count` bytes are copied.
    pub fn set_progress(&self, count: u64) {
        self.count.store(count, Ordering::Release);
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }
}

impl<N> CopyState<N> {
    /// Returns the result, if the copy has ended.
    pub(super) fn ended(&self) -> Option<OffloadResult> {
        let (status, _) = self.ended?;
        Some(OffloadResult {
            status,
            count: self.offload.count(),
            verifier: self.verifier,
        })
    }
}

impl<T: Tree> State<T> {
    /// Returns whether a copy of `client` may become asynchronous: its end can be notified, and
    /// there is room.
    pub fn may_offload(&self, client: &ClientRef<T>) -> bool {
        let client = &client.0;
        let its = client.client_state.lock().offloads.len();
        self.quotas.offloads.has_room(&client.peer, 1)
            && its < self.limits.offloads
            && self.can_call(client, 2)
    }

    /// Registers an asynchronous copy of `client`, until [`State::offload_ended`]. Returns `None`
    /// if there is no room or the client is gone.
    pub fn offload(
        &self,
        client: &ClientRef<T>,
        what: OffloadArgs<T::Node>,
    ) -> Option<(StateId, Arc<Offload>)> {
        let client = &client.0;
        let mut client_state = client.client_state.lock();
        if client_state.destroyed || client_state.offloads.len() >= self.limits.offloads {
            return None;
        }
        let charge = self.quotas.offloads.take(&client.peer, 1).ok()?;
        let serial = client_state.next_serial();
        let offload = Arc::new(Offload {
            client: client.id,
            serial,
            call: what.call,
            count: AtomicU64::new(what.count),
            quota_charge: Mutex::new(Some(charge)),
        });
        let copying = CopyState {
            key: what.key,
            node: what.node,
            offload: offload.clone(),
            verifier: what.verifier,
            ended: None,
            cancelled: false,
            refused: false,
            notification_due: false,
        };
        client_state.insert_as(serial, StateEntry::Copy(copying));
        client_state.offloads.push(serial);
        Some((stateid::stateid(client.id, serial, SEQID), offload))
    }

    /// Records that a copy has ended, with `status`. Must be called once for each. Returns the
    /// client to notify ([`State::callbacks`]).
    pub fn offload_ended(&self, offload: &Offload, status: Status) -> Option<ClientId> {
        offload.quota_charge.lock().take();
        let client = self.clients.get(&offload.client)?;
        let now = self.now();
        let mut client_state = client.client_state.lock();
        let Some(StateEntry::Copy(copy)) = client_state.get_mut(offload.serial) else {
            return None;
        };
        let status = match offload.count() {
            0 => status,
            _ => Status::Ok,
        };
        copy.ended = Some((status, now));
        if copy.cancelled {
            return None;
        }
        client_state.to_call.push_back(offload.serial);
        Some(client.id)
    }

    /// Runs OFFLOAD_STATUS (RFC 7862 section 15.9): returns the number of bytes copied to `key`,
    /// and the status if the copy has ended.
    pub fn offload_status(
        &self,
        client: &ClientRef<T>,
        stateid: &StateId,
        key: NodeKey,
    ) -> Result<(u64, Option<Status>), Status> {
        let client = &client.0;
        let serial = self.serial_of(client, stateid)?;
        let mut client_state = client.client_state.lock();
        let copy = client_state.copy(client, serial, stateid, key)?;
        Ok((copy.offload.count(), copy.ended.map(|(status, _)| status)))
    }

    /// Runs OFFLOAD_CANCEL (RFC 7862 section 15.8): ends the copy to `key` without a notification.
    /// Returns `DELAY` until it has stopped writing.
    pub fn offload_cancel(
        &self,
        client: &ClientRef<T>,
        stateid: &StateId,
        key: NodeKey,
    ) -> Result<(), Status> {
        let client = &client.0;
        let serial = self.serial_of(client, stateid)?;
        let mut client_state = client.client_state.lock();
        let copy = client_state.copy(client, serial, stateid, key)?;
        copy.cancelled = true;
        if copy.ended.is_none() {
            copy.offload.call.cancel();
            return Err(Status::Delay);
        }
        client_state.forget_copy(serial);
        Ok(())
    }

    /// Handles the `status` with which client `id` answered the notification of `serial`.
    pub(super) fn copy_notified(&self, id: ClientId, serial: u32, status: Status) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        let mut client_state = client.client_state.lock();
        match client_state.get_mut(serial) {
            Some(StateEntry::Copy(_)) if status == Status::Ok => client_state.forget_copy(serial),
            Some(StateEntry::Copy(copy)) => copy.refused = true,
            _ => {}
        }
    }
}

impl<T: Tree> ClientState<T> {
    /// Returns the copy `serial` if `given` is the stateid of a copy to `key`.
    fn copy(
        &mut self,
        client: &Client<T>,
        serial: u32,
        given: &StateId,
        key: NodeKey,
    ) -> Result<&mut CopyState<T::Node>, Status> {
        match self.get_mut(serial) {
            Some(StateEntry::Copy(copy)) if copy.key == key => {
                stateid::check(client, given.seqid, SEQID)?;
                Ok(copy)
            }
            _ => Err(Status::BadStateid),
        }
    }

    fn forget_copy(&mut self, serial: u32) {
        if let Some(StateEntry::Copy(_)) = self.get(serial) {
            self.remove(serial);
            self.offloads.retain(|&one| one != serial);
        }
    }

    /// Cancels and removes all copies.
    pub(super) fn end_copies(&mut self) {
        for serial in std::mem::take(&mut self.offloads) {
            if let Some(StateEntry::Copy(copy)) = self.remove(serial) {
                copy.offload.call.cancel();
            }
        }
    }

    /// Cancels the copies of an expired client, repeats notifications, and removes copies that the
    /// client cancelled or does not know after a lease time.
    pub(super) fn maintain_copies(&mut self, now: Duration, lease: Duration, is_expired: bool) {
        for serial in self.offloads.clone() {
            let Some(StateEntry::Copy(copy)) = self.get_mut(serial) else {
                continue;
            };
            match copy.ended {
                None if is_expired => drop(copy.offload.call.cancel()),
                Some((_, since))
                    if (copy.cancelled || copy.refused) && now.saturating_sub(since) > lease =>
                {
                    self.forget_copy(serial);
                }
                Some(_) if std::mem::take(&mut copy.notification_due) => {
                    self.to_call.push_back(serial)
                }
                _ => {}
            }
        }
    }
}
