//! Callbacks to clients over their sessions' backchannels (RFC 8881 sections 2.10.3.1, 2.10.6.2 and
//! 20.9): their slots, connections and results. The embedder sends the calls that
//! [`State::callbacks`] returns, and reports the replies to [`State::called_back`].
//!
//! The need for a callback is recorded with its subject ([`super::delegations`]), and the call is
//! repeated once a second until it is fulfilled: losing a call does no harm.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use crate::v4::callback::CalledBack;
use crate::v4::{ClientId, SessionId, StateId, Status};

use super::client::Client;
use super::client_state::StateEntry;
use super::delegations::SEQID;
use super::offloads::OffloadResult;
use super::sessions::Session;
use super::stateid::stateid;
use super::{State, Tree};

/// The credential of callbacks (`callback_sec_parms4`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CallbackCredential {
    /// AUTH_NONE.
    #[default]
    None,
    /// AUTH_SYS, with this body.
    Sys(Arc<[u8]>),
}

/// The parameters of a session's callbacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallbackParameters {
    /// The RPC program of callbacks.
    pub program: u32,
    /// The minor version.
    pub minor: u32,
    /// The credential.
    pub credential: CallbackCredential,
}

/// A callback to be sent now.
#[derive(Debug)]
pub struct Callback<N> {
    /// The connection to send it over.
    pub connection: u64,
    /// The XID, unique among the calls in progress.
    pub xid: u32,
    /// The program and the credential.
    pub parameters: CallbackParameters,
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
    pub kind: CallbackKind,
}

/// The operation of a callback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallbackKind {
    /// CB_RECALL of a delegation.
    Recall(StateId),
    /// CB_RECALL_ANY of unused delegations, so that at most this number remains.
    RecallAny(u32),
    /// CB_NOTIFY_LOCK for this lock owner.
    NotifyLock(Arc<[u8]>),
    /// CB_OFFLOAD at the end of a copy.
    Offload(StateId, OffloadResult),
}

impl CallbackKind {
    /// Returns the first minor version that has the operation.
    fn minor(&self) -> u32 {
        match self {
            CallbackKind::Recall(_) | CallbackKind::RecallAny(_) | CallbackKind::NotifyLock(_) => 1,
            CallbackKind::Offload(..) => 2,
        }
    }
}

/// The maximum number of slots used in a backchannel.
const SLOTS: u32 = 8;

/// A session's callbacks to its client.
pub(super) struct Backchannel {
    parameters: CallbackParameters,
    slots: Vec<Slot>,
    /// Whether the sequence numbers are out of step, or the client rejects callbacks.
    faulty: bool,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// The last sequence number used.
    sequence: u32,
    /// Whether the last call may not have arrived, so that the next call repeats its number.
    repeat: bool,
    in_use: bool,
}

/// Calls without a reply so far, by XID.
#[derive(Default)]
pub(super) struct PendingCalls {
    last_xid: u32,
    by_xid: HashMap<u32, PendingCall>,
}

struct PendingCall {
    client: ClientId,
    session: SessionId,
    slot: u32,
    connection: u64,
    /// The delegation or copy that it concerns. If a call without one is lost, it need not be
    /// repeated.
    serial: Option<u32>,
}

impl Backchannel {
    pub(super) fn new(parameters: CallbackParameters, most: u32) -> Backchannel {
        Backchannel {
            parameters,
            slots: vec![Slot::default(); most.min(SLOTS) as usize],
            faulty: false,
        }
    }

    pub(super) fn is_faulty(&self) -> bool {
        self.faulty
    }

    /// Returns whether it carries operations of minor version `minor`.
    fn may_carry(&self, minor: u32) -> bool {
        !self.faulty && self.parameters.minor >= minor
    }

    /// Returns a free slot and the sequence number of its next call.
    fn take(&mut self) -> Option<(u32, u32)> {
        let at = self.slots.iter().position(|slot| !slot.in_use)?;
        let slot = &mut self.slots[at];
        if !slot.repeat {
            slot.sequence = slot.sequence.wrapping_add(1);
        }
        (slot.repeat, slot.in_use) = (false, true);
        Some((at as u32, slot.sequence))
    }

