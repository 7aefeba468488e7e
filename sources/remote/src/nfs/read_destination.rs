//! Destinations of read data: memory lent by a sink, where a payload can land, or the sink itself.

use vfs::Sink;
use wire::payload::SliceSink;

pub(super) enum ReadDestination<'a> {
    Lent(&'a mut [u8]),
    Sink(&'a mut dyn Sink),
}

impl<'a> ReadDestination<'a> {
    /// The destination for calls without a payload.
    pub(super) fn none() -> ReadDestination<'a> {
        ReadDestination::Lent(&mut [])
    }

    /// The memory where a payload may land.
    pub(super) fn memory(&mut self) -> &mut [u8] {
        match self {
            ReadDestination::Lent(memory) => memory,
            ReadDestination::Sink(_) => &mut [],
        }
    }

    /// Calls `put` to store a payload that has not landed.
    pub(super) fn put<T>(&mut self, put: impl FnOnce(&mut dyn Sink) -> T) -> T {
        match self {
            ReadDestination::Lent(memory) => put(&mut SliceSink::new(memory)),
            ReadDestination::Sink(sink) => put(*sink),
        }
    }
}

/// The number of bytes read, and whether the file ends after them.
pub(super) type ReadResult = (usize, bool);

/// Ends a read of `len` bytes with `end`, into memory lent by `sink` if it lends any.
pub(super) fn end_in<E>(
    sink: &mut dyn Sink,
    len: usize,
    end: impl FnOnce(ReadDestination<'_>) -> Result<ReadResult, E>,
) -> Result<ReadResult, E> {
    let (mut end, mut ended) = (Some(end), None);
    let mut fill = |memory: &mut [u8]| {
        ended = end.take().map(|end| end(ReadDestination::Lent(memory)));
        Ok(match &ended {
            Some(Ok((got, _))) => *got,
            _ => 0,
        })
    };
    // `ended` holds the error, too.
    let _ = sink.lend(len, &mut fill);
    match (ended, end) {
        (Some(ended), _) => ended,
        (None, Some(end)) => end(ReadDestination::Sink(sink)),
        (None, None) => unreachable!("it has ended"),
    }
}
