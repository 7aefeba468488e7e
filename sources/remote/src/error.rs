use std::fmt;

use vfs::Errno;

/// The reason why a server or its tree cannot be reached, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectError {
    errno: Errno,
    why: String,
    attach: bool,
}

impl ConnectError {
    pub(crate) fn new(errno: Errno, why: impl Into<String>) -> ConnectError {
        let why = why.into();
        let attach = false;
        ConnectError { errno, why, attach }
    }

    /// The error of a server that is reachable but refuses the attach.
    pub(crate) fn of_attach(errno: Errno, why: impl Into<String>) -> ConnectError {
        ConnectError {
            attach: true,
            ..ConnectError::new(errno, why)
        }
    }

    pub(crate) fn is_of_attach(&self) -> bool {
        self.attach
    }

    /// The closest errno.
    pub fn errno(&self) -> Errno {
        self.errno
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for ConnectError {}
