//! What a copy keeps of its original besides contents.

use vfs::{Entry, Errno, Kind, Level, Node, Result, SetAttr, SetTime, XattrFlags};

use super::Copier;
use barge_client::tree::Tree;

/// What is kept.
pub(super) struct Keep {
    /// Permissions, owners, times.
    pub(super) attributes: bool,
    /// Extended attributes.
    pub(super) xattrs: bool,
}

/// Gives `copy` what it shall keep of `from`. Without `attributes`, permissions alone.
pub(super) fn keep(copier: &Copier, tree: &Tree, from: &Entry, copy: &dyn Node) -> Result<()> {
    if copier.keep.xattrs {
        xattrs(copier, tree, from, copy)?;
    }
    let attr = &from.attr;
    let kept = copier.keep.attributes;
    copier.target.with(|cx| {
        let mut mode = attr.mode;
        if kept {
            let owners = SetAttr {
                uid: Some(attr.uid),
                gid: Some(attr.gid),
                ..SetAttr::default()
            };
            // Whoever may not give files away keeps them, as with cp(1), but not what they could do with another's
            // rights.
            match copy.setattr(cx, &owners) {
                Err(Errno::EPERM | Errno::EOPNOTSUPP) => mode &= 0o777,
                done => drop(done?),
            }
        }
        let set = SetAttr {
            // A link has no permissions to set.
            mode: (attr.kind != Kind::Symlink).then_some(mode),
            atime: kept.then_some(SetTime::At(attr.atime)),
            mtime: kept.then_some(SetTime::At(attr.mtime)),
            ..SetAttr::default()
        };
        match copy.setattr(cx, &set) {
            // Not every server sets times of links.
            Err(_) if attr.kind == Kind::Symlink => Ok(()),
            done => done.map(drop),
        }
    })
}

fn xattrs(copier: &Copier, tree: &Tree, from: &Entry, copy: &dyn Node) -> Result<()> {
    let level = |tree: &Tree| tree.fs.capabilities().xattr;
    if level(tree) == Level::None || level(&copier.target) == Level::None {
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
            // Gone since, or not this caller's to read.
            Err(Errno::ENODATA | Errno::EPERM | Errno::EACCES) => continue,
            value => value?,
        };
        let none = XattrFlags::empty();
        match copier
            .target
            .with(|cx| copy.set_xattr(cx, name, &value, none))
        {
            // What the other file system does not have, or this caller may not set.
            Err(Errno::EOPNOTSUPP | Errno::EPERM | Errno::EACCES) => {}
            done => done?,
        }
    }
    Ok(())
}
