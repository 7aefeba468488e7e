//! What the server asks of clients by their sessions' backchannels (RFC 8881 sections 2.10.3.1, 2.10.6.2 and
//! 20.9): which call goes by which slot and connection, and what comes of it. Whoever sends them says so
//! ([`State::callbacks`]), and what was answered ([`State::called_back`]).
//!
//! What has to be sent stands with what it is about ([`super::delegations`]), and is sent again once a second
//! for as long as that is so: a call that is lost is no loss.

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

/// As whom clients are called (`callback_sec_parms4`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CallAs {
    /// AUTH_NONE.
    #[default]
    Nobody,
    /// AUTH_SYS, with this body.
    Sys(Arc<[u8]>),
}

/// How a session's client is called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallHow {
    /// The RPC program of callbacks.
    pub program: u32,
    /// The minor version.
    pub minor: u32,
    /// As whom.
    pub call_as: CallAs,
}

/// A call to a client: to be sent now.
#[derive(Debug)]
pub struct Calling<N> {
    /// By which connection.
    pub connection: u64,
    /// Its id, which no other of now has.
    pub xid: u32,
    /// How.
    pub how: CallHow,
    /// Of which session.
    pub session: SessionId,
    /// By which of its slots.
    pub slot: u32,
    /// The slot's number of it.
    pub sequence: u32,
    /// The highest slot that is ever used.
    pub highest_slot: u32,
    /// Which file it is about, if it is about one.
    pub node: Option<N>,
    /// What is asked, or told.
    pub what: What,
}

/// What a client is asked, or told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// To give a delegation back.
    Recall(StateId),
    /// To give back delegations that it does not use, so that no more than these are left.
    RecallAny(u32),
    /// That this lock owner may get what it waits for.
    MayLock(Arc<[u8]>),
    /// That a copy has ended.
    Copied(StateId, Ended),
}

impl What {
    /// The first minor version that knows of it.
    fn minor(&self) -> u32 {
        match self {
            What::Recall(_) | What::RecallAny(_) | What::MayLock(_) => 1,
            What::Copied(..) => 2,
        }
    }
}

/// The most slots of a backchannel in use.
const SLOTS: u32 = 8;

/// A session's calls to its client.
pub(super) struct Calls {
    how: CallHow,
    slots: Vec<Slot>,
    /// The client has got out of step, or will not be called.
    faulty: bool,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// The last number used.
    sequence: u32,
    /// It may not have come: the next call has it again.
    again: bool,
    flying: bool,
}

/// Calls that are not answered, by their ids.
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
    /// The delegation or copy that it is about; of anything else nothing is lost with the call.
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

    /// Whether calls go by it that minor version `minor` has.
    fn may_carry(&self, minor: u32) -> bool {
        !self.faulty && self.how.minor >= minor
    }

    /// A free slot, with the number of its next call.
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
    /// BACKCHANNEL_CTL (RFC 8881 section 18.33): from now on this session's client is called so.
    pub fn set_callback(&self, session: &SessionId, how: CallHow) -> Result<(), Status> {
        let session = self.sessions.get(session).ok_or(Status::Badsession)?;
        lock(&session.calls).how = how;
        session.forgive();
        Ok(())
    }

    /// What is to be sent to `client` now, as far as its slots go.
    pub fn callbacks(&self, client: ClientId) -> Vec<Calling<N>> {
        let mut calling = Vec::new();
        let Some(client) = self.clients.get(&client) else {
            return calling;
        };
        while let Some((serial, node, what)) = self.next_call(&client) {
            // Not every session that may be asked for a delegation may be told of a copy: that holds up nothing.
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

    /// The next thing to call `client` for.
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

    /// `client` has not heard what it was called for about `serial`.
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

    /// Whether there is a way to call `client` for what minor version `minor` has.
    pub(super) fn can_call(&self, client: &Client<F, N>, minor: u32) -> bool {
        let sessions = lock(&client.holdings).sessions.clone();
        let mut sessions = sessions.iter().filter_map(|id| self.sessions.get(id));
        sessions
            .any(|session| session.newest_back().is_some() && lock(&session.calls).may_carry(minor))
    }

    /// A call to `client`, if there is a way.
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
            // Slots are few: one that is free comes soon.
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

    /// A call could not be sent: it is tried again later.
    pub fn not_called(&self, xid: u32) {
        if let Some(flight) = lock(&self.flights).by_xid.remove(&xid) {
            self.land(&flight, true, false);
        }
    }

    /// What became of call `xid`, as `connection` says. Whose slot is free again; nothing if there is no such call.
    pub fn called_back(&self, connection: u64, xid: u32, became: CalledBack) -> Option<ClientId> {
        let flight = {
            let mut flights = lock(&self.flights);
            if flights.by_xid.get(&xid)?.connection != connection {
                return None;
            }
            flights.by_xid.remove(&xid)?
        };
        tracing::debug!(client = flight.client, ?became, "called back");
        if let (CalledBack::Answered(status), Some(serial)) = (became, flight.serial) {
            self.copy_told(flight.client, serial, status);
        }
        match became {
            CalledBack::Answered(Status::Ok) => self.landed(&flight, false),
            // It may have crossed the answer to its OPEN.
            CalledBack::Answered(_)
            // The call before was carried out after all.
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

    /// Calls by a connection that is no more have to be sent again by another: whose those are.
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

    /// A call has come to nothing: it is to be made again, `now` or when the next second begins.
    fn land(&self, flight: &Flight, again: bool, now: bool) {
        self.landed(flight, again);
        if let (Some(client), Some(serial)) = (self.clients.get(&flight.client), flight.serial) {
            self.call_again(&client, serial, now);
        }
    }
}

impl<F, N> Session<F, N> {
    /// A connection has become a backchannel, or the client is called otherwise: what was wrong may be right.
    pub(super) fn forgive(&self) {
        lock(&self.calls).faulty = false;
    }

    /// Whether the client has a way to be called, but not in step.
    pub(super) fn is_faulty(&self) -> bool {
        self.wants_backchannel.load(Ordering::Acquire) && lock(&self.calls).is_faulty()
    }
}

/// [`Flights`] with their lock.
pub(super) type AllFlights = Mutex<Flights>;
