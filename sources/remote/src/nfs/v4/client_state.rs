//! The client ID and, from 4.1 on, the session, between two recoveries.

use std::sync::Arc;

use ::nfs::client::v4::{ClientId, Sequence, Session, SessionId, Slot, Slots};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// A client ID and session.
pub(super) struct ClientState {
    /// Distinguishes it from earlier ones.
    pub(super) number: u64,
    pub(super) client: ClientId,
    pub(super) session: Option<Arc<SlotTable>>,
}

/// A session's slots, and the threads that wait for one.
pub(super) struct SlotTable {
    pub(super) id: SessionId,
    pub(super) max_request: u32,
    pub(super) max_response: u32,
    /// Whether the session has a backchannel.
    pub(super) backchannel: bool,
    state: Mutex<State>,
    freed: Condvar,
}

struct State {
    slots: Slots,
    /// Whether a slot's sequence ID is in doubt, which makes the session useless.
    unusable: bool,
}

/// The reason why there is no slot.
pub(super) enum NoSlot {
    /// All slots are in use.
    AllInUse,
    /// The session is useless.
    SessionUnusable,
}

impl SlotTable {
    pub(super) fn new(session: &Session) -> Arc<SlotTable> {
        Arc::new(SlotTable {
            id: session.id,
            max_request: session.max_request,
            max_response: session.max_response,
            backchannel: session.backchannel,
            state: Mutex::new(State {
                slots: Slots::new(session.id, session.slots),
                unusable: false,
            }),
            freed: Condvar::new(),
        })
    }

    /// Takes a slot. Without `wait`, returns an error if none is free.
    pub(super) fn take(&self, wait: bool) -> Result<(Slot, Sequence), NoSlot> {
        let mut state = self.state();
        loop {
            if state.unusable {
                return Err(NoSlot::SessionUnusable);
            }
            if let Some(slot) = state.slots.take() {
                let sequence = state.slots.sequence(&slot);
                return Ok((slot, sequence));
            }
            if !wait {
                return Err(NoSlot::AllInUse);
            }
            self.freed.wait(&mut state);
        }
    }

    /// Releases a slot. `turned` says whether the server has advanced its sequence ID, `highest` is
    /// the server's target highest slot.
    pub(super) fn release(&self, slot: Slot, turned: bool, highest: Option<u32>) {
        let mut state = self.state();
        if turned {
            state.slots.advance(&slot);
        }
        if let Some(highest) = highest {
            state.slots.set_target(highest);
        }
        state.slots.release(slot);
        drop(state);
        self.freed.notify_one();
    }

    /// Sets the highest slot that the server wants used.
    pub(super) fn set_target(&self, highest: u32) {
        self.state().slots.set_target(highest);
    }

    /// Marks the session as useless, because a slot's sequence ID is in doubt.
    pub(super) fn mark_unusable(&self) {
        self.state().unusable = true;
        self.freed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
