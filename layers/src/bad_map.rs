//! What a map that cannot be read says.

use std::fmt;

/// A map that is none: what was expected, and what came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadMap(pub(crate) String);

impl fmt::Display for BadMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadMap {}
