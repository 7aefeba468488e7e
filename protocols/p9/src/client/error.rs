//! Converts a server's errors to errno.

use vfs::Errno;

use crate::Rmessage;

/// Returns the errno of an Rlerror or Rerror, or `None` for another reply. 9P2000.u's number takes
/// precedence over the text; an unknown text is `EIO`.
pub fn errno_of(reply: &Rmessage<'_>) -> Option<Errno> {
    match reply {
        Rmessage::Lerror { errno } => Some(from_number(*errno)),
        Rmessage::Error { errno, .. } if errno.0 != 0 => Some(from_number(errno.0)),
        Rmessage::Error { text, .. } => Some(from_text(text)),
        _ => None,
    }
}

fn from_number(number: u32) -> Errno {
    Errno::from_raw(number.try_into().unwrap_or(0))
}

fn from_text(text: &[u8]) -> Errno {
    let plan9 = || {
        let known = PLAN9.iter().find(|(known, _)| known.as_bytes() == text);
        known.map(|(_, errno)| *errno)
    };
    Errno::from_text(text).or_else(plan9).unwrap_or(Errno::EIO)
}

/// The texts of Plan 9's and related servers, which differ from strerror(3):
/// `/sys/src/9/port/error.h`, and those of Linux's `net/9p/error.c` that concern files.
const PLAN9: &[(&str, Errno)] = &[
    ("file does not exist", Errno::ENOENT),
    ("file not found", Errno::ENOENT),
    ("directory entry not found", Errno::ENOENT),
    ("no such file", Errno::ENOENT),
    ("does not exist", Errno::ENOENT),
    ("permission denied", Errno::EACCES),
    ("wstat prohibited", Errno::EACCES),
    ("read only file system", Errno::EROFS),
    ("file is read only", Errno::EROFS),
    ("file already exists", Errno::EEXIST),
    ("file or directory already exists", Errno::EEXIST),
    ("create prohibited", Errno::EPERM),
    ("remove prohibited", Errno::EPERM),
    ("not owner", Errno::EPERM),
    ("only owner can change mode", Errno::EPERM),
    ("not a directory", Errno::ENOTDIR),
    ("is a directory", Errno::EISDIR),
    ("file is a directory", Errno::EISDIR),
    ("directory is not empty", Errno::ENOTEMPTY),
    ("directory not empty", Errno::ENOTEMPTY),
    ("file in use", Errno::ETXTBSY),
    ("file system is full", Errno::ENOSPC),
    ("file system full", Errno::ENOSPC),
    ("illegal name", Errno::EINVAL),
    ("bad offset in directory read", Errno::ESPIPE),
    ("fid unknown or out of range", Errno::EBADF),
    ("unknown fid", Errno::EBADF),
    ("fid not open", Errno::EBADF),
    ("inappropriate use of fd", Errno::EBADF),
    ("function not implemented", Errno::EOPNOTSUPP),
    ("interrupted", Errno::EINTR),
    ("i/o error", Errno::EIO),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DotuErrno;

    #[test]
    fn numbers_count_before_texts_and_none_is_zero() {
        let error = |text: &'static str, number| {
            let errno = DotuErrno(number);
            let text = text.as_bytes();
            errno_of(&Rmessage::Error { text, errno })
        };
        assert_eq!(error("Permission denied", 0), Some(Errno::EACCES));
        assert_eq!(error("Permission denied", 2), Some(Errno::ENOENT));
        assert_eq!(error("file does not exist", 0), Some(Errno::ENOENT));
        assert_eq!(error("the moon is full", 0), Some(Errno::EIO));
        assert_eq!(error("", u32::MAX), Some(Errno::EIO));
        let lerror = |errno| errno_of(&Rmessage::Lerror { errno });
        assert_eq!(lerror(0), Some(Errno::EIO));
        assert_eq!(lerror(28), Some(Errno::ENOSPC));
        assert_eq!(lerror(0x8000_0001), Some(Errno::EIO));
        assert_eq!(lerror(0xfff0), Some(Errno::EIO));
        assert_eq!(errno_of(&Rmessage::Clunk {}), None);
    }
}
