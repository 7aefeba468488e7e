//! v4.0: the seqids of open owners and lock owners, and their cached replies (RFC 7530 sections
//! 9.1.7 to 9.1.11).

use std::sync::Arc;

use crate::v4::{ClientId, StateId, Status};

use super::client::{Client, ClientRef, Minor};
use super::client_state::{ClientState, StateEntry};
use super::stateid::Parts;
use super::{Started, State, Tree};

/// The last request of an owner, and its reply.
#[derive(Default)]
pub(super) struct OwnerSeq {
    last: Option<u32>,
    reply: Option<Arc<[u8]>>,
    /// The seqid of the request in progress.
    busy: Option<u32>,
}

impl OwnerSeq {
    /// Sets the seqid of an owner whose first request was part of another owner's, which has the
    /// reply.
    pub(super) fn set(&mut self, seqid: u32) {
        self.last = Some(seqid);
        self.reply = None;
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.is_some()
    }

    /// Returns whether `seqid` is the next one.
    pub(super) fn expects(&self, seqid: u32) -> bool {
        self.last.is_none_or(|last| last.wrapping_add(1) == seqid)
    }

    fn reply(&self, seqid: u32) -> Option<Arc<[u8]>> {
        self.reply.clone().filter(|_| self.last == Some(seqid))
    }

    /// Starts a request. Returns the cached reply if it is a repetition.
    fn begin(&mut self, seqid: u32) -> Result<Option<Arc<[u8]>>, Status> {
        if self.is_busy() {
            return Err(Status::Delay);
        }
        if let Some(reply) = self.reply(seqid) {
            return Ok(Some(reply));
        }
        if !self.expects(seqid) {
            return Err(Status::BadSeqid);
        }
        self.busy = Some(seqid);
        Ok(None)
    }
}

/// A request of an owner in progress: there is at most one for each owner. Dropping it without
/// [`OwnerRequest::finish`] undoes its start.
#[must_use]
pub struct OwnerRequest<T: Tree> {
    client: Arc<Client<T>>,
    owner: OwnerNumber,
    seqid: u32,
}

#[derive(Clone, Copy)]
enum OwnerNumber {
    Open(u32),
    Lock(u32),
}

impl<T: Tree> OwnerRequest<T> {
    /// Returns the client of the owner.
    pub fn client(&self) -> ClientRef<T> {
        ClientRef(self.client.clone())
    }

    /// Completes the request, and caches `reply`, the operation's number and result. If a later
    /// request gets the cached reply of another operation, the caller answers `BAD_SEQID` (RFC 7530
    /// section 9.1.9). Some errors do not consume the seqid (section 9.1.7).
    pub fn finish(self, status: Status, reply: Arc<[u8]>) {
        if status.advances_seqid() {
            let mut client_state = self.client.client_state.lock();
            if let Some(seq) = self.seq(&mut client_state) {
                seq.last = Some(self.seqid);
                seq.reply = Some(reply);
            }
        }
    }

    fn seq<'a>(&self, client_state: &'a mut ClientState<T>) -> Option<&'a mut OwnerSeq> {
        match self.owner {
            OwnerNumber::Open(number) => Some(&mut client_state.open_owners.get_mut(number)?.seq),
            OwnerNumber::Lock(number) => Some(&mut client_state.lock_owners.get_mut(number)?.seq),
        }
    }
}

impl<T: Tree> Drop for OwnerRequest<T> {
    fn drop(&mut self) {
        let mut client_state = self.client.client_state.lock();
        let mut is_new = false;
        if let Some(seq) = self.seq(&mut client_state) {
            seq.busy = None;
            is_new = seq.last.is_none();
        }
        match self.owner {
            OwnerNumber::Open(number) => {
                let owner = client_state.open_owners.get(number);
                if is_new && owner.is_some_and(|owner| owner.is_idle()) {
                    client_state.forget_open_owner(number);
                }
            }
            OwnerNumber::Lock(number) => {
                let owner = client_state.lock_owners.get(number);
                if owner.is_some_and(|owner| owner.states.is_empty()) {
                    client_state.lock_owners.remove(number);
                }
            }
        }
        self.client.end_request();
    }
}

