//! Requests of the process that serves to the broker, and replies.
//!
//! A process may be compromised from its first request on. A request is therefore a kind, with
//! numbers, or with names that the broker compares with those of the configuration. The broker
//! makes texts for others, such as the service manager and the command of `--run`, itself.

use std::ffi::OsString;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::parts::Part;
use crate::child::users::{Found, Query};
use crate::serve::handle_key;
use crate::serve::notify::ClientProgram;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Listens at an address of the configuration, which may be there several times: `place` counts
    /// from 0.
    Listen { addr: String, place: usize },
    /// Closes the sockets that [`Request::Listen`] has opened at an address.
    Close { addr: String },
    /// Asks for an object that a share consists of. A process that gets a root of its own gets the
    /// object for that, once.
    Object { number: u32 },
    /// Asks for an object that was missing before, after its path has been followed again: it is in
    /// the root of the process then, or is passed to one that has no root of its own.
    MissingObject { number: u32 },
    /// Asks for the configuration of the part that the process serves, which is read from the
    /// passed descriptor.
    Configuration,
    /// Binds a UDP socket at a host of the configuration.
    BindUdp { host: String, port: u16 },
    /// Connects a UDP socket to a program of an NFS client, from an address that NFS is served at.
    CallClient {
        from: Option<IpAddr>,
        to: IpAddr,
        program: ClientProgram,
    },
    /// Opens a file of the configuration to read it.
    Read { path: OsString },
    /// Creates a file that the configuration names.
    Create { path: OsString },
    /// Asks for a socket to the state of NFS in etcd.
    NfsState,
    /// Queries the user database.
    Users(Query),
    /// Clients are served. `has_source` is false if the process has sources, and all have failed to
    /// open.
    Ready { has_source: bool },
    /// Connects to an OpenTelemetry collector of the configuration.
    #[cfg(feature = "otel")]
    ConnectCollector { host: String, port: u16 },
    /// Asks for the names of the parts whose figures the status page shows.
    Parts,
    /// Asks for the secret of a server that stores none.
    TemporaryKey,
    /// Asks for a socket to pass connections on that continue in another process.
    HandOver,
    /// Asks for a socket to keep the device at an address of the configuration for a process that
    /// continues after a crash.
    KeepDevice { addr: String },
    /// Asks for a socket from which the connections of an earlier process are received.
    TakeOver,
    /// Asks for figures of a part, which are read from the passed descriptor.
    Figures { part: Part, wanted: Wanted },
}

/// A request to a process that serves, which replies with JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Wanted {
    Status,
    /// The checks of health, those of sources only if `sources`.
    Checks {
        sources: bool,
    },
    /// Hand connections over and end. Only the broker sends it.
    HandOver,
    /// A request about the running set: a [`LiveRequest`](crate::serve::live::LiveRequest), which
    /// precedes its reply, a result, on the passed socket. Only the broker sends it.
    Live,
}

/// Maximum size of a configuration, with the files that it names, in bytes.
pub(super) const MAX_CONFIGURATION: u64 = 1 << 30;

/// Maximum size of the figures of a process in bytes.
pub(super) const MAX_FIGURES: u64 = 4 << 20;

/// A reply.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Done,
    /// The passed socket listens at this address.
    Listening {
        addr: String,
    },
    /// The requested descriptor is passed.
    Descriptor,
    Parts {
        parts: Vec<Part>,
    },
    Users(Found),
    Key {
        key: [u8; handle_key::LEN],
    },
}
