//! Callbacks to clients over their sessions' backchannels (RFC 8881 sections 2.10.3.1, 2.10.6.2 and
//! 20.9): their slots, connections and results. The embedder sends the calls that
//! [`State::callbacks`] returns, and reports the replies to [`State::called_back`].
//!
//! The need for a callback is recorded with its subject ([`super::delegations`]), and the call is
//! repeated once a second until it is fulfilled: losing a call does no harm.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::v4::callback::CalledBack;
use crate::v4::{ClientId, SessionId, StateId, Status};

use super::State;
use super::client::Client;
use super::delegations::SEQID;
use super::holdings::Held;
use super::offloads::Ended;
use super::sessions::Session;
use super::stateid::stateid;
use super::table::lock;

/// The credential of callbacks (`callback_sec_parms4`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CallAs {
    /// AUTH_NONE.
    #[default]
    Nobody,
    /// AUTH_SYS, with this body.
    Sys(Arc<[u8]>),
}

/// The parameters of a session's callbacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallHow {
    /// The RPC program of callbacks.
    pub program: u32,
    /// The minor version.
    pub minor: u32,
    /// The credential.
    pub call_as: CallAs,
}

/// A callback to be sent now.
#[derive(Debug)]
pub struct Calling<N> {
    /// The connection to send it over.
    pub connection: u64,
    /// The XID, unique among the calls in progress.
    pub xid: u32,
    /// The program and the credential.
    pub how: CallHow,
    /// The session.
    pub session: SessionId,
    /// The session's slot.
    pub slot: u32,
    /// The slot's sequence number.
    pub sequence: u32,
    /// The highest slot that the session uses.
    pub highest_slot: u32,
    /// The file that it concerns, if any.
    pub node: Option<N>,
    /// The operation.
    pub what: What,
}

/// The operation of a callback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// CB_RECALL of a delegation.
    Recall(StateId),
    /// CB_RECALL_ANY of unused delegations, so that at most this number remains.
    RecallAny(u32),
    /// CB_NOTIFY_LOCK for this lock owner.
    MayLock(Arc<[u8]>),
    /// CB_OFFLOAD at the end of a copy.
    Copied(StateId, Ended),
}

impl What {
    /// Returns the first minor version that has the operation.
    fn minor(&self) -> u32 {
        match self {
            What::Recall(_) | What::RecallAny(_) | What::MayLock(_) => 1,
            What::Copied(..) => 2,
        }
    }
}

/// The maximum number of slots used in a backchannel.
const SLOTS: u32 = 8;

/// A session's callbacks to its client.
pub(super) struct Calls {
    how: CallHow,
    slots: Vec<Slot>,
    /// Whether the sequence numbers are out of step, or the client rejects callbacks.
    faulty: bool,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// The last sequence number used.
    sequence: u32,
    /// Whether the last call may not have arrived, so that the next call repeats its number.
    again: bool,
    flying: bool,
}

/// Calls without a reply so far, by XID.
#[derive(Default)]
pub(super) struct Flights {
    last_xid: u32,
    by_xid: HashMap<u32, Flight>,
}

struct Flight {
    client: ClientId,
    session: SessionId,
    slot: u32,
    connection: u64,
    /// The delegation or copy that it concerns. If a call without one is lost, it need not be
    /// repeated.
    serial: Option<u32>,
}

impl Calls {
    pub(super) fn new(how: CallHow, most: u32) -> Calls {
        Calls {
            how,
            slots: vec![Slot::default(); most.min(SLOTS) as usize],
            faulty: false,
        }
    }

    pub(super) fn is_faulty(&self) -> bool {
        self.faulty
    }

    /// Returns whether it carries operations of minor version `minor`.
    fn may_carry(&self, minor: u32) -> bool {
        !self.faulty && self.how.minor >= minor
    }

    /// Returns a free slot and the sequence number of its next call.
    fn take(&mut self) -> Option<(u32, u32)> {
        let at = self.slots.iter().position(|slot| !slot.flying)?;
        let slot = &mut self.slots[at];
        if !slot.again {
            slot.sequence = slot.sequence.wrapping_add(1);
        }
        (slot.again, slot.flying) = (false, true);
        Some((at as u32, slot.sequence))
    }

