//! Inherited descriptors.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::FdFlags;

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

/// Takes over the inherited descriptor `number`, which keeps its number and is closed on exec from
/// now on. Returns `EBADF` if it is not open. The program that was executed before has passed it
/// on, so that nothing else in this process uses it.
pub fn take(number: RawFd) -> io::Result<OwnedFd> {
    fd(number)?;
    // SAFETY: it is open, and this process has been executed with it, so that no other object owns
    // it.
    #[allow(unsafe_code)]
    let taken = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&taken, FdFlags::CLOEXEC)?;
    Ok(taken)
}

/// Determines whether `fd` stays open, with its number, in a program that this process executes.
pub fn keep_on_exec(fd: BorrowedFd<'_>, keep: bool) -> io::Result<()> {
    let flags = match keep {
        true => FdFlags::empty(),
        false => FdFlags::CLOEXEC,
    };
    Ok(rustix::io::fcntl_setfd(fd, flags)?)
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
