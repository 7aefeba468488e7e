//! Sending compounds, and repeating them after `NFS4ERR_DELAY` and server restarts.
//!
//! Lock order: `recovering`, held during recovery; then the mutex of the life, of the opens, or of
//! an open, one at a time and none across a request. `delegations` has its own. In a callback, the
//! connection's mutex comes before those of the delegations and of the life, and the keeper's queue
//! after them.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use ::nfs::client::v4::{
    Backchannels, ClientId, Compound, CreateSession, DestroyClientId, DestroySession, ExchangeId,
    Operations, ReclaimComplete, Renew, Sequence, SequenceOnly, SetClientId, Slot, Status,
    status_flags,
};
use ::nfs::client::{Failure, Limits, Tree};
use vfs::{Caller, Cx, Errno, Result};

use super::delegations::{Delegations, Holder};
use super::keeper::Queue;
use super::life::{Life, NoSlot, Table};
use super::opens::Opens;
use crate::nfs::conn::{Conn, Flight, Pauses, own};
use crate::nfs::place::Place;

/// A client of a v4 server.
pub(in crate::nfs) struct Core {
    conn: Conn,
    pub(in crate::nfs) minor: u32,
    /// The unique owner string of the client ID (`co_ownerid`).
    name: String,
    /// The client's boot verifier.
    verifier: [u8; 8],
    /// The credentials of requests that no caller makes.
    pub(super) machine: Caller,
    life: Mutex<Arc<Life>>,
    recovering: Mutex<Recovering>,
    pub(super) opens: Opens,
    pub(super) delegations: Delegations,
    pub(super) queue: Queue,
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
pub struct Turn {
    life: Arc<Life>,
    slot: Option<(Slot, Sequence)>,
    flight: Flight,
}

impl Core {
    /// The number of slots to request.
    const SLOTS: u32 = 64;

    /// The maximum request and response size to request: 1 MiB and the headers around it.
    pub(in crate::nfs) const MOST: u32 = (1 << 20) + (4 << 10);

    /// The number of repetitions of a call after state errors.
    const ATTEMPTS: u32 = 8;

    /// Establishes a client ID for `machine`, with a backchannel if `delegations` are wanted and
    /// the minor version has sessions.
    pub(in crate::nfs) fn open(
        conn: Conn,
        minor: u32,
        machine: &str,
        delegations: bool,
    ) -> Result<Arc<Core>> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
        let now = now.map_or(0, |time| time.as_nanos() as u64);
        let life = Arc::new(Life {
            number: 0,
            client: 0,
            session: None,
        });
        let core = Arc::new(Core {
            conn,
            minor,
            name: format!("{machine}/barge/{pid}/{number}"),
            verifier: now.to_be_bytes(),
            machine: own(),
            life: Mutex::new(life.clone()),
            recovering: Mutex::new(Recovering { sequence: 0 }),
            opens: Opens::default(),
            delegations: Delegations::default(),
            queue: Queue::default(),
            bound: AtomicU64::new(0),
        });
        if delegations && minor > 0 {
            let holder = Box::new(Holder(Arc::downgrade(&core)));
            core.conn.call_back(Arc::new(Backchannels::new(holder)));
        }
        let call = vfs::Call::detached();
        core.recover(&Cx::new(&core.machine, &call), &life, Status::StaleClientid)?;
        core.conn.settle();
        Ok(core)
    }

    /// Returns whether the client accepts callbacks.
    pub(super) fn is_called_back(&self) -> bool {
        self.conn.backchannels().is_some()
    }

    /// Receives callbacks while no caller waits for a reply: see [`Conn::listen`].
    pub(super) fn listen(&self, bell: BorrowedFd<'_>) -> std::io::Result<bool> {
        self.conn.listen(bell)
    }

    pub(in crate::nfs) fn has_room(&self, len: usize) -> bool {
        self.conn.has_room(len)
    }

    /// Returns [`Conn::lands_from`].
    pub(in crate::nfs) fn lands_from(&self) -> usize {
        self.conn.lands_from()
    }

    pub(in crate::nfs) fn peer(&self) -> String {
        self.conn.peer()
    }

    pub(in crate::nfs) fn client(&self) -> ClientId {
        self.life().client
    }

