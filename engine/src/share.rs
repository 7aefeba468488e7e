//! What a lane has of the workers.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::request::{Job, Request};
use crate::workers::Workers;

/// A lane's share of the workers, and who waits for a part of it.
pub(crate) struct Share<J> {
    /// How many requests have a worker.
    running: usize,
    pending: VecDeque<Arc<Request<J>>>,
}

impl<J> Default for Share<J> {
    fn default() -> Share<J> {
        Share {
            running: 0,
            pending: VecDeque::new(),
        }
    }
}

impl<J: Job> Share<J> {
    /// One more waits: see [`Share::start`].
    pub(crate) fn wait(&mut self, request: Arc<Request<J>>) {
        self.pending.push_back(request);
    }

    /// One takes its part at once, if there is any.
    pub(crate) fn take(&mut self, workers: &Workers) -> bool {
        let there = self.running < workers.share();
        self.running += usize::from(there);
        there
    }

    /// One has left its worker.
    pub(crate) fn leave(&mut self) {
        self.running -= 1;
    }

    /// Gives those that wait workers, as far as the share goes and `may` says.
    pub(crate) fn start(&mut self, workers: &Arc<Workers>, may: impl Fn() -> bool) {
        while self.running < workers.share() && may() {
            let Some(request) = self.pending.pop_front() else {
                return;
            };
            self.running += 1;
            workers.run(request);
        }
    }
}
