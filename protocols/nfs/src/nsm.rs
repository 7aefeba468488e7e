//! NSM v1 (X/Open XNFS chapter 11): notifications of restarts, after which a client's locks are
//! void.

use wire::{xdr_enum, xdr_struct};

xdr_enum! {
    /// The procedures called by other hosts; the others are for daemons on the same host.
    pub enum Procedure {
        /// No operation.
        Null = 0,
        /// [`StatChange`], without results.
        Notify = 6,
    }
}

xdr_struct! {
    /// The arguments of NOTIFY (`stat_chge`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct StatChange<'a> {
        /// The name that the restarted host claims.
        pub name: &'a [u8],
        /// Its NSM state number.
        pub state: i32,
    }
}
