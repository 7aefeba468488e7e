//! Opening files again after a restart of the server or a loss of state, and reclaiming their
//! locks.

use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ::nfs::client::Failure;
use ::nfs::client::v4::{Claim, Lock, LockRange, OpenConfirm, Operations, StateId, Status};
use vfs::lock::LockKind;
use vfs::{Cx, Errno};

use super::client_state::ClientState;
use super::core::{Core, UNKNOWN_TREE};
use super::open_owner::{OpenArgs, OwnerSeqid};
use super::open_state::{OpenState, OpenStates, Standing};
use crate::nfs::rpc_client::Backoff;
use crate::nfs::version::Handle;

/// The opens to open again, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reopening {
    /// All are reclaimed with their locks, after a restart of the server or the loss of the client
    /// ID. From 4.1 on, a server refuses any other open until RECLAIM_COMPLETE, with
    /// `NFS4ERR_GRACE` (RFC 8881, section 18.51.3): what it refuses to let be reclaimed is opened
    /// again after that.
    Reclaim,
    /// Those that could not be reclaimed are opened by handle.
    Refused,
    /// The same, except that nothing waits for the end of the server's grace period.
    RefusedAtOnce,
    /// All whose stateids the server does not know are opened by handle. Their locks are lost:
    /// another client may have held them meanwhile.
    All,
}

/// How long to repeat reclaims that the server delays. All calls that need its state wait
/// meanwhile.
const MAX_RECLAIM: Duration = Duration::from_secs(90);

