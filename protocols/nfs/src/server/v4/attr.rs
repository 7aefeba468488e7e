//! The attributes of nodes and file systems, and those that the server supports (RFC 8881 chapter
//! 5).

use std::sync::Arc;

use vfs::{Attr, AttrMask, Cx, Errno, Kind, Node, StatFs, Support};

use super::locations::Locations;
use super::referral;
use super::security_label;
use crate::server::{self, Server};
use crate::v4::Status;
use crate::v4::acl::{self, NodeAcls};
use crate::v4::attr::{
    Attributes, Bitmap, FileType, FsId, NfsTime, OpenArguments, SpecData, Who, number as n,
};

/// The write-only attributes.
pub(super) const WRITE_ONLY: Bitmap =
    Bitmap::of(&[n::TIME_ACCESS_SET, n::TIME_MODIFY_SET, n::MODE_UMASK]);

/// The attributes that can be set.
pub(super) const SETTABLE: Bitmap = Bitmap::of(&[
    n::SIZE,
    n::ACL,
    n::SEC_LABEL,
    n::MODE,
    n::OWNER,
    n::OWNER_GROUP,
    n::TIME_ACCESS_SET,
    n::TIME_MODIFY_SET,
    n::MODE_UMASK,
]);

/// The attributes that an exclusive create rejects: the times store its verifier, and it creates
/// only empty files.
pub(super) const NOT_EXCLUSIVE: Bitmap =
    Bitmap::of(&[n::TIME_ACCESS_SET, n::TIME_MODIFY_SET, n::SIZE]);

/// The arguments of OPEN that the server supports, as bit numbers.
pub(super) const OPEN_ARGUMENTS: OpenArguments = OpenArguments {
    // READ, WRITE, BOTH.
    share_access: Bitmap::of(&[1, 2, 3]),
    // The same, and NONE.
    share_deny: Bitmap::of(&[0, 1, 2, 3]),
    // ANY_DELEG, NO_DELEG.
    share_access_want: Bitmap::of(&[3, 4]),
    // NULL, PREVIOUS, DELEGATE_CUR, FH, DELEG_CUR_FH.
    open_claim: Bitmap::of(&[0, 1, 2, 4, 5]),
    // UNCHECKED4, GUARDED4, EXCLUSIVE4, EXCLUSIVE4_1.
    create_mode: Bitmap::of(&[0, 1, 2, 3]),
};

/// The attributes that the source stores as extended attributes.
pub(super) const XATTR_BACKED: Bitmap = Bitmap::of(&[n::ACL, n::SEC_LABEL]);

/// The attributes of the file system instead of a node.
const FILE_SYSTEM: Bitmap = Bitmap::of(&[
    n::FILES_AVAIL,
    n::FILES_FREE,
    n::FILES_TOTAL,
    n::MAXLINK,
    n::MAXNAME,
    n::SPACE_AVAIL,
    n::SPACE_FREE,
    n::SPACE_TOTAL,
    n::CLONE_BLKSIZE,
]);

/// Returns the attributes that a minor version supports, given the source's capabilities.
pub(super) fn supported(server: &Server, minor: u32) -> Bitmap {
    const ACL: Bitmap = Bitmap::of(&[n::ACL]);
    const LABEL: Bitmap = Bitmap::of(&[n::SEC_LABEL]);
    const OF_4_1: Bitmap = Bitmap::of(&[n::FS_LAYOUT_TYPES, n::SUPPATTR_EXCLCREAT]);
    const OF_4_2: Bitmap = Bitmap::of(&[
        n::CLONE_BLKSIZE,
        n::CHANGE_ATTR_TYPE,
        n::SEC_LABEL,
        n::MODE_UMASK,
        n::XATTR_SUPPORT,
        n::OPEN_ARGUMENTS,
    ]);
    let all = match server.capabilities.acl {
        Support::None => Attributes::KNOWN.without(&ACL),
        Support::Emulated | Support::Native => Attributes::KNOWN,
    };
    let all = match server.options.security_labels && server.capabilities.xattr == Support::Native {
        true => all,
        false => all.without(&LABEL),
    };
    match minor {
        0 => all.without(&OF_4_2).without(&OF_4_1),
        1 => all.without(&OF_4_2),
        _ => all,
    }
}

/// Returns the attributes that an exclusive create accepts.
fn exclusive(server: &Server, minor: u32) -> Bitmap {
    supported(server, minor)
        .and(&SETTABLE)
        .without(&NOT_EXCLUSIVE)
}

/// A node and the data that its requested attributes need.
pub(super) struct AttributeSource<'a> {
    node: &'a Arc<dyn Node>,
    /// Whether the node was found through the export's name.
    at_name: bool,
    attr: &'a Attr,
    /// The file handle, if requested.
    handle: Option<Vec<u8>>,
    /// The figures of the file system, if requested.
    statfs: Option<StatFs>,
    /// The ACLs, if requested and present.
    acls: Option<NodeAcls>,
    /// The security label, if requested and present.
    label: Option<Vec<u8>>,
    /// Whether the file system is absent: then few attributes are available.
    absent: bool,
    /// Where other servers have the file system, if requested.
    locations: Option<Arc<Locations>>,
}

