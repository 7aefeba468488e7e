//! Attributes of files and directory entries.

use std::ffi::{OsStr, OsString};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vfs::{Attr, Kind, Time};

/// Attributes of a file at the time of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    attr: Attr,
}

impl Metadata {
    pub(crate) fn new(attr: Attr) -> Metadata {
        Metadata { attr }
    }

    /// All attributes, as in the file-system traits.
    pub fn attr(&self) -> &Attr {
        &self.attr
    }

    /// The kind of file.
    pub fn kind(&self) -> Kind {
        self.attr.kind
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

    /// The time of the last modification of the content.
    pub fn modified(&self) -> SystemTime {
        system_time(self.attr.mtime)
    }

    /// The time of the last access.
    pub fn accessed(&self) -> SystemTime {
        system_time(self.attr.atime)
    }

    /// The creation time, if the source has it.
    pub fn created(&self) -> Option<SystemTime> {
        self.attr.btime.map(system_time)
    }
}

fn system_time(time: Time) -> SystemTime {
    let seconds = Duration::from_secs(time.sec.unsigned_abs());
    let whole = match time.sec {
        0.. => UNIX_EPOCH.checked_add(seconds),
        _ => UNIX_EPOCH.checked_sub(seconds),
    };
    // Times beyond the system's range become the epoch.
    whole.unwrap_or(UNIX_EPOCH) + Duration::from_nanos(time.nsec.into())
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
