//! Extended attributes: who may see which (xattr(7)).

use vfs::acl::{self, Acl};
use vfs::{Access, Caller, Cx, Errno, Kind, Patience, Result};

use crate::node::ImageNode;
use crate::perm;

impl ImageNode {
    pub(crate) fn get_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        if name.starts_with(b"user.") {
            if !matches!(self.vfs_kind(), Kind::File | Kind::Directory) {
                return Err(Errno::ENODATA);
            }
            self.check(cx, Access::READ)?;
        } else if !shown(name, cx.caller) {
            return Err(Errno::ENODATA);
        } else if !(name.starts_with(b"trusted.")
            || name.starts_with(b"security.")
            || acl::is_acl(name))
        {
            return Err(Errno::EOPNOTSUPP);
        }
        self.raw_xattr(name, cx.patience)?.ok_or(Errno::ENODATA)
    }

    pub(crate) fn list_xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        let mut list = Vec::new();
        let shared = &self.shared;
        let each =
            shared
                .image
                .each_xattr(&shared.access(cx.patience), &self.inode, &mut |name, _| {
                    if shown(name, cx.caller) {
                        list.extend_from_slice(name);
                        list.push(0);
                    }
                    Ok(true)
                });
        each.map_err(|error| shared.told(error))?;
        Ok(list)
    }

    /// The ACL that says more than the mode, if there is one.
    pub(crate) fn acl(&self, patience: Patience) -> Result<Option<Acl>> {
        match self.raw_xattr(acl::ACCESS, patience)? {
            Some(value) => Acl::read(&value).map(Some).map_err(|_| Errno::EIO),
            None => Ok(None),
        }
    }

    fn raw_xattr(&self, name: &[u8], patience: Patience) -> Result<Option<Vec<u8>>> {
        let shared = &self.shared;
        let value = shared
            .image
            .xattr(&shared.access(patience), &self.inode, name);
        value.map_err(|error| shared.told(error))
    }
}

/// Whether a caller sees that there is an attribute of this name.
fn shown(name: &[u8], caller: &Caller) -> bool {
    perm::is_root(caller) || !name.starts_with(b"trusted.")
}
