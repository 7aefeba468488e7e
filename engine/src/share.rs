//! A lane's share of the workers.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::request::{Job, Request};
use crate::workers::Workers;

/// A lane's share of the workers, and the requests that wait for it.
pub(crate) struct Share<J> {
    /// The number of requests that workers run.
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
    /// Queues a request: see [`Share::start`].
    pub(crate) fn wait(&mut self, request: Arc<Request<J>>) {
        self.pending.push_back(request);
    }

    /// Takes a part of the share at once if possible; returns whether it did.
    pub(crate) fn take(&mut self, workers: &Workers) -> bool {
        let there = self.running < workers.share();
        self.running += usize::from(there);
        there
    }

    /// Notes that a request left its worker.
    pub(crate) fn leave(&mut self) {
        self.running -= 1;
    }

    /// Starts queued requests on workers, as far as the share and `may` allow.
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