impl<T: Tree> State<T> {
    /// v4.0: starts an OPEN of `owner`. Renews the lease. Returns `DELAY` while another request of
    /// the owner is in progress.
    pub fn start_open(
        &self,
        client: ClientId,
        owner: &[u8],
        seqid: u32,
    ) -> Result<Started<OwnerRequest<T>>, Status> {
        let ClientRef(client) = self.client(client)?;
        let name: Arc<[u8]> = owner.into();
        let mut released = super::Released::default();
        let started = {
            let mut client_state = client.client_state.lock();
            let client_state = &mut *client_state;
            client_state.check_live()?;
            let most = self.limits.opens;
            let mut number = client_state.open_owner(&client, &name, most, self.now())?;
            let owner = client_state
                .open_owners
                .get(number)
                .ok_or(Status::Serverfault)?;
            // An unconfirmed owner is treated as new (RFC 7530 section 16.18.5), even if the seqid
            // is that of its last OPEN, as in Linux's server: clients repeat the seqid of a failed
            // OPEN in the next one.
            let forgotten = !owner.confirmed && owner.seq.last.is_some() && !owner.seq.is_busy();
            if forgotten {
                for serial in owner.opens.values().copied().collect::<Vec<_>>() {
                    client_state.close(&client, serial, &self.shares, &mut released);
                }
                client_state.forget_open_owner(number);
                number = client_state.open_owner(&client, &name, most, self.now())?;
            }
            self.start_of_owner(&client, client_state, number, seqid)
        };
        self.release(released);
        started
    }

    /// v4.0: starts an operation on a stateid with a seqid: OPEN_CONFIRM, OPEN_DOWNGRADE, CLOSE,
    /// LOCK (with the open's stateid and its owner's seqid for a new lock owner) and LOCKU. The
    /// rest is the same as for [`State::start_open`].
    pub fn start_on_stateid(
        &self,
        stateid: &StateId,
        seqid: u32,
    ) -> Result<Started<OwnerRequest<T>>, Status> {
        let client = self.client_of(stateid)?;
        let mut client_state = client.client_state.lock();
        let client_state = &mut *client_state;
        client_state.check_live()?;
        let serial = Parts::of(stateid).serial;
        match client_state.get(serial) {
            Some(&StateEntry::Closed(owner)) => {
                let owner = client_state.open_owners.get(owner);
                let reply = owner.and_then(|owner| owner.seq.reply(seqid));
                reply.map(Started::Replay).ok_or(Status::BadStateid)
            }
            Some(StateEntry::Open(open)) => {
                let owner = open.owner;
                self.start_of_owner(&client, client_state, owner, seqid)
            }
            Some(StateEntry::Lock(state)) => {
                let number = state.owner;
                let owner = client_state.lock_owners.get_mut(number);
                let owner = owner.ok_or(Status::Serverfault)?;
                Ok(match owner.seq.begin(seqid)? {
                    Some(reply) => Started::Replay(reply),
                    None => Started::New(new_request(&client, OwnerNumber::Lock(number), seqid)),
                })
            }
            // Only clients with sessions have delegations.
            Some(
                StateEntry::Revoked
                | StateEntry::Delegation(_)
                | StateEntry::RevokedDelegation
                | StateEntry::Copy(_),
            )
            | None => Err(Status::BadStateid),
        }
    }

    fn start_of_owner(
        &self,
        client: &Arc<Client<T>>,
        client_state: &mut ClientState<T>,
        number: u32,
        seqid: u32,
    ) -> Result<Started<OwnerRequest<T>>, Status> {
        let owner = client_state.open_owners.get_mut(number);
        let owner = owner.ok_or(Status::Serverfault)?;
        owner.used = self.now();
        if let Some(reply) = owner.seq.begin(seqid)? {
            return Ok(Started::Replay(reply));
        }
        // The client has received the reply to its last CLOSE, and does not retransmit it any more.
        if let Some(closed) = owner.closed.take() {
            client_state.remove(closed);
        }
        Ok(Started::New(new_request(
            client,
            OwnerNumber::Open(number),
            seqid,
        )))
    }
}

fn new_request<T: Tree>(
    client: &Arc<Client<T>>,
    owner: OwnerNumber,
    seqid: u32,
) -> OwnerRequest<T> {
    debug_assert_eq!(client.minor, Minor::V40);
    client.begin_request();
    OwnerRequest {
        client: client.clone(),
        owner,
        seqid,
    }
}
