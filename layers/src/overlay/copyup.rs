//! Copy-up: creates an upper copy of a lower file in `barge`, and moves it into place with a
//! rename.

use std::sync::Arc;

use vfs::acl;
use vfs::{
    Attr, Cx, Errno, Kind, Make, Mode, Name, Node, OpenFlags, RenameFlags, Result, SetAttr,
    SetTime, Want, XattrFlags,
};

use super::copy;
use super::handle::origin_of;
use super::marks::Marks;
use super::node::{OverlayNode, Place};
use super::ours;
use super::scratch::Temporary;

impl OverlayNode {
    /// Returns the upper node, after copying up this node and its parents if necessary. Of a
    /// regular file, only the first `keep` bytes are copied. May block.
    pub(super) fn copy_up(&self, cx: &Cx<'_>, keep: u64) -> Result<Arc<dyn Node>> {
        if let Some(upper) = self.upper() {
            return Ok(upper);
        }
        cx.may_wait()?;
        let mut way = vec![self.this()];
        while let Some(Place { parent, .. }) = way.last().and_then(|node| node.state().place) {
            if parent.upper().is_some() {
                break;
            }
            way.push(parent);
        }
        let mut upper = Err(Errno::ESTALE);
        while let Some(node) = way.pop() {
            let keep = if way.is_empty() { keep } else { u64::MAX };
            upper = node.copy_one(&ours(cx), keep);
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
        let scratch = &self.tree.scratch;
        let temporary = scratch.name();
        let made = (|| {
            let attr = lower.attr(cx, Want::STAT)?;
            let copy = self.copy_aside(cx, (&*lower, &attr), &temporary, keep)?;
            let origin = match self.kind {
                // A directory is matched with the lower one by name.
                Kind::Directory => None,
                _ => origin_of(self, cx, &state).and_then(Result::ok),
            };
            if let Some(origin) = &origin {
                self.tree.marks.set_origin(&*copy, cx, origin)?;
            }
            self.take_place(cx, &temporary, &copy)?;
            self.becomes(|state| {
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
    fn copy_aside(
        &self,
        cx: &Cx<'_>,
        (lower, attr): (&dyn Node, &Attr),
        temporary: &Temporary,
        keep: u64,
    ) -> Result<Arc<dyn Node>> {
        let dir = &self.tree.scratch.dir;
        let (name, mode) = (temporary.name(), Mode::exactly(0o600));
        let target;
        let what = match attr.kind {
            Kind::File => {
                let flags = OpenFlags::WRITE | OpenFlags::EXCL;
                let (made, file) = dir.create(cx, name, flags, mode)?;
                let from = lower.open(cx, OpenFlags::READ)?;
                copy::contents(cx, &*from, &*file, attr.size.min(keep))?;
                dress(lower, attr, &*made.node, cx, &self.tree.marks)?;
                // The contents must be durable before the name.
                file.fsync(cx, false)?;
                return Ok(made.node);
            }
            Kind::Directory => Make::Directory,
            Kind::Symlink => {
                target = lower.readlink(cx)?;
                Make::Symlink(&target)
            }
            Kind::Fifo => Make::Fifo,
            Kind::Socket => Make::Socket,
            Kind::CharDevice => Make::CharDevice(attr.rdev),
            Kind::BlockDevice => Make::BlockDevice(attr.rdev),
        };
        let made = dir.make(cx, name, what, mode)?.node;
        dress(lower, attr, &*made, cx, &self.tree.marks)?;
        Ok(made)
    }

    /// Renames the copy to the node's name. If the name was removed meanwhile, the copy has none
    /// either.
    fn take_place(&self, cx: &Cx<'_>, temporary: &Temporary, copy: &Arc<dyn Node>) -> Result<()> {
        let scratch = &self.tree.scratch;
        let _names = self.tree.changing();
        let Some(place) = self.state().place else {
            let is_dir = copy.kind() == Kind::Directory;
            return scratch.dir.unlink(cx, temporary.name(), is_dir);
        };
        let parent = place.parent.upper().ok_or(Errno::ESTALE)?;
        let name = Name::new(&place.name)?;
        let before = parent.attr(cx, Want::TIMES)?;
        let flags = RenameFlags::NOREPLACE;
        let put = scratch
            .dir
            .rename(cx, temporary.name(), &*parent, name, flags);
        put.map_err(|errno| match errno {
            // Another file was put there.
            Errno::EEXIST => Errno::ESTALE,
            errno => errno,
        })?;
        place.parent.touch();
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
fn dress(lower: &dyn Node, attr: &Attr, copy: &dyn Node, cx: &Cx<'_>, marks: &Marks) -> Result<()> {
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
    let shown = |name: &&[u8]| !name.is_empty() && !marks.is_ours(name);
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
pub(super) fn dress_root(
    below: &dyn Node,
    upper: &dyn Node,
    cx: &Cx<'_>,
    marks: &Marks,
) -> Result<()> {
    dress(below, &below.attr(cx, Want::STAT)?, upper, cx, marks)
}
