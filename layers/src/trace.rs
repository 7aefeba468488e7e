//! Tracing: an event for every operation, with its name, node, result and duration.
//!
//! Data transfers and look-ups are events of level trace, changes of level debug, all with the
//! target [`TARGET`]. While no subscriber is interested in a level, its operations cost one load of
//! a static.

use std::time::Duration;

use tracing::{Level, enabled, event};
use vfs::{AllocateMode, CopyMode, Cx, Errno, File, NodeId, Op, Payload, Result, Sink};

use crate::{Clock, Layer, Opened, forward};

/// The target of its events, for filters.
pub const TARGET: &str = "barge::fs";

/// The layer.
pub struct Trace {
    clock: Clock,
}

/// Defines a method that runs an operation and reports it as an event of one level: `tracing` keeps
/// the level of each place in the code in a static.
macro_rules! report {
    ($name:ident, $level:expr) => {
        fn $name<T>(
            &self,
            op: Op,
            node: NodeId,
            cx: &Cx<'_>,
            run: impl FnOnce() -> Result<T>,
        ) -> Result<T> {
            if !enabled!(target: TARGET, $level) {
                return run();
            }
            let (result, time) = self.timed(run);
            let (op, uid, us, errno) = (op.name(), cx.caller.uid, micros(time), errno(&result));
            event!(target: TARGET, $level, op, node, uid, us, errno);
            result
        }
    };
}

impl Trace {
    /// Creates the layer. Durations are measured with `clock`.
    pub fn new(clock: Clock) -> Trace {
        Trace { clock }
    }

    report!(debug, Level::DEBUG);
    report!(trace, Level::TRACE);

    /// Runs an operation on at most `len` bytes at `offset`, and reports it as an event of level
    /// trace.
    fn transfer(
        &self,
        op: Op,
        node: NodeId,
        (offset, len): (u64, u64),
        run: impl FnOnce() -> Result<u64>,
    ) -> Result<u64> {
        let (result, time) = self.timed(run);
        let (op, us, errno) = (op.name(), micros(time), errno(&result));
        let done = result.unwrap_or(0);
        event!(target: TARGET, Level::TRACE, op, node, offset, len, done, us, errno);
        result
    }

    fn timed<T>(&self, run: impl FnOnce() -> T) -> (T, Duration) {
        let start = (self.clock)();
        let result = run();
        (result, (self.clock)().saturating_sub(start))
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros().try_into().unwrap_or(u64::MAX)
}

/// Returns an event's field for the error, `None` on success.
fn errno<T>(result: &Result<T>) -> Option<tracing::field::DebugValue<Errno>> {
    result.as_ref().err().copied().map(tracing::field::debug)
}

impl Layer for Trace {
    fn read(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        if !enabled!(target: TARGET, Level::TRACE) {
            return inner.read(cx, offset, len, sink);
        }
        let range = (offset, len as u64);
        let read = || inner.read(cx, offset, len, sink).map(|read| read as u64);
        Ok(self.transfer(Op::Read, inner.node.id(), range, read)? as usize)
    }

    fn write(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        offset: u64,
        data: &mut dyn Payload,
    ) -> Result<usize> {
        if !enabled!(target: TARGET, Level::TRACE) {
            return inner.write(cx, offset, data);
        }
        let range = (offset, data.len() as u64);
        let write = || inner.write(cx, offset, data).map(|wrote| wrote as u64);
        Ok(self.transfer(Op::Write, inner.node.id(), range, write)? as usize)
    }

    fn allocate(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        how: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        if !enabled!(target: TARGET, Level::TRACE) {
            return inner.allocate(cx, how, offset, len);
        }
        let allocate = || inner.allocate(cx, how, offset, len).map(|()| len);
        self.transfer(Op::Allocate, inner.node.id(), (offset, len), allocate)
            .map(drop)
    }

    fn copy(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        offset: u64,
        to: &dyn File,
        to_offset: u64,
        len: u64,
        how: CopyMode,
    ) -> Result<u64> {
        if !enabled!(target: TARGET, Level::TRACE) {
            return inner.copy(cx, offset, to, to_offset, len, how);
        }
        let copy = || inner.copy(cx, offset, to, to_offset, len, how);
        self.transfer(Op::Copy, inner.node.id(), (offset, len), copy)
    }

    forward! { capabilities id above }

    forward! { with debug:
        root resolve sync
        setattr open create make tmpfile link unlink rename set_xattr remove_xattr host_lock
        file_setattr fsync flush
    }

    forward! { with trace:
        handle attr access statfs readlink lookup parent xattr xattrs host_lock_holder
        file_attr readdir seek extents lease
    }
}