impl OpenStates {
    /// Opens files again. Returns an error that ends the recovery; files that cannot be opened are
    /// lost.
    pub(super) fn reopen(
        &self,
        core: &Core,
        cx: &Cx<'_>,
        client_state: &Arc<ClientState>,
        how: Reopening,
    ) -> std::result::Result<(), Failure> {
        let mut opens: Vec<_> = self
            .by_number()
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        // Those with locks first: other opens of a file share the fate of its locks.
        opens.sort_by_key(|open| open.stateids().ranges.is_empty());
        let attempt = Attempt {
            core,
            cx,
            client_state,
            how,
            deadline: match how {
                Reopening::Reclaim => Some(Instant::now() + MAX_RECLAIM),
                Reopening::RefusedAtOnce => Some(Instant::now()),
                Reopening::Refused | Reopening::All => None,
            },
        };
        let mut lost: Vec<Handle> = Vec::new();
        for open in opens {
            if lost.contains(&open.handle) {
                open.lose();
                continue;
            }
            match attempt.reopen(&open) {
                Err(failure) if ends_recovery(&failure) => return Err(failure),
                Err(failure) => {
                    tracing::error!(?failure, "cannot recover an open file");
                    open.lose();
                    lost.push(open.handle.clone());
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Returns whether files are to be opened again that could not be reclaimed.
    pub(super) fn has_refused(&self) -> bool {
        let opens: Vec<_> = self
            .by_number()
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        let mut opens = opens.iter();
        opens.any(|open| open.stateids().standing == Standing::Refused)
    }
}

/// An attempt to open files again.
struct Attempt<'a> {
    core: &'a Core,
    cx: &'a Cx<'a>,
    client_state: &'a Arc<ClientState>,
    how: Reopening,
    /// The time until which requests are repeated that the server delays.
    deadline: Option<Instant>,
}

impl Attempt<'_> {
    fn reopen(&self, file: &OpenState) -> std::result::Result<(), Failure> {
        let (owner, standing, locked) = {
            let held = file.stateids();
            (held.owner, held.standing, !held.ranges.is_empty())
        };
        let wanted = match self.how {
            Reopening::Reclaim | Reopening::All => standing != Standing::Lost,
            Reopening::Refused | Reopening::RefusedAtOnce => standing == Standing::Refused,
        };
        let (Some(owner), true) = (owner, wanted) else {
            return Ok(());
        };
        if locked && self.how == Reopening::All {
            return self.check_locks(file);
        }
        let cx = self.cx.on_behalf_of(file.caller());
        let owner = OwnerSeqid::new(owner);
        let claim = match self.how {
            Reopening::Reclaim => Claim::Previous(&file.handle),
            _ => Claim::Handle(&file.handle),
        };
        let opened = self.open(&cx, file, &owner, claim);
        let ranges = {
            let mut held = file.stateids();
            held.owner = Some(owner.current());
            match opened {
                Ok(state) => (held.state, held.standing) = (state, Standing::Open),
                Err(failure) if ends_recovery(&failure) || locked => return Err(failure),
                // The grace period is over, or the server has kept no record of the client.
                Err(_) if self.how == Reopening::Reclaim && self.core.minor > 0 => {
                    (held.state, held.standing) = (StateId::INVALID, Standing::Refused);
                }
                Err(Failure::Delay) if self.how == Reopening::RefusedAtOnce => return Ok(()),
                // Falls back to the anonymous stateid, with which the server checks each read and
                // write.
                Err(_) => {
                    (held.state, held.owner) = (StateId::ANONYMOUS, None);
                    held.standing = Standing::Open;
                }
            }
            held.lock = None;
            held.abandoned = None;
            held.ranges.clone()
        };
        for (range, kind) in ranges {
            self.lock(&cx, file, range, kind)?;
        }
        Ok(())
    }

    fn open(
        &self,
        cx: &Cx<'_>,
        file: &OpenState,
        owner: &OwnerSeqid,
        claim: Claim<'_>,
    ) -> std::result::Result<StateId, Failure> {
        let name = owner.current().name();
        let wanted = OpenArgs {
            claim,
            flags: file.flags,
            tree: UNKNOWN_TREE,
            delegation: false,
        };
        let open = wanted.request(self.core.minor, self.client_state.client, &name, owner);
        let opened = self.call(cx, &open, |opened| opened)?;
        if !opened.confirm {
            return Ok(opened.state);
        }
        let confirm = OpenConfirm {
            handle: &file.handle,
            state: opened.state,
            seqid: owner.current().seqid,
            seqid_effect: &owner.effect,
        };
        self.call(cx, &confirm, |state| state)
    }

    /// Reclaims a lock.
    fn lock(
        &self,
        cx: &Cx<'_>,
        file: &OpenState,
        range: LockRange,
        kind: LockKind,
    ) -> std::result::Result<(), Failure> {
        self.lock_with(cx, file, range, kind, true)
    }

    /// Takes the locks of a file again that its lock stateid should have. Returns an error if the
    /// server does not know that: another client may have had the locks meanwhile.
    fn check_locks(&self, file: &OpenState) -> std::result::Result<(), Failure> {
        let cx = self.cx.on_behalf_of(file.caller());
        let (lock, ranges) = {
            let held = file.stateids();
            (held.lock, held.ranges.clone())
        };
        if lock.is_none() {
            return Err(Failure::Error(Errno::ENOLCK));
        }
        for (range, kind) in ranges {
            self.lock_with(&cx, file, range, kind, false)?;
        }
        Ok(())
    }

    fn lock_with(
        &self,
        cx: &Cx<'_>,
        file: &OpenState,
        range: LockRange,
        kind: LockKind,
        reclaim: bool,
    ) -> std::result::Result<(), Failure> {
        let effect = Cell::default();
        let (open, lock, lock_seqid, owner) = {
            let held = file.stateids();
            (held.state, held.lock, held.lock_seqid, held.owner)
        };
        let owner = owner.ok_or(Failure::Error(Errno::ENOLCK))?;
        let name = owner.lock_name();
        let request = Lock {
            handle: &file.handle,
            kind,
            range,
            reclaim,
            owner: (self.client_state.client, &name),
            open: (open, owner.seqid),
            state: lock,
            seqid: lock_seqid,
            seqid_effect: &effect,
        };
        let done = self.call(cx, &request, |state| state);
        let mut held = file.stateids();
        held.count_lock(lock.is_none(), effect.get());
        held.lock = Some(done?.ok_or(Failure::Error(Errno::EAGAIN))?);
        Ok(())
    }

    /// Sends a compound, repeating it until the deadline while the server delays it.
    fn call<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        operations: &S,
        mut read: impl FnMut(S::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        let mut pauses = Backoff::new();
        loop {
            let done = (self.core).call_once(cx, self.client_state, operations, &mut read);
            let over = self.deadline.is_some_and(|end| Instant::now() >= end);
            match done {
                Err(Failure::Delay) if !over => pauses.pause(cx).map_err(Failure::Error)?,
                done => return done,
            }
        }
    }
}

impl OpenState {
    /// Records that the server has lost the open, or its locks. Closes what it may still have.
    fn lose(&self) {
        let mut held = self.stateids();
        let before = std::mem::replace(&mut held.standing, Standing::Lost);
        if let (Standing::Open, Some(owner)) = (before, held.owner) {
            self.close(&held, owner);
        }
    }
}

/// Returns whether a failure to recover one open ends the recovery of all: the client ID or session
/// is lost, or the caller stops waiting.
fn ends_recovery(failure: &Failure) -> bool {
    match failure {
        Failure::Error(errno) => [Errno::EINTR, Errno::ETIMEDOUT].contains(errno),
        Failure::State(status) => !is_of_stateid(*status) && *status != Status::BadSeqid,
        Failure::Delay | Failure::Malformed(_) => false,
    }
}

/// Returns whether a status concerns a stateid of a client whose session is valid.
pub(super) fn is_of_stateid(status: Status) -> bool {
    matches!(
        status,
        Status::BadStateid
            | Status::OldStateid
            | Status::AdminRevoked
            | Status::DelegRevoked
            | Status::Expired
    )
}
