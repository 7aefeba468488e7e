//! ACLs of nodes for v4 and v3's NFS_ACL: the source stores POSIX ACLs and enforces them.

use std::sync::Arc;

use vfs::acl::{ACCESS, DEFAULT};
use vfs::{Acl, Attr, AttrMask, Cx, Errno, Kind, Node, Result, XattrFlags};

use super::Server;

/// Returns the access ACL of `node`, whose attributes are `attr`. Returns `EOPNOTSUPP` if it can
/// have none, as symbolic links.
pub(super) fn access(cx: &Cx<'_>, node: &Arc<dyn Node>, attr: &Attr) -> Result<Acl> {
    Ok(read(cx, node, ACCESS)?.unwrap_or_else(|| Acl::of_mode(attr.mode)))
}

/// Returns the default ACL of `node`; `None` if it has none or is not a directory.
pub(super) fn default(cx: &Cx<'_>, node: &Arc<dyn Node>) -> Result<Option<Acl>> {
    match node.kind() {
        Kind::Directory => read(cx, node, DEFAULT),
        _ => Ok(None),
    }
}

fn read(cx: &Cx<'_>, node: &Arc<dyn Node>, name: &[u8]) -> Result<Option<Acl>> {
    if node.kind() == Kind::Symlink {
        return Err(Errno::EOPNOTSUPP);
    }
    match node.xattr(cx, name) {
        Ok(value) => Ok(Some(Acl::read(&value)?)),
        Err(Errno::ENODATA) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// A change of an ACL.
pub(super) enum AclChange<'a> {
    /// It stays as it is.
    Keep,
    /// It is replaced, or removed if `None`.
    Set(Option<&'a Acl>),
}

impl Server {
    /// Sets the ACLs of `node`. Requires full patience, because the first change cannot be undone
    /// if the second would block.
    pub(super) fn set_acls(
        &self,
        cx: &Cx<'_>,
        node: &Arc<dyn Node>,
        access: AclChange<'_>,
        default: AclChange<'_>,
    ) -> Result<()> {
        cx.check_may_block()?;
        if node.kind() == Kind::Symlink {
            return Err(Errno::EOPNOTSUPP);
        }
        let set = |name: &[u8], to: AclChange<'_>| match to {
            AclChange::Keep => Ok(()),
            AclChange::Set(Some(acl)) => {
                node.set_xattr(cx, name, &acl.value(), XattrFlags::empty())
            }
            AclChange::Set(None) => match node.remove_xattr(cx, name) {
                Err(Errno::ENODATA) => Ok(()),
                done => done,
            },
        };
        set(ACCESS, access)?;
        // Others may have less access now, as after a change of the mode.
        let owner = node.attr(cx, AttrMask::BASIC)?.uid;
        self.files.forget_other_users(node.id(), owner);
        match (node.kind(), default) {
            (Kind::Directory, default) => set(DEFAULT, default),
            (_, AclChange::Set(Some(_))) => Err(Errno::EACCES),
            (_, AclChange::Keep | AclChange::Set(None)) => Ok(()),
        }
    }
}
