//! What a server knows a client by, from one restart to the next: its id and, from 4.1 on, its session.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use ::nfs::client::v4::{ClientId, Sequence, Session, SessionId, Slot, Slots};

/// A life of a client.
pub(super) struct Life {
    /// Tells it from others.
    pub(super) number: u64,
    pub(super) client: ClientId,
    pub(super) session: Option<Arc<Table>>,
}

/// A session's slots, and who waits for one.
pub(super) struct Table {
    pub(super) id: SessionId,
    pub(super) max_request: u32,
    pub(super) max_response: u32,
    /// Whether the server calls back.
    pub(super) backchannel: bool,
    state: Mutex<State>,
    freed: Condvar,
}

struct State {
    slots: Slots,
    /// A slot's turn is in doubt: the session is of no use any more.
    broken: bool,
}

/// Why there is no slot.
pub(super) enum NoSlot {
    /// All are taken.
    Taken,
    /// The session is of no use any more.
    Broken,
}

impl Table {
    pub(super) fn new(session: &Session) -> Arc<Table> {
        Arc::new(Table {
            id: session.id,
            max_request: session.max_request,
            max_response: session.max_response,
            backchannel: session.backchannel,
            state: Mutex::new(State {
                slots: Slots::new(session.id, session.slots),
                broken: false,
            }),
            freed: Condvar::new(),
        })
    }

    /// Takes a slot, waiting for one if it may.
    pub(super) fn take(&self, wait: bool) -> Result<(Slot, Sequence), NoSlot> {
        let mut state = self.state();
        loop {
            if state.broken {
                return Err(NoSlot::Broken);
            }
            if let Some(slot) = state.slots.take() {
                let sequence = state.slots.sequence(&slot);
                return Ok((slot, sequence));
            }
            if !wait {
                return Err(NoSlot::Taken);
            }
            state = self.freed.wait(state).expect("no panic holds it");
        }
    }

    /// Gives a slot back, whose turn the server has taken if it says so.
    pub(super) fn give_back(&self, slot: Slot, turned: bool, highest: Option<u32>) {
        let mut state = self.state();
        if turned {
            state.slots.turned(&slot);
        }
        if let Some(highest) = highest {
            state.slots.aim(highest);
        }
        state.slots.give_back(slot);
        drop(state);
        self.freed.notify_one();
    }

    /// The highest slot that the server would have us use.
    pub(super) fn aim(&self, highest: u32) {
        self.state().slots.aim(highest);
    }

    /// A slot's turn is in doubt.
    pub(super) fn doubt(&self) {
        self.state().broken = true;
        self.freed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic holds it")
    }
}
