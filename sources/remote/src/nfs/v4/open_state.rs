//! Open state on a server, and its recovery after a restart.
//!
//! Each open has an open-owner of its own while it lasts: so no two wait for each other's sequence
//! IDs in v4.0, and no CLOSE can mean another open.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ::nfs::client::v4::{
    Claim, Close, Lock, LockRange, Open, OpenConfirm, Opened, StateId, Status,
};
use ::nfs::client::{Failure, Tree};
use parking_lot::{Mutex, MutexGuard};
use vfs::lock::LockKind;
use vfs::{Caller, Cx, Errno, OpenFlags, Result};

use super::client_state::ClientState;
use super::core::{Core, UNKNOWN_TREE, ends_recovery, errno};
use crate::nfs::version::Handle;

/// The arguments of an open.
#[derive(Clone, Copy)]
pub(super) struct OpenArgs<'a> {
    pub(super) claim: Claim<'a>,
    pub(super) flags: OpenFlags,
    pub(super) tree: Tree,
    /// Whether it may come with a delegation.
    pub(super) delegation: bool,
}

/// An open-owner.
#[derive(Clone, Copy)]
pub(super) struct Owner {
    id: u64,
    /// The sequence ID of its next operation (v4.0).
    pub(super) seqid: u32,
}

impl Owner {
    fn name(self) -> [u8; 8] {
        self.id.to_be_bytes()
    }

    /// The name of the lock-owner for its file.
    pub(super) fn lock_name(self) -> [u8; 9] {
        let mut name = [b'L'; 9];
        name[1..].copy_from_slice(&self.name());
        name
    }
}

/// Current opens, and free open-owners.
#[derive(Default)]
pub(super) struct OpenStates {
    by_number: Mutex<HashMap<u64, Weak<OpenState>>>,
    free_owners: Mutex<Vec<Owner>>,
    next: AtomicU64,
}

/// A file that is open on the server. Dropping it closes it, without waiting for the reply.
pub(in crate::nfs) struct OpenState {
    core: Arc<Core>,
    number: u64,
    pub(super) handle: Handle,
    flags: OpenFlags,
    caller: Caller,
    stateids: Mutex<Stateids>,
}

pub(super) struct Stateids {
    pub(super) state: StateId,
    /// `None` if the file could not be opened by handle; the anonymous stateid is used, with which
    /// the server checks permissions on each read and write.
    pub(super) owner: Option<Owner>,
    /// The lock stateid, and the lock-owner's next sequence ID (v4.0).
    pub(super) lock: Option<StateId>,
    pub(super) lock_seqid: u32,
    pub(super) ranges: Vec<(LockRange, LockKind)>,
    /// Whether the server has lost it.
    pub(super) lost: bool,
}

/// The arguments of a CLOSE.
pub(super) struct CloseArgs {
    handle: Handle,
    state: StateId,
    owner: Owner,
    caller: Caller,
}

impl OpenStates {
    fn owner(&self) -> Owner {
        let idle = self.free_owners().pop();
        idle.unwrap_or_else(|| Owner {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            seqid: 0,
        })
    }

