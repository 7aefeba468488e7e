//! Read delegations: no other client writes the file until the delegation is returned (RFC 8881
//! section 10.4).
//!
//! While a delegation is held, the open it came with is kept, and later opens for reading by the
//! same caller share it without asking the server. A delegation is returned when the server recalls
//! it, before this client writes, changes or removes the file, when there are too many, when the
//! file has not been opened for a while, and at the end. After a server restart or loss of state,
//! delegations are not reclaimed.
//!
//! Deliberately absent: write delegations, and caching attributes, as nothing here caches any.
//!
//! Lock order: the table's mutex is taken while a connection is read ([`CallbackReceiver`]), so no
//! request is sent, and no open dropped, under it. The mutex of an open comes after it, and so does
//! the queue of the maintenance thread.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use ::nfs::client::Failure;
use ::nfs::client::v4::{
    BindConnection, CallbackHandler, DelegReturn, FreeStateId, GrantedDelegation, SessionId,
    StateId, Status, TestStateIds,
};
use parking_lot::{Mutex, MutexGuard};
use vfs::{Caller, Cx, OpenFlags};

use super::client_state::ClientState;
use super::core::Core;
use super::open_state::OpenState;
use crate::nfs::version::{Handle, Target};

/// A delegation.
pub(super) struct Delegation {
    state: StateId,
    is_usable: bool,
    open: Arc<OpenState>,
    /// The directory and name the file was found at.
    location: Option<(Handle, Box<[u8]>)>,
    /// The time of its last use, in the table's count.
    used: u64,
    /// Whether it was used since the last check.
    recently_used: bool,
}

impl Delegation {
    /// Creates the delegation that came with `opening` of `target`.
    pub(super) fn new(
        came: GrantedDelegation,
        opening: &Arc<OpenState>,
        target: &Target<'_>,
    ) -> Delegation {
        Delegation {
            state: came.state,
            is_usable: came.is_useful,
            open: opening.clone(),
            location: target
                .location
                .map(|(dir, name)| (dir.clone(), name.into())),
            used: 0,
            recently_used: true,
        }
    }
}

/// All delegations of a client, by file.
#[derive(Default)]
pub(super) struct Delegations {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    by_handle: HashMap<Handle, Delegation>,
    uses: u64,
}

impl Table {
    /// Removes the least recently used delegation.
    fn oldest(&mut self) -> Option<Delegation> {
        let oldest = self.by_handle.iter().min_by_key(|(_, one)| one.used);
        let handle = oldest?.0.clone();
        self.by_handle.remove(&handle)
    }

    fn take_if(&mut self, wanted: impl Fn(&Delegation) -> bool) -> Vec<Delegation> {
        let wanted = |_: &Handle, one: &mut Delegation| wanted(one);
        let taken = self.by_handle.extract_if(wanted);
        taken.map(|(_, one)| one).collect()
    }
}

impl Delegations {
    /// The most to hold: each is an open file on the server.
    const MAX_DELEGATIONS: usize = 1000;

    /// Returns whether an open with these flags only reads.
    pub(super) fn covers(flags: OpenFlags) -> bool {
        let all = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::EXEC | OpenFlags::TRUNC;
        flags & all == OpenFlags::READ
    }

    /// Returns the open to share with `caller`, if there is one.
    pub(super) fn open(&self, handle: &Handle, caller: &Caller) -> Option<Arc<OpenState>> {
        let mut table = self.table();
        table.uses += 1;
        let now = table.uses;
        let one = table.by_handle.get_mut(handle)?;
        if !one.open.is_usable_by(caller) {
            return None;
        }
        (one.used, one.recently_used) = (now, true);
        Some(one.open.clone())
    }

    /// Adds a delegation, and returns those to give back for it.
    #[must_use = "the server waits for them"]
    fn insert(&self, mut one: Delegation) -> Vec<Delegation> {
        let mut table = self.table();
        table.uses += 1;
        one.used = table.uses;
        let mut back = Vec::new();
        let handle = one.open.handle.clone();
        back.extend(table.by_handle.insert(handle, one));
        if table.by_handle.len() > Delegations::MAX_DELEGATIONS {
            back.extend(table.oldest());
        }
        back
    }

    fn take(&self, handle: &Handle) -> Option<Delegation> {
        self.table().by_handle.remove(handle)
    }

    fn take_if(&self, wanted: impl Fn(&Delegation) -> bool) -> Vec<Delegation> {
        self.table().take_if(wanted)
    }

    /// Removes all delegations.
    pub(super) fn take_all(&self) -> Vec<Delegation> {
        self.take_if(|_| true)
    }

    /// Removes those that were not used since the previous call.
    fn take_unused(&self) -> Vec<Delegation> {
        let mut table = self.table();
        let unused = table.take_if(|one| !one.recently_used);
        table
            .by_handle
            .values_mut()
            .for_each(|one| one.recently_used = false);
        unused
    }

