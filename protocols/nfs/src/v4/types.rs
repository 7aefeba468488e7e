//! What operations are made of.

use wire::xdr_struct;

/// A client's short name, given by the server.
pub type ClientId = u64;

/// A session's name, given by the server.
pub type SessionId = [u8; 16];

xdr_struct! {
    /// Names an open, a lock or a delegation, and which of its states (`stateid4`, RFC 8881 section 3.3.12).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct StateId {
        /// Which of its states: counts up with each change.
        pub seqid: u32,
        /// What it names.
        pub other: [u8; 12],
    }
}

impl StateId {
    /// No open at all: I/O that honours others' share reservations (RFC 8881 section 8.2.3).
    pub const ANONYMOUS: StateId = StateId {
        seqid: 0,
        other: [0; 12],
    };

    /// No open, and no share reservation either.
    pub const BYPASS: StateId = StateId {
        seqid: u32::MAX,
        other: [0xff; 12],
    };

    /// Whatever the last operation of this compound that made one made (v4.1).
    pub const CURRENT: StateId = StateId {
        seqid: 1,
        other: [0; 12],
    };
}
