//! The path of an open descriptor, for system calls that accept only a path.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

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
    use std::os::fd::AsFd;

    #[test]
    fn it_names_the_descriptor() {
        let file = tempfile::tempfile().expect("a file");
        let path = ProcPath::of(file.as_fd());
        let expected = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert_eq!(path.as_c_str().to_bytes(), expected.as_bytes());
        assert!(std::fs::metadata(expected).is_ok());
    }
}
