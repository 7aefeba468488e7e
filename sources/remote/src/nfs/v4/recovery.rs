//! Establishing and destroying a client ID and session, and recovery of state after errors and
//! restarts of the server.

use std::sync::Arc;

use ::nfs::client::Failure;
use ::nfs::client::v4::{
    Backchannels, ClientId, CreateSession, DestroyClientId, DestroySession, ExchangeId,
    ReclaimComplete, SetClientId, Status,
};
use parking_lot::MutexGuard;
use vfs::{Cx, Errno, Result};

use super::callbacks::CallbackReceiver;
use super::client_state::{ClientState, SlotTable};
use super::core::{Core, Recovering, errno};
use super::reclaim::{Reopening, is_of_stateid};
use crate::ClientOwner;
use crate::nfs::rpc_client::{Attempts, Backoff, RpcClient};

impl Core {
    /// The number of slots to request.
    const SLOTS: u32 = 64;

    /// Establishes a client ID for `owner`, with a backchannel if `delegations` are wanted and the
    /// minor version has sessions.
    pub(in crate::nfs) fn open(
        conn: RpcClient,
        minor: u32,
        owner: ClientOwner,
        delegations: bool,
    ) -> Result<Arc<Core>> {
        let core = Arc::new(Core::new(conn, minor, owner));
        if delegations && minor > 0 {
            let holder = Box::new(CallbackReceiver(Arc::downgrade(&core)));
            core.conn
                .enable_callbacks(Arc::new(Backchannels::new(holder)));
        }
        let call = vfs::Call::detached();
        core.recover(
            &Cx::new(&core.machine, &call),
            &core.client_state(),
            Status::StaleClientid,
        )?;
        core.conn.apply_soft_setting();
        Ok(core)
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
            return self.recover_opens(cx, client_state, table);
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
                    self.publish(next.clone());
                    // An open that fails is tried again when the file is used, and by the
                    // maintenance thread: other calls do not wait for it.
                    let _ = (self.open_states).reopen(self, cx, &next, Reopening::RefusedAtOnce);
                    return Ok(());
                }
                // The server has restarted again.
                Err(Failure::State(_)) if attempts.may_repeat(self.reconnections()) => {}
                Err(failure) => return Err(errno(failure)),
            }
        }
    }

    /// Recovers opens whose stateids the server does not know, in a session that is valid.
    fn recover_opens(
        &self,
        cx: &Cx<'_>,
        client_state: &Arc<ClientState>,
        table: &Arc<SlotTable>,
    ) -> Result<()> {
        let how = if self.open_states.has_refused() {
            Reopening::Refused
        } else {
            // A delegation may conflict with opening the files again.
            for one in self.delegations.take_all() {
                let _ = self.delegreturn(cx, client_state, &one);
            }
            Reopening::All
        };
        let next = self.next_client_state(client_state, client_state.client, Some(table.clone()));
        match self.open_states.reopen(self, cx, &next, how) {
            Ok(()) => {
                self.publish(next);
                Ok(())
            }
            // The session is lost, too: the repeated request finds that.
            Err(Failure::State(_)) => Ok(()),
            Err(failure) => Err(errno(failure)),
        }
    }

    /// Opens the files again that the server has not let be reclaimed, unless it is still in its
    /// grace period.
    pub(super) fn reopen_refused(&self, cx: &Cx<'_>) -> Result<()> {
        if !self.open_states.has_refused() {
            return Ok(());
        }
        let _recovering = self.recovering(cx)?;
        let client_state = self.client_state();
        let done = (self.open_states).reopen(self, cx, &client_state, Reopening::RefusedAtOnce);
        done.map_err(errno)
    }

    /// Reclaims all state after a restart of the server. Returns an error if `client_state` is lost
    /// meanwhile, or the caller stops waiting.
    fn reclaim(
        &self,
        cx: &Cx<'_>,
        own: &Cx<'_>,
        client_state: &Arc<ClientState>,
    ) -> std::result::Result<(), Failure> {
        self.open_states
            .reopen(self, cx, client_state, Reopening::Reclaim)?;
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

    /// Establishes a client ID and, from 4.1 on, a session.
    fn establish_client(
        &self,
        cx: &Cx<'_>,
        recovering: &mut Recovering,
    ) -> Result<(ClientId, Option<Arc<SlotTable>>)> {
        let owner = self.name.as_str().as_bytes();
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
