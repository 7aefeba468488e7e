//! What is told of files.

use std::ffi::{OsStr, OsString};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vfs::{Attr, Kind, Time};

/// Attributes of a file, as of when they were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    attr: Attr,
}

impl Metadata {
    pub(crate) fn new(attr: Attr) -> Metadata {
        Metadata { attr }
    }

    /// All there is, in the words of the file-system traits.
    pub fn attr(&self) -> &Attr {
        &self.attr
    }

    /// What it is.
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

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.attr.size
    }

    /// Permission bits, set-id bits and sticky bit: `0o7777`.
    pub fn mode(&self) -> u32 {
        self.attr.mode
    }

    /// When its contents were changed last.
    pub fn modified(&self) -> SystemTime {
        system_time(self.attr.mtime)
    }

    /// When it was read last.
    pub fn accessed(&self) -> SystemTime {
        system_time(self.attr.atime)
    }

    /// When it was made, where the source knows.
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
    // A time beyond what the system has is the epoch's.
    whole.unwrap_or(UNIX_EPOCH) + Duration::from_nanos(time.nsec.into())
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    pub(crate) name: OsString,
    pub(crate) metadata: Option<Metadata>,
}

impl DirEntry {
    /// Its name.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Its attributes, a link's own; nothing if it could not be looked at.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }
}
