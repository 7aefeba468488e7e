//! The error of an invalid map.

use std::fmt;

/// The error of an invalid map: the expected syntax, and the text found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadMap(pub(crate) String);

impl fmt::Display for BadMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadMap {}