    fn land(&mut self, slot: u32, again: bool) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            (slot.again, slot.flying) = (again, false);
        }
    }
}

impl<F, N: Clone> State<F, N> {
    /// Runs BACKCHANNEL_CTL (RFC 8881 section 18.33): sets the parameters of the session's
    /// callbacks.
    pub fn set_callback(&self, session: &SessionId, how: CallHow) -> Result<(), Status> {
        let session = self.sessions.get(session).ok_or(Status::Badsession)?;
        lock(&session.calls).how = how;
        session.forgive();
        Ok(())
    }

    /// Returns the callbacks to be sent to `client` now, as many as there are free slots for.
    pub fn callbacks(&self, client: ClientId) -> Vec<Calling<N>> {
        let mut calling = Vec::new();
        let Some(client) = self.clients.get(&client) else {
            return calling;
        };
        while let Some((serial, node, what)) = self.next_call(&client) {
            // A session that can carry a recall may not carry CB_OFFLOAD: that must not hold up
            // other calls.
            let can_wait = matches!(what, What::Copied(..));
            match self.fly(&client, serial, node, what) {
                Some(call) => calling.push(call),
                None => {
                    if let Some(serial) = serial {
                        self.call_again(&client, serial, !can_wait);
                    }
                    if !can_wait {
                        break;
                    }
                }
            }
        }
        calling
    }

    /// Returns the next callback for `client`.
    fn next_call(&self, client: &Client<F, N>) -> Option<(Option<u32>, Option<N>, What)> {
        let mut holdings = lock(&client.holdings);
        while let Some(serial) = holdings.to_call.pop_front() {
            let state = stateid(client.id, serial, SEQID);
            let (node, what) = match holdings.get(serial) {
                Some(Held::Delegation(delegation)) => (&delegation.node, What::Recall(state)),
                Some(Held::Copy(copy)) => match copy.ended() {
                    Some(ended) => (&copy.node, What::Copied(state, ended)),
                    None => continue,
                },
                _ => continue,
            };
            return Some((Some(serial), Some(node.clone()), what));
        }
        if let Some(keep) = holdings.keep.take() {
            return Some((None, None, What::RecallAny(keep)));
        }
        loop {
            let place = holdings.to_tell.pop_front()?;
            if let Some(waits) = holdings.waiting.get_mut(&place) {
                waits.to_be_told = false;
                let node = waits.node.clone();
                return Some((None, Some(node), What::MayLock(place.1)));
            }
        }
    }

    /// Records that `client` has not received the callback for `serial`.
    fn call_again(&self, client: &Client<F, N>, serial: u32, now: bool) {
        let mut holdings = lock(&client.holdings);
        let again = match holdings.get_mut(serial) {
            Some(Held::Delegation(delegation)) => &mut delegation.again,
            Some(Held::Copy(copy)) => &mut copy.again,
            _ => return,
        };
        *again = !now;
        if now {
            holdings.to_call.push_front(serial);
        }
    }

    /// Returns whether any session can carry callbacks of minor version `minor` to `client`.
    pub(super) fn can_call(&self, client: &Client<F, N>, minor: u32) -> bool {
        let sessions = lock(&client.holdings).sessions.clone();
        let mut sessions = sessions.iter().filter_map(|id| self.sessions.get(id));
        sessions
            .any(|session| session.newest_back().is_some() && lock(&session.calls).may_carry(minor))
    }

