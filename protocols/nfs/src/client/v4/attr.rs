//! GETATTR, SETATTR, ACCESS, and conditions on a node's type.

use vfs::{Attr, Device, StatFs, Time};
use wire::{Malformed, Xdr};

use super::compound::{Operations, Ops, Results};
use crate::client::v3::{Access as Access3, MAGIC};
use crate::client::{Failure, Limits, Tree};
use crate::v4::attr::{Attributes, Bitmap, FileType, NfsTime, SetTime, SpecData, Who, number as n};
use crate::v4::op::{self, Op};
use crate::v4::reply::Accessible;
use crate::v4::{StateId, Status};

pub(super) const GETATTR: u32 = 9;
pub(super) const GETFH: u32 = 10;
pub(super) const PUTFH: u32 = 22;

/// The attributes that stat(2) reports, and the change attribute.
pub(super) const STAT: Bitmap = Bitmap::of(&[
    n::TYPE,
    n::CHANGE,
    n::SIZE,
    n::FSID,
    n::FILEID,
    n::MODE,
    n::NUMLINKS,
    n::OWNER,
    n::OWNER_GROUP,
    n::RAWDEV,
    n::SPACE_USED,
    n::TIME_ACCESS,
    n::TIME_CREATE,
    n::TIME_METADATA,
    n::TIME_MODIFY,
]);

/// The attributes of READDIR entries: those of [`STAT`] and two more.
pub(super) const ENTRY: Bitmap = {
    let mut set = STAT;
    let more = Bitmap::of(&[n::RDATTR_ERROR, n::FILEHANDLE]);
    let mut at = 0;
    while at < set.0.len() {
        set.0[at] |= more.0[at];
        at += 1;
    }
    set
};

impl Tree {
    /// Returns a node's id.
    pub(super) fn id_in(self, from: &Attributes<'_>) -> vfs::NodeId {
        self.node_id(fsid(from), from.fileid.unwrap_or(0))
    }

    /// Converts the attributes of [`STAT`]; type and file id are required.
    pub(super) fn of_v4(self, from: &Attributes<'_>) -> Result<Attr, Malformed> {
        let missing = || Malformed::new("expected a node's type and number");
        let kind = from.kind.and_then(FileType::kind).ok_or_else(missing)?;
        let fileid = from.fileid.ok_or_else(missing)?;
        let fsid = fsid(from);
        let time = |time: Option<NfsTime>| time.map(Time::from).unwrap_or_default();
        let size = from.size.unwrap_or(0);
        let changed = time(from.changed);
        let device = from.device.unwrap_or(SpecData { major: 0, minor: 0 });
        Ok(Attr {
            id: self.node_id(fsid, fileid),
            generation: 0,
            kind,
            mode: from.mode.unwrap_or(0) & 0o7777,
            nlink: from.links.unwrap_or(1),
            uid: id(from.owner),
            gid: id(from.group),
            rdev: Device {
                major: device.major,
                minor: device.minor,
            },
            size,
            blksize: self.blksize,
            blocks: from.space_used.unwrap_or(size).div_ceil(512),
            atime: time(from.accessed),
            mtime: time(from.modified),
            ctime: changed,
            btime: from.created.map(Time::from),
            change: from.change.unwrap_or_else(|| {
                (changed.sec as u64)
                    .wrapping_mul(1_000_000_000)
                    .wrapping_add(changed.nsec.into())
            }),
            device: fsid,
        })
    }
}

/// Returns the file system id as one number.
fn fsid(from: &Attributes<'_>) -> u64 {
    from.fsid
        .map_or(0, |fsid| fsid.major ^ fsid.minor.rotate_left(32))
}

/// Returns the id of a user or group. Names without a numeric id map to 65534 (nobody), except
/// root's.
fn id(who: Option<Who<'_>>) -> u32 {
    const NOBODY: u32 = 65534;
    match who {
        Some(Who::Number(id)) => id,
        Some(Who::Name(name)) if name == b"root" || name.starts_with(b"root@") => 0,
        Some(Who::Name(_)) | None => NOBODY,
    }
}

pub(super) fn set_attributes(set: &vfs::SetAttr) -> Attributes<'static> {
    let time = |time| match time {
        vfs::SetTime::Now => SetTime::Server,
        vfs::SetTime::At(at) => SetTime::Client(at.into()),
    };
    Attributes {
        size: set.size,
        mode: set.mode,
        owner: set.uid.map(Who::Number),
        group: set.gid.map(Who::Number),
        set_accessed: set.atime.map(time),
        set_modified: set.mtime.map(time),
        ..Attributes::default()
    }
}

pub(super) fn mode(mode: u32) -> Attributes<'static> {
    Attributes {
        mode: Some(mode),
        ..Attributes::default()
    }
}

/// A GETATTR of a node.
pub struct GetAttr<'a> {
    /// The node's handle.
    pub handle: &'a [u8],
    /// The tree that the node belongs to.
    pub tree: Tree,
}

impl Operations for GetAttr<'_> {
    type Answer<'r> = Attr;

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.handle)).op(&Op::Getattr(STAT));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Attr, Failure> {
        from.take::<()>(PUTFH)?;
        take(self.tree, from)
    }
}

/// Decodes the results of a GETATTR of [`STAT`].
pub(super) fn take(tree: Tree, from: &mut Results<'_>) -> Result<Attr, Failure> {
    let attributes: Attributes<'_> = from.take(GETATTR)?;
    Ok(tree.of_v4(&attributes)?)
}

/// A SETATTR; returns the new attributes.
pub struct SetAttr<'a> {
    /// The node's handle.
    pub handle: &'a [u8],
    /// The stateid of an open.
    pub state: StateId,
    /// The attributes to set.
    pub set: vfs::SetAttr,
    /// The tree that the node belongs to.
    pub tree: Tree,
}

