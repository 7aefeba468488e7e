//! How a call that is cancelled cancels its request.

use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use p9::Tag;
use vfs::Call;

use super::state::State;
use super::{Pipe, Ticket};

impl Pipe {
    pub(super) fn watch(&self, call: &Call, ticket: &Ticket<'_>) {
        let cancel = Cancel {
            pipe: self.this.clone(),
            tag: ticket.tag,
            life: self.state().slots[usize::from(ticket.tag.0)].life,
        };
        call.wake_on_cancel(&Waker::from(Arc::new(cancel)));
    }

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

/// Asks the server to cancel a request when its call is cancelled.
struct Cancel {
    pipe: Weak<Pipe>,
    tag: Tag,
    life: u64,
}

impl Wake for Cancel {
    fn wake(self: Arc<Self>) {
        if let Some(pipe) = self.pipe.upgrade() {
            pipe.cancel(self.tag, self.life);
        }
    }
}
