//! A path component, validated once.

use core::fmt;

use crate::{Errno, Result};

/// A file name: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..`. It need not be UTF-8.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// The maximum length in bytes, as on Linux (`NAME_MAX`).
    pub const MAX: usize = 255;

    /// Validates `bytes`. Returns `ENAMETOOLONG` beyond [`Name::MAX`], `EEXIST` for `.` and `..`
    /// (as mkdir(2) does; lookups handle the two before they call this), `EINVAL` for NUL, `ENOENT`
    /// if empty, `EACCES` for a `/`.
    pub fn new(bytes: &'a [u8]) -> Result<Name<'a>> {
        match bytes {
            b"" => Err(Errno::ENOENT),
            b"." | b".." => Err(Errno::EEXIST),
            _ if bytes.len() > Name::MAX => Err(Errno::ENAMETOOLONG),
            _ if bytes.contains(&0) => Err(Errno::EINVAL),
            _ if bytes.contains(&b'/') => Err(Errno::EACCES),
            _ => Ok(Name(bytes)),
        }
    }

    /// Returns the bytes of the name.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_is_refused() {
        let long = [b'a'; 256];
        for (bytes, errno) in [
            (&b""[..], Errno::ENOENT),
            (b".", Errno::EEXIST),
            (b"..", Errno::EEXIST),
            (b"a/b", Errno::EACCES),
            (b"/", Errno::EACCES),
            (b"a\0b", Errno::EINVAL),
            (&long, Errno::ENAMETOOLONG),
        ] {
            assert_eq!(Name::new(bytes), Err(errno), "{}", bytes.escape_ascii());
        }
        for bytes in [&b"..."[..], b".a", b"a", &long[1..], b"\xff\xfe"] {
            assert_eq!(Name::new(bytes).map(Name::bytes), Ok(bytes));
        }
    }
}
