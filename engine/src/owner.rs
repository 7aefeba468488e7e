//! The owners of requests, by which limits count.

use std::net::IpAddr;

use transports::Link;

/// The unit that limits per client count by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// All connections of one client.
    Client(ClientKey),
    /// All queues of one device.
    Device(u64),
}

/// A client, whatever the number of its connections.
pub(crate) type ClientKey = Option<IpAddr>;

/// The client at the other end of `link`.
pub(crate) fn client_of(link: &dyn Link) -> ClientKey {
    link.peer_addr()
}
