//! SETATTR (RFC 8881 section 18.30), and the conversion of attributes to changes of the source.

use std::sync::Arc;

use vfs::{Errno, Kind, Node, OpenFlags, SetAttr};

use super::attr::{SETTABLE, XATTR_BACKED, supported};
use super::compound::{Compound, OpError, OpResult};
use super::security_label;
use super::state::Share;
use crate::server::acl::AclChange;
use crate::server::{RequestContext, Server};
use crate::v4::Status;
use crate::v4::acl::NodeAcls;
use crate::v4::attr::{Attributes, Bitmap, SetTime, Who, number as n};
use crate::v4::op::Setattr;

/// Changes to a node's attributes.
#[derive(Default)]
pub(super) struct Change {
    pub(super) set: SetAttr,
    pub(super) acls: Option<NodeAcls>,
    /// The security label.
    pub(super) label: Option<Vec<u8>>,
    /// The attributes that these changes set.
    pub(super) attributes: Bitmap,
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
    let acls = acls.map(|aces| NodeAcls::from_v4(aces, kind == Kind::Directory));
    let label = attributes
        .label
        .as_ref()
        .map(security_label::from_wire)
        .transpose()?;
    Ok(Change {
        set: changes,
        acls: acls.transpose()?,
        label: label.map(<[u8]>::to_vec),
        attributes: set,
    })
}

impl RequestContext<'_, Compound> {
    pub(super) fn setattr(&mut self, args: Setattr<'_>) -> OpResult {
        let node = self.node()?;
        let server = self.server;
        let Change {
            mut set,
            acls,
            label,
            attributes: done,
        } = to_set(server, self.compound.minor, &args.attributes, node.kind())?;
        if node.kind() == Kind::Symlink {
            // A link's mode has no meaning, and few file systems store one: clients that copy trees
            // set it all the same.
            set.mode = None;
        }
        let cx = self.cx();
        let file = match set.size {
            Some(_) => {
                self.check_regular(&node)?;
                self.file_of(&args.state, &node, OpenFlags::WRITE)?
                    .map(|open| open.file)
            }
            // The caller's own delegation must not be in its way.
            None => self
                .delegated_to_caller(&node, Share::WRITE)
                .map(|delegated| delegated.file),
        };
        if label.is_some() {
            self.check_may_label(&node)?;
        }
        if acls.is_some() || label.is_some() {
            // More than one step: it must not block after the first.
            cx.check_may_block()?;
        }
        if set != SetAttr::default() {
            let attr = match file {
                Some(file) => file.setattr(&cx, &set)?,
                None => node.setattr(&cx, &set)?,
            };
            if set.changes_access() {
                server.files.forget_other_users(node.id(), attr.uid);
            }
        }
        self.forbid_restart();
        match self.set_xattr_backed(&node, acls.as_ref(), label.as_deref()) {
            Ok(()) => {
                self.reply.value(&done);
                Ok(())
            }
            Err((left, errno)) => {
                self.reply.value(&done.without(&left));
                Err(OpError::WithBody(xattr_status(errno)))
            }
        }
    }

    /// Sets the attributes that the source stores as extended attributes, one by one. The error
    /// names those left unset.
    pub(super) fn set_xattr_backed(
        &self,
        node: &Arc<dyn Node>,
        acls: Option<&NodeAcls>,
        label: Option<&[u8]>,
    ) -> Result<(), (Bitmap, Errno)> {
        const LABEL: Bitmap = Bitmap::of(&[n::SEC_LABEL]);
        let acls = acls.map_or(Ok(()), |acls| self.set_acls(node, acls));
        acls.map_err(|errno| (XATTR_BACKED, errno))?;
        let label = label.map_or(Ok(()), |label| self.set_label(node, label));
        label.map_err(|errno| (LABEL, errno))
    }

    /// Sets a node's ACLs. Removes the default ACL if `acls` has none.
    fn set_acls(&self, node: &Arc<dyn Node>, acls: &NodeAcls) -> Result<(), Errno> {
        let access = AclChange::Set(Some(&acls.access));
        let default = AclChange::Set(acls.default.as_ref());
        self.server.set_acls(&self.cx(), node, access, default)
    }
}

/// Returns the status of a failed attempt to set an ACL or a label.
fn xattr_status(errno: Errno) -> Status {
    match errno {
        Errno::EOPNOTSUPP => Status::Attrnotsupp,
        errno => errno.into(),
    }
}
