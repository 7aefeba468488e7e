//! Giving fids up.

use p9::{Fid, Tmessage};

use super::Pipe;
use super::state::{State, Who};

/// Fids that are given up without anyone waiting.
#[derive(Default)]
pub(super) struct Clunks {
    /// Those whose Tclunk is not answered.
    pub(super) in_flight: usize,
    /// Of these, those queued since anything left.
    pub(super) queued: usize,
    /// Those that shall follow.
    pub(super) waiting: Vec<Fid>,
}

impl Clunks {
    /// The most Tclunks in flight that nobody waits for: their replies lie in our receive buffer while
    /// nobody receives, 7 bytes each plus what the system adds.
    const IN_FLIGHT: usize = 256;

    /// So many may wait for the next request to take them along.
    const QUEUED: usize = 32;
}

impl Pipe {
    /// Gives a fid up without waiting for what the server says of it. With `soon` it is told at once, else
    /// along with the next request, or when some have gathered.
    pub fn clunk(&self, fid: Fid, soon: bool) {
        let mut state = self.state();
        if state.failed.is_some() {
            return;
        }
        state.clunk(fid);
        if soon || state.clunks.queued >= Clunks::QUEUED {
            drop(self.send_queued(state, false));
        }
    }
}

impl State {
    pub(super) fn clunk(&mut self, fid: Fid) {
        if self.clunks.in_flight >= Clunks::IN_FLIGHT {
            return self.clunks.waiting.push(fid);
        }
        match self
            .client
            .request(&Tmessage::Clunk { fid }, &mut self.queue)
        {
            Ok((tag, _)) => {
                self.begin(tag, Who::Clunk, None);
                self.clunks.in_flight += 1;
                self.clunks.queued += 1;
            }
            Err(_) => self.clunks.waiting.push(fid),
        }
    }
}
