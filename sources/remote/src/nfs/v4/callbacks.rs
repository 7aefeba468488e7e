//! The receiver of callbacks: recalls of delegations and of slots.

use std::sync::Weak;

use ::nfs::client::v4::{CallbackHandler, SessionId, StateId};

use super::core::Core;

/// The receiver of callbacks.
pub(super) struct CallbackReceiver(pub(super) Weak<Core>);

impl CallbackHandler for CallbackReceiver {
    fn recall(&self, state: &StateId) -> bool {
        let Some(core) = self.0.upgrade() else {
            return false;
        };
        // From here on no open uses it.
        let taken = core
            .delegations
            .take_if(|one| one.state.other == state.other);
        let known = !taken.is_empty();
        taken
            .into_iter()
            .for_each(|one| core.queue.return_delegation(one));
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
            core.queue.return_delegation(oldest);
        }
    }

    fn recall_slots(&self, session: &SessionId, highest: u32) {
        if let Some(core) = self.0.upgrade()
            && let Some(table) = &core.client_state().session
            && table.id == *session
        {
            table.set_target(highest);
        }
    }
}
