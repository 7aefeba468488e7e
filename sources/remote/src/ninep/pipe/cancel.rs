//! How a call that is cancelled cancels its request.

use p9::Tag;
use vfs::Call;

use super::state::State;
use super::{Pipe, Ticket};
use crate::cancel::on_cancel;

impl Pipe {
    pub(super) fn watch(&self, call: &Call, ticket: &Ticket<'_>) {
        let tag = ticket.tag;
        let life = self.state().slots[usize::from(tag.0)].life;
        on_cancel(call, &self.this, move |pipe| pipe.cancel(tag, life));
    }

    /// Asks the server to, if it is still this use of the tag.
    fn cancel(&self, tag: Tag, life: u64) {
        let mut state = self.state();
        if state.failed.is_some() || state.slots[usize::from(tag.0)].life != life {
            return;
        }
        let State { client, queue, .. } = &mut *state;
        if client.cancel(tag, queue) {
            // Whoever cancels must not wait for a server that does not listen.
            drop(self.send_queued(state, false));
        }
    }
}
