//! The portmapper: v2, and rpcbind's v3 and v4 (RFC 1833).

use wire::{xdr_enum, xdr_struct};

/// Its own port.
pub const PORT: u16 = 111;

/// TCP's number.
pub const TCP: u32 = 6;
/// UDP's number.
pub const UDP: u32 = 17;

xdr_enum! {
    /// The procedures that are answered; the others change or forward what no client should.
    pub enum Procedure {
        /// Nothing.
        Null = 0,
        /// v2: a [`Mapping`] to its port, 0 if there is none. v3 and v4: a [`Binding`] to its address, empty if there is
        /// none.
        GetPort = 3,
        /// v2: nothing to a list of [`Mapping`]. v3 and v4: to one of [`Binding`].
        Dump = 4,
    }
}

xdr_struct! {
    /// Where a program is, by v2 (`mapping`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs)]
    pub struct Mapping {
        pub program: u32,
        pub version: u32,
        /// [`TCP`] or [`UDP`].
        pub protocol: u32,
        pub port: u32,
    }

    /// Where a program is, by v3 and v4 (`rpcb`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs)]
    pub struct Binding<'a> {
        pub program: u32,
        pub version: u32,
        /// `tcp`, `udp`, `tcp6` or `udp6`.
        pub netid: &'a [u8],
        /// An address and two bytes of a port: `127.0.0.1.8.1`.
        pub address: &'a [u8],
        pub owner: &'a [u8],
    }
}
