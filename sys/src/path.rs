//! Calls that take a path.

use std::ffi::CStr;

use rustix::io::{Errno, Result};

/// Cuts or extends the file at `path` to `len` bytes (truncate(2)): in one call what would
/// otherwise be opening, ftruncate(2) and closing. A final symbolic link is followed.
pub fn truncate(path: &CStr, len: u64) -> Result<()> {
    let len = i64::try_from(len).map_err(|_| Errno::INVAL)?;
    // SAFETY: `path` ends in NUL and outlives the call. rustix has ftruncate(2) only.
    #[allow(unsafe_code)]
    let answer = unsafe { libc::truncate64(path.as_ptr(), len) };
    crate::check(answer).map(drop)
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
}