    fn release(&mut self, slot: u32, again: bool) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            (slot.repeat, slot.in_use) = (again, false);
        }
    }
}

impl<T: Tree> State<T> {
    /// Runs BACKCHANNEL_CTL (RFC 8881 section 18.33): sets the parameters of the session's
    /// callbacks.
    pub fn set_callback(
        &self,
        session: &SessionId,
        parameters: CallbackParameters,
    ) -> Result<(), Status> {
        let session = self.sessions.get(session).ok_or(Status::Badsession)?;
        session.backchannel.lock().parameters = parameters;
        session.clear_fault();
        Ok(())
    }

    /// Returns the callbacks to be sent to `client` now, as many as there are free slots for.
    pub fn callbacks(&self, client: ClientId) -> Vec<Callback<T::Node>> {
        let mut calling = Vec::new();
        let Some(client) = self.clients.get(&client) else {
            return calling;
        };
        while let Some((serial, node, kind)) = self.next_call(&client) {
            // A session that can carry a recall may not carry CB_OFFLOAD: that must not hold up
            // other calls.
            let can_wait = matches!(kind, CallbackKind::Offload(..));
            match self.start_callback(&client, serial, node, kind) {
                Some(call) => calling.push(call),
                None => {
                    if let Some(serial) = serial {
                        self.reschedule_callback(&client, serial, !can_wait);
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
    fn next_call(
        &self,
        client: &Client<T>,
    ) -> Option<(Option<u32>, Option<T::Node>, CallbackKind)> {
        let mut client_state = client.client_state.lock();
        while let Some(serial) = client_state.to_call.pop_front() {
            let state = stateid(client.id, serial, SEQID);
            let (node, kind) = match client_state.get(serial) {
                Some(StateEntry::Delegation(delegation)) => {
                    (&delegation.node, CallbackKind::Recall(state))
                }
                Some(StateEntry::Copy(copy)) => match copy.ended() {
                    Some(ended) => (&copy.node, CallbackKind::Offload(state, ended)),
                    None => continue,
                },
                _ => continue,
            };
            return Some((Some(serial), Some(node.clone()), kind));
        }
        if let Some(keep) = client_state.recall_any_keep.take() {
            return Some((None, None, CallbackKind::RecallAny(keep)));
        }
        loop {
            let key = client_state.to_notify.pop_front()?;
            if let Some(wait) = client_state.waiting.get_mut(&key) {
                wait.notification_due = false;
                let node = wait.node.clone();
                return Some((None, Some(node), CallbackKind::NotifyLock(key.1)));
            }
        }
    }

    /// Records that `client` has not received the callback for `serial`.
    fn reschedule_callback(&self, client: &Client<T>, serial: u32, now: bool) {
        let mut client_state = client.client_state.lock();
        let again = match client_state.get_mut(serial) {
            Some(StateEntry::Delegation(delegation)) => &mut delegation.recall_due,
            Some(StateEntry::Copy(copy)) => &mut copy.notification_due,
            _ => return,
        };
        *again = !now;
        if now {
            client_state.to_call.push_front(serial);
        }
    }

    /// Returns whether any session can carry callbacks of minor version `minor` to `client`.
    pub(super) fn can_call(&self, client: &Client<T>, minor: u32) -> bool {
        let sessions = client.client_state.lock().sessions.clone();
        let mut sessions = sessions.iter().filter_map(|id| self.sessions.get(id));
        sessions.any(|session| {
            session.newest_back().is_some() && session.backchannel.lock().may_carry(minor)
        })
    }

    /// Starts a callback to `client`, if a session can carry it.
    fn start_callback(
        &self,
        client: &Client<T>,
        serial: Option<u32>,
        node: Option<T::Node>,
        kind: CallbackKind,
    ) -> Option<Callback<T::Node>> {
        let sessions = client.client_state.lock().sessions.clone();
        let sessions = sessions.iter().filter_map(|id| self.sessions.get(id));
        for session in sessions {
            let Some(connection) = session.newest_back() else {
                continue;
            };
            let mut backchannel = session.backchannel.lock();
            if !backchannel.may_carry(kind.minor()) {
                continue;
            }
            let Some((slot, sequence)) = backchannel.take() else {
                continue;
            };
            let mut pending_calls = self.pending_calls.lock();
            // There are few slots, so a free number is found soon.
            while {
                pending_calls.last_xid = pending_calls.last_xid.wrapping_add(1);
                pending_calls.by_xid.contains_key(&pending_calls.last_xid)
            } {}
            let xid = pending_calls.last_xid;
            let pending = PendingCall {
                client: client.id,
                session: session.id,
                slot,
                connection,
                serial,
            };
            pending_calls.by_xid.insert(xid, pending);
            return Some(Callback {
                connection,
                xid,
                parameters: backchannel.parameters.clone(),
                session: session.id,
                slot,
                sequence,
                highest_slot: backchannel.slots.len() as u32 - 1,
                node,
                kind,
            });
        }
        None
    }

    /// Records that a call could not be sent. It is repeated later.
    pub fn callback_not_sent(&self, xid: u32) {
        if let Some(pending) = self.pending_calls.lock().by_xid.remove(&xid) {
            self.finish(&pending, true, false);
        }
    }

    /// Handles the reply to call `xid`, received over `connection`, and frees its slot. Returns the
    /// client, or `None` if there is no such call.
    pub fn called_back(&self, connection: u64, xid: u32, became: CalledBack) -> Option<ClientId> {
        let pending = {
            let mut pending_calls = self.pending_calls.lock();
            if pending_calls.by_xid.get(&xid)?.connection != connection {
                return None;
            }
            pending_calls.by_xid.remove(&xid)?
        };
        tracing::debug!(client = pending.client, ?became, "callback completed");
        if let (CalledBack::Answered(status), Some(serial)) = (became, pending.serial) {
            self.copy_notified(pending.client, serial, status);
        }
        match became {
            CalledBack::Answered(Status::Ok) => self.release_slot(&pending, false),
            // It may have overtaken the reply to its OPEN.
            CalledBack::Answered(_)
            // The previous call was carried out after all.
            | CalledBack::NotInSequence(Status::RetryUncachedRep | Status::SeqFalseRetry) => {
                self.finish(&pending, false, false);
            }
            CalledBack::NotInSequence(Status::Delay) => self.finish(&pending, true, false),
            CalledBack::NotInSequence(_) | CalledBack::Refused => {
                if let Some(session) = self.sessions.get(&pending.session) {
                    session.backchannel.lock().faulty = true;
                }
                self.finish(&pending, false, true);
            }
        }
        Some(pending.client)
    }

    /// Schedules the calls over a closed connection again, for other connections. Returns their
    /// clients.
    pub(super) fn reschedule_lost_calls(&self, connection: u64) -> Vec<ClientId> {
        let lost: Vec<PendingCall> = {
            let mut pending_calls = self.pending_calls.lock();
            let of_it = |_: &u32, pending: &mut PendingCall| pending.connection == connection;
            pending_calls
                .by_xid
                .extract_if(of_it)
                .map(|(_, pending)| pending)
                .collect()
        };
        lost.iter()
            .for_each(|pending| self.finish(pending, true, true));
        lost.into_iter().map(|pending| pending.client).collect()
    }

    fn release_slot(&self, pending: &PendingCall, again: bool) {
        if let Some(session) = self.sessions.get(&pending.session) {
            session.backchannel.lock().release(pending.slot, again);
        }
    }

    /// Schedules an unsuccessful call again: immediately if `now`, otherwise in the next second.
    fn finish(&self, pending: &PendingCall, again: bool, now: bool) {
        self.release_slot(pending, again);
        if let (Some(client), Some(serial)) = (self.clients.get(&pending.client), pending.serial) {
            self.reschedule_callback(&client, serial, now);
        }
    }
}

impl<T: Tree> Session<T> {
    /// Clears a fault after a change of the backchannel's connections or parameters.
    pub(super) fn clear_fault(&self) {
        self.backchannel.lock().faulty = false;
    }

    /// Returns whether the client has a backchannel that does not work.
    pub(super) fn is_faulty(&self) -> bool {
        self.wants_backchannel.load(Ordering::Acquire) && self.backchannel.lock().is_faulty()
    }
}

/// The [`PendingCalls`] with their mutex.
pub(super) type AllPendingCalls = Mutex<PendingCalls>;
