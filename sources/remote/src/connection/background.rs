//! Requests whose replies no caller waits for.

use super::state::{State, Waiter};
use super::{ClientCodec, Connection, Shape};
use crate::deferred::{DeferredSender, FlushDeferred};

/// The background requests: sent, queued and waiting.
pub(super) struct BackgroundRequests<A> {
    /// The number of requests without a reply yet.
    pub(super) in_flight: usize,
    /// The number of these that have been queued since the queue was last sent.
    pub(super) queued: usize,
    /// Requests that wait for others to be answered.
    pub(super) waiting: Vec<A>,
}

impl<A> Default for BackgroundRequests<A> {
    fn default() -> BackgroundRequests<A> {
        BackgroundRequests {
            in_flight: 0,
            queued: 0,
            waiting: Vec::new(),
        }
    }
}

impl<A> BackgroundRequests<A> {
    /// The most requests in flight: their replies stay in the socket's receive buffer while no
    /// thread receives, a few bytes each plus the kernel's overhead.
    const MAX_IN_FLIGHT: usize = 256;

    /// The number of queued requests that triggers sending without waiting for the next ordinary
    /// request.
    const MAX_QUEUED: usize = 32;
}

impl<H: ClientCodec> Connection<H> {
    /// Sends a request without waiting for its reply: at once if `soon`, else with the next
    /// request, when enough are queued, or after a short while.
    pub(crate) fn send_background(&self, aside: H::Background, soon: bool) {
        let mut state = self.state();
        if state.failed.is_some() {
            return;
        }
        state.queue_background(aside);
        if soon || state.background.queued >= BackgroundRequests::<H::Background>::MAX_QUEUED {
            state = self.send_queued(state, false);
        }
        let left = state.background.has_unsent();
        drop(state);
        if left {
            self.deferred_sender.arm(&self.this);
        }
    }
}

impl<A> BackgroundRequests<A> {
    fn has_unsent(&self) -> bool {
        self.queued > 0 || !self.waiting.is_empty()
    }
}

impl<H: ClientCodec> FlushDeferred for Connection<H> {
    fn deferred_sender(&self) -> &DeferredSender {
        &self.deferred_sender
    }

    /// Also receives the replies of background requests while no caller receives, so that the
    /// waiting ones can follow.
    fn flush_deferred(&self) -> bool {
        let mut state = self.state();
        if state.is_failed() || !state.background.has_unsent() {
            return false;
        }
        loop {
            state = self.send_queued(state, false);
            let waiting = state.background.waiting.len();
            if waiting == 0 || state.is_failed() {
                return true;
            }
            let Some(mut input) = state.input.take() else {
                return true;
            };
            state = self.recv(state, &mut input, false, false);
            self.pass_role(&mut state, input);
            if state.background.waiting.len() == waiting {
                return true;
            }
        }
    }
}

impl<H: ClientCodec> State<H> {
    pub(super) fn queue_background(&mut self, aside: H::Background) {
        if self.background.in_flight >= BackgroundRequests::<H::Background>::MAX_IN_FLIGHT {
            return self.background.waiting.push(aside);
        }
        match self.codec.encode_background(&aside, &mut self.queue) {
            Ok(number) => {
                self.begin(number, Waiter::Background, Shape::default());
                self.background.in_flight += 1;
                self.background.queued += 1;
            }
            Err(_) => self.background.waiting.push(aside),
        }
    }
}
