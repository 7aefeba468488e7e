//! Sending compounds, and repeating them after `NFS4ERR_DELAY` and server restarts.
//!
//! Lock order: `recovering`, held during recovery; then the mutex of the client state, of the
//! opens, or of an open, one at a time and none across a request. `delegations` has its own. In a
//! callback, the connection's mutex comes before those of the delegations and of the client state,
//! and the queue of the maintenance thread after them.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ::nfs::client::v4::{
    Backchannels, ClientId, Compound, CreateSession, DestroyClientId, DestroySession, ExchangeId,
    Operations, ReclaimComplete, Renew, Sequence, SequenceOnly, SetClientId, Slot, Status,
    status_flags,
};
use ::nfs::client::{Failure, Limits, Tree};
use parking_lot::{Mutex, MutexGuard};
use vfs::{Caller, Cx, Errno, Result};

use super::client_state::{ClientState, NoSlot, SlotTable};
use super::delegations::{CallbackReceiver, Delegations};
use super::maintenance::TaskQueue;
use super::open_state::OpenStates;
use crate::nfs::read_destination::ReadDestination;
use crate::nfs::rpc_client::{Attempts, Backoff, PendingCall, RpcClient, process_credentials};

/// A client of a v4 server.
pub(in crate::nfs) struct Core {
    conn: RpcClient,
    pub(in crate::nfs) minor: u32,
    /// The unique owner string of the client ID (`co_ownerid`).
    name: String,
    /// The client's boot verifier.
    verifier: [u8; 8],
    /// The credentials of requests that no caller makes.
    pub(super) machine: Caller,
    client_state: Mutex<Arc<ClientState>>,
    recovering: Mutex<Recovering>,
    pub(super) open_states: OpenStates,
    pub(super) delegations: Delegations,
    pub(super) queue: TaskQueue,
    /// The number of reconnections when the backchannel was last bound to the connection.
    bound: AtomicU64,
}

/// The state of recovery.
struct Recovering {
    /// The sequence ID of the next CREATE_SESSION.
    sequence: u32,
}

/// A compound in flight, which has to be ended, or its slot is lost.
#[must_use = "its slot would be lost"]
pub struct PendingCompound {
    client_state: Arc<ClientState>,
    slot: Option<(Slot, Sequence)>,
    call: PendingCall,
}

impl Core {
    /// The number of slots to request.
    const SLOTS: u32 = 64;

    /// The maximum request and response size to request: 1 MiB and the headers around it.
    pub(in crate::nfs) const MAX_MESSAGE: u32 = (1 << 20) + (4 << 10);

