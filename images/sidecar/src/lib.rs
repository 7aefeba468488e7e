//! The sidecar of an image: hashes of all its bytes with one root, a signature of the root, and a
//! read-ahead list.
//!
//! EROFS leaves the first 1024 bytes of an image unused; they hold a [`Header`]. After the image
//! follow hashes: of each [`CHUNK_SIZE`] of the image, then of each chunk of those, until all
//! hashes of a level fit into one chunk. The last level and the read-ahead list
//! form the [`Manifest`], and the root is a hash of header and manifest. So every chunk is verified
//! by a hash in the level above it (located by [`HashLayout`]); the first chunk is hashed as if its
//! header were zeros.
//!
//! | at | bytes | in the header, numbers little-endian |
//! |---|---|---|
//! | 0 | 8 | magic |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | ranges of the read-ahead list |
//! | 16 | 8 | bytes of the image; the levels begin at the next multiple of a chunk, each at one |
//! | 24 | 32 | root |
//! | 56 | 32 | Ed25519 key of the signer, zeros for none |
//! | 88 | 64 | signature, over [`SIGNATURE_CONTEXT`] and the root |
//! | 152 | 864 | zeros |
//! | 1016 | 8 | magic once more: damage to one of them does not make it an image without hashes |
//!
//! Hashes are BLAKE3, 32 bytes each. The manifest follows the last level, or the image if there is
//! none: hashes, then for each range its first chunk and number of chunks, 4 bytes each.
//!
//! Deliberately absent: I/O, the standard library, other hashes and signatures, trust (the caller
//! supplies the keys), and the image's own format. It takes no locks.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod build;
mod header;
mod keys;
mod layout;
mod manifest;

use core::fmt;

pub use build::Builder;
pub use header::{HEADER_SIZE, Header, SIGNATURE_CONTEXT};
pub use keys::{PublicKey, SecretKey};
pub use layout::{CHUNK_SIZE, HASH_SIZE, Hash, HashLayout, hash};
pub use manifest::{MAX_READAHEAD_RANGES, Manifest, ReadaheadRange};

/// The reason why an image cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyError {
    /// Header or manifest are damaged.
    Corrupt(&'static str),
    /// An unknown version of this format.
    UnsupportedVersion(u32),
    /// A signature is required and missing.
    NotSigned,
    /// The signature is by a key that is not among the trusted ones.
    UntrustedKey,
    /// The signature does not match this image.
    BadSignature,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VerifyError::Corrupt(what) => write!(f, "damaged: {what}"),
            VerifyError::UnsupportedVersion(got) => {
                write!(f, "expected hashes of version 1, got {got}")
            }
            VerifyError::NotSigned => f.write_str("expected a signature, got none"),
            VerifyError::UntrustedKey => f.write_str("signed with another key"),
            VerifyError::BadSignature => f.write_str("the signature does not match this image"),
        }
    }
}

impl core::error::Error for VerifyError {}