    fn states(&self) -> Vec<StateId> {
        self.table()
            .by_handle
            .values()
            .map(|one| one.state)
            .collect()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

/// The receiver of callbacks.
pub(super) struct CallbackReceiver(pub(super) Weak<Core>);

impl CallbackHandler for CallbackReceiver {
    fn recall(&self, state: &StateId) -> bool {
        let Some(core) = self.0.upgrade() else {
            return false;
        };
        // From here on no open uses it.
        let taken = core
            .delegations
            .take_if(|one| one.state.other == state.other);
        let known = !taken.is_empty();
        taken
            .into_iter()
            .for_each(|one| core.queue.return_delegation(one));
        known
    }

    fn recall_any(&self, keep: u32) {
        let Some(core) = self.0.upgrade() else {
            return;
        };
        let mut table = core.delegations.table();
        while table.by_handle.len() > keep as usize
            && let Some(oldest) = table.oldest()
        {
            core.queue.return_delegation(oldest);
        }
    }

    fn recall_slots(&self, session: &SessionId, highest: u32) {
        if let Some(core) = self.0.upgrade()
            && let Some(table) = &core.client_state().session
            && table.id == *session
        {
            table.set_target(highest);
        }
    }
}

impl Core {
    /// Returns whether opens may come with delegations.
    pub(super) fn takes_delegations(&self) -> bool {
        let client_state = self.client_state();
        client_state
            .session
            .as_ref()
            .is_some_and(|table| table.backchannel)
    }

    /// Keeps a delegation, or gives it back if it is of no use.
    pub(super) fn add_delegation(&self, cx: &Cx<'_>, one: Delegation) {
        match one.is_usable {
            true => self.return_delegations(cx, self.delegations.insert(one)),
            false => self.return_delegation(cx, one),
        }
    }

    /// Gives back the delegation of a file before this client changes the file.
    pub(super) fn return_file_delegation(&self, cx: &Cx<'_>, handle: &Handle) {
        let taken = self.delegations.take(handle);
        self.return_delegations(cx, taken);
    }

    /// Gives back the delegation of a file before this client removes or renames its name.
    pub(super) fn return_name_delegation(&self, cx: &Cx<'_>, dir: &Handle, name: &[u8]) {
        let taken = self.delegations.take_if(|one| {
            let place = one.location.as_ref();
            place.is_some_and(|place| place.0 == *dir && *place.1 == *name)
        });
        self.return_delegations(cx, taken);
    }

    /// Gives back the delegations that have not been used for a while.
    pub(super) fn return_unused_delegations(&self, cx: &Cx<'_>) {
        self.return_delegations(cx, self.delegations.take_unused());
    }

    pub(super) fn return_delegations(
        &self,
        cx: &Cx<'_>,
        all: impl IntoIterator<Item = Delegation>,
    ) {
        for one in all {
            self.return_delegation(cx, one);
        }
    }

    fn return_delegation(&self, cx: &Cx<'_>, one: Delegation) {
        let done = self.delegreturn(cx, &self.client_state(), &one);
        // Only the session may be lost, which renewing recovers.
        if matches!(done, Err(Failure::State(_))) && self.renew(cx).is_ok() {
            let _ = self.delegreturn(cx, &self.client_state(), &one);
        }
    }

    /// Sends DELEGRETURN once. Dropping the delegation's open closes it if no file shares it.
    pub(super) fn delegreturn(
        &self,
        cx: &Cx<'_>,
        client_state: &Arc<ClientState>,
        one: &Delegation,
    ) -> std::result::Result<(), Failure> {
        let cx = cx.on_behalf_of(one.open.caller());
        let back = DelegReturn {
            handle: &one.open.handle,
            state: one.state,
        };
        let done = self.call_until_ready(&cx, client_state, &back, |()| ());
        tracing::debug!(?done, "delegation returned");
        match done {
            Err(Failure::State(Status::DelegRevoked)) => {
                self.free_stateid(&cx, client_state, one.state)
            }
            // The server has forgotten the delegation and its open.
            Err(Failure::State(Status::BadStateid | Status::StaleStateid)) => Ok(()),
            done => done,
        }
    }

    /// Acknowledges a revoked delegation (FREE_STATEID).
    fn free_stateid(
        &self,
        cx: &Cx<'_>,
        client_state: &Arc<ClientState>,
        state: StateId,
    ) -> std::result::Result<(), Failure> {
        self.call_until_ready(cx, client_state, &FreeStateId { state }, |()| ())
    }

    /// Finds and drops the revoked delegations (TEST_STATEID).
    pub(super) fn drop_revoked(&self, cx: &Cx<'_>) {
        /// A number that every server accepts in one call.
        const AT_A_TIME: usize = 128;
        for states in self.delegations.states().chunks(AT_A_TIME) {
            let client_state = self.client_state();
            let Ok(told) =
                self.call_until_ready(cx, &client_state, &TestStateIds { states }, |told| told)
            else {
                return;
            };
            for (state, status) in states.iter().zip(told) {
                if status == Status::Ok {
                    continue;
                }
                tracing::warn!(?status, "{}: a delegation was revoked", self.peer());
                // Dropped here, not under the table's mutex.
                drop(self.delegations.take_if(|one| one.state == *state));
                let _ = self.free_stateid(cx, &client_state, *state);
            }
        }
    }

    /// Binds the backchannel to the current connection (BIND_CONN_TO_SESSION).
    pub(super) fn bind_backchannel(&self, cx: &Cx<'_>) {
        let client_state = self.client_state();
        let Some(table) = client_state
            .session
            .as_ref()
            .filter(|table| table.backchannel)
        else {
            return;
        };
        let (session, times) = (table.id, self.reconnections());
        // Recorded before the request: if the connection is lost meanwhile, the binding is
        // repeated.
        self.set_bound(times);
        match self.call_outside_session(cx, &BindConnection { session }, |back| back) {
            Ok(true) => {}
            Err(Failure::State(_)) => {
                // Renewing creates another session, bound to the connection that creates it.
                let _ = self.renew(cx);
            }
            other => tracing::warn!(
                "{}: the server has no working backchannel: {other:?}",
                self.peer()
            ),
        }
    }
}
