//! How much clients may make the server remember.

/// Bounds of every table. What is beyond is answered `RESOURCE` (v4.0), `NOSPC` or `DELAY`, whichever
/// the operation may answer.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Clients, confirmed or not.
    pub clients: usize,
    /// Those of one peer.
    pub clients_of_a_peer: usize,
    /// Sessions of a client.
    pub sessions: usize,
    /// Slots of a session.
    pub slots: u32,
    /// Slots of all sessions together: as they run out, sessions get fewer and are asked to give back.
    pub all_slots: usize,
    /// Slots of all sessions of one peer.
    pub slots_of_a_peer: usize,
    /// Bytes of the replies that all slots keep for retries. Beyond, none is kept
    /// (`RETRY_UNCACHED_REP`).
    pub all_cached: usize,
    /// Those of one peer.
    pub cached_of_a_peer: usize,
    /// Bytes of what all clients hold: owners, opens, locks, delegations, and whoever waits.
    pub all_held: usize,
    /// Those of the clients of one peer.
    pub held_of_a_peer: usize,
    /// Connections of a session.
    pub connections: usize,
    /// Opens of a client, and its open owners.
    pub opens: usize,
    /// Opens of all clients together, each of which is an open file or two.
    pub all_opens: usize,
    /// Lock stateids of a client.
    pub locks: usize,
    /// Delegations of a client.
    pub delegations: usize,
    /// Delegations of all clients together, each of which is an open file.
    pub all_delegations: usize,
    /// Delegations of the clients of one peer.
    pub delegations_of_a_peer: usize,
    /// Copies of a client that go on behind their answers, or have ended without the client knowing.
    pub offloads: usize,
    /// Such copies of all clients together that go on, each of which is two open files.
    pub all_offloads: usize,
    /// Those of one peer.
    pub offloads_of_a_peer: usize,
    /// The largest request of a session's, in bytes.
    pub max_request: u32,
    /// The largest reply of a session's, in bytes.
    pub max_response: u32,
    /// The largest reply that is kept for a retry, in bytes.
    pub max_cached: u32,
    /// The most operations of a compound.
    pub max_operations: u32,
    /// How many lease times an expired client keeps what nobody else wants.
    pub courtesy: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            clients: 8192,
            // A peer may be many machines behind one address: a thousand are the clients of one
            // test of pynfs, each with an open file.
            clients_of_a_peer: 2048,
            sessions: 16,
            // Linux asks for 64 and, told that there are more, takes them.
            slots: 256,
            all_slots: 1 << 16,
            slots_of_a_peer: 1 << 14,
            all_cached: 64 << 20,
            cached_of_a_peer: 16 << 20,
            // 400,000 opens.
            all_held: 256 << 20,
            held_of_a_peer: 64 << 20,
            // Linux has at most 16 by nconnect and as many by trunking.
            connections: 64,
            opens: 1 << 16,
            all_opens: 1 << 20,
            locks: 1 << 16,
            // Linux gives some back by itself beyond 5,000.
            delegations: 1 << 13,
            all_delegations: 1 << 14,
            delegations_of_a_peer: 1 << 13,
            // A disk has one head; what is beyond is answered by the second.
            offloads: 16,
            all_offloads: 128,
            offloads_of_a_peer: 32,
            // 1 MiB of data and what stands around it.
            max_request: (1 << 20) + (64 << 10),
            max_response: (1 << 20) + (64 << 10),
            // What a non-idempotent operation answers is small; READ and READDIR may be done again.
            max_cached: 8 << 10,
            // Compounds of clients in use have up to 16; suites try more.
            max_operations: 128,
            // A day of the usual lease, as knfsd grants.
            courtesy: 960,
        }
    }
}
