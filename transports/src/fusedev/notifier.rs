//! Notifications: messages to the kernel that are no replies.

use std::os::fd::OwnedFd;

use rustix::io::{Result, retry_on_intr};

/// A descriptor of a mount for notifications.
pub struct Notifier(OwnedFd);

impl Notifier {
    /// Returns the notifier of a mount with this descriptor, which [`Mount::open_device`] has
    /// returned.
    ///
    /// [`Mount::open_device`]: super::Mount::open_device
    pub fn new(device: OwnedFd) -> Notifier {
        Notifier(device)
    }

    /// Sends a message. May wait for replies to requests in flight: a thread that serves requests
    /// must not call it. Returns `ENOENT` if the kernel has not cached the node or name, `EINVAL`
    /// if it does not know the message.
    pub fn send(&self, message: &[u8]) -> Result<()> {
        retry_on_intr(|| rustix::io::write(&self.0, message)).map(drop)
    }
}
