//! Opening files again after a restart of the server or a loss of state, and reclaiming their
//! locks.

use std::cell::Cell;
use std::sync::{Arc, Weak};

use ::nfs::client::Failure;
use ::nfs::client::v4::{Claim, Lock, LockRange, OpenConfirm, StateId, Status};
use vfs::lock::LockKind;
use vfs::{Cx, Errno};

use super::client_state::ClientState;
use super::core::{Core, UNKNOWN_TREE};
use super::open_owner::{OpenArgs, OwnerSeqid};
use super::open_state::{OpenState, OpenStates};

impl OpenStates {
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
}

impl OpenState {
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
        let cx = cx.on_behalf_of(self.caller());
        let owner = OwnerSeqid::new(owner);
        let name = owner.current().name();
        let open = |claim| {
            let wanted = OpenArgs {
                claim,
                flags: self.flags,
                tree: UNKNOWN_TREE,
                delegation: false,
            };
            let open = wanted.request(core.minor, client_state.client, &name, &owner);
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
