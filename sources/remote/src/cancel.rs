//! How a call that is cancelled cancels its request.

use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use vfs::Call;

/// Has `cancel` done to a connection, if it is still there, when `call` is cancelled.
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
