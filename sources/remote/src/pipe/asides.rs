//! Requests whose replies no caller waits for.

use super::state::{State, Who};
use super::{Half, Pipe, Shape};
use crate::tender::{Tended, Tender};

/// The background requests: sent, queued and waiting.
pub(super) struct Asides<A> {
    /// The number of requests without a reply yet.
    pub(super) in_flight: usize,
    /// The number of these that have been queued since the queue was last sent.
    pub(super) queued: usize,
    /// Requests that wait for others to be answered.
    pub(super) waiting: Vec<A>,
}

impl<A> Default for Asides<A> {
    fn default() -> Asides<A> {
        Asides {
            in_flight: 0,
            queued: 0,
            waiting: Vec::new(),
        }
    }
}

impl<A> Asides<A> {
    /// The most requests in flight: their replies stay in the socket's receive buffer while no
    /// thread receives, a few bytes each plus the kernel's overhead.
    const IN_FLIGHT: usize = 256;

    /// The number of queued requests that triggers sending without waiting for the next ordinary
    /// request.
    const QUEUED: usize = 32;
}

impl<H: Half> Pipe<H> {
    /// Sends a request without waiting for its reply: at once if `soon`, else with the next
    /// request, when enough are queued, or after a short while.
    pub(crate) fn aside(&self, aside: H::Aside, soon: bool) {
        let mut state = self.state();
        if state.failed.is_some() {
            return;
        }
        state.aside(aside);
        if soon || state.asides.queued >= Asides::<H::Aside>::QUEUED {
            state = self.send_queued(state, false);
        }
        let left = state.asides.are_left();
        drop(state);
        if left {
            self.tender.arm(&self.this);
        }
    }
}

impl<A> Asides<A> {
    fn are_left(&self) -> bool {
        self.queued > 0 || !self.waiting.is_empty()
    }
}

impl<H: Half> Tended for Pipe<H> {
    fn tender(&self) -> &Tender {
        &self.tender
    }

    /// Also receives the replies of background requests while no caller receives, so that the
    /// waiting ones can follow.
    fn tend(&self) -> bool {
        let mut state = self.state();
        if state.is_failed() || !state.asides.are_left() {
            return false;
        }
        loop {
            state = self.send_queued(state, false);
            let waiting = state.asides.waiting.len();
            if waiting == 0 || state.is_failed() {
                return true;
            }
            let Some(mut input) = state.input.take() else {
                return true;
            };
            state = self.recv(state, &mut input, false, false);
            self.hand_over(&mut state, input);
            if state.asides.waiting.len() == waiting {
                return true;
            }
        }
    }
}

impl<H: Half> State<H> {
    pub(super) fn aside(&mut self, aside: H::Aside) {
        if self.asides.in_flight >= Asides::<H::Aside>::IN_FLIGHT {
            return self.asides.waiting.push(aside);
        }
        match self.half.aside(&aside, &mut self.queue) {
            Ok(number) => {
                self.begin(number, Who::Aside, Shape::default());
                self.asides.in_flight += 1;
                self.asides.queued += 1;
            }
            Err(_) => self.asides.waiting.push(aside),
        }
    }
}
