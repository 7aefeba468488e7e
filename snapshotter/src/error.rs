//! Errors of operations, each with the gRPC code that containerd expects (its package `errdefs`).

use std::fmt;
use std::io;
use std::path::Path;

use tonic::{Code, Status};

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// There is no such snapshot.
    NotFound,
    /// The name is in use, or the layer is mounted already and needs no download.
    AlreadyExists,
    /// The snapshot is in the wrong state: it has children, or is not active.
    FailedPrecondition,
    /// The request is invalid.
    InvalidArgument,
    /// A layer cannot be mounted now, or another call has replaced the parent; the call may be
    /// repeated.
    Unavailable,
    /// The disk or the database failed.
    Internal,
}

/// An error of an operation: its kind, and a message of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind.
    pub kind: ErrorKind,
    message: String,
}

/// The result of an operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns an error. Control characters of the message, which may have names of the peer, are
    /// escaped.
    pub fn new(kind: ErrorKind, message: impl fmt::Display) -> Error {
        let message = message.to_string();
        let escaped = message.chars().flat_map(|c| {
            let (plain, escape) = match c.is_control() {
                true => (None, Some(c.escape_default())),
                false => (Some(c), None),
            };
            plain.into_iter().chain(escape.into_iter().flatten())
        });
        let message = escaped.collect();
        Error { kind, message }
    }

    pub(crate) fn not_found(name: &str) -> Error {
        Error::new(
            ErrorKind::NotFound,
            format!("snapshot '{name}' does not exist"),
        )
    }

    pub(crate) fn exists(name: &str) -> Error {
        Error::new(
            ErrorKind::AlreadyExists,
            format!("snapshot '{name}' exists already"),
        )
    }

    pub(crate) fn invalid(message: impl fmt::Display) -> Error {
        Error::new(ErrorKind::InvalidArgument, message)
    }

    pub(crate) fn precondition(message: impl fmt::Display) -> Error {
        Error::new(ErrorKind::FailedPrecondition, message)
    }

    /// Returns an error of a file.
    pub(crate) fn io(path: &Path, error: impl Into<io::Error>) -> Error {
        let error = error.into();
        Error::new(ErrorKind::Internal, format!("{}: {error}", path.display()))
    }

    /// Returns an error of the database.
    pub(crate) fn database(error: impl Into<redb::Error>) -> Error {
        Error::new(
            ErrorKind::Internal,
            format!("metadata.redb: {}", error.into()),
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        let code = match error.kind {
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::AlreadyExists => Code::AlreadyExists,
            ErrorKind::FailedPrecondition => Code::FailedPrecondition,
            ErrorKind::InvalidArgument => Code::InvalidArgument,
            ErrorKind::Unavailable => Code::Unavailable,
            ErrorKind::Internal => Code::Internal,
        };
        Status::new(code, error.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_one_line() {
        let error = Error::not_found("a\nb\u{1b}[1mä");
        assert_eq!(
            error.to_string(),
            "snapshot 'a\\nb\\u{1b}[1mä' does not exist"
        );
    }
}
