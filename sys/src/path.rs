//! System calls that take a path, or an empty one.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::Access;
use rustix::io::{Errno, Result};

/// Truncates or extends the file at `path` to `len` bytes (truncate(2)): one call instead of open,
/// ftruncate(2) and close. Follows a final symbolic link.
pub fn truncate(path: &CStr, len: u64) -> Result<()> {
    let len = i64::try_from(len).map_err(|_| Errno::INVAL)?;
    // SAFETY: `path` ends in NUL and outlives the call. rustix has ftruncate(2) only.
    #[allow(unsafe_code)]
    let answer = unsafe { libc::truncate64(path.as_ptr(), len) };
    crate::check(answer).map(drop)
}

/// Checks that the thread's file-system user has all accesses in `want` to the file that `fd`
/// refers to, `O_PATH` or not (faccessat2(2) with `AT_EACCESS` and `AT_EMPTY_PATH`).
pub fn access(fd: BorrowedFd<'_>, want: Access) -> Result<()> {
    // SAFETY: the empty path ends in NUL and outlives the call, which touches no other memory.
    // rustix refuses AT_EMPTY_PATH here.
    #[allow(unsafe_code)]
    let answer = unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            fd.as_raw_fd(),
            c"".as_ptr(),
            want.bits() as libc::c_int,
            libc::AT_EACCESS | libc::AT_EMPTY_PATH,
        )
    };
    if answer == 0 {
        Ok(())
    } else {
        Err(crate::last_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn it_cuts_and_extends() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = std::ffi::CString::new(file.path().as_os_str().as_bytes()).expect("no NUL");
        for len in [10_000, 3] {
            truncate(&path, len).expect("writable");
            assert_eq!(file.as_file().metadata().expect("stat").len(), len);
        }
        assert_eq!(truncate(&path, u64::MAX), Err(Errno::INVAL));
        assert_eq!(truncate(c"no/such/file", 0), Err(Errno::NOENT));
    }

    #[test]
    fn access_is_the_object_s() {
        use std::os::fd::AsFd;
        let dir = tempfile::tempdir().expect("a directory");
        let fd = rustix::fs::open(
            dir.path(),
            rustix::fs::OFlags::PATH,
            rustix::fs::Mode::empty(),
        );
        let fd = fd.expect("opens");
        assert_eq!(
            access(fd.as_fd(), Access::READ_OK | Access::EXEC_OK),
            Ok(())
        );
        let file = tempfile::tempfile().expect("a file");
        assert_eq!(access(file.as_fd(), Access::EXEC_OK), Err(Errno::ACCESS));
    }
}
