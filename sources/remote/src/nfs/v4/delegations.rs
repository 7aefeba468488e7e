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
//! Lock order: the table's mutex is taken while a connection is read ([`Holder`]), so no request is
//! sent, and no open dropped, under it. The mutex of an open comes after it, and so does the
//! keeper's queue.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use ::nfs::client::Failure;
use ::nfs::client::v4::{
    Asked, BindConnection, DelegReturn, Delegated, FreeStateId, SessionId, StateId, Status,
    TestStateIds,
};
use parking_lot::{Mutex, MutexGuard};
use vfs::{Caller, Cx, OpenFlags};

use super::core::Core;
use super::life::Life;
use super::opens::Opening;
use crate::nfs::version::{Handle, Target};

/// A delegation.
pub(super) struct Delegation {
    state: StateId,
    of_use: bool,
    opening: Arc<Opening>,
    /// The directory and name the file was found at.
    place: Option<(Handle, Box<[u8]>)>,
    /// The time of its last use, in the table's count.
    used: u64,
    /// Whether it was used since the last check.
    fresh: bool,
}

impl Delegation {
    /// Creates the delegation that came with `opening` of `target`.
    pub(super) fn new(came: Delegated, opening: &Arc<Opening>, target: &Target<'_>) -> Delegation {
        Delegation {
            state: came.state,
            of_use: came.of_use,
            opening: opening.clone(),
            place: target.place.map(|(dir, name)| (dir.clone(), name.into())),
            used: 0,
            fresh: true,
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
    const MOST: usize = 1000;

    /// Returns whether an open with these flags only reads.
    pub(super) fn covers(flags: OpenFlags) -> bool {
        let all = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::EXEC | OpenFlags::TRUNC;
        flags & all == OpenFlags::READ
    }

    /// Returns the open to share with `caller`, if there is one.
    pub(super) fn open(&self, handle: &Handle, caller: &Caller) -> Option<Arc<Opening>> {
        let mut table = self.table();
        table.uses += 1;
        let now = table.uses;
        let one = table.by_handle.get_mut(handle)?;
        if !one.opening.is_for(caller) {
            return None;
        }
        (one.used, one.fresh) = (now, true);
        Some(one.opening.clone())
    }

    /// Adds a delegation, and returns those to give back for it.
    #[must_use = "the server waits for them"]
    fn keep(&self, mut one: Delegation) -> Vec<Delegation> {
        let mut table = self.table();
        table.uses += 1;
        one.used = table.uses;
        let mut back = Vec::new();
        let handle = one.opening.handle.clone();
        back.extend(table.by_handle.insert(handle, one));
        if table.by_handle.len() > Delegations::MOST {
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
        let unused = table.take_if(|one| !one.fresh);
        table
            .by_handle
            .values_mut()
            .for_each(|one| one.fresh = false);
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
pub(super) struct Holder(pub(super) Weak<Core>);

impl Asked for Holder {
    fn recall(&self, state: &StateId) -> bool {
        let Some(core) = self.0.upgrade() else {
            return false;
        };
        // From here on no open uses it.
        let taken = core
            .delegations
            .take_if(|one| one.state.other == state.other);
        let known = !taken.is_empty();
        taken.into_iter().for_each(|one| core.queue.give_back(one));
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
            core.queue.give_back(oldest);
        }
    }

    fn recall_slots(&self, session: &SessionId, highest: u32) {
        if let Some(core) = self.0.upgrade()
            && let Some(table) = &core.life().session
            && table.id == *session
        {
            table.aim(highest);
        }
    }
}

impl Core {
    /// Returns whether opens may come with delegations.
    pub(super) fn takes_delegations(&self) -> bool {
        let life = self.life();
        life.session.as_ref().is_some_and(|table| table.backchannel)
    }

    /// Keeps a delegation, or gives it back if it is of no use.
    pub(super) fn keep(&self, cx: &Cx<'_>, one: Delegation) {
        match one.of_use {
            true => self.give_all_back(cx, self.delegations.keep(one)),
            false => self.give_back(cx, one),
        }
    }

    /// Gives back the delegation of a file before this client changes the file.
    pub(super) fn give_file_back(&self, cx: &Cx<'_>, handle: &Handle) {
        let taken = self.delegations.take(handle);
        self.give_all_back(cx, taken);
    }

    /// Gives back the delegation of a file before this client removes or renames its name.
    pub(super) fn give_name_back(&self, cx: &Cx<'_>, dir: &Handle, name: &[u8]) {
        let taken = self.delegations.take_if(|one| {
            let place = one.place.as_ref();
            place.is_some_and(|place| place.0 == *dir && *place.1 == *name)
        });
        self.give_all_back(cx, taken);
    }

    /// Gives back the delegations that have not been used for a while.
    pub(super) fn give_unused_back(&self, cx: &Cx<'_>) {
        self.give_all_back(cx, self.delegations.take_unused());
    }

    pub(super) fn give_all_back(&self, cx: &Cx<'_>, all: impl IntoIterator<Item = Delegation>) {
        for one in all {
            self.give_back(cx, one);
        }
    }

    fn give_back(&self, cx: &Cx<'_>, one: Delegation) {
        let done = self.give_back_in(cx, &self.life(), &one);
        // Only the session may be lost, which renewing recovers.
        if matches!(done, Err(Failure::State(_))) && self.renew(cx).is_ok() {
            let _ = self.give_back_in(cx, &self.life(), &one);
        }
    }

    /// Sends DELEGRETURN once. Dropping the delegation's open closes it if no file shares it.
    pub(super) fn give_back_in(
        &self,
        cx: &Cx<'_>,
        life: &Arc<Life>,
        one: &Delegation,
    ) -> std::result::Result<(), Failure> {
        let cx = cx.on_behalf_of(one.opening.caller());
        let back = DelegReturn {
            handle: &one.opening.handle,
            state: one.state,
        };
        let done = self.patiently(&cx, life, &back, |()| ());
        tracing::debug!(?done, "delegation returned");
        match done {
            Err(Failure::State(Status::DelegRevoked)) => self.free(&cx, life, one.state),
            // The server has forgotten the delegation and its open.
            Err(Failure::State(Status::BadStateid | Status::StaleStateid)) => Ok(()),
            done => done,
        }
    }

    /// Acknowledges a revoked delegation (FREE_STATEID).
    fn free(
        &self,
        cx: &Cx<'_>,
        life: &Arc<Life>,
        state: StateId,
    ) -> std::result::Result<(), Failure> {
        self.patiently(cx, life, &FreeStateId { state }, |()| ())
    }

    /// Finds and drops the revoked delegations (TEST_STATEID).
    pub(super) fn find_revoked(&self, cx: &Cx<'_>) {
        /// A number that every server accepts in one call.
        const AT_A_TIME: usize = 128;
        for states in self.delegations.states().chunks(AT_A_TIME) {
            let life = self.life();
            let Ok(told) = self.patiently(cx, &life, &TestStateIds { states }, |told| told) else {
                return;
            };
            for (state, status) in states.iter().zip(told) {
                if status == Status::Ok {
                    continue;
                }
                tracing::warn!(?status, "{}: a delegation was revoked", self.peer());
                // Dropped here, not under the table's mutex.
                drop(self.delegations.take_if(|one| one.state == *state));
                let _ = self.free(cx, &life, *state);
            }
        }
    }

    /// Binds the backchannel to the current connection (BIND_CONN_TO_SESSION).
    pub(super) fn bind(&self, cx: &Cx<'_>) {
        let life = self.life();
        let Some(table) = life.session.as_ref().filter(|table| table.backchannel) else {
            return;
        };
        let (session, times) = (table.id, self.times());
        // Recorded before the request: if the connection is lost meanwhile, the binding is
        // repeated.
        self.is_bound(times);
        match self.outside(cx, &BindConnection { session }, |back| back) {
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
