//! The conversion of attributes to changes of the source, for SETATTR and for new nodes.

use vfs::{Kind, SetAttr};

use super::attr::supported;
use super::label;
use crate::server::Server;
use crate::v4::Status;
use crate::v4::acl::Acls;
use crate::v4::attr::{Attributes, Bitmap, SetTime, Who, number as n};

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

/// Changes to a node's attributes.
#[derive(Default)]
pub(super) struct Change {
    pub(super) set: SetAttr,
    pub(super) acls: Option<Acls>,
    /// The security label.
    pub(super) label: Option<Vec<u8>>,
    /// The attributes that these changes set.
    pub(super) done: Bitmap,
}

/// Converts `attributes` of a node of this kind to changes of the source.
pub(super) fn to_set(
    server: &Server,
    minor: u32,
    attributes: &Attributes<'_>,
    kind: Kind,
) -> Result<Change, Status> {
    let set = attributes.set();
    if attributes.unknown || !set.without(&supported(server, minor)).is_empty() {
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
    let acls = attributes.acl.as_ref();
    let acls = acls.map(|aces| Acls::from_v4(aces, kind == Kind::Directory));
    let label = attributes
        .label
        .as_ref()
        .map(label::from_wire)
        .transpose()?;
    Ok(Change {
        set: changes,
        acls: acls.transpose()?,
        label: label.map(<[u8]>::to_vec),
        done: set,
    })
}
