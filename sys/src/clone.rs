//! Sharing blocks between files.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Result;

/// Makes `len` bytes of `to` at `to_offset` share the blocks of `from` at `offset`, all or nothing;
/// a `len` of 0 extends to the end of `from` (FICLONERANGE, ioctl_ficlonerange(2)).
pub fn clone_range(
    from: BorrowedFd<'_>,
    offset: u64,
    len: u64,
    to: BorrowedFd<'_>,
    to_offset: u64,
) -> Result<()> {
    let range = libc::file_clone_range {
        src_fd: from.as_raw_fd().into(),
        src_offset: offset,
        src_length: len,
        dest_offset: to_offset,
    };
    // SAFETY: FICLONERANGE reads one `file_clone_range`, which outlives the call, and both
    // descriptors are open; rustix has FICLONE only, which clones whole files.
    #[allow(unsafe_code)]
    let answer = unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONERANGE, &raw const range) };
    crate::check(answer).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_file_system_without_shared_blocks_refuses() {
        let from = tempfile::tempfile_in("/dev/shm").expect("tmpfs");
        let to = tempfile::tempfile_in("/dev/shm").expect("tmpfs");
        let refused = clone_range(from.as_fd(), 0, 0, to.as_fd(), 0);
        assert_eq!(refused, Err(rustix::io::Errno::OPNOTSUPP));
    }
}
