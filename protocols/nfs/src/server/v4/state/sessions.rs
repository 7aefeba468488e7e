//! CREATE_SESSION, DESTROY_SESSION and SEQUENCE (RFC 8881 sections 18.36, 18.37, 18.46).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use vfs::Charge;

use crate::v4::{ClientId, SessionId, Status};

use super::Tree;
use super::callbacks::{Backchannel, CallbackParameters};
use super::client::{Client, ClientRef, Minor};
use super::client_state::ClientState;
use super::connections::Connections;
use super::registry::Registry;
use super::released::Released;
use super::requester::Requester;
use super::slots::{SlotAction, Slots};
use super::{Started, State, status_flags};

/// The attributes of one direction of a session: `channel_attrs4`, except for RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// The maximum size of a request, in bytes.
    pub max_request: u32,
    /// The maximum size of a reply, in bytes.
    pub max_response: u32,
    /// The maximum size of a cached reply, in bytes.
    pub max_cached: u32,
    /// The maximum number of operations in a compound.
    pub max_operations: u32,
    /// The maximum number of concurrent requests: the slots.
    pub max_requests: u32,
}

/// The arguments of CREATE_SESSION.
pub struct CreateSession<'a> {
    /// The client ID.
    pub client: ClientId,
    /// The sequence number: the one from EXCHANGE_ID, incremented with each session.
    pub sequence: u32,
    /// The sender.
    pub by: Requester<'a>,
    /// The fore channel, for the client's requests.
    pub fore: Channel,
    /// The backchannel, for the server's requests.
    pub back: Channel,
    /// Whether to use the connection as a backchannel (`CREATE_SESSION4_FLAG_CONN_BACK_CHAN`).
    pub backchannel: bool,
    /// The program and security of callbacks.
    pub callback: CallbackParameters,
    /// The request's connection.
    pub connection: u64,
}

/// The result of CREATE_SESSION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreatedSession {
    /// The session ID.
    pub session: SessionId,
    /// The request's sequence number.
    pub sequence: u32,
    /// The fore channel.
    pub fore: Channel,
    /// The backchannel.
    pub back: Channel,
    /// Whether the connection is used as a backchannel.
    pub backchannel: bool,
}

/// The sequence number and the result of a client's last CREATE_SESSION.
#[derive(Default)]
pub(super) struct Creation {
    last_sequence: u32,
    result: Option<CreatedSession>,
}

impl Creation {
    pub(super) fn next(&self) -> u32 {
        self.last_sequence.wrapping_add(1)
    }
}

pub(super) struct Session<T: Tree> {
    pub(super) id: SessionId,
    pub(super) client: Arc<Client<T>>,
    fore: Channel,
    /// Whether the client has asked for a backchannel.
    pub(super) wants_backchannel: AtomicBool,
    pub(super) inner: Mutex<Inner>,
    /// The callbacks to the client.
    pub(super) backchannel: Mutex<Backchannel>,
    _charge: Charge,
}

/// The bytes of a session, with the usual number of slots.
const SESSION_BYTES: usize = 8 << 10;

pub(super) struct Inner {
    pub(super) slots: Slots,
    pub(super) connections: Connections,
}

/// The arguments of SEQUENCE.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    /// The session.
    pub session: SessionId,
    /// The slot.
    pub slot: u32,
    /// The slot's sequence number.
    pub seqid: u32,
    /// The highest slot that the client uses.
    pub highest_slot: u32,
    /// Whether to cache the reply.
    pub cache_this: bool,
    /// The request's connection.
    pub connection: u64,
    /// A digest of the operations after SEQUENCE, to detect a false retry.
    pub digest: u64,
}

/// A request in progress on a slot, or a repeated one. Dropping it without [`SlotRequest::finish`]
/// undoes its start.
#[must_use]
pub struct SlotRequest<T: Tree> {
    session: Arc<Session<T>>,
    request: Sequence,
    highest: u32,
    target: u32,
    must_reclaim: bool,
    repeated: bool,
    finished: bool,
}

