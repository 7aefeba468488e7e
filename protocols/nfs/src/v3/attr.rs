//! Attributes: GETATTR, SETATTR, ACCESS, and what other procedures tell of them.

use vfs::Attr;
use wire::{xdr_enum, xdr_struct, xdr_union};

use super::Handle;

xdr_enum! {
    /// What a node is (`ftype3`).
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
    /// Which device a device node stands for (`specdata3`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[allow(missing_docs)]
    pub struct SpecData {
        pub major: u32,
        pub minor: u32,
    }

    /// A moment: seconds and nanoseconds after the Unix epoch (`nfstime3`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[allow(missing_docs)]
    pub struct Time {
        pub sec: u32,
        pub nsec: u32,
    }

    /// A node's attributes (`fattr3`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Attributes {
        /// What it is.
        pub kind: Kind,
        /// Permission bits, set-id bits and sticky bit: `0o7777`.
        pub mode: u32,
        /// Hard links.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Bytes.
        pub size: u64,
        /// Space used, bytes.
        pub used: u64,
        /// Which device it stands for.
        pub rdev: SpecData,
        /// Which file system it is on.
        pub fsid: u64,
        /// Its number there.
        pub fileid: u64,
        /// Last read.
        pub atime: Time,
        /// Last change of contents.
        pub mtime: Time,
        /// Last change of anything.
        pub ctime: Time,
    }

    /// What a client tells from, whether what it knew was still true before a change (`wcc_attr`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PreAttributes {
        /// Bytes.
        pub size: u64,
        /// Last change of contents.
        pub mtime: Time,
        /// Last change of anything.
        pub ctime: Time,
    }

    /// Attributes before and behind a change (`wcc_data`: weak cache consistency).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Wcc {
        /// Before it.
        pub before: Option<PreAttributes>,
        /// Behind it.
        pub after: Option<Attributes>,
    }

    /// A change of attributes: nothing means leave (`sattr3`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SetAttributes {
        /// New permission bits.
        pub mode: Option<u32>,
        /// New owner.
        pub uid: Option<u32>,
        /// New group.
        pub gid: Option<u32>,
        /// New size.
        pub size: Option<u64>,
        /// New time of last read.
        pub atime: SetTime,
        /// New time of last change of contents.
        pub mtime: SetTime,
    }

    /// SETATTR (section 3.3.2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SetAttrArgs {
        /// Of what.
        pub object: Handle,
        /// What to change.
        pub attributes: SetAttributes,
        /// Only if this is its ctime.
        pub guard: Guard,
    }

    /// ACCESS (section 3.3.4).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AccessArgs {
        /// To what.
        pub object: Handle,
        /// Which of [`access`].
        pub access: u32,
    }

    /// What ACCESS answers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AccessOk {
        /// The object's.
        pub attributes: Option<Attributes>,
        /// What of it is allowed.
        pub access: u32,
    }
}

/// The ctime that an object must have (`sattrguard3`).
pub type Guard = Option<Time>;

xdr_union! {
    /// A new time stamp (`set_atime`, `set_mtime`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum SetTime {
        /// Leave it.
        #[default]
        Keep = 0,
        /// The server's own clock.
        Now = 1,
        /// This moment.
        At(Time) = 2,
    }
}

/// The bits of ACCESS.
pub mod access {
    /// Read a file, list a directory.
    pub const READ: u32 = 0x01;
    /// Look up in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Write what is in a file, replace entries of a directory.
    pub const MODIFY: u32 = 0x04;
    /// Write behind the end of a file, add entries to a directory.
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
    /// The nearest moment that there is: nothing is before 1970.
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
            used: attr.blocks.saturating_mul(512),
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
            // As a change of owner or size does wherever the file is local.
            kill_priv: set.uid.is_some() || set.gid.is_some() || set.size.is_some(),
        }
    }
}
