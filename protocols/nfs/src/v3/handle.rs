//! Encoded file handles.

use std::fmt;

use wire::{Malformed, Put, Xdr, XdrReader};

/// A file handle (`nfs_fh3`): up to 64 bytes that are opaque to clients. MOUNT uses the same type.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    len: u8,
    bytes: [u8; Handle::MAX],
}

impl Handle {
    /// The maximum length of a handle in bytes (`NFS3_FHSIZE`).
    pub const MAX: usize = 64;

    /// Creates a handle from its bytes; `None` if there are more than [`Handle::MAX`].
    pub fn new(from: &[u8]) -> Option<Handle> {
        let mut bytes = [0; Handle::MAX];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        let len = from.len() as u8;
        Some(Handle { len, bytes })
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut hex = self.bytes().iter();
        hex.try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Xdr<'_> for Handle {
    fn get(from: &mut XdrReader<'_>) -> Result<Handle, Malformed> {
        let bytes = from.opaque(Handle::MAX)?;
        Handle::new(bytes).ok_or_else(|| Malformed::new("expected at most 64 bytes"))
    }

    fn put(&self, to: &mut impl Put) {
        self.bytes().put(to);
    }
}