impl Operations for SetAttr<'_> {
    type Answer<'r> = Attr;

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.handle))
            .op(&Op::Setattr(op::Setattr {
                state: self.state,
                attributes: set_attributes(&self.set),
            }))
            .op(&Op::Getattr(STAT));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Attr, Failure> {
        const SETATTR: u32 = 34;
        from.take::<()>(PUTFH)?;
        from.take::<Bitmap>(SETATTR)?;
        take(self.tree, from)
    }
}

/// An ACCESS; returns the part of `want` that the caller is allowed.
pub struct Access<'a> {
    /// The node's handle.
    pub handle: &'a [u8],
    /// Whether the node is a directory.
    pub directory: bool,
    /// The access to check.
    pub want: vfs::Access,
}

impl Operations for Access<'_> {
    type Answer<'r> = vfs::Access;

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        let bits = Access3::bits(self.directory, self.want);
        to.op(&Op::Putfh(self.handle)).op(&Op::Access(bits));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<vfs::Access, Failure> {
        const ACCESS: u32 = 3;
        from.take::<()>(PUTFH)?;
        let ok: Accessible = from.take(ACCESS)?;
        Ok(Access3::allowed(self.directory, self.want, ok.access))
    }
}

/// A request for a file system's statistics.
pub struct FsStat<'a> {
    /// The handle of a node in the file system.
    pub handle: &'a [u8],
}

impl Operations for FsStat<'_> {
    type Answer<'r> = StatFs;

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        let figures = Bitmap::of(&[
            n::FSID,
            n::FILES_AVAIL,
            n::FILES_FREE,
            n::FILES_TOTAL,
            n::MAXNAME,
            n::SPACE_AVAIL,
            n::SPACE_FREE,
            n::SPACE_TOTAL,
        ]);
        to.op(&Op::Putfh(self.handle)).op(&Op::Getattr(figures));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<StatFs, Failure> {
        from.take::<()>(PUTFH)?;
        let attributes: Attributes<'_> = from.take(GETATTR)?;
        const BLOCK: u64 = 4096;
        let blocks = |bytes: Option<u64>| bytes.unwrap_or(0) / BLOCK;
        Ok(StatFs {
            magic: MAGIC,
            bsize: BLOCK as u32,
            blocks: blocks(attributes.space_total),
            bfree: blocks(attributes.space_free),
            bavail: blocks(attributes.space_available),
            files: attributes.files_total.unwrap_or(0),
            ffree: attributes.files_free.unwrap_or(0),
            fsid: fsid(&attributes),
            namelen: attributes.max_name.unwrap_or(255),
            ..StatFs::default()
        })
    }
}

/// A request for the server's capabilities.
pub struct GetCapabilities<'a> {
    /// The handle of the tree's root.
    pub handle: &'a [u8],
}

/// The server's capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The maximum I/O sizes.
    pub limits: Limits,
    /// The lease time in seconds.
    pub lease: u32,
    /// Whether extended attributes are supported (v4.2).
    pub xattr: bool,
    /// Whether CLONE is supported (v4.2).
    pub clone: bool,
}

impl Operations for GetCapabilities<'_> {
    type Answer<'r> = Capabilities;

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        let requested = Bitmap::of(&[n::MAXREAD, n::MAXWRITE, n::LEASE_TIME, n::XATTR_SUPPORT]);
        to.op(&Op::Putfh(self.handle))
            .op(&Op::Getattr(requested))
            // In a GETATTR of its own, because Ganesha 4.3 does not ignore the attribute but
            // returns INVAL.
            .op(&Op::Getattr(Bitmap::of(&[n::CLONE_BLKSIZE])));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Self::Answer<'r>, Failure> {
        from.take::<()>(PUTFH)?;
        let attributes: Attributes<'_> = from.take(GETATTR)?;
        let most = |bytes: Option<u64>| {
            let bytes = bytes.filter(|&bytes| bytes > 0).unwrap_or(64 << 10);
            bytes.try_into().unwrap_or(u32::MAX)
        };
        let limits = Limits {
            read: most(attributes.max_read),
            write: most(attributes.max_write),
        };
        // RFC 7862 section 12.2.1: the alignment of clones; absent if CLONE is not supported.
        let clone = match from.end_of(GETATTR)? {
            (Status::Ok, rest) => Attributes::get(rest)?.clone_block.unwrap_or(0) > 0,
            (_, _) => false,
        };
        Ok(Capabilities {
            limits,
            lease: attributes.lease_time.unwrap_or(90),
            xattr: attributes.xattr_support.unwrap_or(false),
            clone,
        })
    }
}

/// Adds a VERIFY or NVERIFY that the current node is a directory.
pub(super) fn put_is_directory(is: bool, to: &mut Ops<'_>) {
    let kind = Attributes {
        kind: Some(FileType::Directory),
        ..Attributes::default()
    };
    to.op(&match is {
        true => Op::Verify(kind),
        false => Op::Nverify(kind),
    });
}

/// Decodes the results of GETFH.
pub(super) fn take_handle(from: &mut Results<'_>) -> Result<Box<[u8]>, Failure> {
    /// `NFS4_FHSIZE`
    const MOST: usize = 128;
    let handle: &[u8] = from.take(GETFH)?;
    match handle.len() {
        1..=MOST => Ok(handle.into()),
        len => Err(Malformed::new(format!("a handle of {len} bytes")).into()),
    }
}

/// Decodes results that are not used.
pub(super) fn skip<'r, T: Xdr<'r>>(from: &mut Results<'r>, number: u32) -> Result<(), Failure> {
    from.take::<T>(number).map(drop)
}
