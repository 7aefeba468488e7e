//! Destinations of read data: memory lent by a sink, where a payload can land, or the sink itself.

use vfs::Sink;
use wire::payload::SliceSink;

pub(super) enum Place<'a> {
    Lent(&'a mut [u8]),
    Sink(&'a mut dyn Sink),
}

impl<'a> Place<'a> {
    /// The destination for calls without a payload.
    pub(super) fn none() -> Place<'a> {
        Place::Lent(&mut [])
    }

    /// The memory where a payload may land.
    pub(super) fn memory(&mut self) -> &mut [u8] {
        match self {
            Place::Lent(memory) => memory,
            Place::Sink(_) => &mut [],
        }
    }

    /// Calls `put` to store a payload that has not landed.
    pub(super) fn put<T>(&mut self, put: impl FnOnce(&mut dyn Sink) -> T) -> T {
        match self {
            Place::Lent(memory) => put(&mut SliceSink::new(memory)),
            Place::Sink(sink) => put(*sink),
        }
    }
}

/// The number of bytes read, and whether the file ends after them.
pub(super) type Got = (usize, bool);

/// Ends a read of `len` bytes with `end`, into memory lent by `sink` if it lends any.
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
    // `ended` holds the error, too.
    let _ = sink.lend(len, &mut fill);
    match (ended, end) {
        (Some(ended), _) => ended,
        (None, Some(end)) => end(Place::Sink(sink)),
        (None, None) => unreachable!("it has ended"),
    }
}
