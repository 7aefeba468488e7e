//! Extended attributes.
//!
//! After an inode with attributes follow an [`XattrHeader`], the IDs of its shared attributes (4
//! bytes each, in units of 4 bytes from [`super::Superblock::xattr_block`]), then its inline
//! attributes, each an [`XattrEntry`], a name without its prefix, a value, and zeros up to a
//! multiple of 4 bytes. Shared attributes have the same form. A long prefix is a u16 of its length,
//! the index of a short prefix, and the rest of the prefix, aligned to 4 bytes.

use super::record::records;

records! {
    /// The header of an inode's attributes.
    pub struct XattrHeader: 12 {
        /// With [`super::Compat::XATTR_FILTER`]: a set bit means that no name has that hash.
        filter: u32,
        /// Number of shared attributes.
        shared: u8,
        /// Zeros.
        reserved: [u8; 7],
    }

    /// The header of an attribute.
    pub struct XattrEntry: 4 {
        /// Length in bytes of the name after its prefix.
        name_len: u8,
        /// The prefix: [`prefix_name`], or with [`LONG_PREFIX`] the number of a long one.
        prefix: u8,
        /// Length in bytes of the value.
        value_len: u16,
    }
}

/// A flag in a prefix: the rest is the number of a long prefix.
pub const LONG_PREFIX: u8 = 0x80;

/// Returns a short prefix by its index. 2 and 3 are whole names. (5 is Lustre's, which Linux does
/// not show.)
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

/// Returns the size in bytes of the attributes after an inode, including their header, for its
/// `xattr_count`.
pub fn xattr_body_size(xattr_count: u16) -> usize {
    match xattr_count {
        0 => 0,
        count => XattrHeader::SIZE + (usize::from(count) - 1) * 4,
    }
}

/// Returns the `xattr_count` for attributes of `size` bytes (a multiple of 4), including their
/// header; nothing if it overflows.
pub fn xattr_count_for(size: usize) -> Option<u16> {
    match size {
        0 => Some(0),
        _ => u16::try_from((size.checked_sub(XattrHeader::SIZE)?) / 4 + 1).ok(),
    }
}
