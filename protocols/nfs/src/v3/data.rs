//! Data: READ, WRITE, COMMIT.

use wire::{xdr_enum, xdr_struct};

use super::{Attributes, Handle, Verifier, Wcc};

xdr_struct! {
    /// READ (section 3.3.6).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReadArgs {
        /// Of what.
        pub file: Handle,
        /// From where.
        pub offset: u64,
        /// How many bytes at most.
        pub count: u32,
    }

    /// What READ answers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReadOk<'a> {
        /// The file's.
        pub attributes: Option<Attributes>,
        /// How many bytes.
        pub count: u32,
        /// Whether the file ends behind them.
        pub eof: bool,
        /// The bytes.
        pub data: &'a [u8],
    }

    /// WRITE (section 3.3.7).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WriteArgs<'a> {
        /// Of what.
        pub file: Handle,
        /// To where.
        pub offset: u64,
        /// How many bytes.
        pub count: u32,
        /// How durable they shall be when it is answered.
        pub stable: Stable,
        /// The bytes.
        pub data: &'a [u8],
    }

    /// What WRITE answers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WriteOk {
        /// The file's.
        pub file: Wcc,
        /// How many bytes were written.
        pub count: u32,
        /// How durable they are.
        pub committed: Stable,
        /// Differs from that of COMMIT if unstable writes were lost in between.
        pub verifier: Verifier,
    }

    /// COMMIT (section 3.3.21).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CommitArgs {
        /// Of what.
        pub file: Handle,
        /// From where.
        pub offset: u64,
        /// How many bytes; 0 is to the end.
        pub count: u32,
    }

    /// What COMMIT answers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CommitOk {
        /// The file's.
        pub file: Wcc,
        /// As WRITE's.
        pub verifier: Verifier,
    }
}

xdr_enum! {
    /// How durable a write is (`stable_how`).
    pub enum Stable {
        /// Until the server ends, or a COMMIT makes it durable.
        Unstable = 0,
        /// The data is durable, and what reading it back needs.
        DataSync = 1,
        /// Everything is.
        FileSync = 2,
    }
}
