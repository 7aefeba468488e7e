//! Attributes: GETATTR, SETATTR, VERIFY, NVERIFY, ACCESS (RFC 8881 sections 18.1, 18.7, 18.30 to 18.32).

use std::sync::Arc;

use vfs::{Access, Attr, Errno, Kind, Node, SetAttr, StatFs, Want};
use wire::{Buffered, Outgoing as _};

use super::state::Share;
use super::{Compound, Done};
use crate::server::Server;
use crate::v4::Status;
use crate::v4::attr::{
    Attributes, Bitmap, FileType, FsId, NfsTime, SetTime, SpecData, Who, number as n,
};
use crate::v4::op::Setattr;
use crate::v4::reply::Accessible;

/// What can be set.
const SETTABLE: Bitmap = Bitmap::of(&[
    n::SIZE,
    n::MODE,
    n::OWNER,
    n::OWNER_GROUP,
    n::TIME_ACCESS_SET,
    n::TIME_MODIFY_SET,
    n::MODE_UMASK,
]);

/// What can only be set.
pub(super) const WRITE_ONLY: Bitmap =
    Bitmap::of(&[n::TIME_ACCESS_SET, n::TIME_MODIFY_SET, n::MODE_UMASK]);

/// What tells of the file system rather than of a node.
const FILE_SYSTEM: Bitmap = Bitmap::of(&[
    n::FILES_AVAIL,
    n::FILES_FREE,
    n::FILES_TOTAL,
    n::SPACE_AVAIL,
    n::SPACE_FREE,
    n::SPACE_TOTAL,
]);

/// Which attributes a minor version has.
pub(super) fn supported(minor: u32) -> Bitmap {
    const ACL: Bitmap = Bitmap::of(&[n::ACL]);
    const OF_4_1: Bitmap = Bitmap::of(&[n::FS_LAYOUT_TYPES, n::SUPPATTR_EXCLCREAT]);
    const OF_4_2: Bitmap = Bitmap::of(&[
        n::CLONE_BLKSIZE,
        n::CHANGE_ATTR_TYPE,
        n::MODE_UMASK,
        n::XATTR_SUPPORT,
    ]);
    let all = Attributes::KNOWN.without(&ACL);
    match minor {
        0 => all.without(&OF_4_2).without(&OF_4_1),
        1 => all.without(&OF_4_2),
        _ => all,
    }
}

/// What an exclusive create does not take: its verifier is kept in the times, and it makes nothing but empty files.
pub(super) const NOT_EXCLUSIVE: Bitmap =
    Bitmap::of(&[n::TIME_ACCESS_SET, n::TIME_MODIFY_SET, n::SIZE]);

/// Which attributes an exclusive create takes.
fn exclusive(minor: u32) -> Bitmap {
    supported(minor).and(&SETTABLE).without(&NOT_EXCLUSIVE)
}

/// A node whose attributes are told.
pub(super) struct Described<'a> {
    pub(super) node: &'a Arc<dyn Node>,
    pub(super) attr: &'a Attr,
    /// Its handle, if that is wanted.
    pub(super) handle: Option<Vec<u8>>,
    /// Figures of its file system, if they are wanted.
    pub(super) figures: Option<StatFs>,
}

