//! Socket options that rustix lacks.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Result;

/// Has `fd` hold up to `len` bytes that are still to be sent, whatever the system's limit
/// (`SO_SNDBUFFORCE`, socket(7)). Needs `CAP_NET_ADMIN`.
pub fn force_send_buffer(fd: BorrowedFd<'_>, len: usize) -> Result<()> {
    let len = libc::c_int::try_from(len).unwrap_or(libc::c_int::MAX);
    // SAFETY: the kernel reads one int, which outlives the call.
    #[allow(unsafe_code)]
    let answer = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDBUFFORCE,
            (&raw const len).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    crate::check(answer).map(drop)
}
