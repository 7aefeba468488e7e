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

use ::nfs::client::Failure;
use ::nfs::client::v4::{BindConnection, Status, TestStateIds};
use vfs::Cx;

use super::core::Core;
use super::delegation_table::Delegation;
use crate::nfs::version::{Handle, Place};

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
        // One of another file with the same number may be given back as well.
        let place = Some(Place::new(dir, name));
        let taken = self.delegations.take_if(|one| one.place == place);
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

    /// Finds and drops the revoked delegations (TEST_STATEID).
    pub(super) fn drop_revoked(&self, cx: &Cx<'_>) {
        /// A number that every server accepts in one call.
        const AT_A_TIME: usize = 128;
        for states in self.delegations.states().chunks(AT_A_TIME) {
            let client_state = self.client_state();
            let Ok(statuses) =
                self.call_until_ready(cx, &client_state, &TestStateIds { states }, |statuses| {
                    statuses
                })
            else {
                return;
            };
            for (state, status) in states.iter().zip(statuses) {
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
