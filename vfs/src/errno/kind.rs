//! The errno of each kind of error of [`std::io`].

use std::io::ErrorKind;

use super::Errno;

/// The pairs, as Linux's standard library has them. The first errno of a kind stands for it.
const KINDS: &[(ErrorKind, Errno)] = &[
    (ErrorKind::NotFound, Errno::ENOENT),
    (ErrorKind::PermissionDenied, Errno::EACCES),
    (ErrorKind::PermissionDenied, Errno::EPERM),
    (ErrorKind::ConnectionRefused, Errno::from_raw(111)),
    (ErrorKind::ConnectionReset, Errno::from_raw(104)),
    (ErrorKind::ConnectionAborted, Errno::from_raw(103)),
    (ErrorKind::HostUnreachable, Errno::from_raw(113)),
    (ErrorKind::NetworkUnreachable, Errno::from_raw(101)),
    (ErrorKind::NetworkDown, Errno::from_raw(100)),
    (ErrorKind::NotConnected, Errno::ENOTCONN),
    (ErrorKind::AddrInUse, Errno::from_raw(98)),
    (ErrorKind::AddrNotAvailable, Errno::from_raw(99)),
    (ErrorKind::BrokenPipe, Errno::EPIPE),
    (ErrorKind::AlreadyExists, Errno::EEXIST),
    (ErrorKind::WouldBlock, Errno::EAGAIN),
    (ErrorKind::NotADirectory, Errno::ENOTDIR),
    (ErrorKind::IsADirectory, Errno::EISDIR),
    (ErrorKind::DirectoryNotEmpty, Errno::ENOTEMPTY),
    (ErrorKind::ReadOnlyFilesystem, Errno::EROFS),
    (ErrorKind::StaleNetworkFileHandle, Errno::ESTALE),
    (ErrorKind::InvalidInput, Errno::EINVAL),
    (ErrorKind::InvalidFilename, Errno::ENAMETOOLONG),
    (ErrorKind::TimedOut, Errno::ETIMEDOUT),
    (ErrorKind::StorageFull, Errno::ENOSPC),
    (ErrorKind::NotSeekable, Errno::ESPIPE),
    (ErrorKind::QuotaExceeded, Errno::EDQUOT),
    (ErrorKind::FileTooLarge, Errno::EFBIG),
    (ErrorKind::ResourceBusy, Errno::EBUSY),
    (ErrorKind::ExecutableFileBusy, Errno::ETXTBSY),
    (ErrorKind::Deadlock, Errno::EDEADLK),
    (ErrorKind::CrossesDevices, Errno::EXDEV),
    (ErrorKind::TooManyLinks, Errno::EMLINK),
    (ErrorKind::ArgumentListTooLong, Errno::E2BIG),
    (ErrorKind::Interrupted, Errno::EINTR),
    (ErrorKind::Unsupported, Errno::EOPNOTSUPP),
    (ErrorKind::Unsupported, Errno::ENOSYS),
    (ErrorKind::OutOfMemory, Errno::ENOMEM),
];

impl Errno {
    /// Returns the errno of an error of this kind; `EIO` for a kind that no system call returns.
    pub fn of_kind(kind: ErrorKind) -> Errno {
        let found = KINDS.iter().find(|(known, _)| *known == kind);
        found.map_or(Errno::EIO, |(_, errno)| *errno)
    }

    /// Returns the kind of an error with this errno, as Linux's standard library does.
    pub fn kind(self) -> ErrorKind {
        let found = KINDS.iter().find(|(_, known)| *known == self);
        found.map_or(ErrorKind::Other, |(kind, _)| *kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_those_of_the_numbers() {
        for &(kind, named) in KINDS {
            // On Linux, the standard library decides the kind of a number.
            assert_eq!(std::io::Error::from(named).kind(), kind, "{named:?}");
            assert_eq!(named.kind(), kind);
            assert_eq!(Errno::of_kind(kind).kind(), kind);
        }
        assert_eq!(Errno::of_kind(ErrorKind::UnexpectedEof), Errno::EIO);
        assert_eq!(Errno::ENODATA.kind(), ErrorKind::Other);
    }
}
