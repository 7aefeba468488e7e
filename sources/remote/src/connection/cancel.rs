//! Cancelling the request of a cancelled call.

use std::time::Instant;

use vfs::Call;

use super::state::State;
use super::{ClientCodec, Connection, Ticket};
use crate::cancel::on_cancel;

impl<H: ClientCodec> Connection<H> {
    pub(super) fn cancel_with(&self, call: &Call, ticket: &Ticket<'_, H>) {
        // A call without a waker cannot be cancelled.
        if call.waker().is_none() {
            return;
        }
        let number = ticket.number;
        let life = self.state().slots[number].generation;
        // A call that has changed something is finished, unless the server is silent.
        let finishes = call.has_effect();
        on_cancel(call, &self.this, move |connection| {
            connection.cancel(number, life, finishes)
        });
    }

    /// Asks the server to cancel the request, unless its call `finishes`, if its number has not
    /// been reused.
    fn cancel(&self, number: usize, life: u64, finishes: bool) {
        let mut state = self.state();
        if state.failed.is_some() || state.slots[number].generation != life {
            return;
        }
        let State {
            codec,
            queue,
            slots,
            ..
        } = &mut *state;
        // Starts the grace period even if the protocol has no cancellation.
        slots[number].cancelled.get_or_insert_with(Instant::now);
        if !finishes && codec.cancel(number, queue) {
            // The canceller must not wait for a server that does not read.
            drop(self.send_queued(state, false));
        }
    }
}