impl<'a> AttributeSource<'a> {
    /// Collects what the attributes in `want` need of `node`, which was found through the export's
    /// name if `at_name`.
    pub(super) fn new(
        server: &'a Server,
        cx: &Cx<'_>,
        (node, at_name): (&'a Arc<dyn Node>, bool),
        attr: &'a Attr,
        want: &Bitmap,
    ) -> Result<AttributeSource<'a>, Errno> {
        let referral = server.referrals.of(node);
        let mut described = AttributeSource {
            node,
            at_name,
            attr,
            handle: None,
            statfs: None,
            acls: None,
            label: None,
            absent: referral.is_some(),
            locations: referral.cloned(),
        };
        if described.absent {
            return Ok(described);
        }
        if want.has(n::FS_LOCATIONS) {
            described.locations = server.replicas_of(attr.device).map(Arc::new);
        }
        if want.has(n::FILEHANDLE) {
            described.handle = Some(server.handle_in(cx, node, at_name)?.bytes());
        }
        if !want.and(&FILE_SYSTEM).is_empty() {
            described.statfs = Some(node.statfs(cx)?);
        }
        if want.has(n::ACL) {
            described.acls = acls(cx, node, attr)?;
        }
        if want.has(n::SEC_LABEL) {
            described.label = security_label::of(cx, node)?;
        }
        Ok(described)
    }

    /// Returns the attributes in `want`, all of which the minor version must support.
    pub(super) fn attributes(&self, server: &Server, minor: u32, want: &Bitmap) -> Attributes<'_> {
        let attr = self.attr;
        let want = match self.absent {
            true => &want.and(&referral::ABSENT_ATTRIBUTES),
            false => want,
        };
        let figures = self.statfs.unwrap_or_default();
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
        let directory = attr.kind == Kind::Directory;
        let acl = self.acls.as_ref().filter(|_| want.has(n::ACL));
        let label = self.label.as_deref().filter(|_| want.has(n::SEC_LABEL));
        let created = attr.btime.filter(|_| want.has(n::TIME_CREATE));
        let always = given! {
            SUPPORTED supported: supported(server, minor),
            TYPE kind: FileType::from(attr.kind),
            // FH4_PERSISTENT.
            FH_EXPIRE_TYPE handle_expires: 0,
            CHANGE change: attr.change,
            SIZE size: attr.size,
            LINK_SUPPORT link_support: true,
            SYMLINK_SUPPORT symlink_support: true,
            NAMED_ATTR named_attributes: false,
            FSID fsid: fsid(attr.device, self.at_name),
            UNIQUE_HANDLES unique_handles: true,
            LEASE_TIME lease_time: server.options.lease.as_secs() as u32,
            RDATTR_ERROR read_error: (if self.absent { Status::Moved } else { Status::Ok }) as u32,
            ACLSUPPORT acl_support: if can.acl == Support::None { 0 } else { acl::SUPPORT },
            CANSETTIME can_set_time: true,
            CASE_INSENSITIVE case_insensitive: false,
            CASE_PRESERVING case_preserving: true,
            CHOWN_RESTRICTED chown_restricted: true,
            FILEHANDLE handle: self.handle.as_deref().unwrap_or_default(),
            FILEID fileid: attr.id,
            FILES_AVAIL files_available: figures.ffree,
            FILES_FREE files_free: figures.ffree,
            FILES_TOTAL files_total: figures.files,
            FS_LOCATIONS locations: self.locations.as_deref().map(Locations::value).unwrap_or_default(),
            HOMOGENEOUS homogeneous: true,
            MAXFILESIZE max_file_size: i64::MAX as u64,
            MAXLINK max_link: figures.link_max(),
            MAXNAME max_name: figures.namelen.min(vfs::Name::MAX as u32),
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
            SPACE_USED space_used: attr.allocated(),
            TIME_ACCESS accessed: NfsTime::from(attr.atime),
            TIME_DELTA time_delta: NfsTime { seconds: 0, nseconds: 1 },
            TIME_METADATA changed: NfsTime::from(attr.ctime),
            TIME_MODIFY modified: NfsTime::from(attr.mtime),
            MOUNTED_ON_FILEID mounted_on: attr.id,
            FS_LAYOUT_TYPES layouts: Vec::new(),
            SUPPATTR_EXCLCREAT supported_exclusive: exclusive(server, minor),
            CLONE_BLKSIZE clone_block: if can.clone == Support::None { 0 } else { figures.bsize },
            // NFS4_CHANGE_TYPE_IS_UNDEFINED: the source may derive it from times.
            CHANGE_ATTR_TYPE change_type: 4,
            XATTR_SUPPORT xattr_support: can.xattr != Support::None && matches!(self.node.kind(), Kind::File | Kind::Directory),
            OPEN_ARGUMENTS open_arguments: OPEN_ARGUMENTS,
        };
        Attributes {
            acl: acl.map(|acls| acls.to_v4(directory)),
            created: created.map(NfsTime::from),
            label: label.map(security_label::to_wire),
            ..always
        }
    }
}

/// Returns the fsid of a file system of the source. Clients see the tree at the export's name as a
/// separate file system.
pub(super) fn fsid(device: u64, at_name: bool) -> FsId {
    FsId {
        major: device,
        minor: at_name.into(),
    }
}

/// Returns which of a node's attributes the source must supply for `want`.
pub(super) fn needed(want: &Bitmap) -> AttrMask {
    let mut needed = AttrMask::STAT;
    if want.has(n::TIME_CREATE) {
        needed |= AttrMask::BTIME;
    }
    needed
}

/// Returns `node`'s ACLs, or `None` if the source has none for it.
fn acls(cx: &Cx<'_>, node: &Arc<dyn Node>, attr: &Attr) -> Result<Option<NodeAcls>, Errno> {
    let access = match server::acl::access(cx, node, attr) {
        Err(Errno::EOPNOTSUPP) => return Ok(None),
        access => access?,
    };
    let default = server::acl::default(cx, node)?;
    Ok(Some(NodeAcls { access, default }))
}
