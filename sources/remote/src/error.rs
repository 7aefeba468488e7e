use std::fmt;

use vfs::Errno;

/// Why there is no connection to a server, or no tree behind it: one clear line.
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

    /// The server is there, but would not have us attach.
    pub(crate) fn of_attach(errno: Errno, why: impl Into<String>) -> ConnectError {
        ConnectError {
            attach: true,
            ..ConnectError::new(errno, why)
        }
    }

    pub(crate) fn is_of_attach(&self) -> bool {
        self.attach
    }

    /// The errno that comes nearest.
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
