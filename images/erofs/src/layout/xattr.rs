//! Extended attributes.
//!
//! Behind an inode with attributes: an [`XattrHeader`], the numbers of its shared attributes (4 bytes each, in units of 4 bytes from
//! [`super::Superblock::xattr_block`]), then its own, each an [`XattrEntry`], a name without its prefix, a value, and zeros up to 4 bytes.
//! Shared ones look the same. A long prefix is a u16 of its length, the index of a short prefix, and what stands between that and the name, from a multiple of 4 bytes.

use super::record::records;

records! {
    /// What attributes begin with.
    pub struct XattrHeader: 12 {
        /// With [`super::Compat::XATTR_FILTER`]: a bit that is set says that no name has that hash.
        filter: u32,
        /// Shared attributes.
        shared: u8,
        /// Zeros.
        reserved: [u8; 7],
    }

    /// What an attribute begins with.
    pub struct XattrEntry: 4 {
        /// Bytes of the name behind its prefix.
        name_len: u8,
        /// The prefix: [`prefix_name`], or with [`LONG_PREFIX`] the number of a long one.
        prefix: u8,
        /// Bytes of the value.
        value_len: u16,
    }
}

/// This bit of a prefix says that it is the number of a long one.
pub const LONG_PREFIX: u8 = 0x80;

/// A short prefix by its index. 2 and 3 are whole names. (5 is Lustre's, which Linux does not show.)
pub fn prefix_name(index: u8) -> Option<&'static str> {
    Some(match index {
        1 => "user.",
        2 => "system.posix_acl_access",
        3 => "system.posix_acl_default",
        4 => "trusted.",
        6 => "security.",
        _ => return None,
    })
}

/// Bytes of attributes behind an inode, header included, for its `xattr_count`.
pub fn xattr_body_size(xattr_count: u16) -> usize {
    match xattr_count {
        0 => 0,
        count => XattrHeader::SIZE + (usize::from(count) - 1) * 4,
    }
}

/// The `xattr_count` of `size` bytes of attributes, header included (a multiple of 4); nothing if they are too many.
pub fn xattr_count_for(size: usize) -> Option<u16> {
    match size {
        0 => Some(0),
        _ => u16::try_from((size.checked_sub(XattrHeader::SIZE)?) / 4 + 1).ok(),
    }
}
