//! Confinement of commands, which needs Linux: they run as they are.

use sources::Source;

/// Does nothing.
pub(crate) fn enter_reader<'a>(_: impl IntoIterator<Item = &'a Source>) {}

/// Does nothing.
pub(crate) fn enter_writer(_: bool) {}

/// Does nothing.
pub(crate) fn enter_parser() {}

/// Returns whether a source is on another server.
pub(crate) fn connects(source: &Source) -> bool {
    source.connects()
}
