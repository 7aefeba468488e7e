//! OPEN and CLOSE, with an open-owner for each open.
//!
//! In v4.0 an owner with a request that was given up is not used again: the server would take the
//! next request for a repetition, and reply that another file is open.

use std::sync::Arc;

use ::nfs::client::Failure;
use ::nfs::client::v4::{Close, OpenConfirm, Opened, SeqidEffect, StateId, Status};
use vfs::{Cx, Errno, Result};

use super::client_state::ClientState;
use super::core::{Core, errno};
use super::open_owner::{OpenArgs, Owner, OwnerSeqid};
use super::open_state::{CloseArgs, OpenState, OpenedFile};

impl Core {
    /// Opens the file of a claim.
    pub(super) fn open_file(
        &self,
        cx: &Cx<'_>,
        wanted: &OpenArgs<'_>,
    ) -> Result<(Opened, Arc<OpenState>)> {
        let mut again = true;
        loop {
            let owner = OwnerSeqid::new(self.open_states.owner());
            match self.open_as(cx, wanted, &owner) {
                Ok(opened) => {
                    let handle = opened.node.handle.as_deref().ok_or(Errno::EIO)?;
                    let file = OpenedFile {
                        handle: handle.into(),
                        flags: wanted.flags,
                        preserves_unlinked: opened.preserves_unlinked,
                    };
                    let owner = Some(owner.current());
                    let opening = self.register_open(cx, file, opened.state, owner);
                    return Ok((opened, opening));
                }
                // The owner is useless now.
                Err(Failure::State(Status::BadSeqid)) if again => again = false,
                Err(failure) => {
                    self.free(&owner);
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
                Ok(wanted.request(self.minor, client_state.client, &name, owner))
            };
            let mut opened = self.try_call(cx, open, |opened| opened)?;
            if !opened.confirm {
                return Ok(opened);
            }
            let confirm = OpenConfirm {
                handle: opened.node.handle.as_deref().unwrap_or_default(),
                state: opened.state,
                seqid: owner.current().seqid,
                seqid_effect: &owner.effect,
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

    /// Registers a file opened by `owner`, or used with the anonymous stateid.
    pub(super) fn register_open(
        &self,
        cx: &Cx<'_>,
        file: OpenedFile,
        state: StateId,
        owner: Option<Owner>,
    ) -> Arc<OpenState> {
        self.open_states
            .register(&self.queue, cx.caller, file, state, owner)
    }

    /// Closes a file.
    pub(super) fn close(&self, cx: &Cx<'_>, closing: &CloseArgs) {
        let mut owner = OwnerSeqid::new(closing.owner);
        let cx = cx.on_behalf_of(&closing.caller);
        let close = |owner: &OwnerSeqid| {
            let close = Close {
                handle: &closing.handle,
                state: closing.state,
                seqid: owner.current().seqid,
                seqid_effect: &owner.effect,
            };
            self.call_until_ready(&cx, &self.client_state(), &close, |()| ())
        };
        if closing.abandoned_lock {
            owner.effect.set(SeqidEffect::Advanced);
        }
        let done = match close(&owner) {
            // The server has not executed the lock.
            Err(Failure::State(Status::BadSeqid)) if closing.abandoned_lock => {
                owner = OwnerSeqid::new(closing.owner);
                close(&owner)
            }
            // Only the session may be lost, which renewing recovers.
            Err(Failure::State(_)) if self.renew(&cx).is_ok() => close(&owner),
            done => done,
        };
        // A restarted server that does not know the open needs no CLOSE.
        if let Err(failure) = &done {
            tracing::debug!(?failure, "cannot close a file");
        }
        if !matches!(done, Err(Failure::State(_))) {
            self.free(&owner);
        }
    }

    /// Lets other files use an owner, unless its next seqid is not known.
    fn free(&self, owner: &OwnerSeqid) {
        if self.minor > 0 || owner.effect.get() != SeqidEffect::Unknown {
            self.open_states.free_owners().push(owner.current());
        }
    }
}
