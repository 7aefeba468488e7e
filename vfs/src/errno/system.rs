//! Conversion from and to errors of [`std::io`]: Linux's own have the same numbers.

use std::io;

use super::Errno;

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Errno {
        Errno::from_raw(error.raw_os_error().unwrap_or(0))
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.raw().into())
    }
}
