//! The sidecar of an image: hashes of all its bytes with one root, a signature over that, and what to read ahead.
//!
//! An image of EROFS leaves its first 1024 bytes to whoever wants them; there is a [`Header`]. Behind the image come hashes: of each [`CHUNK`]
//! of the image, then of each chunk of those, until all hashes of a level fit into one chunk. The last ones and the hot list (ranges
//! to read ahead) are the [`Manifest`], and the root is a hash of header and manifest. So nothing that is read is without a
//! hash: a chunk's is among those of the level above it ([`Shape`] says where), the first chunk counts as if its header were zeros.
//!
//! | at | bytes | in the header, numbers little-endian |
//! |---|---|---|
//! | 0 | 8 | magic |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | ranges of the hot list |
//! | 16 | 8 | bytes of the image; the levels begin at the next multiple of a chunk, each at one |
//! | 24 | 32 | root |
//! | 56 | 32 | Ed25519 key of who signed, zeros for nobody |
//! | 88 | 64 | signature, over [`SIGNED`] and the root |
//! | 152 | 864 | zeros |
//! | 1016 | 8 | magic once more: damage to one of them does not make it an image without hashes |
//!
//! Hashes are BLAKE3, 32 bytes each. The manifest lies behind the last level, or behind the image if there is none: hashes, then for each range its
//! first chunk and how many, 4 bytes each.
//!
//! What it lacks on purpose: I/O, the standard library, other hashes and signatures, trust (who asks brings the keys), and what the image is
//! itself. It takes no locks.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod build;
mod header;
mod keys;
mod manifest;
mod shape;

use core::fmt;

pub use build::Builder;
pub use header::{HEADER, Header, SIGNED};
pub use keys::{PublicKey, SecretKey};
pub use manifest::{Hot, MOST_HOT, Manifest};
pub use shape::{CHUNK, HASH, Hash, Shape, hash};

/// Why an image cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Header or manifest are not what was written.
    Damaged(&'static str),
    /// A later version of this format.
    Version(u32),
    /// Nobody has signed it, and somebody had to.
    NotSigned,
    /// It is signed with a key that is not among those expected.
    OtherKey,
    /// The signature is not of this image.
    Signature,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Damaged(what) => write!(f, "damaged: {what}"),
            Broken::Version(got) => write!(f, "expected hashes of version 1, got {got}"),
            Broken::NotSigned => f.write_str("expected a signature, got none"),
            Broken::OtherKey => f.write_str("signed with another key"),
            Broken::Signature => f.write_str("the signature is not of this image"),
        }
    }
}

impl core::error::Error for Broken {}