impl<T: Tree> State<T> {
    /// Runs CREATE_SESSION. A client's first session confirms it and destroys the state of its
    /// previous boot. A repetition gets the same result.
    pub fn create_session(&self, args: &CreateSession<'_>) -> Result<CreatedSession, Status> {
        let mut released = Released::default();
        let created = self.create(&mut self.registry.lock(), args, &mut released);
        self.release(released);
        created
    }

    fn create(
        &self,
        registry: &mut Registry<T>,
        args: &CreateSession<'_>,
        released: &mut Released<T>,
    ) -> Result<CreatedSession, Status> {
        let client = self.clients.get(&args.client);
        let client = client.filter(|client| client.minor == Minor::V41 && client.accepts(&args.by));
        let client = client.ok_or(Status::StaleClientid)?;
        let mut creation = client.creation.lock();
        match &creation.result {
            Some(answer) if args.sequence == creation.last_sequence => return Ok(*answer),
            _ if args.sequence != creation.next() => return Err(Status::SeqMisordered),
            _ => {}
        }
        let is_new = !client.is_confirmed();
        if is_new && self.is_expired(&client) {
            // RFC 8881 section 18.35.4: an expired unconfirmed client may be treated as removed.
            return Err(Status::StaleClientid);
        }
        if is_new && *client.principal != *args.by.principal {
            return Err(Status::ClidInuse);
        }
        let answer = self.make_session(registry, &client, args, released)?;
        if is_new {
            let known = registry.unconfirmed(&client.record);
            self.set_confirmed(registry, known.ok_or(Status::Serverfault)?, released);
        }
        client.renew(self.now());
        // A failed attempt does not consume the sequence number.
        (creation.last_sequence, creation.result) = (args.sequence, Some(answer));
        Ok(answer)
    }

