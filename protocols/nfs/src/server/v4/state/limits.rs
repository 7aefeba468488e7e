//! The limits of the server's state.

/// The limits of all tables. An operation beyond a limit fails with `RESOURCE` (v4.0), `NOSPC` or
/// `DELAY`, whichever is among its errors.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Clients, confirmed or not.
    pub clients: usize,
    /// Clients of one peer.
    pub clients_of_a_peer: usize,
    /// Sessions of a client.
    pub sessions: usize,
    /// Slots of a session.
    pub slots: u32,
    /// Slots of all sessions, except the first of each. As they run out, sessions get fewer, and
    /// others are asked to return some.
    pub all_slots: usize,
    /// Slots of all sessions of one peer, likewise.
    pub slots_of_a_peer: usize,
    /// Bytes of the cached replies in all slots. Replies beyond that are not cached
    /// (`RETRY_UNCACHED_REP`).
    pub all_cached_bytes: usize,
    /// Bytes of the cached replies of one peer.
    pub cached_bytes_of_a_peer: usize,
    /// Bytes of the state of all clients: owners, opens, locks, delegations and waiting lock
    /// owners.
    pub all_state_bytes: usize,
    /// Bytes of the state of one peer's clients.
    pub state_bytes_of_a_peer: usize,
    /// Connections of a session.
    pub connections: usize,
    /// Opens of a client, and its open owners.
    pub opens: usize,
    /// Opens of all clients, each with an open file or two.
    pub all_opens: usize,
    /// Lock stateids of a client.
    pub locks: usize,
    /// Delegations of a client.
    pub delegations: usize,
    /// Delegations of all clients, each with an open file.
    pub all_delegations: usize,
    /// Delegations of the clients of one peer.
    pub delegations_of_a_peer: usize,
    /// Asynchronous copies of a client, in progress or with an end unknown to the client.
    pub offloads: usize,
    /// Asynchronous copies of all clients in progress, each with two open files.
    pub all_offloads: usize,
    /// Asynchronous copies of one peer in progress.
    pub offloads_of_a_peer: usize,
    /// The maximum size of a session's requests, in bytes.
    pub max_request: u32,
    /// The maximum size of a session's replies, in bytes.
    pub max_response: u32,
    /// The maximum size of a cached reply, in bytes.
    pub max_cached: u32,
    /// The maximum number of operations in a compound.
    pub max_operations: u32,
    /// The number of lease times for which an expired client keeps state without conflicts.
    pub courtesy: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            clients: 8192,
            // A peer may be many machines behind one address: one test of pynfs creates a thousand
            // clients, each with an open file.
            clients_of_a_peer: 2048,
            sessions: 16,
            // Linux asks for 64, and uses more if SEQUENCE offers more.
            slots: 256,
            all_slots: 1 << 16,
            slots_of_a_peer: 1 << 14,
            all_cached_bytes: 64 << 20,
            cached_bytes_of_a_peer: 16 << 20,
            // 400,000 opens.
            all_state_bytes: 256 << 20,
            state_bytes_of_a_peer: 64 << 20,
            // Linux has at most 16 with nconnect and as many with trunking.
            connections: 64,
            opens: 1 << 16,
            all_opens: 1 << 20,
            locks: 1 << 16,
            // Linux returns some by itself beyond 5,000.
            delegations: 1 << 13,
            all_delegations: 1 << 14,
            delegations_of_a_peer: 1 << 13,
            // A disk has one head; copies beyond the limit run synchronously, a second at a time.
            offloads: 16,
            all_offloads: 128,
            offloads_of_a_peer: 32,
            // 1 MiB of data and the headers around it.
            max_request: (1 << 20) + (64 << 10),
            max_response: (1 << 20) + (64 << 10),
            // The results of non-idempotent operations are small; READ and READDIR may be repeated.
            max_cached: 8 << 10,
            // Compounds of real clients have up to 16; test suites try more.
            max_operations: 128,
            // A day with the default lease time, as in knfsd.
            courtesy: 960,
        }
    }
}
