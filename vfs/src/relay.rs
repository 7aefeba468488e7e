//! Directory sinks from functions: one that takes entries, and one that passes them on.

use crate::{DirEntry, DirSink, Entry};

/// A function takes entries, or says that one does not fit (`false`). It has room for any number.
impl<F: FnMut(DirEntry<'_>) -> bool> DirSink for F {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        self(entry)
    }
}

/// A sink over another one, with the room of that: a function decides how each entry is passed on.
pub struct RelaySink<'a, F> {
    sink: &'a mut dyn DirSink,
    relay: F,
}

impl<'a, F: FnMut(&mut dyn DirSink, DirEntry<'_>) -> bool> RelaySink<'a, F> {
    /// Relays entries to `sink` through `relay`, which answers as [`DirSink::entry`] does.
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
    /// The same with the node and attributes that `map` makes of its own, if it has any.
    pub fn map_entry(self, map: impl FnOnce(Entry) -> Entry) -> Self {
        DirEntry {
            entry: self.entry.map(map),
            ..self
        }
    }
}
