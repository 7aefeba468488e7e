//! How a call that is cancelled cancels its request.

use std::time::Instant;

use vfs::Call;

use super::state::State;
use super::{Half, Pipe, Ticket};
use crate::cancel::on_cancel;

impl<H: Half> Pipe<H> {
    pub(super) fn watch(&self, call: &Call, ticket: &Ticket<'_, H>) {
        // A call that nobody can run again is one that nobody cancels.
        if call.waker().is_none() {
            return;
        }
        let number = ticket.number;
        let life = self.state().slots[number].life;
        on_cancel(call, &self.this, move |pipe| pipe.cancel(number, life));
    }

    /// Asks the server to, if it is still this use of the number.
    fn cancel(&self, number: usize, life: u64) {
        let mut state = self.state();
        if state.failed.is_some() || state.slots[number].life != life {
            return;
        }
        let State {
            half, queue, slots, ..
        } = &mut *state;
        // Even if the server cannot be asked to.
        slots[number].cancelled.get_or_insert_with(Instant::now);
        if half.cancel(number, queue) {
            // Whoever cancels must not wait for a server that does not listen.
            drop(self.send_queued(state, false));
        }
    }
}
