//! Attributes of files, directory entries, and the space of file systems.

use std::ffi::{OsStr, OsString};
use std::time::{SystemTime, UNIX_EPOCH};

use vfs::{Attr, Kind, StatFs, Time};

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A Unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// Attributes of a file at the time of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    attr: Attr,
}

impl Metadata {
    pub(crate) fn new(attr: Attr) -> Metadata {
        Metadata { attr }
    }

    /// The type of the file.
    pub fn file_type(&self) -> FileType {
        match self.attr.kind {
            Kind::File => FileType::File,
            Kind::Directory => FileType::Directory,
            Kind::Symlink => FileType::Symlink,
            Kind::Fifo => FileType::Fifo,
            Kind::Socket => FileType::Socket,
            Kind::CharDevice => FileType::CharDevice,
            Kind::BlockDevice => FileType::BlockDevice,
        }
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.attr.kind == Kind::Directory
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.attr.kind == Kind::File
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.attr.kind == Kind::Symlink
    }

    /// The size in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.attr.size
    }

    /// The permission bits, set-id bits and sticky bit: `0o7777`.
    pub fn mode(&self) -> u32 {
        self.attr.mode
    }

    /// The type and the permissions, as `st_mode` of inode(7).
    pub fn st_mode(&self) -> u32 {
        self.attr.st_mode()
    }

    /// The user that owns the file.
    pub fn uid(&self) -> u32 {
        self.attr.uid
    }

    /// The group that owns the file.
    pub fn gid(&self) -> u32 {
        self.attr.gid
    }

    /// The number of the file, which no other file with the same [`Metadata::dev`] has.
    pub fn ino(&self) -> u64 {
        self.attr.id
    }

    /// The number of the file system within the source.
    pub fn dev(&self) -> u64 {
        self.attr.device
    }

    /// The number of names of the file.
    pub fn nlink(&self) -> u32 {
        self.attr.nlink
    }

    /// The major and the minor number of a device; zeros for other files.
    pub fn rdev(&self) -> (u32, u32) {
        (self.attr.rdev.major, self.attr.rdev.minor)
    }

    /// The space that the file takes, in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.attr.blocks
    }

    /// The preferred size of reads and writes in bytes.
    pub fn blksize(&self) -> u32 {
        self.attr.blksize
    }

    /// The time of the last modification of the content.
    pub fn modified(&self) -> SystemTime {
        system_time(self.attr.mtime)
    }

    /// The time of the last access.
    pub fn accessed(&self) -> SystemTime {
        system_time(self.attr.atime)
    }

    /// The time of the last change of the content or the attributes.
    pub fn changed(&self) -> SystemTime {
        system_time(self.attr.ctime)
    }

    /// The creation time, if the source has it.
    pub fn created(&self) -> Option<SystemTime> {
        self.attr.btime.map(system_time)
    }
}

/// Converts a time. One beyond the system's range becomes the epoch.
fn system_time(time: Time) -> SystemTime {
    time.to_system_time().unwrap_or(UNIX_EPOCH)
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    pub(crate) name: OsString,
    pub(crate) metadata: Option<Metadata>,
}

impl DirEntry {
    /// The entry's name.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// The entry's attributes, a symbolic link's own; `None` if they could not be read.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }
}

/// The space of a file system, or of a share with a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Space {
    /// The unit in which the source counts, in bytes.
    pub block_size: u32,
    /// All bytes.
    pub total: u64,
    /// Free bytes.
    pub free: u64,
    /// Bytes that are free for unprivileged users.
    pub available: u64,
    /// The most files; 0 if there is no limit.
    pub files: u64,
    /// The number of files that may still be created.
    pub files_free: u64,
}

impl Space {
    pub(crate) fn new(stat: StatFs) -> Space {
        let bytes = |blocks: u64| blocks.saturating_mul(stat.bsize.into());
        Space {
            block_size: stat.bsize,
            total: bytes(stat.blocks),
            free: bytes(stat.bfree),
            available: bytes(stat.bavail),
            files: stat.files,
            files_free: stat.ffree,
        }
    }
}
