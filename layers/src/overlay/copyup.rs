//! Copy-up: creates an upper copy of a lower file in `barge`, and moves it into place with a
//! rename.

use std::sync::Arc;

use vfs::acl;
use vfs::{
    Attr, AttrMask, Cx, Errno, Kind, Mode, Name, NewNode, Node, OpenFlags, RenameFlags, Result,
    SetAttr, SetTime, XattrFlags,
};

use super::copy;
use super::node::{Dentry, OverlayNode};
use super::origin::origin_of;
use super::staging::TempName;
use super::tree::as_process;
use super::xattrs::OverlayXattrs;

impl OverlayNode {
    /// Returns the upper node, after copying up this node and its parents if necessary. Of a
    /// regular file, only the first `keep` bytes are copied. May block.
    pub(super) fn copy_up(&self, cx: &Cx<'_>, keep: u64) -> Result<Arc<dyn Node>> {
        if let Some(upper) = self.upper() {
            return Ok(upper);
        }
        cx.check_may_block()?;
        let mut way = vec![self.this()];
        while let Some(Dentry { parent, .. }) = way.last().and_then(|node| node.state().dentry) {
            if parent.upper().is_some() {
                break;
            }
            way.push(parent);
        }
        let mut upper = Err(Errno::ESTALE);
        while let Some(node) = way.pop() {
            let keep = if way.is_empty() { keep } else { u64::MAX };
            upper = node.copy_one(&as_process(cx), keep);
            if upper.is_err() {
                break;
            }
        }
        upper
    }

    /// Copies up this node, whose directory is in the upper tree.
    fn copy_one(&self, cx: &Cx<'_>, keep: u64) -> Result<Arc<dyn Node>> {
        let _copying = self.copying.lock();
        let state = self.state();
        if let Some(upper) = state.upper {
            return Ok(upper);
        }
        let lower = state.lower.clone().ok_or(Errno::ESTALE)?;
        let scratch = &self.tree.staging;
        let temporary = scratch.temp_name();
        let made = (|| {
            let attr = lower.attr(cx, AttrMask::STAT)?;
            let copy = self.copy_to_staging(cx, (&*lower, &attr), &temporary, keep)?;
            let origin = match self.kind {
                // A directory is matched with the lower one by name.
                Kind::Directory => None,
                _ => origin_of(self, cx, &state).and_then(Result::ok),
            };
            if let Some(origin) = &origin {
                self.tree.xattrs.set_origin(&*copy, cx, origin)?;
            }
            self.move_into_place(cx, &temporary, &copy)?;
            self.update_state(|state| {
                state.upper = Some(copy.clone());
                state.origin = origin;
            });
            Ok(copy)
        })();
        if made.is_err() {
            scratch.discard(cx, &temporary);
        }
        made
    }

    /// Creates a copy at the name `temporary`.
    fn copy_to_staging(
        &self,
        cx: &Cx<'_>,
        (lower, attr): (&dyn Node, &Attr),
        temporary: &TempName,
        keep: u64,
    ) -> Result<Arc<dyn Node>> {
        let dir = &self.tree.staging.dir;
        let (name, mode) = (temporary.name(), Mode::without_umask(0o600));
        let target;
        let what = match attr.kind {
            Kind::File => {
                let flags = OpenFlags::WRITE | OpenFlags::EXCL;
                let (made, file) = dir.create(cx, name, flags, mode)?;
                let from = lower.open(cx, OpenFlags::READ)?;
                copy::contents(cx, &*from, &*file, attr.size.min(keep))?;
                copy_attributes(lower, attr, &*made.node, cx, &self.tree.xattrs)?;
                // The contents must be durable before the name.
                file.fsync(cx, false)?;
                return Ok(made.node);
            }
            Kind::Directory => NewNode::Directory,
            Kind::Symlink => {
                target = lower.readlink(cx)?;
                NewNode::Symlink(&target)
            }
            Kind::Fifo => NewNode::Fifo,
            Kind::Socket => NewNode::Socket,
            Kind::CharDevice => NewNode::CharDevice(attr.rdev),
            Kind::BlockDevice => NewNode::BlockDevice(attr.rdev),
        };
        let made = dir.make(cx, name, what, mode)?.node;
        copy_attributes(lower, attr, &*made, cx, &self.tree.xattrs)?;
        Ok(made)
    }

    /// Renames the copy to the node's name. If the name was removed meanwhile, the copy has none
    /// either.
    fn move_into_place(
        &self,
        cx: &Cx<'_>,
        temporary: &TempName,
        copy: &Arc<dyn Node>,
    ) -> Result<()> {
        let scratch = &self.tree.staging;
        let _names = self.tree.names_exclusive();
        let Some(dentry) = self.state().dentry else {
            let is_dir = copy.kind() == Kind::Directory;
            return scratch.dir.unlink(cx, temporary.name(), is_dir);
        };
        let parent = dentry.parent.upper().ok_or(Errno::ESTALE)?;
        let name = Name::new(&dentry.name)?;
        let before = parent.attr(cx, AttrMask::TIMES)?;
        let flags = RenameFlags::NOREPLACE;
        let put = scratch
            .dir
            .rename(cx, temporary.name(), &*parent, name, flags);
        put.map_err(|errno| match errno {
            // Another file was put there.
            Errno::EEXIST => Errno::ESTALE,
            errno => errno,
        })?;
        dentry.parent.bump_epoch();
        // The copy-up must not show in the directory's times.
        parent.setattr(cx, &times(&before)).map(drop)
    }
}

fn times(attr: &Attr) -> SetAttr {
    SetAttr {
        atime: Some(SetTime::At(attr.atime)),
        mtime: Some(SetTime::At(attr.mtime)),
        ..SetAttr::default()
    }
}

/// Copies the attributes of `lower` to `copy`.
fn copy_attributes(
    lower: &dyn Node,
    attr: &Attr,
    copy: &dyn Node,
    cx: &Cx<'_>,
    marks: &OverlayXattrs,
) -> Result<()> {
    let owner = SetAttr {
        uid: Some(attr.uid),
        gid: Some(attr.gid),
        ..SetAttr::default()
    };
    copy.setattr(cx, &owner)?;
    let names = match lower.xattrs(cx) {
        Err(Errno::EOPNOTSUPP) => Vec::new(),
        names => names?,
    };
    let shown = |name: &&[u8]| !name.is_empty() && !marks.is_overlay_xattr(name);
    for name in names.split(|&byte| byte == 0).filter(shown) {
        let value = lower.xattr(cx, name)?;
        match copy.set_xattr(cx, name, &value, XattrFlags::empty()) {
            // Without these, the copy could permit more than the original.
            Err(Errno::EOPNOTSUPP) if !acl::is_acl(name) && !name.starts_with(b"security.") => {}
            set => set?,
        }
    }
    if attr.kind != Kind::Symlink {
        let mode = SetAttr {
            mode: Some(attr.mode),
            ..SetAttr::default()
        };
        copy.setattr(cx, &mode)?;
    }
    copy.setattr(cx, &times(attr)).map(drop)
}

/// Copies the attributes of the lower root to a new upper root.
pub(super) fn copy_root_attributes(
    below: &dyn Node,
    upper: &dyn Node,
    cx: &Cx<'_>,
    marks: &OverlayXattrs,
) -> Result<()> {
    copy_attributes(below, &below.attr(cx, AttrMask::STAT)?, upper, cx, marks)
}
