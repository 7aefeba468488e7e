//! Copies that go on behind their answers (RFC 7862 sections 4, 15.8 and 15.9): how far they have come, and how they ended,
//! until the client has heard of it.
//!
//! Who carries them out holds an [`Offload`] and looks whether its call is cancelled. What ended keeps no files.

use core::time::Duration;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vfs::{Call, Charge};

use crate::v4::{ClientId, StateId, Status, Verifier};

use super::State;
use super::client::{Client, ClientRef};
use super::delegations::SEQID;
use super::gone::NodeKey;
use super::holdings::{Held, Holdings};
use super::stateid;
use super::table::lock;

/// A copy that is to go on.
pub struct Offloading<N> {
    /// Which file it writes.
    pub key: NodeKey,
    /// That file.
    pub node: N,
    /// What it is cancelled by.
    pub call: Call,
    /// How many bytes are copied.
    pub count: u64,
    /// The write verifier of before.
    pub verifier: Verifier,
}

/// A copy that goes on.
pub struct Offload {
    client: ClientId,
    serial: u32,
    call: Call,
    count: AtomicU64,
    /// Its place among those that go on, until it has ended.
    place: Mutex<Option<Charge>>,
}

/// How a copy has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Why it failed; `OK` where anything was copied, for the client hears what is in the way when it asks for the rest.
    pub status: Status,
    /// How many bytes were copied.
    pub count: u64,
    /// The write verifier of before it began.
    pub verifier: Verifier,
}

/// What is known of a copy.
pub(super) struct Copying<N> {
    key: NodeKey,
    pub(super) node: N,
    offload: Arc<Offload>,
    verifier: Verifier,
    /// How it ended, and when.
    ended: Option<(Status, Duration)>,
    /// The client does not want to hear how it ends.
    cancelled: bool,
    /// The client was told, and did not know it.
    refused: bool,
    /// Whether the client is to be called for it in the next second.
    pub(super) again: bool,
}

impl Offload {
    /// What its operations are part of: cancelled when it is to end.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// So many bytes are copied.
    pub fn has_come_to(&self, count: u64) {
        self.count.store(count, Ordering::Release);
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }
}

impl<N> Copying<N> {
    /// How it ended, if it has.
    pub(super) fn ended(&self) -> Option<Ended> {
        let (status, _) = self.ended?;
        Some(Ended {
            status,
            count: self.offload.count(),
            verifier: self.verifier,
        })
    }
}

impl<F, N: Clone> State<F, N> {
    /// Whether a copy of `client`'s may go on behind its answer: it can be told how that ends, and there is room.
    pub fn may_offload(&self, client: &ClientRef<F, N>) -> bool {
        let client = &client.0;
        let its = lock(&client.holdings).offloads.len();
        self.quotas.offloads.has_room(&client.peer, 1)
            && its < self.limits.offloads
            && self.can_call(client, 2)
    }

    /// A copy of `client`'s goes on, until [`State::offload_ended`] is said of it; nothing if there is no room, or no such
    /// client.
    pub fn offload(
        &self,
        client: &ClientRef<F, N>,
        what: Offloading<N>,
    ) -> Option<(StateId, Arc<Offload>)> {
        let client = &client.0;
        let mut holdings = lock(&client.holdings);
        if holdings.gone || holdings.offloads.len() >= self.limits.offloads {
            return None;
        }
        let place = self.quotas.offloads.take(&client.peer, 1).ok()?;
        let serial = holdings.next_serial();
        let offload = Arc::new(Offload {
            client: client.id,
            serial,
            call: what.call,
            count: AtomicU64::new(what.count),
            place: Mutex::new(Some(place)),
        });
        let copying = Copying {
            key: what.key,
            node: what.node,
            offload: offload.clone(),
            verifier: what.verifier,
            ended: None,
            cancelled: false,
            refused: false,
            again: false,
        };
        holdings.insert_as(serial, Held::Copy(copying));
        holdings.offloads.push(serial);
        Some((stateid::stateid(client.id, serial, SEQID), offload))
    }

