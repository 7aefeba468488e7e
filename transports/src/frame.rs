use std::ops::Range;

use vfs::{Payload, Result};
use wire::Incoming;
use wire::payload::SlicePayload;

/// A complete message in a connection's buffer.
pub struct Frame<'a>(pub &'a [u8]);

impl Incoming for Frame<'_> {
    fn bytes(&self) -> &[u8] {
        self.0
    }

    fn size(&self) -> usize {
        self.0.len()
    }

    fn payload(
        &self,
        range: Range<usize>,
        write: &mut dyn FnMut(&mut dyn Payload) -> Result<usize>,
    ) -> Result<usize> {
        write(&mut SlicePayload::new(&self.0[range]))
    }
}
