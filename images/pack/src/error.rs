//! Errors of image creation.

use std::fmt::{self, Display};
use std::io;

/// A one-line description of an error and its object.
#[derive(Debug)]
pub struct Error(String);

/// The result of a packing step.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns an error with this description.
    pub fn new(line: impl Display) -> Error {
        Error(line.to_string())
    }

    /// Returns an error about the file or directory `path` in the image.
    pub(crate) fn with_path(path: &[u8], what: impl Display) -> Error {
        Error(format!("{}: {what}", display_path(path)))
    }
}

/// Returns a path for display, with control characters replaced.
pub(crate) fn display_path(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    let plain = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(plain).collect()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error(error.to_string())
    }
}
