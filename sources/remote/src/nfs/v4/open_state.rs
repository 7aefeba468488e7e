//! Open state on a server: stateids of open files, and the table of them.
//!
//! Each open has an open-owner of its own while it lasts: so no two wait for each other's sequence
//! IDs in v4.0, and no CLOSE can mean another open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ::nfs::client::v4::{LockRange, SeqidEffect, StateId};
use parking_lot::{Mutex, MutexGuard};
use vfs::lock::LockKind;
use vfs::{Caller, Errno, OpenFlags, Result};

use super::open_owner::Owner;
use super::task_queue::TaskQueue;
use crate::nfs::version::Handle;

/// Current opens, and free open-owners.
#[derive(Default)]
pub(super) struct OpenStates {
    by_number: Mutex<HashMap<u64, Weak<OpenState>>>,
    free_owners: Mutex<Vec<Owner>>,
    next: AtomicU64,
}

/// A file that is open on the server. Dropping it closes it, without waiting for the reply.
pub(in crate::nfs) struct OpenState {
    open_states: Arc<OpenStates>,
    queue: Arc<TaskQueue>,
    number: u64,
    pub(super) handle: Handle,
    pub(super) flags: OpenFlags,
    /// Whether the server has promised to keep the file without a name.
    pub(super) preserves_unlinked: bool,
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
    /// v4.0: the last request of the lock-owner, if there was no reply to it. It is sent again
    /// before another one.
    pub(super) abandoned: Option<LockRequest>,
    pub(super) ranges: Vec<(LockRange, LockKind)>,
    pub(super) standing: Standing,
}

/// A LOCK, or a LOCKU without a kind.
#[derive(Clone, Copy)]
pub(super) struct LockRequest {
    pub(super) range: LockRange,
    pub(super) kind: Option<LockKind>,
}

/// Whether the server has an open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Open,
    /// The server has not let it be reclaimed. It had no locks, and the file can be opened again.
    Refused,
    /// The server has lost it and its locks, or the locks of another open of the file, which is not
    /// used until its programs have closed it: another client may have changed what they protect.
    Lost,
}

/// A file that was opened.
pub(super) struct OpenedFile {
    pub(super) handle: Handle,
    pub(super) flags: OpenFlags,
    pub(super) preserves_unlinked: bool,
}

/// The arguments of a CLOSE.
pub(super) struct CloseArgs {
    pub(super) handle: Handle,
    pub(super) state: StateId,
    pub(super) owner: Owner,
    /// Whether its last request was the first lock of the file, and there was no reply to it.
    pub(super) abandoned_lock: bool,
    pub(super) caller: Caller,
}

impl OpenStates {
    pub(super) fn owner(&self) -> Owner {
        let idle = self.free_owners().pop();
        idle.unwrap_or_else(|| Owner {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            seqid: 0,
        })
    }

    /// Registers a file of `caller` opened by `owner`, or used with the anonymous stateid. Dropping
    /// it queues its CLOSE in `queue`.
    pub(super) fn register(
        self: &Arc<Self>,
        queue: &Arc<TaskQueue>,
        caller: &Caller,
        file: OpenedFile,
        state: StateId,
        owner: Option<Owner>,
    ) -> Arc<OpenState> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let opening = Arc::new(OpenState {
            open_states: self.clone(),
            queue: queue.clone(),
            number,
            handle: file.handle,
            flags: file.flags,
            preserves_unlinked: file.preserves_unlinked,
            caller: caller.clone(),
            stateids: Mutex::new(Stateids {
                state,
                owner,
                lock: None,
                lock_seqid: 0,
                abandoned: None,
                ranges: Vec::new(),
                standing: Standing::Open,
            }),
        });
        if owner.is_some() {
            self.by_number().insert(number, Arc::downgrade(&opening));
        }
        opening
    }

    pub(super) fn by_number(&self) -> MutexGuard<'_, HashMap<u64, Weak<OpenState>>> {
        self.by_number.lock()
    }

    pub(super) fn free_owners(&self) -> MutexGuard<'_, Vec<Owner>> {
        self.free_owners.lock()
    }
}

impl OpenState {
    /// The caller that has opened the file.
    pub(super) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Returns whether the open is valid and belongs to `caller`.
    pub(super) fn is_usable_by(&self, caller: &Caller) -> bool {
        self.caller == *caller && self.stateids().standing != Standing::Lost
    }

    /// Queues a CLOSE of `owner`.
    pub(super) fn close(&self, held: &Stateids, owner: Owner) {
        self.queue.close(CloseArgs {
            handle: self.handle.clone(),
            state: held.state,
            owner,
            abandoned_lock: held.abandoned.is_some() && held.lock.is_none(),
            caller: self.caller.clone(),
        });
    }

    pub(super) fn stateids(&self) -> MutexGuard<'_, Stateids> {
        self.stateids.lock()
    }

    /// The stateid for reads and writes, or `EIO` if the server has lost the open.
    pub(super) fn state(&self) -> Result<StateId> {
        self.stateids().valid().map(|held| held.state)
    }
}

impl Stateids {
    /// Returns the stateids, or `EIO` if the server has lost the open.
    pub(super) fn valid(&self) -> Result<&Stateids> {
        match self.standing {
            Standing::Open | Standing::Refused => Ok(self),
            Standing::Lost => Err(Errno::EIO),
        }
    }

    /// Counts an operation of the lock-owner and, if it was the first, of the open-owner.
    pub(super) fn count_lock(&mut self, first: bool, effect: SeqidEffect) {
        if effect != SeqidEffect::Advanced {
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
        let held = self.stateids.lock();
        let Some(owner) = held.owner else {
            return;
        };
        self.open_states.by_number().remove(&self.number);
        if held.standing == Standing::Open {
            self.close(&held, owner);
        }
    }
}
