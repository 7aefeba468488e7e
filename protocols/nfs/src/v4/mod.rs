//! NFS v4 messages, common to client and server: 4.0 (RFC 7530, 7531), 4.1 (RFC 8881, 5662), 4.2
//! (RFC 7862, 7863) and extended attributes (RFC 8276).

pub(crate) mod acl;
pub(crate) mod attr;
pub(crate) mod callback;
pub(crate) mod op;
pub(crate) mod reply;
mod status;
pub(crate) mod types;

pub(crate) use op::OPERATIONS;
pub use status::Status;
pub use types::{ClientId, SessionId, StateId, Verifier};
