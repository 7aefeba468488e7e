//! The state of a client, and compounds that are sent in a given client state.
//!
//! Lock order: `recovering`, held during recovery; then the mutex of the client state, of the
//! opens, or of an open, one at a time and none across a request. `delegations` has its own. In a
//! callback, the connection's mutex comes before those of the delegations and of the client state,
//! and the queue of the maintenance thread after them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::nfs::client::v4::{ClientId, Compound, Operations, Sequence, Slot, Status, status_flags};
use ::nfs::client::{Failure, Limits, Tree};
use parking_lot::Mutex;
use vfs::fd::BorrowedFd;
use vfs::{Caller, Cx, Errno};

use super::client_state::{ClientState, NoSlot, SlotTable};
use super::delegation_table::Delegations;
use super::open_state::OpenStates;
use super::task_queue::TaskQueue;
use crate::ClientOwner;
use crate::client_owner::random;
use crate::nfs::read_destination::ReadDestination;
use crate::nfs::rpc_client::{Backoff, PendingCall, RpcClient, process_credentials};

/// A client of a v4 server.
pub(in crate::nfs) struct Core {
    pub(super) conn: RpcClient,
    pub(in crate::nfs) minor: u32,
    /// The client owner (`co_ownerid`).
    pub(super) name: ClientOwner,
    /// The client's boot verifier. It is another one in each process: that process has no state of
    /// an earlier one, which the server discards.
    pub(super) verifier: [u8; 8],
    /// The credentials of requests that no caller makes.
    pub(super) machine: Caller,
    pub(super) client_state: Mutex<Arc<ClientState>>,
    pub(super) recovering: Mutex<Recovering>,
    pub(super) open_states: Arc<OpenStates>,
    pub(super) delegations: Delegations,
    pub(super) queue: Arc<TaskQueue>,
    /// The number of reconnections when the backchannel was last bound to the connection.
    bound: AtomicU64,
}

/// The state of recovery.
pub(super) struct Recovering {
    /// The sequence ID of the next CREATE_SESSION.
    pub(super) sequence: u32,
}

/// A compound in flight, which has to be ended, or its slot is lost.
#[must_use = "its slot would be lost"]
pub struct PendingCompound {
    client_state: Arc<ClientState>,
    slot: Option<(Slot, Sequence)>,
    call: PendingCall,
}

/// The result of a compound's SEQUENCE; the default if there is none.
#[derive(Clone, Copy, Default)]
struct SequenceResult {
    /// Whether the server has advanced the slot's sequence ID.
    advanced: bool,
    /// The target for the highest slot in use.
    highest: Option<u32>,
    /// Some of [`status_flags`].
    status_flags: u32,
}

impl Core {
    /// The maximum request and response size to request: 1 MiB and the headers around it.
    pub(in crate::nfs) const MAX_MESSAGE: u32 = (1 << 20) + (4 << 10);

    /// Creates a client with the name `owner` that has no client ID yet.
    pub(super) fn new(conn: RpcClient, minor: u32, owner: ClientOwner) -> Core {
        let client_state = Arc::new(ClientState {
            number: 0,
            client: 0,
            session: None,
        });
        Core {
            conn,
            minor,
            name: owner,
            verifier: random().to_be_bytes(),
            machine: process_credentials(),
            client_state: Mutex::new(client_state),
            recovering: Mutex::new(Recovering { sequence: 0 }),
            open_states: Arc::default(),
            delegations: Delegations::default(),
            queue: Arc::default(),
            bound: AtomicU64::new(0),
        }
    }

    /// Returns whether the client accepts callbacks.
    pub(super) fn accepts_callbacks(&self) -> bool {
        self.conn.backchannels().is_some()
    }

    /// Receives callbacks while no caller waits for a reply: see [`RpcClient::listen`].
    pub(super) fn listen(&self, wake_event: BorrowedFd<'_>) -> std::io::Result<bool> {
        self.conn.listen(wake_event)
    }

