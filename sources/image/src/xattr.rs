//! Extended attributes and their visibility (xattr(7)).

use vfs::acl;
use vfs::{Access, Caller, Cx, Errno, Kind, Result};

use crate::format::Format;
use crate::node::ImageNode;

impl<F: Format> ImageNode<F> {
    pub(crate) fn get_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        if name.starts_with(b"user.") {
            if !matches!(self.attr().kind, Kind::File | Kind::Directory) {
                return Err(Errno::ENODATA);
            }
            self.check(cx, Access::READ)?;
        } else if !is_visible(name, cx.caller) {
            return Err(Errno::ENODATA);
        } else if !(name.starts_with(b"trusted.")
            || name.starts_with(b"security.")
            || acl::is_acl(name))
        {
            return Err(Errno::EOPNOTSUPP);
        }
        let value = self.format.xattr(&self.item, name, cx.patience)?;
        value.ok_or(Errno::ENODATA)
    }

    pub(crate) fn list_xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        let mut list = Vec::new();
        self.format.xattrs(&self.item, cx.patience, &mut |name| {
            if is_visible(name, cx.caller) {
                list.extend_from_slice(name);
                list.push(0);
            }
        })?;
        Ok(list)
    }
}

/// Returns whether a caller may see an attribute of this name.
fn is_visible(name: &[u8], caller: &Caller) -> bool {
    vfs::perm::is_root(caller) || !name.starts_with(b"trusted.")
}
