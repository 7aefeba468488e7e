//! Notifications: messages to the kernel that are no replies.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, Result, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// The maximum size of a notification in bytes: it has one name, of up to 1,024 bytes.
const MAX_MESSAGE: usize = 2048;

/// A descriptor of a mount for notifications.
///
/// The kernel may let the thread that sends one wait for replies to requests in flight, and such a
/// thread cannot be killed. The process that serves must be able to end at any time if another one
/// is to continue the mount. So it sends its notifications [through another
/// process](Notifier::relayed).
pub struct Notifier {
    descriptor: OwnedFd,
    is_relayed: bool,
}

impl Notifier {
    /// Returns the notifier of a mount with this descriptor, which [`Mount::open_device`] has
    /// returned.
    ///
    /// [`Mount::open_device`]: super::Mount::open_device
    pub fn new(device: OwnedFd) -> Notifier {
        Notifier {
            descriptor: device,
            is_relayed: false,
        }
    }

    /// Returns the notifier with this socket of packets, at whose other end a thread calls
    /// [`relay`].
    pub fn relayed(socket: OwnedFd) -> Notifier {
        Notifier {
            descriptor: socket,
            is_relayed: true,
        }
    }

    /// Sends a message. May wait for replies to requests in flight: a thread that serves requests
    /// must not call it. Returns `ENOENT` if the kernel has not cached the node or name, `EINVAL`
    /// if it does not know the message.
    pub fn send(&self, message: &[u8]) -> Result<()> {
        if !self.is_relayed {
            return write(self.descriptor.as_fd(), message);
        }
        retry_on_intr(|| send(&self.descriptor, message, SendFlags::NOSIGNAL))?;
        let mut result = [0; 4];
        match retry_on_intr(|| recv(&self.descriptor, &mut result, RecvFlags::empty()))? {
            (4, _) => match i32::from_ne_bytes(result) {
                0 => Ok(()),
                errno => Err(Errno::from_raw_os_error(errno)),
            },
            // The other process has ended.
            _ => Err(Errno::NOTCONN),
        }
    }
}

fn write(device: BorrowedFd<'_>, message: &[u8]) -> Result<()> {
    retry_on_intr(|| rustix::io::write(device, message)).map(drop)
}

/// Sends the notifications that arrive at `socket` to `device`, until its other end is closed.
pub fn relay(socket: BorrowedFd<'_>, device: BorrowedFd<'_>) {
    let mut message = [0; MAX_MESSAGE];
    while let Ok((len @ 1.., _)) = retry_on_intr(|| recv(socket, &mut message, RecvFlags::empty()))
    {
        let sent = write(device, &message[..len]);
        let result = sent.map_or_else(Errno::raw_os_error, |()| 0).to_ne_bytes();
        if retry_on_intr(|| send(socket, &result, SendFlags::NOSIGNAL)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn another_process_sends_a_notification_and_returns_the_result() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let pair = || socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a pair");
        let ((here, there), (kernel, device)) = (pair(), pair());
        let relaying = std::thread::spawn(move || relay(there.as_fd(), device.as_fd()));
        let notifier = Notifier::relayed(here);
        assert_eq!(notifier.send(b"message"), Ok(()));
        let mut sent = [0; 16];
        assert_eq!(
            recv(&kernel, &mut sent, RecvFlags::empty()).map(|got| got.0),
            Ok(7)
        );
        drop(kernel);
        assert_eq!(notifier.send(b"message"), Err(Errno::PIPE));
        drop(notifier);
        relaying.join().expect("it has ended");
    }
}
