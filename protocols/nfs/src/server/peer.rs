//! The peer that a call counts for in limits per peer.

use vfs::{Call, Peer, PeerKey};

/// The key of a peer; `None` for calls without a connection: a guest's queues, and this program's
/// own.
pub(crate) type Key = Option<PeerKey>;

/// The key of the peer of `call`.
pub(crate) fn key(call: &Call) -> Key {
    call.peer().map(Peer::key)
}

/// The key of a host at `addr`.
#[cfg(test)]
pub(crate) fn of_addr(addr: std::net::IpAddr) -> Key {
    Some(PeerKey::Addr(addr))
}