    fn make_session(
        &self,
        registry: &mut Registry<T>,
        client: &Arc<Client<T>>,
        args: &CreateSession<'_>,
        released: &mut Released<T>,
    ) -> Result<CreatedSession, Status> {
        let (mut fore, back) = (self.negotiated(args.fore)?, args.back);
        if back.max_request.min(back.max_response) < MIN_MESSAGE || back.max_operations < 2 {
            return Err(Status::Toosmall);
        }
        let charge = self.room_for_session(registry, client, fore.max_requests, released)?;
        let mut client_state = client.client_state.lock();
        if client_state.sessions.len() >= self.limits.sessions {
            self.forget_abandoned_session(&mut client_state)?;
        }
        let quotas = (&self.quotas.slots, &self.quotas.cached_bytes);
        let slots = Slots::new(quotas, &client.peer, fore.max_requests);
        fore.max_requests = slots.granted();
        let id = self.unguessable(registry.serial());
        let session = Arc::new(Session {
            id,
            client: client.clone(),
            fore,
            wants_backchannel: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                slots,
                connections: Connections::default(),
            }),
            backchannel: Mutex::new(Backchannel::new(args.callback.clone(), back.max_requests)),
            _charge: charge,
        });
        client_state.sessions.push(id);
        self.sessions.insert(id, session.clone());
        self.bind(&session, args.connection, true, args.backchannel);
        Ok(CreatedSession {
            session: id,
            sequence: args.sequence,
            fore,
            back,
            backchannel: args.backchannel,
        })
    }

    /// Charges a session to `client`. Destroys dispensable clients of the same peer if there is no
    /// room for the session or for all `slots` that it asks for.
    fn room_for_session(
        &self,
        registry: &mut Registry<T>,
        client: &Client<T>,
        slots: u32,
        released: &mut Released<T>,
    ) -> Result<Charge, Status> {
        let mut make_room = |peer| self.destroy_dispensable(registry, peer, client, released);
        let charge = loop {
            match client.charge(SESSION_BYTES) {
                Ok(charge) => break charge,
                Err(full) if make_room(full.is_per_client().then_some(&client.peer)) => {}
                Err(_) => return Err(Status::Nospc),
            }
        };
        let has_all = || Slots::available(&self.quotas.slots, &client.peer, slots) >= slots;
        while !has_all() && make_room(Some(&client.peer)) {}
        Ok(charge)
    }

    /// Removes the oldest session of a client that no connection and no request uses: its client
    /// has lost the connection, and created others instead of it.
    fn forget_abandoned_session(&self, client_state: &mut ClientState<T>) -> Result<(), Status> {
        let abandoned = client_state.sessions.iter().position(|id| {
            let session = self.sessions.get(id);
            session.is_none_or(|session| !session.is_connected())
        });
        let abandoned = client_state
            .sessions
            .remove(abandoned.ok_or(Status::Nospc)?);
        self.forget_session(&abandoned);
        Ok(())
    }

    /// Limits the attributes that a client asked for.
    fn negotiated(&self, requested: Channel) -> Result<Channel, Status> {
        if requested.max_requests == 0 || requested.max_operations == 0 {
            return Err(Status::Inval);
        }
        if requested.max_request < MIN_MESSAGE || requested.max_response < MIN_MESSAGE {
            return Err(Status::Toosmall);
        }
        let limits = &self.limits;
        Ok(Channel {
            max_request: requested.max_request.min(limits.max_request),
            max_response: requested.max_response.min(limits.max_response),
            max_cached: requested.max_cached.min(limits.max_cached),
            max_operations: requested.max_operations.min(limits.max_operations),
            max_requests: requested.max_requests.min(limits.slots),
        })
    }

    /// Runs DESTROY_SESSION. The `connection` must be bound to the session. `own` is the compound's
    /// SEQUENCE, if it has one. Returns `DELAY` while other requests of the session are in
    /// progress, `BADSESSION` if the session belongs to another client.
    pub fn destroy_session(
        &self,
        id: &SessionId,
        (connection, by): (u64, &Requester<'_>),
        own: Option<&SlotRequest<T>>,
    ) -> Result<(), Status> {
        let session = self.sessions.get(id).ok_or(Status::Badsession)?;
        let is_own = own.is_some_and(|own| own.session.id == *id);
        {
            let inner = session.inner.lock();
            if !inner.connections.has(connection) {
                return Err(match session.client.accepts(by) {
                    true => Status::ConnNotBoundToSession,
                    false => Status::Badsession,
                });
            }
            if inner.slots.busy() > u32::from(is_own) {
                return Err(Status::Delay);
            }
        }
        session
            .client
            .client_state
            .lock()
            .sessions
            .retain(|one| one != id);
        self.forget_session(id);
        Ok(())
    }

    /// Removes a session, and unbinds its connections.
    pub(super) fn forget_session(&self, id: &SessionId) {
        if let Some(session) = self.sessions.remove(id) {
            self.unbind_all(&session);
        }
    }

    /// Runs SEQUENCE: starts the request, or returns the whole cached reply. Renews the lease, and
    /// binds the connection to the fore channel (RFC 8881 section 2.10.3.1). For a repeated request
    /// without a cached reply, [`SlotRequest::is_repeated`] is true. Returns `BADSESSION` if the
    /// session belongs to another client and the connection is not bound to it.
    pub fn sequence(
        &self,
        request: Sequence,
        by: &Requester<'_>,
    ) -> Result<Started<SlotRequest<T>>, Status> {
        let session = self
            .sessions
            .get(&request.session)
            .ok_or(Status::Badsession)?;
        let client = &session.client;
        let (taken, highest, target, is_bound) = {
            let mut inner = session.inner.lock();
            if !inner.connections.has(request.connection) && !client.accepts(by) {
                return Err(Status::Badsession);
            }
            let slots = &mut inner.slots;
            let taken = slots.take(
                request.slot,
                request.seqid,
                request.highest_slot,
                request.digest,
            )?;
            let (highest, target) = (slots.granted() - 1, slots.target() - 1);
            if matches!(taken, SlotAction::Serve | SlotAction::Uncached) {
                // Before the lock is released: a client with a request in progress does not expire.
                client.begin_request();
            }
            (
                taken,
                highest,
                target,
                inner.connections.has_fore(request.connection),
            )
        };
        client.renew(self.now());
        if !is_bound {
            self.bind(&session, request.connection, true, false);
        }
        match taken {
            SlotAction::Replay(reply) => Ok(Started::Replay(reply)),
            SlotAction::Serve | SlotAction::Uncached => Ok(Started::New(SlotRequest {
                repeated: matches!(taken, SlotAction::Uncached),
                finished: matches!(taken, SlotAction::Uncached),
                must_reclaim: self.has_to_reclaim(client),
                session,
                request,
                highest,
                target,
            })),
        }
    }
}

