//! Calls: compounds that are repeated after `NFS4ERR_DELAY` and server restarts.

use ::nfs::client::Failure;
use ::nfs::client::v4::{Operations, Renew, SequenceOnly, Status};
use vfs::{Cx, Result};

use super::client_state::ClientState;
use super::core::{Core, PendingCompound, errno};
use crate::nfs::rpc_client::{Attempts, Backoff};

impl Core {
    /// Makes a call that depends on no state of the server, repeating it as needed.
    pub(in crate::nfs) fn call_stateless<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        operations: S,
        read: impl FnMut(S::Answer<'_>) -> T,
    ) -> Result<T> {
        self.call::<&S, T>(cx, |_| Ok(&operations), read)
    }

    /// Makes a call, repeating it as needed with new arguments from `make`.
    pub(super) fn call<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        make: impl Fn(&ClientState) -> Result<S>,
        read: impl FnMut(S::Answer<'_>) -> T,
    ) -> Result<T> {
        self.try_call(cx, make, read).map_err(errno)
    }

    /// Does [`Core::call`], and returns errors of an owner's sequence IDs.
    pub(super) fn try_call<S: Operations, T>(
        &self,
        cx: &Cx<'_>,
        make: impl Fn(&ClientState) -> Result<S>,
        mut read: impl FnMut(S::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        let mut pauses = Backoff::new();
        let mut attempts = Attempts::new();
        loop {
            cx.check_may_block()
                .and_then(|()| cx.call.check_begin())
                .map_err(Failure::Error)?;
            let client_state = self.client_state();
            let operations = make(&client_state).map_err(Failure::Error)?;
            match self.call_once(cx, &client_state, &operations, &mut read) {
                Err(Failure::Delay) => pauses.pause(cx).map_err(Failure::Error)?,
                Err(Failure::State(status))
                    if status != Status::BadSeqid && attempts.may_repeat(self.reconnections()) =>
                {
                    self.recover(cx, &client_state, status)
                        .map_err(Failure::Error)?;
                }
                done => {
                    // The server keeps the replies of operations that change something.
                    if S::CACHE_THIS && done.is_ok() {
                        cx.call.note_effect();
                    }
                    return done;
                }
            }
        }
    }

    /// Begins a compound. Without `wait`, returns `None` if no slot is free.
    pub(in crate::nfs) fn begin<S: Operations>(
        &self,
        cx: &Cx<'_>,
        operations: &S,
        wait: bool,
    ) -> Result<Option<PendingCompound>> {
        loop {
            let client_state = self.client_state();
            match self.begin_in(cx, &client_state, operations, wait) {
                Ok(pending) => return Ok(pending),
                Err(Failure::State(status)) => self.recover(cx, &client_state, status)?,
                Err(failure) => return Err(errno(failure)),
            }
        }
    }

    /// Renews the lease.
    pub(super) fn renew(&self, cx: &Cx<'_>) -> Result<()> {
        if self.minor > 0 {
            return self.call(cx, |_| Ok(SequenceOnly), |()| ());
        }
        let renew = |client_state: &ClientState| {
            Ok(Renew {
                client: client_state.client,
            })
        };
        self.call(cx, renew, |()| ())
    }
}
