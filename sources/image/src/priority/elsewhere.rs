//! The priority of threads, on systems where the standard library cannot change it.

/// Does nothing.
pub(crate) fn lower_priority() {}
