//! What an image has to show before it is believed, and why one is not.

use std::fmt;
use std::io;

use sidecar::{Broken, PublicKey};

/// What an image has to show before it is believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// The hashes that it has. One without any is shown as it is.
    #[default]
    Hashes,
    /// A signature by one of these, over the hashes of all of it.
    Keys(Vec<PublicKey>),
}

/// Why an image is not opened.
#[derive(Debug)]
pub enum Untrusted {
    /// Its hashes could not be read.
    Io(io::Error),
    /// They say that it is broken, or nobody who is trusted has signed it.
    Broken(Broken),
    /// It has further devices, of which the signature says nothing.
    Devices,
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Untrusted::Io(error) => error.fmt(f),
            Untrusted::Broken(broken) => broken.fmt(f),
            Untrusted::Devices => {
                f.write_str("expected an image that is signed as a whole, got further devices")
            }
        }
    }
}

impl From<io::Error> for Untrusted {
    fn from(error: io::Error) -> Untrusted {
        Untrusted::Io(error)
    }
}

impl From<Broken> for Untrusted {
    fn from(broken: Broken) -> Untrusted {
        Untrusted::Broken(broken)
    }
}