    /// Limits the server's read and write sizes to what fits the session's request and response
    /// sizes with the largest headers.
    pub(in crate::nfs) fn limits(&self, told: Limits) -> Limits {
        const AROUND: u32 = 1024;
        let payload = |most: u32| most.saturating_sub(AROUND).max(AROUND);
        match &self.life().session {
            None => told,
            Some(table) => Limits {
                read: told.read.min(payload(table.max_response)),
                write: told.write.min(payload(table.max_request)),
            },
        }
    }

    pub(super) fn life(&self) -> Arc<Life> {
        self.life.lock().expect("no panic holds it").clone()
    }

    /// Makes a call that depends on no state of the server, repeating it as needed.
    pub(in crate::nfs) fn ask<S: Operations, T>(
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
        make: impl Fn(&Life) -> Result<S>,
        read: impl FnMut(S::Answer<'_>) -> T,
    ) -> Result<T> {
        self.try_call(cx, make, read).map_err(errno)
    }

    /// Does [`Core::call`], and returns errors of an owner's sequence IDs.
    pub(super) fn try_call<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        make: impl Fn(&Life) -> Result<S>,
        mut read: impl FnMut(S::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        let mut pauses = Pauses::new();
        let mut attempts = 0;
        loop {
            cx.may_wait()
                .and_then(|()| cx.call.check())
                .map_err(Failure::Refused)?;
            let life = self.life();
            let operations = make(&life).map_err(Failure::Refused)?;
            match self.once(cx, &life, &operations, &mut read) {
                Err(Failure::Later) => pauses.pause(cx).map_err(Failure::Refused)?,
                Err(Failure::State(status))
                    if status != Status::BadSeqid && attempts < Core::ATTEMPTS =>
                {
                    attempts += 1;
                    self.recover(cx, &life, status).map_err(Failure::Refused)?;
                }
                done => return done,
            }
        }
    }

    /// Sends a compound once, and waits for its reply.
    fn once<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        life: &Arc<Life>,
        operations: &S,
        read: impl FnMut(S::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        match self.begin_in(cx, life, operations, true)? {
            Some(turn) => self.end(cx, turn, operations, read),
            None => Err(Failure::Later),
        }
    }

    /// Begins a compound. Without `wait`, returns `None` if no slot is free.
    pub(in crate::nfs) fn begin<S: Operations>(
        &self,
        cx: &Cx<'_>,
        operations: &S,
        wait: bool,
    ) -> Result<Option<Turn>> {
        loop {
            let life = self.life();
            match self.begin_in(cx, &life, operations, wait) {
                Ok(turn) => return Ok(turn),
                Err(Failure::State(status)) => self.recover(cx, &life, status)?,
                Err(failure) => return Err(errno(failure)),
            }
        }
    }

    fn begin_in<S: Operations>(
        &self,
        cx: &Cx<'_>,
        life: &Arc<Life>,
        operations: &S,
        wait: bool,
    ) -> std::result::Result<Option<Turn>, Failure> {
        let slot = match &life.session {
            None => None,
            Some(table) => match table.take(wait) {
                Ok(taken) => Some(taken),
                Err(NoSlot::Taken) => return Ok(None),
                Err(NoSlot::Broken) => return Err(Failure::State(Status::Badsession)),
            },
        };
        let compound = Compound {
            minor: self.minor,
            sequence: slot.as_ref().map(|(_, sequence)| *sequence),
            operations,
        };
        let flight = self.conn.begin(cx, &compound);
        let life = life.clone();
        Ok(Some(Turn { life, slot, flight }))
    }

    /// Waits for the reply to a compound.
    pub(in crate::nfs) fn end<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        turn: Turn,
        operations: &S,
        mut read: impl FnMut(S::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        let end = |answer: S::Answer<'_>, _: Option<&mut Place<'_>>| read(answer);
        self.end_in(cx, turn, operations, Place::none(), end)
    }

    /// Does [`Core::end`] for a compound whose payload may land in `place`. `read` gets `place` if
    /// the payload has not landed.
    pub(in crate::nfs) fn end_in<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        turn: Turn,
        operations: &S,
        mut place: Place<'_>,
        read: impl FnOnce(S::Answer<'_>, Option<&mut Place<'_>>) -> T,
    ) -> std::result::Result<T, Failure> {
        let Turn {
            life,
            slot,
            mut flight,
        } = turn;
        let compound = Compound {
            minor: self.minor,
            sequence: slot.as_ref().map(|(_, sequence)| *sequence),
            operations,
        };
        let conn = &self.conn;
        let mut read = Some(read);
        let mut pauses = Pauses::new();
        let (done, turned, news) = loop {
            let mut turned = (false, None);
            let mut news = 0;
            let done = conn.end_in(cx, flight, &compound, &mut place, |done, place| {
                turned = (done.advanced, done.highest);
                news = done.status_flags;
                let answer = done.result?;
                let read = read.take().ok_or(Failure::Later)?;
                Ok(read(answer, place))
            });
            let delayed = matches!(done, Ok(Err(Failure::Later))) && !turned.0;
            if slot.is_none() || !delayed {
                break (done, turned, news);
            }
            // The slot is busy: the same request arrived over a connection that was lost since.
            // Only its slot and sequence ID lead to its reply; in another slot it would be carried
            // out twice.
            if let Err(errno) = pauses.pause(cx) {
                break (Err(Failure::Refused(errno)), turned, news);
            }
            flight = conn.begin(cx, &compound);
        };
        if let (Some(table), Some((slot, _))) = (&life.session, slot) {
            match &done {
                // The server has carried the request out, but not cached the reply: it may be
                // carried out again.
                Ok(Err(Failure::State(Status::RetryUncachedRep))) if !S::CACHE_THIS => {
                    table.give_back(slot, true, None);
                    return Err(Failure::Later);
                }
                Ok(_) => {
                    table.give_back(slot, turned.0, turned.1);
                    if table.backchannel {
                        self.heed(news);
                    }
                }
                // The server rejected the RPC call before processing the slot.
                Err(Failure::Refused(errno))
                    if ![Errno::ETIMEDOUT, Errno::EINTR].contains(errno) =>
                {
                    table.give_back(slot, false, None);
                }
                Err(_) => table.doubt(),
            }
        }
        done?
    }

