//! Preserving attributes of copied files.

use vfs::{Entry, Errno, Kind, Node, Result, SetAttr, SetTime, Support, XattrFlags};

use super::Copier;
use sources::Tree;

/// Attributes to preserve.
pub(super) struct Preserve {
    /// Permissions, owners, times.
    pub(super) attributes: bool,
    /// Extended attributes.
    pub(super) xattrs: bool,
}

/// Sets the attributes of `copy` from `from`. Without `attributes`, sets permissions alone.
pub(super) fn preserve_attributes(
    copier: &Copier,
    tree: &Tree,
    from: &Entry,
    copy: &dyn Node,
) -> Result<()> {
    if copier.preserve.xattrs {
        preserve_xattrs(copier, tree, from, copy)?;
    }
    let attr = &from.attr;
    let attributes = copier.preserve.attributes;
    copier.target.with(|cx| {
        let mut mode = attr.mode;
        if attributes {
            let owners = SetAttr {
                uid: Some(attr.uid),
                gid: Some(attr.gid),
                ..SetAttr::default()
            };
            // As cp(1) does: if the owner cannot be changed, the copy must not have set-id bits for
            // another user.
            match copy.setattr(cx, &owners) {
                Err(Errno::EPERM | Errno::EOPNOTSUPP) => mode &= 0o777,
                done => drop(done?),
            }
        }
        let set = SetAttr {
            // Symbolic links have no permissions.
            mode: (attr.kind != Kind::Symlink).then_some(mode),
            atime: attributes.then_some(SetTime::At(attr.atime)),
            mtime: attributes.then_some(SetTime::At(attr.mtime)),
            ..SetAttr::default()
        };
        match copy.setattr(cx, &set) {
            // Some servers cannot set times of symbolic links.
            Err(_) if attr.kind == Kind::Symlink => Ok(()),
            done => done.map(drop),
        }
    })
}

fn preserve_xattrs(copier: &Copier, tree: &Tree, from: &Entry, copy: &dyn Node) -> Result<()> {
    let level = |tree: &Tree| tree.fs.capabilities().xattr;
    if level(tree) == Support::None || level(&copier.target) == Support::None {
        return Ok(());
    }
    let list = match tree.with(|cx| from.node.xattrs(cx)) {
        Err(Errno::EOPNOTSUPP) => return Ok(()),
        list => list?,
    };
    for name in list
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
    {
        let value = match tree.with(|cx| from.node.xattr(cx, name)) {
            // Removed since, or not readable for this caller.
            Err(Errno::ENODATA | Errno::EPERM | Errno::EACCES) => continue,
            value => value?,
        };
        let none = XattrFlags::empty();
        match copier
            .target
            .with(|cx| copy.set_xattr(cx, name, &value, none))
        {
            // Not supported by the target, or not permitted to this caller.
            Err(Errno::EOPNOTSUPP | Errno::EPERM | Errno::EACCES) => {}
            done => done?,
        }
    }
    Ok(())
}
