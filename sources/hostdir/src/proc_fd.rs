//! Access to the object of an open descriptor through `/proc/self/fd`: with other flags, or by
//! system calls that accept only a path.

use std::ffi::{CStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::path::DecInt;

/// `/proc/self/fd`, through which descriptors are reopened.
pub(crate) struct ProcFds(OwnedFd);

impl ProcFds {
    /// Opens the directory. Returns `ENOENT` if `/proc` is not mounted.
    pub(crate) fn open() -> io::Result<ProcFds> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(c"/proc/self/fd", flags, Mode::empty())?;
        Ok(ProcFds(dir))
    }

    /// Opens the object of `fd` again, with other flags. Permission is checked again, except for
    /// `O_PATH`.
    pub(crate) fn reopen(&self, fd: BorrowedFd<'_>, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        rustix::fs::openat(
            &self.0,
            DecInt::from_fd(fd),
            flags | OFlags::CLOEXEC | OFlags::NOCTTY,
            Mode::empty(),
        )
    }

    /// Returns the kernel's path of `fd`: `None` if it is too long, and a wrong one if the kernel
    /// knows none or the object has been removed.
    pub(crate) fn path_of(&self, fd: BorrowedFd<'_>) -> Option<PathBuf> {
        let path = rustix::fs::readlinkat(&self.0, DecInt::from_fd(fd), Vec::new()).ok()?;
        Some(PathBuf::from(OsString::from_vec(path.into_bytes())))
    }
}

/// The directory in which a descriptor's number is a name of its object.
impl AsFd for ProcFds {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `/proc/self/fd/N`, on the stack. It resolves to the open object itself.
pub(crate) struct ProcPath([u8; 26]);

impl ProcPath {
    const DIR: &[u8] = b"/proc/self/fd/";

    /// Returns the path of `fd`, valid as long as that is open.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> ProcPath {
        let mut path = [0; 26];
        path[..ProcPath::DIR.len()].copy_from_slice(ProcPath::DIR);
        let mut number = fd.as_raw_fd().unsigned_abs();
        let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
        for at in (0..digits).rev() {
            path[ProcPath::DIR.len() + at] = b'0' + (number % 10) as u8;
            number /= 10;
        }
        ProcPath(path)
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).expect("ten digits leave room for the end")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_the_descriptor() {
        let file = tempfile::tempfile().expect("a file");
        let path = ProcPath::of(file.as_fd());
        let expected = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert_eq!(path.as_c_str().to_bytes(), expected.as_bytes());
        assert!(std::fs::metadata(expected).is_ok());
    }
}
