//! File systems: FSSTAT, FSINFO, PATHCONF.

use wire::xdr_struct;

use super::{Attributes, Time};

xdr_struct! {
    /// The results of FSSTAT (section 3.3.18).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FsStatOk {
        /// The node's attributes.
        pub attributes: Option<Attributes>,
        /// The total size in bytes.
        pub total_bytes: u64,
        /// The free space in bytes.
        pub free_bytes: u64,
        /// The free space available to the caller in bytes.
        pub available_bytes: u64,
        /// The total number of nodes.
        pub total_files: u64,
        /// The number of free nodes.
        pub free_files: u64,
        /// The number of free nodes available to the caller.
        pub available_files: u64,
        /// The time in seconds for which these figures are expected not to change.
        pub invariant_sec: u32,
    }

    /// The results of FSINFO (section 3.3.19). Sizes are in bytes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FsInfoOk {
        /// The node's attributes.
        pub attributes: Option<Attributes>,
        /// The maximum READ size.
        pub read_max: u32,
        /// The preferred READ size.
        pub read_preferred: u32,
        /// The suggested multiple of READ sizes.
        pub read_multiple: u32,
        /// The maximum WRITE size.
        pub write_max: u32,
        /// The preferred WRITE size.
        pub write_preferred: u32,
        /// The suggested multiple of WRITE sizes.
        pub write_multiple: u32,
        /// The preferred READDIR size.
        pub dir_preferred: u32,
        /// The maximum file size.
        pub max_file_size: u64,
        /// The resolution of times.
        pub time_delta: Time,
        /// The bits of [`properties`].
        pub properties: u32,
    }

    /// The results of PATHCONF (section 3.3.20).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PathConfOk {
        /// The node's attributes.
        pub attributes: Option<Attributes>,
        /// The maximum number of hard links.
        pub link_max: u32,
        /// The maximum length of a name in bytes.
        pub name_max: u32,
        /// Whether longer names are rejected rather than truncated.
        pub no_trunc: bool,
        /// Whether only root may change owners.
        pub chown_restricted: bool,
        /// Whether names are case-insensitive.
        pub case_insensitive: bool,
        /// Whether names preserve their case.
        pub case_preserving: bool,
    }
}

/// The property bits in FSINFO.
pub mod properties {
    /// Hard links are supported.
    pub const LINK: u32 = 0x01;
    /// Symbolic links are supported.
    pub const SYMLINK: u32 = 0x02;
    /// PATHCONF is the same for all nodes.
    pub const HOMOGENEOUS: u32 = 0x08;
    /// SETATTR can set times.
    pub const CAN_SET_TIME: u32 = 0x10;
}