    pub(in crate::nfs) fn has_room(&self, len: usize) -> bool {
        self.conn.has_room(len)
    }

    /// Returns [`RpcClient::direct_receive_min`].
    pub(in crate::nfs) fn direct_receive_min(&self) -> usize {
        self.conn.direct_receive_min()
    }

    pub(in crate::nfs) fn peer(&self) -> String {
        self.conn.peer()
    }

    pub(in crate::nfs) fn client(&self) -> ClientId {
        self.client_state().client
    }

    /// Limits the server's read and write sizes to what fits the session's request and response
    /// sizes with the largest headers.
    pub(in crate::nfs) fn limits(&self, reported: Limits) -> Limits {
        const AROUND: u32 = 1024;
        let payload = |most: u32| most.saturating_sub(AROUND).max(AROUND);
        match &self.client_state().session {
            None => reported,
            Some(table) => Limits {
                read: reported.read.min(payload(table.max_response)),
                write: reported.write.min(payload(table.max_request)),
            },
        }
    }

    pub(super) fn client_state(&self) -> Arc<ClientState> {
        self.client_state.lock().clone()
    }

    /// Sends a compound once, and waits for its reply.
    pub(super) fn call_once<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        client_state: &Arc<ClientState>,
        operations: &S,
        read: impl FnMut(S::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        match self.begin_in(cx, client_state, operations, true)? {
            Some(pending) => self.end(cx, pending, operations, read),
            None => Err(Failure::Delay),
        }
    }

    pub(super) fn begin_in<S: Operations>(
        &self,
        cx: &Cx<'_>,
        client_state: &Arc<ClientState>,
        operations: &S,
        wait: bool,
    ) -> std::result::Result<Option<PendingCompound>, Failure> {
        let slot = match &client_state.session {
            None => None,
            Some(table) => match table.take(wait) {
                Ok(taken) => Some(taken),
                Err(NoSlot::AllInUse) => return Ok(None),
                Err(NoSlot::SessionUnusable) => return Err(Failure::State(Status::Badsession)),
            },
        };
        let compound = Compound {
            minor: self.minor,
            sequence: slot.as_ref().map(|(_, sequence)| *sequence),
            operations,
        };
        let call = self.conn.begin(cx, &compound);
        let client_state = client_state.clone();
        Ok(Some(PendingCompound {
            client_state,
            slot,
            call,
        }))
    }

    /// Waits for the reply to a compound.
    pub(in crate::nfs) fn end<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        pending: PendingCompound,
        operations: &S,
        mut read: impl FnMut(S::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        let end = |answer: S::Answer<'_>, _: Option<&mut ReadDestination<'_>>| read(answer);
        self.end_in(cx, pending, operations, ReadDestination::none(), end)
    }

