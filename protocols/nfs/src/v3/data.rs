//! Data: READ, WRITE, COMMIT.

use wire::{xdr_enum, xdr_struct};

use super::{Attributes, Handle, Verifier, Wcc};

xdr_struct! {
    /// The arguments of READ (section 3.3.6).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReadArgs {
        /// The file's handle.
        pub file: Handle,
        /// The offset of the first byte.
        pub offset: u64,
        /// The maximum number of bytes.
        pub count: u32,
    }

    /// The results of READ.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReadOk<'a> {
        /// The file's attributes.
        pub attributes: Option<Attributes>,
        /// The number of bytes.
        pub count: u32,
        /// Whether the data reach the end of the file.
        pub eof: bool,
        /// The data.
        pub data: &'a [u8],
    }

    /// The arguments of WRITE (section 3.3.7).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WriteArgs<'a> {
        /// The file's handle.
        pub file: Handle,
        /// The offset of the first byte.
        pub offset: u64,
        /// The number of bytes.
        pub count: u32,
        /// The requested stability.
        pub stable: Stable,
        /// The data.
        pub data: &'a [u8],
    }

    /// The results of WRITE.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WriteOk {
        /// The file's attributes before and after.
        pub file: Wcc,
        /// The number of bytes written.
        pub count: u32,
        /// The stability of the data.
        pub committed: Stable,
        /// The write verifier: COMMIT returns another one if unstable data may have been lost in
        /// between.
        pub verifier: Verifier,
    }

    /// The arguments of COMMIT (section 3.3.21).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CommitArgs {
        /// The file's handle.
        pub file: Handle,
        /// The offset of the first byte.
        pub offset: u64,
        /// The number of bytes; 0 for up to the end of the file.
        pub count: u32,
    }

    /// The results of COMMIT.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CommitOk {
        /// The file's attributes before and after.
        pub file: Wcc,
        /// The write verifier, as in WRITE.
        pub verifier: Verifier,
    }
}

xdr_enum! {
    /// The stability of a write (`stable_how`).
    pub enum Stable {
        /// Lost if the server restarts before a COMMIT.
        Unstable = 0,
        /// The data and the metadata needed to read them back are on stable storage.
        DataSync = 1,
        /// The data and all metadata are on stable storage.
        FileSync = 2,
    }
}