    /// Establishes a client ID for `machine`, with a backchannel if `delegations` are wanted and
    /// the minor version has sessions.
    pub(in crate::nfs) fn open(
        conn: RpcClient,
        minor: u32,
        machine: &str,
        delegations: bool,
    ) -> Result<Arc<Core>> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
        let now = now.map_or(0, |time| time.as_nanos() as u64);
        let client_state = Arc::new(ClientState {
            number: 0,
            client: 0,
            session: None,
        });
        let core = Arc::new(Core {
            conn,
            minor,
            name: format!("{machine}/barge/{pid}/{number}"),
            verifier: now.to_be_bytes(),
            machine: process_credentials(),
            client_state: Mutex::new(client_state.clone()),
            recovering: Mutex::new(Recovering { sequence: 0 }),
            open_states: OpenStates::default(),
            delegations: Delegations::default(),
            queue: TaskQueue::default(),
            bound: AtomicU64::new(0),
        });
        if delegations && minor > 0 {
            let holder = Box::new(CallbackReceiver(Arc::downgrade(&core)));
            core.conn
                .enable_callbacks(Arc::new(Backchannels::new(holder)));
        }
        let call = vfs::Call::detached();
        core.recover(
            &Cx::new(&core.machine, &call),
            &client_state,
            Status::StaleClientid,
        )?;
        core.conn.apply_soft_setting();
        Ok(core)
    }

    /// Returns whether the client accepts callbacks.
    pub(super) fn accepts_callbacks(&self) -> bool {
        self.conn.backchannels().is_some()
    }

    /// Receives callbacks while no caller waits for a reply: see [`RpcClient::listen`].
    pub(super) fn listen(&self, bell: BorrowedFd<'_>) -> std::io::Result<bool> {
        self.conn.listen(bell)
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
    pub(in crate::nfs) fn limits(&self, told: Limits) -> Limits {
        const AROUND: u32 = 1024;
        let payload = |most: u32| most.saturating_sub(AROUND).max(AROUND);
        match &self.client_state().session {
            None => told,
            Some(table) => Limits {
                read: told.read.min(payload(table.max_response)),
                write: told.write.min(payload(table.max_request)),
            },
        }
    }

    pub(super) fn client_state(&self) -> Arc<ClientState> {
        self.client_state.lock().clone()
    }

    /// Makes a call that depends on no state of the server, repeating it as needed.
    pub(in crate::nfs) fn call_stateless<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        operations: S,
        read: impl FnMut(S::Answer<'_>) -> T,
    ) -> Result<T> {
        self.call::<&S, T>(cx, |_| Ok(&operations), read)
    }

    /// Makes a call, repeating it as needed with new arguments from `make`.
    pub(super) fn call<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        make: impl Fn(&ClientState) -> Result<S>,
        read: impl FnMut(S::Answer<'_>) -> T,
    ) -> Result<T> {
        self.try_call(cx, make, read).map_err(errno)
    }

    /// Does [`Core::call`], and returns errors of an owner's sequence IDs.
    pub(super) fn try_call<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        make: impl Fn(&ClientState) -> Result<S>,
        mut read: impl FnMut(S::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        let mut pauses = Backoff::new();
        let mut attempts = Attempts::new();
        loop {
            cx.check_may_block()
                .and_then(|()| cx.call.check())
                .map_err(Failure::Error)?;
            let client_state = self.client_state();
            let operations = make(&client_state).map_err(Failure::Error)?;
            match self.call_once(cx, &client_state, &operations, &mut read) {
                Err(Failure::Delay) => pauses.pause(cx).map_err(Failure::Error)?,
                Err(Failure::State(status))
                    if status != Status::BadSeqid && attempts.may_repeat(self.reconnections()) =>
                {
                    self.recover(cx, &client_state, status)
                        .map_err(Failure::Error)?;
                }
                done => return done,
            }
        }
    }

    /// Sends a compound once, and waits for its reply.
    fn call_once<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        client_state: &Arc<ClientState>,
        operations: &S,
        read: impl FnMut(S::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        match self.begin_in(cx, client_state, operations, true)? {
            Some(turn) => self.end(cx, turn, operations, read),
            None => Err(Failure::Delay),
        }
    }

    /// Begins a compound. Without `wait`, returns `None` if no slot is free.
    pub(in crate::nfs) fn begin<S: Operations>(
        &self,
        cx: &Cx<'_>,
        operations: &S,
        wait: bool,
    ) -> Result<Option<PendingCompound>> {
        loop {
            let client_state = self.client_state();
            match self.begin_in(cx, &client_state, operations, wait) {
                Ok(turn) => return Ok(turn),
                Err(Failure::State(status)) => self.recover(cx, &client_state, status)?,
                Err(failure) => return Err(errno(failure)),
            }
        }
    }

    fn begin_in<S: Operations>(
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
        let flight = self.conn.begin(cx, &compound);
        let client_state = client_state.clone();
        Ok(Some(PendingCompound {
            client_state,
            slot,
            call: flight,
        }))
    }

    /// Waits for the reply to a compound.
    pub(in crate::nfs) fn end<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        turn: PendingCompound,
        operations: &S,
        mut read: impl FnMut(S::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        let end = |answer: S::Answer<'_>, _: Option<&mut ReadDestination<'_>>| read(answer);
        self.end_in(cx, turn, operations, ReadDestination::none(), end)
    }

    /// Does [`Core::end`] for a compound whose payload may land in `place`. `read` gets `place` if
    /// the payload has not landed.
    pub(in crate::nfs) fn end_in<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        turn: PendingCompound,
        operations: &S,
        mut place: ReadDestination<'_>,
        read: impl FnOnce(S::Answer<'_>, Option<&mut ReadDestination<'_>>) -> T,
    ) -> std::result::Result<T, Failure> {
        let PendingCompound {
            client_state,
            slot,
            call: mut flight,
        } = turn;
        let compound = Compound {
            minor: self.minor,
            sequence: slot.as_ref().map(|(_, sequence)| *sequence),
            operations,
        };
        let conn = &self.conn;
        let mut read = Some(read);
        let mut pauses = Backoff::new();
        let (done, turned, news) = loop {
            let mut turned = (false, None);
            let mut news = 0;
            let done = conn.end_in(cx, flight, &compound, &mut place, |done, place| {
                turned = (done.advanced, done.highest);
                news = done.status_flags;
                let answer = done.result?;
                let read = read.take().ok_or(Failure::Delay)?;
                Ok(read(answer, place))
            });
            let delayed = matches!(done, Ok(Err(Failure::Delay))) && !turned.0;
            if slot.is_none() || !delayed {
                break (done, turned, news);
            }
            // The slot is busy: the same request arrived over a connection that was lost since.
            // Only its slot and sequence ID lead to its reply; in another slot it would be carried
            // out twice.
            if let Err(errno) = pauses.pause(cx) {
                break (Err(Failure::Error(errno)), turned, news);
            }
            flight = conn.begin(cx, &compound);
        };
        if let (Some(table), Some((slot, _))) = (&client_state.session, slot) {
            match &done {
                // The server has carried the request out, but not cached the reply: it may be
                // carried out again.
                Ok(Err(Failure::State(Status::RetryUncachedRep))) if !S::CACHE_THIS => {
                    table.release(slot, true, None);
                    return Err(Failure::Delay);
                }
                Ok(_) => {
                    table.release(slot, turned.0, turned.1);
                    if table.backchannel {
                        self.handle_sequence_flags(news);
                    }
                }
                // The server rejected the RPC call before processing the slot.
                Err(Failure::Error(errno)) if ![Errno::ETIMEDOUT, Errno::EINTR].contains(errno) => {
                    table.release(slot, false, None);
                }
                Err(_) => table.mark_unusable(),
            }
        }
        done?
    }

    /// Lets the maintenance thread handle status flags of a SEQUENCE reply, or bind the backchannel
    /// to a new connection.
    #[inline]
    fn handle_sequence_flags(&self, news: u32) {
        const LOST: u32 = status_flags::CALLBACK_PATH_DOWN | status_flags::SESSION_PATH_DOWN;
        let bound = self.bound.load(Ordering::Acquire) == self.conn.reconnections();
        let bind = news & LOST != 0 || !bound;
        let revoked = news & status_flags::RECALLABLE_REVOKED != 0;
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

    /// Recovers from a state error that a request of `client_state` has got.
    pub(super) fn recover(
        &self,
        cx: &Cx<'_>,
        client_state: &Arc<ClientState>,
        status: Status,
    ) -> Result<()> {
        let mut recovering = self.recovering(cx)?;
        if self.client_state().number != client_state.number {
            // Another thread has recovered.
            return Ok(());
        }
        tracing::debug!(?status, "recovering");
        let own = cx.on_behalf_of(&self.machine);
        if let (true, Some(table)) = (is_of_stateid(status), &client_state.session) {
            // The session is valid, so the files can be opened again. A delegation may conflict
            // with that.
            for one in self.delegations.take_all() {
                let _ = self.delegreturn(cx, client_state, &one);
            }
            let next =
                self.next_client_state(client_state, client_state.client, Some(table.clone()));
            return match self.open_states.reopen_all(self, cx, &next, false) {
                Ok(()) => {
                    self.publish(next);
                    Ok(())
                }
                // The session is lost, too: the repeated request finds that.
                Err(Failure::State(_)) => Ok(()),
                Err(failure) => Err(errno(failure)),
            };
        }
        let known = client_state.session.is_some() && status != Status::StaleClientid;
        if known && let Some(session) = self.session(&own, &mut recovering, client_state.client)? {
            self.publish(self.next_client_state(client_state, client_state.client, Some(session)));
            return Ok(());
        }
        let mut attempts = Attempts::new();
        loop {
            let (client, session) = self.establish_client(&own, &mut recovering)?;
            let next = self.next_client_state(client_state, client, session);
            drop(self.delegations.take_all());
            match self.reclaim(cx, &own, &next) {
                Ok(()) => {
                    self.publish(next);
                    return Ok(());
                }
                // The server has restarted again.
                Err(Failure::State(_)) if attempts.may_repeat(self.reconnections()) => {}
                Err(failure) => return Err(errno(failure)),
            }
        }
    }

    /// Reclaims all state after a restart of the server. Returns an error if `client_state` is lost
    /// meanwhile, or the caller stops waiting.
    fn reclaim(
        &self,
        cx: &Cx<'_>,
        own: &Cx<'_>,
        client_state: &Arc<ClientState>,
    ) -> std::result::Result<(), Failure> {
        self.open_states.reopen_all(self, cx, client_state, true)?;
        match client_state.session {
            None => Ok(()),
            Some(_) => self.call_until_ready(own, client_state, &ReclaimComplete, |()| ()),
        }
    }

    fn next_client_state(
        &self,
        client_state: &ClientState,
        client: ClientId,
        session: Option<Arc<SlotTable>>,
    ) -> Arc<ClientState> {
        Arc::new(ClientState {
            number: client_state.number + 1,
            client,
            session,
        })
    }

    fn publish(&self, client_state: Arc<ClientState>) {
        *self.client_state.lock() = client_state;
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

    /// Establishes a client ID and, from 4.1 on, a session.
    fn establish_client(
        &self,
        cx: &Cx<'_>,
        recovering: &mut Recovering,
    ) -> Result<(ClientId, Option<Arc<SlotTable>>)> {
        let owner = self.name.as_bytes();
        let mut attempts = Attempts::new();
        while attempts.may_repeat(self.reconnections()) {
            if self.minor == 0 {
                let set = SetClientId {
                    owner,
                    verifier: self.verifier,
                };
                let confirm = self.call_outside_session(cx, &set, |confirm| confirm);
                let confirm = confirm.map_err(errno)?;
                match self.call_outside_session(cx, &confirm, |()| ()) {
                    Ok(()) => return Ok((confirm.client, None)),
                    Err(Failure::State(Status::StaleClientid)) => {}
                    Err(failure) => return Err(errno(failure)),
                }
            } else {
                let exchange = ExchangeId {
                    owner,
                    verifier: self.verifier,
                };
                let known = self.call_outside_session(cx, &exchange, |known| known);
                let known = known.map_err(errno)?;
                recovering.sequence = known.sequence;
                if let Some(session) = self.session(cx, recovering, known.client)? {
                    return Ok((known.client, Some(session)));
                }
            }
        }
        Err(Errno::EIO)
    }

    /// Creates a session. Returns `None` if the server has forgotten the client ID.
    fn session(
        &self,
        cx: &Cx<'_>,
        recovering: &mut Recovering,
        client: ClientId,
    ) -> Result<Option<Arc<SlotTable>>> {
        let backchannels = self.conn.backchannels();
        let times = self.conn.reconnections();
        let create = CreateSession {
            client,
            sequence: recovering.sequence,
            slots: Core::SLOTS,
            most: Core::MAX_MESSAGE,
            backchannel: backchannels.is_some(),
        };
        match self.call_outside_session(cx, &create, |session| session) {
            Ok(session) => {
                recovering.sequence = recovering.sequence.wrapping_add(1);
                if let Some(backchannels) = backchannels {
                    backchannels.add(session.id);
                    self.set_bound(times);
                }
                Ok(Some(SlotTable::new(&session)))
            }
            Err(Failure::State(_)) => Ok(None),
            Err(failure) => Err(errno(failure)),
        }
    }

    /// Renews the lease.
    pub(super) fn renew(&self, cx: &Cx<'_>) -> Result<()> {
        if self.minor > 0 {
            return self.call(cx, |_| Ok(SequenceOnly), |()| ());
        }
        let renew = |client_state: &ClientState| {
            Ok(Renew {
                client: client_state.client,
            })
        };
        self.call(cx, renew, |()| ())
    }

    /// Destroys the session and client ID, if the request can be sent at once.
    pub(super) fn destroy_client(&self, cx: &Cx<'_>) {
        let client_state = self.client_state();
        let Some(table) = &client_state.session else {
            return;
        };
        let nobody = Arc::new(ClientState {
            number: 0,
            client: 0,
            session: None,
        });
        let session = DestroySession { session: table.id };
        let client = DestroyClientId {
            client: client_state.client,
        };
        // The server frees the rest when the lease expires.
        if self.call_once(cx, &nobody, &session, |()| ()).is_ok() {
            let _ = self.call_once(cx, &nobody, &client, |()| ());
        }
    }

    /// Locks the recovery state. Another thread's recovery may take as long as the server does.
    fn recovering(&self, cx: &Cx<'_>) -> Result<MutexGuard<'_, Recovering>> {
        let mut pauses = Backoff::new();
        loop {
            match self.recovering.try_lock() {
                Some(recovering) => return Ok(recovering),
                None => pauses.pause(cx)?,
            }
        }
    }
}

/// Returns whether a status concerns a stateid of a client whose session is valid.
fn is_of_stateid(status: Status) -> bool {
    matches!(
        status,
        Status::BadStateid
            | Status::OldStateid
            | Status::AdminRevoked
            | Status::DelegRevoked
            | Status::Expired
    )
}

/// Returns whether a failure to recover one open ends the recovery of all: the client ID or session
/// is lost, or the caller stops waiting.
pub(super) fn ends_recovery(failure: &Failure) -> bool {
    match failure {
        Failure::Error(errno) => [Errno::EINTR, Errno::ETIMEDOUT].contains(errno),
        Failure::State(status) => !is_of_stateid(*status) && *status != Status::BadSeqid,
        Failure::Delay | Failure::Malformed(_) => false,
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
