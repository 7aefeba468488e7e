//! Exclusive creates: the verifier is kept in the new file's times of last use and change, until the client sets those, as
//! Linux's server does. Each half is seconds, without the sign, for that is what every file system can keep.

use vfs::{Attr, Time};

/// The times that `verifier` is kept in: of last use, and of change.
pub(super) fn times(verifier: [u8; 8]) -> [Time; 2] {
    let half = |at: usize| {
        let bytes = std::array::from_fn(|i| verifier[at + i]);
        Time {
            sec: i64::from(u32::from_be_bytes(bytes) & 0x7fff_ffff),
            nsec: 0,
        }
    };
    [half(0), half(4)]
}

/// Whether a file was made by an exclusive create with `verifier`.
pub(super) fn is_made_with(attr: &Attr, verifier: [u8; 8]) -> bool {
    [attr.atime, attr.mtime] == times(verifier)
}
