//! A reply's way to the transport.

use wire::Outgoing;

use crate::Put;

/// Collects the fields of a reply, so that the transport is called once for all of them.
pub(super) struct Buffered<'a> {
    out: &'a mut dyn Outgoing,
    bytes: [u8; Buffered::SIZE],
    len: usize,
}

impl<'a> Buffered<'a> {
    /// Room for the largest reply of fixed size: Rgetattr's 160 bytes.
    const SIZE: usize = 160;

    pub(super) fn new(out: &'a mut dyn Outgoing) -> Buffered<'a> {
        Buffered {
            out,
            bytes: [0; Buffered::SIZE],
            len: 0,
        }
    }

    /// Hands on what is left.
    pub(super) fn finish(mut self) {
        self.flush();
    }

    fn flush(&mut self) {
        if self.len > 0 {
            self.out.bytes(&self.bytes[..self.len]);
            self.len = 0;
        }
    }
}

impl Put for Buffered<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if bytes.len() > Buffered::SIZE - self.len {
            self.flush();
            if bytes.len() > Buffered::SIZE {
                return self.out.bytes(bytes);
            }
        }
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}
