//! Latency: counts the calls of a source on another server, and measures how long they take.
//!
//! Calls that return at once because they would block, or that wait for an event, are not counted:
//! they are repeated. So a call that waits for a lock counts with the time of its last attempt.

use std::sync::Arc;

use vfs::source_stats::{RemoteCounters, is_failure};
use vfs::{Cx, NodeId, Op, Result, Sink};

use crate::{Clock, Layer, Opened, forward};

/// The layer.
pub struct Latency {
    clock: Clock,
    counters: Arc<RemoteCounters>,
}

impl Latency {
    /// Creates the layer, which measures with `clock` and counts in `counters`.
    pub fn new(clock: Clock, counters: Arc<RemoteCounters>) -> Latency {
        Latency { clock, counters }
    }

    fn measured<T>(
        &self,
        _: Op,
        _: NodeId,
        _: &Cx<'_>,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let start = (self.clock)();
        let result = run();
        let errno = result.as_ref().err().copied();
        if !errno.is_some_and(|errno| errno.is_signal()) {
            let time = (self.clock)().saturating_sub(start);
            self.counters.count(time, errno.is_some_and(is_failure));
        }
        result
    }
}

impl Layer for Latency {
    /// Returns true: reads and writes that bypass this process are no calls of the source.
    fn allows_passthrough(&self) -> bool {
        true
    }

    fn read(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let read = || inner.read(cx, offset, len, sink);
        let read = self.measured(Op::Read, inner.node.id(), cx, read)?;
        self.counters.add_received(read);
        Ok(read)
    }

    forward! { capabilities id above }

    forward! { with measured: all but read }
}