impl Described<'_> {
    /// Those of its attributes that are in `want`, which a minor version supports.
    pub(super) fn attributes(&self, server: &Server, minor: u32, want: &Bitmap) -> Attributes<'_> {
        let attr = self.attr;
        let figures = self.figures.unwrap_or_default();
        let blocks = |count: u64| count.saturating_mul(figures.bsize.into());
        let max_io = server.options.max_io.into();
        let can = &server.capabilities;
        macro_rules! given {
            ($($constant:ident $field:ident: $value:expr,)*) => {
                Attributes {
                    $($field: want.has(n::$constant).then(|| $value),)*
                    ..Attributes::default()
                }
            };
        }
        given! {
            SUPPORTED supported: supported(minor),
            TYPE kind: FileType::from(attr.kind),
            // FH4_PERSISTENT.
            FH_EXPIRE_TYPE handle_expires: 0,
            CHANGE change: attr.change,
            SIZE size: attr.size,
            LINK_SUPPORT link_support: true,
            SYMLINK_SUPPORT symlink_support: true,
            NAMED_ATTR named_attributes: false,
            FSID fsid: FsId { major: attr.device, minor: 0 },
            UNIQUE_HANDLES unique_handles: true,
            LEASE_TIME lease_time: server.options.lease.as_secs() as u32,
            RDATTR_ERROR read_error: Status::Ok as u32,
            ACLSUPPORT acl_support: 0,
            CANSETTIME can_set_time: true,
            CASE_INSENSITIVE case_insensitive: false,
            CASE_PRESERVING case_preserving: true,
            CHOWN_RESTRICTED chown_restricted: true,
            FILEHANDLE handle: self.handle.as_deref().unwrap_or_default(),
            FILEID fileid: attr.id,
            FILES_AVAIL files_available: figures.ffree,
            FILES_FREE files_free: figures.ffree,
            FILES_TOTAL files_total: figures.files,
            HOMOGENEOUS homogeneous: true,
            MAXFILESIZE max_file_size: i64::MAX as u64,
            MAXLINK max_link: 32000,
            MAXNAME max_name: vfs::Name::MAX as u32,
            MAXREAD max_read: max_io,
            MAXWRITE max_write: max_io,
            MODE mode: attr.mode,
            NO_TRUNC no_trunc: true,
            NUMLINKS links: attr.nlink,
            OWNER owner: Who::Number(attr.uid),
            OWNER_GROUP group: Who::Number(attr.gid),
            RAWDEV device: SpecData { major: attr.rdev.major, minor: attr.rdev.minor },
            SPACE_AVAIL space_available: blocks(figures.bavail),
            SPACE_FREE space_free: blocks(figures.bfree),
            SPACE_TOTAL space_total: blocks(figures.blocks),
            SPACE_USED space_used: attr.blocks.saturating_mul(512),
            TIME_ACCESS accessed: NfsTime::from(attr.atime),
            TIME_CREATE created: NfsTime::from(attr.btime.unwrap_or_default()),
            TIME_DELTA time_delta: NfsTime { seconds: 0, nseconds: 1 },
            TIME_METADATA changed: NfsTime::from(attr.ctime),
            TIME_MODIFY modified: NfsTime::from(attr.mtime),
            MOUNTED_ON_FILEID mounted_on: attr.id,
            FS_LAYOUT_TYPES layouts: Vec::new(),
            SUPPATTR_EXCLCREAT supported_exclusive: exclusive(minor),
            CLONE_BLKSIZE clone_block: if can.clone == vfs::Level::None { 0 } else { attr.blksize },
            // NFS4_CHANGE_TYPE_IS_UNDEFINED: it may be made of times.
            CHANGE_ATTR_TYPE change_type: 4,
            XATTR_SUPPORT xattr_support: can.xattr != vfs::Level::None && matches!(self.node.kind(), Kind::File | Kind::Directory),
        }
    }
}

/// What of a node has to be asked for to tell `want`.
pub(super) fn needed(want: &Bitmap) -> Want {
    let mut needed = Want::STAT;
    if want.has(n::TIME_CREATE) {
        needed |= Want::BTIME;
    }
    needed
}

impl Compound<'_, '_> {
    /// `node`, with what else there is to tell of it for `want`.
    fn describe<'a>(
        &self,
        node: &'a Arc<dyn Node>,
        attr: &'a Attr,
        want: &Bitmap,
    ) -> Result<Described<'a>, Errno> {
        let cx = self.cx();
        let handle = match want.has(n::FILEHANDLE) {
            true => Some(self.turn.server.handle(&cx, node)?.bytes()),
            false => None,
        };
        let figures = match want.and(&FILE_SYSTEM).is_empty() {
            true => None,
            false => Some(node.statfs(&cx)?),
        };
        Ok(Described {
            node,
            attr,
            handle,
            figures,
        })
    }

    pub(super) fn getattr(&mut self, want: Bitmap) -> Done {
        let node = self.node()?;
        if !want.and(&WRITE_ONLY).is_empty() {
            return Err(Status::Inval.into());
        }
        let want = want.and(&supported(self.minor));
        let attr = node.attr(&self.cx(), needed(&want))?;
        let described = self.describe(&node, &attr, &want)?;
        let attributes = described.attributes(self.turn.server, self.minor, &want);
        self.reply.value(&attributes.set());
        let counted = self.reply.len();
        self.reply.value(&0u32);
        attributes.put_values(&mut Buffered::new(&mut self.reply));
        let len = (self.reply.len() - counted - 4) as u32;
        self.reply.patch(counted, &len.to_be_bytes());
        Ok(())
    }

    pub(super) fn setattr(&mut self, op: Setattr<'_>) -> Done {
        let node = self.node()?;
        let (mut set, done) = to_set(self.minor, &op.attributes)?;
        if node.kind() == Kind::Symlink {
            // It means nothing, and few file systems keep one: clients that copy trees set it all the same.
            set.mode = None;
        }
        let cx = self.cx();
        let file = match set.size {
            Some(_) => {
                self.check_regular(&node)?;
                self.file_of(&op.state, &node, vfs::OpenFlags::WRITE)?
            }
            // Its own delegation shall not be in its way.
            None => self
                .delegated_to_caller(&node, Share::WRITE)
                .map(|delegated| delegated.file),
        };
        if set != SetAttr::default() {
            let attr = match file {
                Some(file) => file.setattr(&cx, &set)?,
                None => node.setattr(&cx, &set)?,
            };
            if set.changes_access() {
                let server = self.turn.server;
                server.files.forget_strangers(node.id(), attr.uid);
            }
        }
        self.affected();
        self.reply.value(&done);
        Ok(())
    }

    pub(super) fn verify(&mut self, given: &Attributes<'_>, otherwise: Status) -> Done {
        let node = self.node()?;
        let want = given.set();
        const ONLY_READ: Bitmap = Bitmap::of(&[n::RDATTR_ERROR]);
        if !want.and(&WRITE_ONLY).is_empty() || !want.and(&ONLY_READ).is_empty() {
            return Err(Status::Inval.into());
        }
        if given.unknown || !want.without(&supported(self.minor)).is_empty() {
            return Err(Status::Attrnotsupp.into());
        }
        let attr = node.attr(&self.cx(), needed(&want))?;
        let described = self.describe(&node, &attr, &want)?;
        let same = described.attributes(self.turn.server, self.minor, &want) == *given;
        // VERIFY goes on if they are the same, NVERIFY if they are not.
        match same == (otherwise == Status::NotSame) {
            true => Ok(()),
            false => Err(otherwise.into()),
        }
    }

    pub(super) fn access(&mut self, want: u32) -> Done {
        let node = self.node()?;
        let directory = node.kind() == Kind::Directory;
        let known = access_bits(directory).fold(0, |all, (bit, _)| all | bit);
        let known = want & known & allowed_bits(self.minor);
        let mut ask = Access::empty();
        for (bit, access) in access_bits(directory) {
            if known & bit != 0 {
                ask |= access;
            }
        }
        let may = node.access(&self.cx(), ask)?;
        let mut access = 0;
        for (bit, needed) in access_bits(directory) {
            if known & bit != 0 && may.contains(needed) {
                access |= bit;
            }
        }
        self.reply.value(&Accessible {
            supported: known,
            access,
        });
        Ok(())
    }
}