    /// Lets the keeper handle status flags of a SEQUENCE reply, or bind the backchannel to a new
    /// connection.
    #[inline]
    fn heed(&self, news: u32) {
        const LOST: u32 = status_flags::CALLBACK_PATH_DOWN | status_flags::SESSION_PATH_DOWN;
        let bound = self.bound.load(Ordering::Acquire) == self.conn.times();
        let bind = news & LOST != 0 || !bound;
        let revoked = news & status_flags::RECALLABLE_REVOKED != 0;
        if bind || revoked {
            self.queue.look(bind, revoked);
        }
    }

    /// Sends a compound outside of any session.
    pub(super) fn outside<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        operations: &S,
        read: impl FnMut(S::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        let nobody = Arc::new(Life {
            number: 0,
            client: 0,
            session: None,
        });
        self.patiently(cx, &nobody, operations, read)
    }

    /// Records the number of reconnections at which the backchannel was bound.
    pub(super) fn is_bound(&self, times: u64) {
        self.bound.store(times, Ordering::Release);
    }

    /// The number of reconnections.
    pub(super) fn times(&self) -> u64 {
        self.conn.times()
    }

    /// Recovers from a state error that a request of `life` has got.
    pub(super) fn recover(&self, cx: &Cx<'_>, life: &Arc<Life>, status: Status) -> Result<()> {
        let mut recovering = self.recovering(cx)?;
        if self.life().number != life.number {
            // Another thread has recovered.
            return Ok(());
        }
        tracing::debug!(?status, "recovering");
        let own = cx.on_behalf_of(&self.machine);
        let states = matches!(
            status,
            Status::BadStateid
                | Status::OldStateid
                | Status::AdminRevoked
                | Status::DelegRevoked
                | Status::Expired
        );
        if let (true, Some(table)) = (states, &life.session) {
            // The session is valid, so the files can be opened again. A delegation may conflict
            // with that.
            for one in self.delegations.take_all() {
                let _ = self.give_back_in(cx, life, &one);
            }
            let next = self.next(life, life.client, Some(table.clone()));
            self.opens.renew(self, cx, &next, false);
            self.publish(next);
            return Ok(());
        }
        let known = life.session.is_some() && status != Status::StaleClientid;
        if known && let Some(session) = self.session(&own, &mut recovering, life.client)? {
            self.publish(self.next(life, life.client, Some(session)));
            return Ok(());
        }
        let (client, session) = self.introduce(&own, &mut recovering)?;
        let next = self.next(life, client, session);
        drop(self.delegations.take_all());
        self.opens.renew(self, cx, &next, true);
        if next.session.is_some() {
            self.patiently(&own, &next, &ReclaimComplete, |()| ())
                .map_err(errno)?;
        }
        self.publish(next);
        Ok(())
    }