    /// Starts a callback to `client`, if a session can carry it.
    fn fly(
        &self,
        client: &Client<F, N>,
        serial: Option<u32>,
        node: Option<N>,
        what: What,
    ) -> Option<Calling<N>> {
        let sessions = lock(&client.holdings).sessions.clone();
        let sessions = sessions.iter().filter_map(|id| self.sessions.get(id));
        for session in sessions {
            let Some(connection) = session.newest_back() else {
                continue;
            };
            let mut calls = lock(&session.calls);
            if !calls.may_carry(what.minor()) {
                continue;
            }
            let Some((slot, sequence)) = calls.take() else {
                continue;
            };
            let mut flights = lock(&self.flights);
            // There are few slots, so a free number is found soon.
            while {
                flights.last_xid = flights.last_xid.wrapping_add(1);
                flights.by_xid.contains_key(&flights.last_xid)
            } {}
            let xid = flights.last_xid;
            let flight = Flight {
                client: client.id,
                session: session.id,
                slot,
                connection,
                serial,
            };
            flights.by_xid.insert(xid, flight);
            return Some(Calling {
                connection,
                xid,
                how: calls.how.clone(),
                session: session.id,
                slot,
                sequence,
                highest_slot: calls.slots.len() as u32 - 1,
                node,
                what,
            });
        }
        None
    }

    /// Records that a call could not be sent. It is repeated later.
    pub fn not_called(&self, xid: u32) {
        if let Some(flight) = lock(&self.flights).by_xid.remove(&xid) {
            self.land(&flight, true, false);
        }
    }

    /// Handles the reply to call `xid`, received over `connection`, and frees its slot. Returns the
    /// client, or `None` if there is no such call.
    pub fn called_back(&self, connection: u64, xid: u32, became: CalledBack) -> Option<ClientId> {
        let flight = {
            let mut flights = lock(&self.flights);
            if flights.by_xid.get(&xid)?.connection != connection {
                return None;
            }
            flights.by_xid.remove(&xid)?
        };
        tracing::debug!(client = flight.client, ?became, "callback completed");
        if let (CalledBack::Answered(status), Some(serial)) = (became, flight.serial) {
            self.copy_told(flight.client, serial, status);
        }
        match became {
            CalledBack::Answered(Status::Ok) => self.landed(&flight, false),
            // It may have overtaken the reply to its OPEN.
            CalledBack::Answered(_)
            // The previous call was carried out after all.
            | CalledBack::NotInSequence(Status::RetryUncachedRep | Status::SeqFalseRetry) => {
                self.land(&flight, false, false);
            }
            CalledBack::NotInSequence(Status::Delay) => self.land(&flight, true, false),
            CalledBack::NotInSequence(_) | CalledBack::Refused => {
                if let Some(session) = self.sessions.get(&flight.session) {
                    lock(&session.calls).faulty = true;
                }
                self.land(&flight, false, true);
            }
        }
        Some(flight.client)
    }

    /// Schedules the calls over a closed connection again, for other connections. Returns their
    /// clients.
    pub(super) fn calls_lost(&self, connection: u64) -> Vec<ClientId> {
        let lost: Vec<Flight> = {
            let mut flights = lock(&self.flights);
            let of_it = |_: &u32, flight: &mut Flight| flight.connection == connection;
            flights
                .by_xid
                .extract_if(of_it)
                .map(|(_, flight)| flight)
                .collect()
        };
        lost.iter().for_each(|flight| self.land(flight, true, true));
        lost.into_iter().map(|flight| flight.client).collect()
    }

    fn landed(&self, flight: &Flight, again: bool) {
        if let Some(session) = self.sessions.get(&flight.session) {
            lock(&session.calls).land(flight.slot, again);
        }
    }

    /// Schedules an unsuccessful call again: immediately if `now`, otherwise in the next second.
    fn land(&self, flight: &Flight, again: bool, now: bool) {
        self.landed(flight, again);
        if let (Some(client), Some(serial)) = (self.clients.get(&flight.client), flight.serial) {
            self.call_again(&client, serial, now);
        }
    }
}

impl<F, N> Session<F, N> {
    /// Clears a fault after a change of the backchannel's connections or parameters.
    pub(super) fn forgive(&self) {
        lock(&self.calls).faulty = false;
    }

    /// Returns whether the client has a backchannel that does not work.
    pub(super) fn is_faulty(&self) -> bool {
        self.wants_backchannel.load(Ordering::Acquire) && lock(&self.calls).is_faulty()
    }
}

/// The [`Flights`] with their mutex.
pub(super) type AllFlights = Mutex<Flights>;