/// The bits of ACCESS: read, lookup, modify, extend, delete, execute; xattr read, write, list.
fn access_bits(directory: bool) -> impl Iterator<Item = (u32, Access)> {
    let bits = [
        (0x01, Access::READ, true),
        (0x02, Access::EXEC, directory),
        (0x04, Access::WRITE, true),
        (0x08, Access::WRITE, true),
        (0x10, Access::WRITE, directory),
        (0x20, Access::EXEC, !directory),
        (0x40, Access::READ, true),
        (0x80, Access::WRITE, true),
        (0x100, Access::READ, true),
    ];
    bits.into_iter()
        .filter(|&(_, _, makes_sense)| makes_sense)
        .map(|(bit, access, _)| (bit, access))
}

fn allowed_bits(minor: u32) -> u32 {
    if minor >= 2 { 0x1ff } else { 0x3f }
}

/// What `attributes` are to the source, and which of them that sets.
pub(super) fn to_set(minor: u32, attributes: &Attributes<'_>) -> Result<(SetAttr, Bitmap), Status> {
    let set = attributes.set();
    if attributes.unknown || !set.without(&supported(minor)).is_empty() {
        return Err(Status::Attrnotsupp);
    }
    if !set.without(&SETTABLE).is_empty() {
        return Err(Status::Inval);
    }
    let id = |who: Option<Who<'_>>| match who {
        Some(Who::Number(id)) => Ok(Some(id)),
        Some(Who::Name(b"")) => Err(Status::Inval),
        Some(Who::Name(_)) => Err(Status::Badowner),
        None => Ok(None),
    };
    let time = |time: Option<SetTime>| match time {
        Some(SetTime::Server) => Ok(Some(vfs::SetTime::Now)),
        Some(SetTime::Client(time)) if time.nseconds > 999_999_999 => Err(Status::Inval),
        Some(SetTime::Client(time)) => Ok(Some(vfs::SetTime::At(time.into()))),
        None => Ok(None),
    };
    if attributes
        .size
        .is_some_and(|size| i64::try_from(size).is_err())
    {
        return Err(Status::Fbig);
    }
    let mode = attributes
        .mode
        .or(attributes.mode_umask.map(|m| m.mode & !m.umask));
    if mode.is_some_and(|mode| mode > 0o7777) {
        return Err(Status::Inval);
    }
    let changes = SetAttr {
        mode,
        uid: id(attributes.owner)?,
        gid: id(attributes.group)?,
        size: attributes.size,
        atime: time(attributes.set_accessed)?,
        mtime: time(attributes.set_modified)?,
        // As a local truncation or chown does, unless the mode is set as well.
        kill_priv: attributes.size.is_some()
            || attributes.owner.is_some()
            || attributes.group.is_some(),
        ..SetAttr::default()
    };
    Ok((changes, set))
}
