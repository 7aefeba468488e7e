//! Attributes: GETATTR, SETATTR, ACCESS, and the attributes in other procedures' results.

use vfs::Attr;
use wire::{xdr_enum, xdr_struct, xdr_union};

use super::Handle;

xdr_enum! {
    /// The type of a node (`ftype3`).
    #[allow(missing_docs)]
    pub enum Kind {
        File = 1,
        Directory = 2,
        BlockDevice = 3,
        CharDevice = 4,
        Symlink = 5,
        Socket = 6,
        Fifo = 7,
    }
}

xdr_struct! {
    /// A device number (`specdata3`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[allow(missing_docs)]
    pub struct SpecData {
        pub major: u32,
        pub minor: u32,
    }

    /// A time: seconds and nanoseconds since the Unix epoch (`nfstime3`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[allow(missing_docs)]
    pub struct Time {
        pub sec: u32,
        pub nsec: u32,
    }

    /// A node's attributes (`fattr3`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Attributes {
        /// The type.
        pub kind: Kind,
        /// Permission bits, set-id bits and sticky bit: `0o7777`.
        pub mode: u32,
        /// The number of hard links.
        pub nlink: u32,
        /// The owner.
        pub uid: u32,
        /// The group.
        pub gid: u32,
        /// The size in bytes.
        pub size: u64,
        /// The space used, in bytes.
        pub used: u64,
        /// The device number of a device node.
        pub rdev: SpecData,
        /// The file system id.
        pub fsid: u64,
        /// The file id, unique in the file system.
        pub fileid: u64,
        /// The time of the last read.
        pub atime: Time,
        /// The time of the last change of the contents.
        pub mtime: Time,
        /// The time of the last change of contents or attributes.
        pub ctime: Time,
    }

    /// The attributes before a change, from which a client tells whether its cache was valid
    /// (`wcc_attr`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PreAttributes {
        /// The size in bytes.
        pub size: u64,
        /// The time of the last change of the contents.
        pub mtime: Time,
        /// The time of the last change of contents or attributes.
        pub ctime: Time,
    }

    /// The attributes before and after a change (`wcc_data`: weak cache consistency).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Wcc {
        /// Before the change.
        pub before: Option<PreAttributes>,
        /// After the change.
        pub after: Option<Attributes>,
    }

    /// New attributes; `None` leaves one unchanged (`sattr3`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SetAttributes {
        /// The permission bits.
        pub mode: Option<u32>,
        /// The owner.
        pub uid: Option<u32>,
        /// The group.
        pub gid: Option<u32>,
        /// The size in bytes.
        pub size: Option<u64>,
        /// The time of the last read.
        pub atime: SetTime,
        /// The time of the last change of the contents.
        pub mtime: SetTime,
    }

    /// The arguments of SETATTR (section 3.3.2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SetAttrArgs {
        /// The node's handle.
        pub object: Handle,
        /// The attributes to set.
        pub attributes: SetAttributes,
        /// The ctime that the node must have, if any.
        pub guard: Guard,
    }

    /// The arguments of ACCESS (section 3.3.4).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AccessArgs {
        /// The node's handle.
        pub object: Handle,
        /// The bits of [`access`] to check.
        pub access: u32,
    }

    /// The results of ACCESS.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AccessOk {
        /// The node's attributes.
        pub attributes: Option<Attributes>,
        /// The bits that are granted.
        pub access: u32,
    }
}

/// The ctime that the node must have (`sattrguard3`).
pub type Guard = Option<Time>;

xdr_union! {
    /// A new value of a time (`set_atime`, `set_mtime`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum SetTime {
        /// Unchanged.
        #[default]
        Keep = 0,
        /// The server's current time.
        Now = 1,
        /// This time.
        At(Time) = 2,
    }
}

/// The bits of ACCESS.
pub mod access {
    /// Read a file, list a directory.
    pub const READ: u32 = 0x01;
    /// Look up in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Write existing data of a file, replace entries of a directory.
    pub const MODIFY: u32 = 0x04;
    /// Extend a file, add entries to a directory.
    pub const EXTEND: u32 = 0x08;
    /// Remove entries of a directory.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
}

impl From<vfs::Kind> for Kind {
    fn from(kind: vfs::Kind) -> Kind {
        match kind {
            vfs::Kind::File => Kind::File,
            vfs::Kind::Directory => Kind::Directory,
            vfs::Kind::BlockDevice => Kind::BlockDevice,
            vfs::Kind::CharDevice => Kind::CharDevice,
            vfs::Kind::Symlink => Kind::Symlink,
            vfs::Kind::Socket => Kind::Socket,
            vfs::Kind::Fifo => Kind::Fifo,
        }
    }
}

impl From<vfs::Time> for Time {
    /// Clamps times out of range; the earliest time is 1970.
    fn from(time: vfs::Time) -> Time {
        match u32::try_from(time.sec) {
            Ok(sec) => Time {
                sec,
                nsec: time.nsec,
            },
            Err(_) if time.sec < 0 => Time::default(),
            Err(_) => Time {
                sec: u32::MAX,
                nsec: 0,
            },
        }
    }
}

impl From<Time> for vfs::Time {
    fn from(time: Time) -> vfs::Time {
        vfs::Time {
            sec: time.sec.into(),
            nsec: time.nsec,
        }
    }
}

impl From<&Attr> for Attributes {
    fn from(attr: &Attr) -> Attributes {
        Attributes {
            kind: attr.kind.into(),
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            used: attr.allocated(),
            rdev: SpecData {
                major: attr.rdev.major,
                minor: attr.rdev.minor,
            },
            fsid: attr.device,
            fileid: attr.id,
            atime: attr.atime.into(),
            mtime: attr.mtime.into(),
            ctime: attr.ctime.into(),
        }
    }
}

impl From<&Attr> for PreAttributes {
    fn from(attr: &Attr) -> PreAttributes {
        PreAttributes {
            size: attr.size,
            mtime: attr.mtime.into(),
            ctime: attr.ctime.into(),
        }
    }
}

impl From<&SetAttributes> for vfs::SetAttr {
    fn from(set: &SetAttributes) -> vfs::SetAttr {
        let time = |time| match time {
            SetTime::Keep => None,
            SetTime::Now => Some(vfs::SetTime::Now),
            SetTime::At(time) => Some(vfs::SetTime::At(time.into())),
        };
        vfs::SetAttr {
            mode: set.mode.map(|mode| mode & 0o7777),
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: time(set.atime),
            mtime: time(set.mtime),
            ctime: false,
            // As a local change of owner or size does.
            kill_priv: set.uid.is_some() || set.gid.is_some() || set.size.is_some(),
        }
    }
}
