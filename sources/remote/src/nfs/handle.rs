//! File handles in little memory, as there may be one for every file of a tree.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// A file handle: without memory of its own up to 46 bytes, as those of Linux, Ganesha and barge
/// usually are.
#[derive(Clone)]
pub(super) enum Handle {
    Inline { len: u8, bytes: [u8; INLINE] },
    Shared(Arc<[u8]>),
}

const INLINE: usize = 46;

impl Deref for Handle {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Handle::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Handle::Shared(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for Handle {
    fn from(handle: &[u8]) -> Handle {
        if handle.len() > INLINE {
            return Handle::Shared(handle.into());
        }
        let mut bytes = [0; INLINE];
        bytes[..handle.len()].copy_from_slice(handle);
        let len = handle.len() as u8;
        Handle::Inline { len, bytes }
    }
}

impl From<Box<[u8]>> for Handle {
    fn from(handle: Box<[u8]>) -> Handle {
        (*handle).into()
    }
}

impl PartialEq for Handle {
    fn eq(&self, other: &Handle) -> bool {
        **self == **other
    }
}

impl Eq for Handle {}

impl Hash for Handle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl Borrow<[u8]> for Handle {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handle").field(&&**self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_of_any_length_is_kept() {
        assert_eq!(size_of::<Handle>(), 48);
        for len in 1..=128 {
            let bytes = vec![len; usize::from(len)];
            let handle = Handle::from(&bytes[..]);
            assert_eq!(*handle, bytes[..]);
            assert_eq!(handle.clone(), bytes.into_boxed_slice().into());
        }
    }
}
