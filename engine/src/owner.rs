//! The owners of requests, by which limits count.

use vfs::peer::PeerKey;

/// The unit that limits per client count by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// All connections of one client.
    Client(PeerKey),
    /// All queues of one device.
    Device(u64),
}
