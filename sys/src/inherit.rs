//! Inherited descriptors.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

/// Duplicates the inherited descriptor `number`. Returns `EBADF` if it is not open.
pub fn fd(number: RawFd) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(rustix::io::Errno::BADF.into());
    }
    // SAFETY: the borrow ends with the call below, which only reads the descriptor table and
    // returns EBADF for a number that is not in it; safe code cannot name a descriptor by number.
    #[allow(unsafe_code)]
    let inherited = unsafe { BorrowedFd::borrow_raw(number) };
    Ok(rustix::io::fcntl_dupfd_cloexec(inherited, 3)?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_number_without_a_file_is_refused() {
        assert!(super::fd(1 << 20).is_err());
        assert!(super::fd(-1).is_err());
        assert!(super::fd(2).is_ok());
    }
}
