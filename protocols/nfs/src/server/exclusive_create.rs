//! Exclusive create: the verifier is kept in the new file's atime and mtime until the client sets
//! them, as in Linux's server. Each half is a count of seconds without the sign bit, which every
//! file system can store.

use vfs::{Attr, Time};

/// Returns the atime and mtime that encode `verifier`.
pub(super) fn times(verifier: [u8; 8]) -> [Time; 2] {
    let time = |at: usize| {
        let bytes = std::array::from_fn(|i| verifier[at + i]);
        Time {
            sec: i64::from(u32::from_be_bytes(bytes) & 0x7fff_ffff),
            nsec: 0,
        }
    };
    [time(0), time(4)]
}

/// Returns whether a file was created by an exclusive create with `verifier`.
pub(super) fn is_made_with(attr: &Attr, verifier: [u8; 8]) -> bool {
    [attr.atime, attr.mtime] == times(verifier)
}
