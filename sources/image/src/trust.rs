//! Verification policies for images, and the errors of failed verification.

use std::fmt;
use std::io;

use sidecar::{PublicKey, VerifyError};

/// The verification policy of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Verifies against the image's own hashes; an image without hashes is not verified.
    #[default]
    Hashes,
    /// Requires a signature by one of these keys over the hashes of the whole image.
    Keys(Vec<PublicKey>),
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
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Untrusted::Io(error) => error.fmt(f),
            Untrusted::Invalid(broken) => broken.fmt(f),
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
