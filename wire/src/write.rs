use std::sync::Arc;

use vfs::{Backing, Sink};

/// A message under construction, at the end of the transport's output: a sink that can be patched
/// and truncated. Positions count from the message's start.
pub trait Outgoing: Sink {
    /// Returns the length of the message so far in bytes.
    fn len(&self) -> usize;

    /// Returns whether it is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Overwrites bytes at `at`, such as a count that is known later.
    fn patch(&mut self, at: usize, data: &[u8]);

    /// Truncates it to `len`, such as to replace a partial reply by an error.
    fn truncate(&mut self, len: usize);

    /// Passes the descriptor of `file` with the message's first byte, and returns whether that is
    /// possible. The descriptor is sent only if the message can be sent at once: a peer with a
    /// backlog of replies gets the message alone.
    fn pass_file(&mut self, _file: Arc<dyn Backing>) -> bool {
        false
    }
}

/// A writer of little-endian values to a message.
pub struct LeWriter<'a>(pub &'a mut dyn Outgoing);

impl LeWriter<'_> {
    /// Writes a byte.
    pub fn u8(&mut self, value: u8) {
        self.0.bytes(&[value]);
    }

    /// Writes 2 bytes.
    pub fn u16(&mut self, value: u16) {
        self.0.bytes(&value.to_le_bytes());
    }

    /// Writes 4 bytes.
    pub fn u32(&mut self, value: u32) {
        self.0.bytes(&value.to_le_bytes());
    }

    /// Writes 8 bytes.
    pub fn u64(&mut self, value: u64) {
        self.0.bytes(&value.to_le_bytes());
    }

    /// Writes these bytes.
    pub fn bytes(&mut self, value: &[u8]) {
        self.0.bytes(value);
    }
}
