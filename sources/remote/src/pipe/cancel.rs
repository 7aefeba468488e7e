//! How a call that is cancelled cancels its request.

use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use vfs::Call;

use super::state::State;
use super::{Half, Pipe, Ticket};

impl<H: Half> Pipe<H> {
    pub(super) fn watch(&self, call: &Call, ticket: &Ticket<'_, H>) {
        let cancel = Cancel {
            pipe: self.this.clone(),
            number: ticket.number,
            life: self.state().slots[ticket.number].life,
        };
        call.wake_on_cancel(&Waker::from(Arc::new(cancel)));
    }

    fn cancel(&self, number: usize, life: u64) {
        let mut state = self.state();
        if state.failed.is_some() || state.slots[number].life != life {
            return;
        }
        let State { half, queue, .. } = &mut *state;
        if half.cancel(number, queue) {
            // Whoever cancels must not wait for a server that does not listen.
            drop(self.send_queued(state, false));
        }
    }
}

/// Asks the server to cancel a request when its call is cancelled.
struct Cancel<H: Half> {
    pipe: Weak<Pipe<H>>,
    number: usize,
    life: u64,
}

impl<H: Half> Wake for Cancel<H> {
    fn wake(self: Arc<Self>) {
        if let Some(pipe) = self.pipe.upgrade() {
            pipe.cancel(self.number, self.life);
        }
    }
}
