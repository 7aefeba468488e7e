//! Socket options that rustix lacks.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Result;

/// Sets the send buffer of `fd` to `len` bytes, regardless of the system's limit (`SO_SNDBUFFORCE`,
/// socket(7)). Needs `CAP_NET_ADMIN`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_socket_s_buffer_grows_and_a_file_has_none() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("binds");
        let forced = force_send_buffer(socket.as_fd(), 1 << 20);
        if forced == Err(rustix::io::Errno::PERM) {
            return eprintln!("skipped: needs CAP_NET_ADMIN");
        }
        // The kernel includes its own bookkeeping, and doubles the size.
        let size = rustix::net::sockopt::socket_send_buffer_size(&socket);
        assert_eq!((forced, size), (Ok(()), Ok(2 << 20)));
        let file = tempfile::tempfile().expect("a file");
        let refused = force_send_buffer(file.as_fd(), 1 << 20);
        assert_eq!(refused, Err(rustix::io::Errno::NOTSOCK));
    }
}
