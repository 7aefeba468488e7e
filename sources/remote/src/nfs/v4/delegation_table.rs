//! The table of delegations, by file.
//!
//! Lock order: the table's mutex is taken while a connection is read (`callbacks`), so no request
//! is sent, and no open dropped, under it. The mutex of an open comes after it, and so does the
//! queue of the maintenance thread.

use std::collections::HashMap;
use std::sync::Arc;

use ::nfs::client::v4::{GrantedDelegation, StateId};
use parking_lot::{Mutex, MutexGuard};
use vfs::{Caller, OpenFlags};

use super::open_state::OpenState;
use crate::nfs::version::{Handle, Place, Target};

/// A delegation.
pub(super) struct Delegation {
    pub(super) state: StateId,
    pub(super) is_usable: bool,
    pub(super) open: Arc<OpenState>,
    /// Where the file was found.
    pub(super) place: Option<Place>,
    /// The time of its last use, in the table's count.
    used: u64,
    /// Whether it was used since the last check.
    recently_used: bool,
}

impl Delegation {
    /// Creates the delegation that came with `opening` of `target`.
    pub(super) fn new(
        granted: GrantedDelegation,
        opening: &Arc<OpenState>,
        target: &Target<'_>,
    ) -> Delegation {
        Delegation {
            state: granted.state,
            is_usable: granted.is_useful,
            open: opening.clone(),
            place: target.place,
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
pub(super) struct Table {
    pub(super) by_handle: HashMap<Handle, Delegation>,
    uses: u64,
}

impl Table {
    /// Removes the least recently used delegation.
    pub(super) fn oldest(&mut self) -> Option<Delegation> {
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
    pub(super) fn insert(&self, mut one: Delegation) -> Vec<Delegation> {
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

    pub(super) fn take(&self, handle: &Handle) -> Option<Delegation> {
        self.table().by_handle.remove(handle)
    }

    pub(super) fn take_if(&self, wanted: impl Fn(&Delegation) -> bool) -> Vec<Delegation> {
        self.table().take_if(wanted)
    }

    /// Removes all delegations.
    pub(super) fn take_all(&self) -> Vec<Delegation> {
        self.take_if(|_| true)
    }

    /// Removes those that were not used since the previous call.
    pub(super) fn take_unused(&self) -> Vec<Delegation> {
        let mut table = self.table();
        let unused = table.take_if(|one| !one.recently_used);
        table
            .by_handle
            .values_mut()
            .for_each(|one| one.recently_used = false);
        unused
    }

    pub(super) fn states(&self) -> Vec<StateId> {
        self.table()
            .by_handle
            .values()
            .map(|one| one.state)
            .collect()
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}
