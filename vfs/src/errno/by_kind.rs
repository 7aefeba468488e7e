//! Conversion from and to errors of [`std::io`] on systems with other numbers than Linux's. An
//! error that was made of an [`Errno`] is that errno again.

use std::io;

use super::Errno;

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Errno {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        inner
            .copied()
            .unwrap_or_else(|| Errno::of_kind(error.kind()))
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> io::Error {
        io::Error::new(errno.kind(), errno)
    }
}
