//! NSM v1 (X/Open XNFS chapter 11): who has restarted, so that its locks are nobody's any more.

use wire::{xdr_enum, xdr_struct};

xdr_enum! {
    /// The procedures that a peer on another machine calls; the others are between daemons of one machine.
    pub enum Procedure {
        /// Nothing.
        Null = 0,
        /// [`Changed`] to nothing.
        Notify = 6,
    }
}

xdr_struct! {
    /// NOTIFY (`stat_chge`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Changed<'a> {
        /// Whose: its name for itself.
        pub name: &'a [u8],
        /// Which of its lives this is.
        pub state: i32,
    }
}
