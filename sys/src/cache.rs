//! Residency of file pages in the page cache.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Result;

/// `struct cachestat_range`: include/uapi/linux/mman.h
#[repr(C)]
struct Range {
    off: u64,
    len: u64,
}

/// `struct cachestat`: `nr_cache`, and four unused counts.
#[repr(C)]
#[derive(Default)]
struct Stat([u64; 5]);

/// Returns whether all of `len` bytes from `offset` on are in the page cache or being read into it:
/// cachestat(2), Linux 6.5. Bytes after the end of file never are. Returns an error if the call is
/// unavailable, and `PERM` for a file that the caller may not write.
pub fn is_cached(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<bool> {
    /// The same number on all architectures; not every libc has it.
    const CACHESTAT: libc::c_long = 451;
    let range = Range { off: offset, len };
    let mut stat = Stat::default();
    // SAFETY: the kernel reads `range` and writes `stat`, both with the kernel's layout, and both
    // outlive the call.
    #[allow(unsafe_code)]
    let answer = unsafe {
        libc::syscall(
            CACHESTAT,
            fd.as_raw_fd(),
            &raw const range,
            &raw mut stat,
            0,
        )
    };
    crate::check(answer as libc::c_int)?;
    let page = rustix::param::page_size() as u64;
    let end = offset.saturating_add(len).div_ceil(page);
    Ok(stat.0[0] >= end - offset / page)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn what_is_written_is_cached_until_it_is_dropped_and_ends_with_the_file() {
        let file = tempfile::tempfile_in(".").expect("a file");
        file.write_all_at(&[7; 10_000], 0).expect("writes");
        match is_cached(file.as_fd(), 100, 9000) {
            Err(rustix::io::Errno::NOSYS) => return eprintln!("skipped: no cachestat(2) here"),
            cached => assert_eq!(cached, Ok(true)),
        }
        assert_eq!(is_cached(file.as_fd(), 4096, 100_000), Ok(false));
        file.sync_all().expect("syncs");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("drops");
        match is_cached(file.as_fd(), 0, 10_000) {
            Ok(true) => eprintln!("skipped: this file system keeps its pages"),
            cached => assert_eq!(cached, Ok(false)),
        }
    }
}
