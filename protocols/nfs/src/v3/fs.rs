//! Whole file systems: FSSTAT, FSINFO, PATHCONF.

use wire::xdr_struct;

use super::{Attributes, Time};

xdr_struct! {
    /// What FSSTAT answers (section 3.3.18).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FsStatOk {
        /// The object's.
        pub attributes: Option<Attributes>,
        /// Bytes in all.
        pub total_bytes: u64,
        /// Bytes free.
        pub free_bytes: u64,
        /// Bytes free to the caller.
        pub available_bytes: u64,
        /// Nodes in all.
        pub total_files: u64,
        /// Nodes free.
        pub free_files: u64,
        /// Nodes free to the caller.
        pub available_files: u64,
        /// For how many seconds this will not change.
        pub invariant_sec: u32,
    }

    /// What FSINFO answers (section 3.3.19). Sizes are bytes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FsInfoOk {
        /// The object's.
        pub attributes: Option<Attributes>,
        /// The largest READ.
        pub read_max: u32,
        /// The best READ.
        pub read_preferred: u32,
        /// What a READ's size should be a multiple of.
        pub read_multiple: u32,
        /// The largest WRITE.
        pub write_max: u32,
        /// The best WRITE.
        pub write_preferred: u32,
        /// What a WRITE's size should be a multiple of.
        pub write_multiple: u32,
        /// The best READDIR.
        pub dir_preferred: u32,
        /// The largest file.
        pub max_file_size: u64,
        /// How fine times are.
        pub time_delta: Time,
        /// Of [`properties`].
        pub properties: u32,
    }

    /// What PATHCONF answers (section 3.3.20).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PathConfOk {
        /// The object's.
        pub attributes: Option<Attributes>,
        /// The most links of a file.
        pub link_max: u32,
        /// The longest name, bytes.
        pub name_max: u32,
        /// Whether longer names are refused, not cut.
        pub no_trunc: bool,
        /// Whether only the super-user may change owners.
        pub chown_restricted: bool,
        /// Whether names that differ in case only are one.
        pub case_insensitive: bool,
        /// Whether names keep their case.
        pub case_preserving: bool,
    }
}

/// The bits of FSINFO.
pub mod properties {
    /// There are hard links.
    pub const LINK: u32 = 0x01;
    /// There are symbolic links.
    pub const SYMLINK: u32 = 0x02;
    /// PATHCONF is the same for all.
    pub const HOMOGENEOUS: u32 = 0x08;
    /// SETATTR can set times.
    pub const CAN_SET_TIME: u32 = 0x10;
}
