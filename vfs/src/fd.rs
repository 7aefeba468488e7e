//! The descriptors of these traits: those of Unix, and on Windows sockets, the only objects there
//! that can be polled. Only a source on Unix lends descriptors of files.

#[cfg(unix)]
pub use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

#[cfg(windows)]
pub use std::os::windows::io::{
    AsRawSocket as AsRawFd, AsSocket, BorrowedSocket as BorrowedFd, OwnedSocket as OwnedFd,
    RawSocket as RawFd,
};

/// Borrows the descriptor of an object: the trait of this name on Unix.
#[cfg(windows)]
pub trait AsFd {
    /// Borrows the descriptor.
    fn as_fd(&self) -> BorrowedFd<'_>;
}

#[cfg(windows)]
impl<T: AsSocket> AsFd for T {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.as_socket()
    }
}
