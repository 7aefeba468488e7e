//! Directory entries.
//!
//! A directory's contents are divided into blocks. Each begins with its entries; their names
//! follow, each from its own offset up to the next one's, the last up to the first NUL or the end
//! of the block (or contents). Entries are sorted by name, as bytes, within a block and across
//! blocks. They include `.` (unless [`super::Format::one_link`]) and `..`.

use super::record::records;

records! {
    /// A directory entry.
    pub struct Dirent: 12 {
        /// The inode number: [`METABOX_NID`] and the position relative to
        /// [`super::Superblock::meta_block`].
        nid: u64,
        /// The offset of the name in the block; the first entry's also gives the number of entries.
        name_offset: u16,
        /// [`FileType`].
        file_type: u8,
        /// Zero.
        reserved: u8,
    }
}

/// A flag in an inode number: the inode is in the metabox.
pub const METABOX_NID: u64 = 1 << 63;

/// The file type in a directory entry.
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
    /// Returns the type with this number, [`FileType::Unknown`] for undefined numbers.
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
