//! Where what is read goes: memory that a sink lends, so that it may land there, or else the sink.

use sys::payload::SliceSink;
use vfs::Sink;

pub(super) enum Place<'a> {
    Lent(&'a mut [u8]),
    Sink(&'a mut dyn Sink),
}

impl<'a> Place<'a> {
    /// Of what has no payload.
    pub(super) fn none() -> Place<'a> {
        Place::Lent(&mut [])
    }

    /// Where a payload may land.
    pub(super) fn memory(&mut self) -> &mut [u8] {
        match self {
            Place::Lent(memory) => memory,
            Place::Sink(_) => &mut [],
        }
    }

    /// Has `put` put what has not landed.
    pub(super) fn put<T>(&mut self, put: impl FnOnce(&mut dyn Sink) -> T) -> T {
        match self {
            Place::Lent(memory) => put(&mut SliceSink::new(memory)),
            Place::Sink(sink) => put(*sink),
        }
    }
}

/// How many bytes were read, and whether the file ends behind them.
pub(super) type Got = (usize, bool);

/// Has `end` end a read of `len` bytes, in memory that `sink` lends if it does.
pub(super) fn end_in<E>(
    sink: &mut dyn Sink,
    len: usize,
    end: impl FnOnce(Place<'_>) -> Result<Got, E>,
) -> Result<Got, E> {
    let (mut end, mut ended) = (Some(end), None);
    let mut fill = |memory: &mut [u8]| {
        ended = end.take().map(|end| end(Place::Lent(memory)));
        Ok(match &ended {
            Some(Ok((got, _))) => *got,
            _ => 0,
        })
    };
    // What went wrong is in `ended`.
    let _ = sink.lend(len, &mut fill);
    match (ended, end) {
        (Some(ended), _) => ended,
        (None, Some(end)) => end(Place::Sink(sink)),
        (None, None) => unreachable!("it has ended"),
    }
}
