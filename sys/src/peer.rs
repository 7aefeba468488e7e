//! Credentials of a connected socket's peer that rustix lacks (unix(7), socket(7)).

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::{Errno, Result};

/// Returns the user and group of the peer process of the Unix socket `fd` when it connected
/// (`SO_PEERCRED`). Returns `NOTCONN` if there is none. Not rustix's: a peer in another PID
/// namespace has process id 0, which its type cannot represent.
pub fn credentials(fd: BorrowedFd<'_>) -> Result<(u32, u32)> {
    let mut found = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes of integers to `found`, which outlives the
    // call.
    #[allow(unsafe_code)]
    let answer = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    crate::check(answer)?;
    match found.uid {
        u32::MAX => Err(Errno::NOTCONN),
        uid => Ok((uid, found.gid)),
    }
}

/// Returns the supplementary groups of that process (`SO_PEERGROUPS`, Linux 4.13).
pub fn groups(fd: BorrowedFd<'_>) -> Result<Vec<u32>> {
    // Most users are in few groups.
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut len = size_of_val(groups.as_slice()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes of integers to `groups`, which outlives the
        // call.
        #[allow(unsafe_code)]
        let answer = unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let found = len as usize / size_of::<libc::gid_t>();
        match crate::check(answer) {
            Ok(_) => {
                groups.truncate(found);
                return Ok(groups);
            }
            // Then `len` is the required number of bytes.
            Err(Errno::RANGE) if found > groups.len() => groups.resize(found, 0),
            Err(error) => return Err(error),
        }
    }
}

/// Returns the cookie of the network namespace of the socket `fd`, unique since boot
/// (`SO_NETNS_COOKIE`, Linux 5.14).
pub fn network_namespace(fd: BorrowedFd<'_>) -> Result<u64> {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes of an integer to `cookie`, which outlives the
    // call.
    #[allow(unsafe_code)]
    let answer = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    crate::check(answer).map(|_| cookie)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_of_this_process_is_this_process_s_user() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let own = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        assert_eq!(credentials(one.as_fd()), Ok(own));
        let groups = groups(one.as_fd()).expect("groups");
        let expected = rustix::process::getgroups().expect("groups");
        let expected: Vec<u32> = expected.iter().map(|gid| gid.as_raw()).collect();
        assert_eq!(groups, expected);
    }

    /// A thread of this process with more groups than fit the initial buffer.
    #[test]
    fn any_number_of_groups_is_read() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: setting groups needs root");
        }
        let many: Vec<u32> = (1000..1100).collect();
        let expected = many.clone();
        let read = std::thread::spawn(move || {
            let many: Vec<_> = many.into_iter().map(rustix::fs::Gid::from_raw).collect();
            crate::creds::set_thread_groups(&many).expect("root may");
            let (one, _other) = UnixStream::pair().expect("a pair");
            groups(one.as_fd()).expect("groups")
        });
        assert_eq!(read.join().expect("no panic"), expected);
    }

    #[test]
    fn other_sockets_have_no_such_peer() {
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("bound");
        assert_eq!(credentials(udp.as_fd()), Err(Errno::NOTCONN));
        assert!(groups(udp.as_fd()).is_err());
    }
}
