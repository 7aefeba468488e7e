//! Why there is no image.

use std::fmt::{self, Display};
use std::io;

/// One line: what went wrong, and with what.
#[derive(Debug)]
pub struct Error(String);

/// What packing ends with.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// This line.
    pub fn new(line: impl Display) -> Error {
        Error(line.to_string())
    }

    /// Of the file or directory `path`, a path in the image.
    pub(crate) fn of(path: &[u8], what: impl Display) -> Error {
        Error(format!("{}: {what}", shown(path)))
    }
}

/// A path for people: on one line, whatever is in it.
pub(crate) fn shown(path: &[u8]) -> String {
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