    /// A copy has ended, so if it failed. To be said once of each. Whom to call ([`State::callbacks`]).
    pub fn offload_ended(&self, offload: &Offload, status: Status) -> Option<ClientId> {
        lock(&offload.place).take();
        let client = self.clients.get(&offload.client)?;
        let now = self.now();
        let mut holdings = lock(&client.holdings);
        let Some(Held::Copy(copy)) = holdings.get_mut(offload.serial) else {
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
        holdings.to_call.push_back(offload.serial);
        Some(client.id)
    }

    /// OFFLOAD_STATUS (RFC 7862 section 15.9): how many bytes of the copy to `key` are copied, and how it ended, if it has.
    pub fn offload_status(
        &self,
        client: &ClientRef<F, N>,
        stateid: &StateId,
        key: NodeKey,
    ) -> Result<(u64, Option<Status>), Status> {
        let client = &client.0;
        let serial = self.serial_of(client, stateid)?;
        let mut holdings = lock(&client.holdings);
        let copy = holdings.copy(client, serial, stateid, key)?;
        Ok((copy.offload.count(), copy.ended.map(|(status, _)| status)))
    }

    /// OFFLOAD_CANCEL (RFC 7862 section 15.8): the copy to `key` ends, and nobody is told. `DELAY` until it writes no more.
    pub fn offload_cancel(
        &self,
        client: &ClientRef<F, N>,
        stateid: &StateId,
        key: NodeKey,
    ) -> Result<(), Status> {
        let client = &client.0;
        let serial = self.serial_of(client, stateid)?;
        let mut holdings = lock(&client.holdings);
        let copy = holdings.copy(client, serial, stateid, key)?;
        copy.cancelled = true;
        if copy.ended.is_none() {
            copy.offload.call.cancel();
            return Err(Status::Delay);
        }
        holdings.forget_copy(serial);
        Ok(())
    }

    /// The client `id` has answered `status` to what it was called for about `serial`.
    pub(super) fn copy_told(&self, id: ClientId, serial: u32, status: Status) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        let mut holdings = lock(&client.holdings);
        match holdings.get_mut(serial) {
            Some(Held::Copy(_)) if status == Status::Ok => holdings.forget_copy(serial),
            Some(Held::Copy(copy)) => copy.refused = true,
            _ => {}
        }
    }
}

impl<F, N: Clone> Holdings<F, N> {
    /// The copy `serial`, if `given` is that of one to `key`.
    fn copy(
        &mut self,
        client: &Client<F, N>,
        serial: u32,
        given: &StateId,
        key: NodeKey,
    ) -> Result<&mut Copying<N>, Status> {
        match self.get_mut(serial) {
            Some(Held::Copy(copy)) if copy.key == key => {
                stateid::check(client, given.seqid, SEQID)?;
                Ok(copy)
            }
            _ => Err(Status::BadStateid),
        }
    }

    fn forget_copy(&mut self, serial: u32) {
        if let Some(Held::Copy(_)) = self.get(serial) {
            self.remove(serial);
            self.offloads.retain(|&one| one != serial);
        }
    }

    /// Ends all copies, and forgets them.
    pub(super) fn end_copies(&mut self) {
        for serial in std::mem::take(&mut self.offloads) {
            if let Some(Held::Copy(copy)) = self.remove(serial) {
                copy.offload.call.cancel();
            }
        }
    }

    /// Ends copies of whoever `is_expired`, has the client called again, and forgets after a lease what it has cancelled or does
    /// not know.
    pub(super) fn tend_copies(&mut self, now: Duration, lease: Duration, is_expired: bool) {
        for serial in self.offloads.clone() {
            let Some(Held::Copy(copy)) = self.get_mut(serial) else {
                continue;
            };
            match copy.ended {
                None if is_expired => drop(copy.offload.call.cancel()),
                Some((_, since))
                    if (copy.cancelled || copy.refused) && now.saturating_sub(since) > lease =>
                {
                    self.forget_copy(serial);
                }
                Some(_) if std::mem::take(&mut copy.again) => self.to_call.push_back(serial),
                _ => {}
            }
        }
    }
}
