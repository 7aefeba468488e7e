//! Directory sinks made of functions: one that consumes entries, and one that forwards them.

use crate::{DirEntry, DirSink, Entry};

/// A function that consumes entries, or returns `false` if one does not fit. Its room is unlimited.
impl<F: FnMut(DirEntry<'_>) -> bool> DirSink for F {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        self(entry)
    }
}

/// A sink that forwards entries to another one through a function, and has that sink's room.
pub struct RelaySink<'a, F> {
    sink: &'a mut dyn DirSink,
    relay: F,
}

impl<'a, F: FnMut(&mut dyn DirSink, DirEntry<'_>) -> bool> RelaySink<'a, F> {
    /// Forwards entries to `sink` through `relay`, which returns the same as [`DirSink::entry`].
    pub fn new(sink: &'a mut dyn DirSink, relay: F) -> RelaySink<'a, F> {
        RelaySink { sink, relay }
    }
}

impl<F: FnMut(&mut dyn DirSink, DirEntry<'_>) -> bool> DirSink for RelaySink<'_, F> {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        (self.relay)(self.sink, entry)
    }

    fn room(&self, name: usize) -> usize {
        self.sink.room(name)
    }
}

impl DirEntry<'_> {
    /// Returns the entry with its node and attributes replaced by `map`, if it has any.
    pub fn map_entry(self, map: impl FnOnce(Entry) -> Entry) -> Self {
        DirEntry {
            entry: self.entry.map(map),
            ..self
        }
    }
}
