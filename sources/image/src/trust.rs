//! Verification policies for images, and the errors of failed verification.

use std::fmt;
use std::io;

use sidecar::{Hash, PublicKey, VerifyError};

/// The verification policy of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Verifies against the image's own hashes; an image without hashes is not verified.
    #[default]
    Hashes,
    /// Requires a signature by one of these keys over the hashes of the whole image.
    Keys(Vec<PublicKey>),
    /// Requires hashes with this root, which came from a trusted place, and a signature as well if
    /// there are keys.
    Root(Hash, Vec<PublicKey>),
}

impl Trust {
    /// Returns the keys of which one must have signed the image; none if no signature is required.
    pub(crate) fn keys(&self) -> &[PublicKey] {
        match self {
            Trust::Hashes => &[],
            Trust::Keys(keys) | Trust::Root(_, keys) => keys,
        }
    }

    /// Returns whether an image without hashes is rejected.
    pub(crate) fn requires_hashes(&self) -> bool {
        *self != Trust::Hashes
    }
}

/// The reason why an image is rejected.
#[derive(Debug)]
pub enum Untrusted {
    /// Its hashes could not be read.
    Io(io::Error),
    /// The hashes are invalid, or no trusted key has signed them.
    Invalid(VerifyError),
    /// The image has extra devices, which the signature does not cover.
    Devices,
    /// The image has no hashes, and their root is required.
    NoHashes,
    /// The root of its hashes is not the required one.
    OtherRoot,
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Untrusted::Io(error) => error.fmt(f),
            Untrusted::Invalid(broken) => broken.fmt(f),
            Untrusted::NoHashes => f.write_str(
                "expected an image with hashes, according to their root, got one without",
            ),
            Untrusted::OtherRoot => f.write_str("the root of the hashes is not the expected one"),
            Untrusted::Devices => f.write_str(
                "expected an image without further devices: the signature covers one file",
            ),
        }
    }
}

impl From<io::Error> for Untrusted {
    fn from(error: io::Error) -> Untrusted {
        Untrusted::Io(error)
    }
}

impl From<VerifyError> for Untrusted {
    fn from(broken: VerifyError) -> Untrusted {
        Untrusted::Invalid(broken)
    }
}
