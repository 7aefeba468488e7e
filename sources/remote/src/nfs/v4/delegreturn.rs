//! DELEGRETURN, and FREE_STATEID for revoked delegations.

use std::sync::Arc;

use ::nfs::client::Failure;
use ::nfs::client::v4::{DelegReturn, FreeStateId, StateId, Status};
use vfs::Cx;

use super::client_state::ClientState;
use super::core::Core;
use super::delegation_table::Delegation;

impl Core {
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
    pub(super) fn free_stateid(
        &self,
        cx: &Cx<'_>,
        client_state: &Arc<ClientState>,
        state: StateId,
    ) -> std::result::Result<(), Failure> {
        self.call_until_ready(cx, client_state, &FreeStateId { state }, |()| ())
    }
}
