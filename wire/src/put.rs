use crate::Outgoing;

/// A destination of the bytes of a message under construction.
pub trait Put {
    /// Appends `bytes`.
    fn put(&mut self, bytes: &[u8]);
}

impl Put for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A buffer for the fields of a reply, which saves calls to the transport. Flushes when dropped.
pub struct Buffered<'a> {
    out: &'a mut dyn Outgoing,
    bytes: [u8; Buffered::SIZE],
    len: usize,
}

impl<'a> Buffered<'a> {
    /// Enough for replies of fixed size: 9P's Rgetattr has 160 bytes, NFS v3's GETATTR 84.
    const SIZE: usize = 160;

    /// Creates a buffer in front of `out`.
    pub fn new(out: &'a mut dyn Outgoing) -> Buffered<'a> {
        Buffered {
            out,
            bytes: [0; Buffered::SIZE],
            len: 0,
        }
    }

    fn flush(&mut self) {
        if self.len > 0 {
            self.out.bytes(&self.bytes[..self.len]);
            self.len = 0;
        }
    }
}

impl Drop for Buffered<'_> {
    fn drop(&mut self) {
        self.flush();
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
