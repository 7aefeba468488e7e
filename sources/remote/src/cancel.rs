//! Cancelling the request of a cancelled call.

use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use vfs::Call;

/// Calls `cancel` with the connection, if it still exists, when `call` is cancelled.
pub(crate) fn on_cancel<C: Send + Sync + 'static>(
    call: &Call,
    connection: &Weak<C>,
    cancel: impl Fn(&C) + Send + Sync + 'static,
) {
    let connection = connection.clone();
    call.wake_on_cancel(&Waker::from(Arc::new(Cancel { connection, cancel })));
}

struct Cancel<C, F> {
    connection: Weak<C>,
    cancel: F,
}

impl<C: Send + Sync, F: Fn(&C) + Send + Sync> Wake for Cancel<C, F> {
    fn wake(self: Arc<Self>) {
        if let Some(connection) = self.connection.upgrade() {
            (self.cancel)(&connection);
        }
    }
}
