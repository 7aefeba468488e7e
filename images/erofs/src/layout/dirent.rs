//! Entries of directories.
//!
//! A directory's contents are cut into blocks. Each begins with its entries; their names follow, each from its own offset up to
//! the next one's, the last up to the first NUL or the block's (or the contents') end. Entries are sorted by name, as bytes, within a
//! block and from block to block. `.` (unless [`super::Format::one_link`]) and `..` are among them.

use super::record::records;

records! {
    /// An entry.
    pub struct Dirent: 12 {
        /// The inode's number: [`METABOX_NID`] and what it counts from [`super::Superblock::meta_block`].
        nid: u64,
        /// Where the name begins, from the start of the block: the first entry's tells how many entries there are.
        name_offset: u16,
        /// [`FileType`].
        file_type: u8,
        /// Zero.
        reserved: u8,
    }
}

/// This bit of an inode's number says that it counts within the metabox.
pub const METABOX_NID: u64 = 1 << 63;

/// What an entry says of the inode's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum FileType {
    Unknown = 0,
    File = 1,
    Directory = 2,
    CharDevice = 3,
    BlockDevice = 4,
    Fifo = 5,
    Socket = 6,
    Symlink = 7,
}

impl FileType {
    /// The type of this number; unknown beyond those that there are.
    pub fn from_number(number: u8) -> FileType {
        match number {
            1 => FileType::File,
            2 => FileType::Directory,
            3 => FileType::CharDevice,
            4 => FileType::BlockDevice,
            5 => FileType::Fifo,
            6 => FileType::Socket,
            7 => FileType::Symlink,
            _ => FileType::Unknown,
        }
    }
}
