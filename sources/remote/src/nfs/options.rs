//! Mount options.

use super::hidden_log::HiddenLog;
use crate::{ClientOwner, Retry, Timeouts};

/// Mount options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The major and minor version; the best that the server supports if `None`.
    pub version: Option<(u32, u32)>,
    /// The TCP port of MOUNT for v3; the portmapper's answer if `None`.
    pub mount_port: Option<u16>,
    /// The user and group that all callers act as; each caller's own if `None`.
    pub act_as: Option<(u32, u32)>,
    /// Uses READ, which transfers holes as zeros, instead of READ_PLUS.
    pub no_read_plus: bool,
    /// Takes no delegations, so that every open goes to the server (v4.1 and later have
    /// delegations).
    pub no_delegations: bool,
    /// Connects from a reserved port, as servers with `secure` in exports(5) demand.
    pub reserved_port: bool,
    /// The most bytes of one READ and of one WRITE, if less than the limits of both sides.
    pub sizes: (Option<u32>, Option<u32>),
    /// The most bytes of payload in flight, if not the link's default
    /// ([`transports::Payloads::in_flight`]).
    pub in_flight: Option<usize>,
    /// The most bytes of written data that are kept until the server has made them durable, if less
    /// than the default, 128 MiB. A single file has half of that.
    pub uncommitted: Option<usize>,
    /// The timeouts for a server that does not answer.
    pub timeouts: Timeouts,
    /// The retry limit after a lost connection.
    pub retry: Retry,
    /// The client owner for v4, which no other client uses meanwhile; one of its own if `None`.
    pub client_owner: Option<ClientOwner>,
    /// The file for the hidden names of removed files, which the next mount with it removes.
    pub hidden_log: Option<HiddenLog>,
}