    fn next(&self, life: &Life, client: ClientId, session: Option<Arc<Table>>) -> Arc<Life> {
        Arc::new(Life {
            number: life.number + 1,
            client,
            session,
        })
    }

    fn publish(&self, life: Arc<Life>) {
        *self.life.lock().expect("no panic holds it") = life;
    }

    /// Sends a compound in `life`, repeating it while the server answers `NFS4ERR_DELAY` or the
    /// like.
    pub(super) fn patiently<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        life: &Arc<Life>,
        operations: &S,
        mut read: impl FnMut(S::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        let mut pauses = Pauses::new();
        loop {
            match self.once(cx, life, operations, &mut read) {
                Err(Failure::Later) => pauses.pause(cx).map_err(Failure::Refused)?,
                done => return done,
            }
        }
    }

    /// Establishes a client ID and, from 4.1 on, a session.
    fn introduce(
        &self,
        cx: &Cx<'_>,
        recovering: &mut Recovering,
    ) -> Result<(ClientId, Option<Arc<Table>>)> {
        let owner = self.name.as_bytes();
        for _ in 0..Core::ATTEMPTS {
            if self.minor == 0 {
                let set = SetClientId {
                    owner,
                    verifier: self.verifier,
                };
                let confirm = self.outside(cx, &set, |confirm| confirm);
                let confirm = confirm.map_err(errno)?;
                match self.outside(cx, &confirm, |()| ()) {
                    Ok(()) => return Ok((confirm.client, None)),
                    Err(Failure::State(Status::StaleClientid)) => {}
                    Err(failure) => return Err(errno(failure)),
                }
            } else {
                let exchange = ExchangeId {
                    owner,
                    verifier: self.verifier,
                };
                let known = self.outside(cx, &exchange, |known| known);
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
    ) -> Result<Option<Arc<Table>>> {
        let backchannels = self.conn.backchannels();
        let times = self.conn.times();
        let create = CreateSession {
            client,
            sequence: recovering.sequence,
            slots: Core::SLOTS,
            most: Core::MOST,
            backchannel: backchannels.is_some(),
        };
        match self.outside(cx, &create, |session| session) {
            Ok(session) => {
                recovering.sequence = recovering.sequence.wrapping_add(1);
                if let Some(backchannels) = backchannels {
                    backchannels.add(session.id);
                    self.is_bound(times);
                }
                Ok(Some(Table::new(&session)))
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
        let renew = |life: &Life| {
            Ok(Renew {
                client: life.client,
            })
        };
        self.call(cx, renew, |()| ())
    }

    /// Destroys the session and client ID, if the request can be sent at once.
    pub(super) fn leave(&self, cx: &Cx<'_>) {
        let life = self.life();
        let Some(table) = &life.session else {
            return;
        };
        let nobody = Arc::new(Life {
            number: 0,
            client: 0,
            session: None,
        });
        let session = DestroySession { session: table.id };
        let client = DestroyClientId {
            client: life.client,
        };
        // The server frees the rest when the lease expires.
        if self.once(cx, &nobody, &session, |()| ()).is_ok() {
            let _ = self.once(cx, &nobody, &client, |()| ());
        }
    }

    /// Locks the recovery state. Another thread's recovery may take as long as the server does.
    fn recovering(&self, cx: &Cx<'_>) -> Result<MutexGuard<'_, Recovering>> {
        let mut pauses = Pauses::new();
        loop {
            match self.recovering.try_lock() {
                Ok(recovering) => return Ok(recovering),
                Err(TryLockError::WouldBlock) => pauses.pause(cx)?,
                Err(TryLockError::Poisoned(_)) => panic!("no panic holds it"),
            }
        }
    }
}

pub(super) fn errno(failure: Failure) -> Errno {
    if let Failure::State(status) = &failure {
        tracing::error!(?status, "the server's state is not ours");
    }
    failure.errno()
}

/// A tree whose root is not known yet.
pub(in crate::nfs) const NOWHERE: Tree = Tree {
    fsid: 0,
    blksize: 0,
};
