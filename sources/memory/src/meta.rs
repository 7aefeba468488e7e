//! The attributes of a node that its state records.

use vfs::Time;

/// Attributes.
pub(crate) struct Meta {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// 0 for a directory that was removed, and for a file without a name.
    pub(crate) nlink: u32,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) btime: Time,
    pub(crate) change: u64,
}
