//! Files whose descriptors sinks read.

use std::fs::File;
use std::os::fd::AsFd;

use vfs::{Patience, Result, Sink};

/// Puts `len` bytes of `file` from `at` into `sink`, and returns how many there were.
pub(super) fn to_sink(file: &File, at: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
    sink.file(file.as_fd(), at, len, Patience::Full)
}