    /// Opens all files again, reclaiming them if the server has restarted. Returns an error that
    /// ends the recovery; files that cannot be opened are lost.
    pub(super) fn reopen_all(
        &self,
        core: &Core,
        cx: &Cx<'_>,
        client_state: &Arc<ClientState>,
        restart: bool,
    ) -> std::result::Result<(), Failure> {
        let opens: Vec<_> = self
            .by_number()
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        for open in opens {
            match open.reopen(core, cx, client_state, restart) {
                Err(failure) if ends_recovery(&failure) => return Err(failure),
                Err(failure) => {
                    tracing::error!(?failure, "cannot recover an open file");
                    open.stateids().lost = true;
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn by_number(&self) -> MutexGuard<'_, HashMap<u64, Weak<OpenState>>> {
        self.by_number.lock()
    }

    fn free_owners(&self) -> MutexGuard<'_, Vec<Owner>> {
        self.free_owners.lock()
    }
}

/// An open-owner whose sequence ID is counted during its operations.
struct OwnerSeqid {
    owner: Cell<Owner>,
    counts: Cell<bool>,
}

impl OwnerSeqid {
    fn new(owner: Owner) -> OwnerSeqid {
        OwnerSeqid {
            owner: Cell::new(owner),
            counts: Cell::new(false),
        }
    }

    /// The owner with its current sequence ID.
    fn current(&self) -> Owner {
        let mut owner = self.owner.get();
        if self.counts.take() {
            owner.seqid = owner.seqid.wrapping_add(1);
            self.owner.set(owner);
        }
        owner
    }
}

impl Core {
    /// Opens the file of a claim.
    pub(super) fn open_file(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        wanted: &OpenArgs<'_>,
    ) -> Result<(Opened, Arc<OpenState>)> {
        let mut again = true;
        loop {
            let owner = OwnerSeqid::new(self.open_states.owner());
            match self.open_as(cx, wanted, &owner) {
                Ok(opened) => {
                    let handle = opened.node.handle.as_deref().ok_or(Errno::EIO)?;
                    let (flags, owner) = (wanted.flags, Some(owner.current()));
                    let opening = self.register_open(cx, handle.into(), flags, opened.state, owner);
                    return Ok((opened, opening));
                }
                // The owner is useless now.
                Err(Failure::State(Status::BadSeqid)) if again => again = false,
                Err(failure) => {
                    self.open_states.free_owners().push(owner.current());
                    return Err(errno(failure));
                }
            }
        }
    }

    fn open_as(
        &self,
        cx: &Cx<'_>,
        wanted: &OpenArgs<'_>,
        owner: &OwnerSeqid,
    ) -> std::result::Result<Opened, Failure> {
        let name = owner.current().name();
        loop {
            let open = |client_state: &ClientState| {
                Ok(self.open_request(client_state.client, &name, wanted, owner))
            };
            let mut opened = self.try_call(cx, open, |opened| opened)?;
            if !opened.confirm {
                return Ok(opened);
            }
            let confirm = OpenConfirm {
                handle: opened.node.handle.as_deref().unwrap_or_default(),
                state: opened.state,
                seqid: owner.current().seqid,
                seqid_advanced: &owner.counts,
            };
            let client_state = self.client_state();
            match self.call_until_ready(cx, &client_state, &confirm, |state| state) {
                Ok(state) => {
                    opened.state = state;
                    return Ok(opened);
                }
                // The server has restarted meanwhile: there is no open left to confirm.
                Err(Failure::State(status)) if status != Status::BadSeqid => {
                    self.recover(cx, &client_state, status)
                        .map_err(Failure::Error)?;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    fn open_request<'a>(
        &self,
        client: u64,
        name: &'a [u8],
        wanted: &OpenArgs<'a>,
        owner: &'a OwnerSeqid,
    ) -> Open<'a> {
        Open {
            client,
            owner: name,
            seqid: owner.current().seqid,
            seqid_advanced: &owner.counts,
            flags: wanted.flags,
            refuse_delegation: self.minor > 0 && !wanted.delegation,
            claim: wanted.claim,
            tree: wanted.tree,
        }
    }

    /// Registers a file opened by `owner`, or used with the anonymous stateid.
    pub(super) fn register_open(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        handle: Handle,
        flags: OpenFlags,
        state: StateId,
        owner: Option<Owner>,
    ) -> Arc<OpenState> {
        let number = self.open_states.next.fetch_add(1, Ordering::Relaxed);
        let opening = Arc::new(OpenState {
            core: self.clone(),
            number,
            handle,
            flags,
            caller: cx.caller.clone(),
            stateids: Mutex::new(Stateids {
                state,
                owner,
                lock: None,
                lock_seqid: 0,
                ranges: Vec::new(),
                lost: false,
            }),
        });
        if owner.is_some() {
            let mut opens = self.open_states.by_number();
            opens.insert(number, Arc::downgrade(&opening));
        }
        opening
    }

    /// Closes a file.
    pub(super) fn close(&self, cx: &Cx<'_>, closing: &CloseArgs) {
        let owner = OwnerSeqid::new(closing.owner);
        let cx = cx.on_behalf_of(&closing.caller);
        let close = || {
            let close = Close {
                handle: &closing.handle,
                state: closing.state,
                seqid: owner.current().seqid,
                seqid_advanced: &owner.counts,
            };
            self.call_until_ready(&cx, &self.client_state(), &close, |()| ())
        };
        let done = match close() {
            // Only the session may be lost, which renewing recovers.
            Err(Failure::State(_)) if self.renew(&cx).is_ok() => close(),
            done => done,
        };
        // A restarted server that does not know the open needs no CLOSE.
        if let Err(failure) = &done {
            tracing::debug!(?failure, "cannot close a file");
        }
        if !matches!(done, Err(Failure::State(_))) {
            self.open_states.free_owners().push(owner.current());
        }
    }
}

impl OpenState {
    /// The caller that has opened the file.
    pub(super) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Returns whether the open is valid and belongs to `caller`.
    pub(super) fn is_usable_by(&self, caller: &Caller) -> bool {
        self.caller == *caller && !self.stateids().lost
    }

    pub(super) fn stateids(&self) -> MutexGuard<'_, Stateids> {
        self.stateids.lock()
    }

    /// The stateid for reads and writes, or `EIO` if the server has lost the open.
    pub(super) fn state(&self) -> Result<StateId> {
        let held = self.stateids();
        match held.lost {
            false => Ok(held.state),
            true => Err(Errno::EIO),
        }
    }

    fn reopen(
        &self,
        core: &Core,
        cx: &Cx<'_>,
        client_state: &Arc<ClientState>,
        restart: bool,
    ) -> std::result::Result<(), Failure> {
        let (owner, lost) = {
            let held = self.stateids();
            (held.owner, held.lost)
        };
        let (Some(owner), false) = (owner, lost) else {
            return Ok(());
        };
        let cx = cx.on_behalf_of(&self.caller);
        let owner = OwnerSeqid::new(owner);
        let name = owner.current().name();
        let open = |claim| {
            let wanted = OpenArgs {
                claim,
                flags: self.flags,
                tree: UNKNOWN_TREE,
                delegation: false,
            };
            let open = core.open_request(client_state.client, &name, &wanted, &owner);
            let opened = core.call_until_ready(&cx, client_state, &open, |opened| opened)?;
            if !opened.confirm {
                return Ok(opened.state);
            }
            let confirm = OpenConfirm {
                handle: &self.handle,
                state: opened.state,
                seqid: owner.current().seqid,
                seqid_advanced: &owner.counts,
            };
            core.call_until_ready(&cx, client_state, &confirm, |state| state)
        };
        let previous = match restart {
            true => open(Claim::Previous(&self.handle)),
            false => Err(Failure::Error(Errno::ENOLCK)),
        };
        let state = match previous {
            // The grace period is over, or the server has kept no record of the client.
            Err(failure) if core.minor > 0 && !ends_recovery(&failure) => {
                open(Claim::Handle(&self.handle))
            }
            state => state,
        };
        let ranges = {
            let mut held = self.stateids();
            held.owner = Some(owner.current());
            match state {
                Ok(state) => held.state = state,
                Err(failure) if ends_recovery(&failure) => return Err(failure),
                // Falls back to the anonymous stateid, with which the server checks each read and
                // write.
                Err(_) if held.ranges.is_empty() => {
                    (held.state, held.owner) = (StateId::ANONYMOUS, None);
                }
                Err(failure) => return Err(failure),
            }
            held.lock = None;
            held.ranges.clone()
        };
        for (range, kind) in ranges {
            // Without a restart, another client may have held the lock meanwhile.
            if !restart {
                return Err(Failure::Error(Errno::ENOLCK));
            }
            self.reclaim(core, &cx, client_state, range, kind)?;
        }
        Ok(())
    }

    fn reclaim(
        &self,
        core: &Core,
        cx: &Cx<'_>,
        client_state: &Arc<ClientState>,
        range: LockRange,
        kind: LockKind,
    ) -> std::result::Result<(), Failure> {
        let counts = Cell::new(false);
        let (open, lock, lock_seqid) = {
            let held = self.stateids();
            (held.state, held.lock, held.lock_seqid)
        };
        let owner = self.stateids().owner.ok_or(Failure::Error(Errno::ENOLCK))?;
        let name = owner.lock_name();
        let lock = Lock {
            handle: &self.handle,
            kind,
            range,
            reclaim: true,
            owner: (client_state.client, &name),
            open: (open, owner.seqid),
            state: lock,
            seqid: lock_seqid,
            seqid_advanced: &counts,
        };
        let done = core.call_until_ready(cx, client_state, &lock, |state| state);
        self.stateids()
            .count_lock(lock.state.is_none(), counts.get());
        match done? {
            Some(state) => {
                self.stateids().lock = Some(state);
                Ok(())
            }
            None => Err(Failure::Error(Errno::EAGAIN)),
        }
    }
}

impl Stateids {
    /// Counts an operation of the lock-owner and, if it was the first, of the open-owner.
    pub(super) fn count_lock(&mut self, first: bool, counts: bool) {
        if !counts {
            return;
        }
        self.lock_seqid = self.lock_seqid.wrapping_add(1);
        if let (true, Some(owner)) = (first, &mut self.owner) {
            owner.seqid = owner.seqid.wrapping_add(1);
        }
    }
}

impl Drop for OpenState {
    fn drop(&mut self) {
        let held = self.stateids.get_mut();
        let Some(owner) = held.owner else {
            return;
        };
        self.core.open_states.by_number().remove(&self.number);
        if !held.lost {
            self.core.queue.close(CloseArgs {
                handle: self.handle.clone(),
                state: held.state,
                owner,
                caller: self.caller.clone(),
            });
        }
    }
}
