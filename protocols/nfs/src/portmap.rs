//! The portmapper: v2, and rpcbind's v3 and v4 (RFC 1833).

use wire::{xdr_enum, xdr_struct};

/// The portmapper's port.
pub const PORT: u16 = 111;

/// The IP protocol number of TCP.
pub const TCP: u32 = 6;
/// The IP protocol number of UDP.
pub const UDP: u32 = 17;

xdr_enum! {
    /// The supported procedures; the others modify the registry or forward calls.
    pub enum Procedure {
        /// No operation.
        Null = 0,
        /// v2: takes a [`Mapping`], returns its port, 0 if not registered. v3 and v4: takes a
        /// [`Binding`], returns its address, empty if not registered.
        GetPort = 3,
        /// Returns a list: v2 of [`Mapping`], v3 and v4 of [`Binding`].
        Dump = 4,
    }
}

xdr_struct! {
    /// A registration in v2 (`mapping`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs)]
    pub struct Mapping {
        pub program: u32,
        pub version: u32,
        /// [`TCP`] or [`UDP`].
        pub protocol: u32,
        pub port: u32,
    }

    /// A registration in v3 and v4 (`rpcb`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs)]
    pub struct Binding<'a> {
        pub program: u32,
        pub version: u32,
        /// `tcp`, `udp`, `tcp6` or `udp6`.
        pub netid: &'a [u8],
        /// A universal address, with the two bytes of the port at the end: `127.0.0.1.8.1`.
        pub address: &'a [u8],
        pub owner: &'a [u8],
    }
}