    /// Does [`Core::end`] for a compound whose payload may land in `destination`. `read` gets
    /// `destination` if the payload has not landed.
    pub(in crate::nfs) fn end_in<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        pending: PendingCompound,
        operations: &S,
        mut destination: ReadDestination<'_>,
        read: impl FnOnce(S::Answer<'_>, Option<&mut ReadDestination<'_>>) -> T,
    ) -> std::result::Result<T, Failure> {
        let PendingCompound {
            client_state,
            slot,
            mut call,
        } = pending;
        let compound = Compound {
            minor: self.minor,
            sequence: slot.as_ref().map(|(_, sequence)| *sequence),
            operations,
        };
        let mut read = Some(read);
        let mut pauses = Backoff::new();
        let (result, sequenced) = loop {
            let mut sequenced = SequenceResult::default();
            let result = self.conn.end_in(
                cx,
                call,
                &compound,
                &mut destination,
                |done, destination| {
                    sequenced = SequenceResult {
                        advanced: done.advanced,
                        highest: done.highest,
                        status_flags: done.status_flags,
                    };
                    let answer = done.result?;
                    let read = read.take().ok_or(Failure::Delay)?;
                    Ok(read(answer, destination))
                },
            );
            let delayed = matches!(result, Ok(Err(Failure::Delay))) && !sequenced.advanced;
            if slot.is_none() || !delayed {
                break (result, sequenced);
            }
            // The slot is busy: the same request arrived over a connection that was lost since.
            // Only its slot and sequence ID lead to its reply; in another slot it would be carried
            // out twice.
            if let Err(errno) = pauses.pause(cx) {
                break (Err(Failure::Error(errno)), sequenced);
            }
            call = self.conn.begin(cx, &compound);
        };
        if let (Some(table), Some((slot, _))) = (&client_state.session, slot) {
            let result = result.as_ref().map(|result| result.as_ref().err());
            self.release_slot(table, slot, sequenced, result, S::CACHE_THIS)?;
        }
        result?
    }

    /// Releases the slot of a compound with this result. Returns [`Failure::Delay`] if the compound
    /// was carried out, has no cached reply, and may be carried out again.
    fn release_slot(
        &self,
        table: &SlotTable,
        slot: Slot,
        sequenced: SequenceResult,
        result: std::result::Result<Option<&Failure>, &Failure>,
        cache_this: bool,
    ) -> std::result::Result<(), Failure> {
        match result {
            Ok(Some(Failure::State(Status::RetryUncachedRep))) if !cache_this => {
                table.release(slot, true, None);
                return Err(Failure::Delay);
            }
            Ok(_) => {
                table.release(slot, sequenced.advanced, sequenced.highest);
                if table.backchannel {
                    self.handle_sequence_flags(sequenced.status_flags);
                }
            }
            // The server rejected the RPC call before processing the slot.
            Err(Failure::Error(errno)) if ![Errno::ETIMEDOUT, Errno::EINTR].contains(errno) => {
                table.release(slot, false, None);
            }
            Err(_) => table.mark_unusable(),
        }
        Ok(())
    }

    /// Lets the maintenance thread handle status flags of a SEQUENCE reply, or bind the backchannel
    /// to a new connection.
    #[inline]
    fn handle_sequence_flags(&self, status_bits: u32) {
        const LOST: u32 = status_flags::CALLBACK_PATH_DOWN | status_flags::SESSION_PATH_DOWN;
        let bound = self.bound.load(Ordering::Acquire) == self.conn.reconnections();
        let bind = status_bits & LOST != 0 || !bound;
        let revoked = status_bits & status_flags::RECALLABLE_REVOKED != 0;
        if bind || revoked {
            self.queue.check_session(bind, revoked);
        }
    }

    /// Sends a compound outside of any session.
    pub(super) fn call_outside_session<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        operations: &S,
        read: impl FnMut(S::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        let nobody = Arc::new(ClientState {
            number: 0,
            client: 0,
            session: None,
        });
        self.call_until_ready(cx, &nobody, operations, read)
    }

    /// Records the number of reconnections at which the backchannel was bound.
    pub(super) fn set_bound(&self, times: u64) {
        self.bound.store(times, Ordering::Release);
    }

    /// The number of reconnections.
    pub(super) fn reconnections(&self) -> u64 {
        self.conn.reconnections()
    }

    /// Sends a compound in `client_state`, repeating it while the server answers `NFS4ERR_DELAY` or
    /// the like.
    pub(super) fn call_until_ready<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        client_state: &Arc<ClientState>,
        operations: &S,
        mut read: impl FnMut(S::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        let mut pauses = Backoff::new();
        loop {
            match self.call_once(cx, client_state, operations, &mut read) {
                Err(Failure::Delay) => pauses.pause(cx).map_err(Failure::Error)?,
                done => return done,
            }
        }
    }
}

pub(super) fn errno(failure: Failure) -> Errno {
    if let Failure::State(status) = &failure {
        tracing::error!(?status, "the server has other state for this client");
    }
    failure.errno()
}

/// A tree whose root is not known yet.
pub(in crate::nfs) const UNKNOWN_TREE: Tree = Tree {
    fsid: 0,
    blksize: 0,
};