/// The size of a request or reply with a SEQUENCE and a little more, including the RPC header.
const MIN_MESSAGE: u32 = 256;

impl<T: Tree> SlotRequest<T> {
    /// Returns the client of the request.
    pub fn client(&self) -> ClientRef<T> {
        ClientRef(self.session.client.clone())
    }

    /// Returns the limits of the session's requests and replies. The caller enforces them
    /// (`REQ_TOO_BIG`, `TOO_MANY_OPS`, `REP_TOO_BIG`, `REP_TOO_BIG_TO_CACHE`).
    pub fn channel(&self) -> &Channel {
        &self.session.fore
    }

    /// Returns whether the request repeats one without a cached reply: then SEQUENCE succeeds
    /// again, and the operation after it fails with `RETRY_UNCACHED_REP` (RFC 8881 section
    /// 2.10.6.1.3).
    pub fn is_repeated(&self) -> bool {
        self.repeated
    }

    /// Returns the session of the request.
    pub fn session(&self) -> SessionId {
        self.session.id
    }

    /// Returns the arguments of SEQUENCE.
    pub fn request(&self) -> &Sequence {
        &self.request
    }

    /// Returns `sr_highest_slotid`.
    pub fn highest_slot(&self) -> u32 {
        self.highest
    }

    /// Returns `sr_target_highest_slotid`.
    pub fn target_highest_slot(&self) -> u32 {
        self.target
    }

    /// Returns the current `sr_status_flags`, from [`status_flags`].
    pub fn status_flags(&self) -> u32 {
        let client = &self.session.client;
        let mut flags = client.flags.load(Ordering::Acquire);
        if self.must_reclaim && !client.reclaimed.load(Ordering::Acquire) {
            flags |= status_flags::RESTART_RECLAIM_NEEDED;
        }
        if client.wants_backchannel.load(Ordering::Acquire)
            && client.backchannels.load(Ordering::Acquire) == 0
        {
            flags |= status_flags::CB_PATH_DOWN;
        }
        if self.session.wants_backchannel.load(Ordering::Acquire)
            && !self.session.inner.lock().connections.has_back()
        {
            flags |= status_flags::CB_PATH_DOWN_SESSION;
        }
        if self.session.is_faulty() {
            flags |= status_flags::BACKCHANNEL_FAULT;
        }
        flags
    }

    /// Completes the request, and caches `reply` if given.
    pub fn finish(mut self, reply: Option<Arc<[u8]>>) {
        if self.repeated {
            return;
        }
        self.finished = true;
        let Sequence { slot, digest, .. } = self.request;
        self.session.inner.lock().slots.answer(slot, digest, reply);
    }
}

impl<T: Tree> Drop for SlotRequest<T> {
    fn drop(&mut self) {
        if !self.finished {
            self.session.inner.lock().slots.undo(self.request.slot);
        }
        self.session.client.end_request();
    }
}
