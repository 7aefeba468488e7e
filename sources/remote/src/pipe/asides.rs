//! Requests that nobody waits for the end of.

use super::state::{State, Who};
use super::{Half, Pipe, Shape};

/// What is told to the server without anyone waiting.
pub(super) struct Asides<A> {
    /// Those that are not answered.
    pub(super) in_flight: usize,
    /// Of these, those queued since anything left.
    pub(super) queued: usize,
    /// Those that shall follow.
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
    /// The most in flight: their replies lie in our receive buffer while nobody receives, a few bytes each plus
    /// what the system adds.
    const IN_FLIGHT: usize = 256;

    /// So many may wait for the next request to take them along.
    const QUEUED: usize = 32;
}

impl<H: Half> Pipe<H> {
    /// Tells the server something without waiting for what it says of it. With `soon` it is told at once, else
    /// along with the next request, or when some have gathered.
    pub(crate) fn aside(&self, aside: H::Aside, soon: bool) {
        let mut state = self.state();
        if state.failed.is_some() {
            return;
        }
        state.aside(aside);
        if soon || state.asides.queued >= Asides::<H::Aside>::QUEUED {
            drop(self.send_queued(state, false));
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
