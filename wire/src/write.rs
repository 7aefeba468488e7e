use std::sync::Arc;

use vfs::{Backing, Sink};

/// A message under construction at the end of whatever the transport sends next: a sink that
/// can go back. Positions count from the message's own start.
pub trait Outgoing: Sink {
    /// How many bytes the message has so far.
    fn len(&self) -> usize;

    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes over what stands at `at`: a count that only now is known.
    fn patch(&mut self, at: usize, data: &[u8]);

    /// Takes back all from `len` on: an error instead of the answer that was begun.
    fn truncate(&mut self, len: usize);

    /// Hands `file` over with the message's first byte, and says whether that can be. It goes along only if the message can be sent as
    /// soon as it is made: who leaves replies lying has the message alone.
    fn hand(&mut self, _file: Arc<dyn Backing>) -> bool {
        false
    }
}

/// Writes little-endian values into a message.
pub struct LeWriter<'a>(pub &'a mut dyn Outgoing);

impl LeWriter<'_> {
    /// A byte.
    pub fn u8(&mut self, value: u8) {
        self.0.bytes(&[value]);
    }

    /// 2 bytes.
    pub fn u16(&mut self, value: u16) {
        self.0.bytes(&value.to_le_bytes());
    }

    /// 4 bytes.
    pub fn u32(&mut self, value: u32) {
        self.0.bytes(&value.to_le_bytes());
    }

    /// 8 bytes.
    pub fn u64(&mut self, value: u64) {
        self.0.bytes(&value.to_le_bytes());
    }

    /// These bytes.
    pub fn bytes(&mut self, value: &[u8]) {
        self.0.bytes(value);
    }
}
