//! Errors of image creation.

use std::fmt::{self, Display};
use std::io;

use vfs::Errno;

/// A one-line description of an error and its object, with the kind of its cause.
#[derive(Debug)]
pub struct Error {
    line: String,
    kind: io::ErrorKind,
}

/// The result of a packing step.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns an error of invalid input with this description.
    pub fn new(line: impl Display) -> Error {
        Error {
            line: line.to_string(),
            kind: io::ErrorKind::InvalidData,
        }
    }

    /// Returns an error about the file or directory `path` in the image.
    pub(crate) fn with_path(path: &[u8], what: impl Display) -> Error {
        Error::new(format_args!("{}: {what}", display_path(path)))
    }

    /// Returns an error of a file system about the file or directory `path` in the image.
    pub(crate) fn with_errno(path: &[u8], errno: Errno) -> Error {
        Error {
            kind: io::Error::from(errno).kind(),
            ..Error::with_path(path, errno)
        }
    }

    /// Returns the error with the name of its object in front of the description.
    #[must_use]
    pub fn of(self, object: impl Display) -> Error {
        Error {
            line: format!("{object}: {}", self.line),
            kind: self.kind,
        }
    }

    /// Returns the kind of the cause.
    pub fn kind(&self) -> io::ErrorKind {
        self.kind
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
        f.write_str(&self.line)
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error {
            kind: error.kind(),
            line: error.to_string(),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(error.kind, error.line)
    }
}
