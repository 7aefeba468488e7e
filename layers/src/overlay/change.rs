//! Creating, linking and removing names. Where a whiteout may exist or is needed, the change takes
//! several steps and may block; a directory without a lower one passes it to the upper directory.

use std::sync::Arc;

use vfs::{
    Access, Attr, Cx, DirEntry, Entry, Errno, File, Kind, Make, Mode, Name, Node, OpenFlags,
    Result, SetAttr, Want, perm,
};

use super::find::{Above, above};
use super::marks::WHITEOUT;
use super::node::{OverlayNode, State};
use super::{Found, ours};

impl OverlayNode {
    /// Returns the upper node, if there is no lower one.
    fn alone(&self) -> Option<Arc<dyn Node>> {
        match self.state() {
            State {
                upper, lower: None, ..
            } => upper,
            _ => None,
        }
    }

    pub(super) fn make_in(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        name: Name<'_>,
        what: Make<'_>,
        mode: Mode,
    ) -> Result<Entry> {
        if what == Make::CharDevice(WHITEOUT) {
            return Err(Errno::EPERM);
        }
        if let Some(upper) = self.alone() {
            let made = upper.make(cx, name, what, mode)?;
            return self.made(cx, made, name);
        }
        let make = |dir: &dyn Node, cx: &Cx<'_>, name: Name<'_>| dir.make(cx, name, what, mode);
        self.add(cx, name, &make)
    }

    pub(super) fn create_in(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        if let Some(upper) = self.alone() {
            let (made, file) = upper.create(cx, name, flags, mode)?;
            let entry = self.made(cx, made, name)?;
            return self.opened(entry, flags, file);
        }
        cx.may_wait()?;
        loop {
            let found = {
                let _names = self.tree.reading(cx)?;
                self.find(cx, name)
            };
            match found {
                Err(Errno::ENOENT) => {}
                found => return open_existing(cx, found?, flags),
            }
            let new = flags | OpenFlags::EXCL;
            let made = std::cell::Cell::new(None);
            let create = |dir: &dyn Node, cx: &Cx<'_>, name: Name<'_>| {
                let (entry, file) = dir.create(cx, name, new, mode)?;
                made.set(Some(file));
                Ok(entry)
            };
            match self.add(cx, name, &create) {
                // Another caller was faster.
                Err(Errno::EEXIST) if !flags.contains(OpenFlags::EXCL) => {}
                entry => {
                    let file = made.take().ok_or(Errno::EIO);
                    return self.opened(entry?, flags, file?);
                }
            }
        }
    }

    fn opened(
        &self,
        entry: Entry,
        flags: OpenFlags,
        file: Arc<dyn File>,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let node = entry.node.as_any().downcast_ref::<OverlayNode>();
        let node = node.ok_or(Errno::EIO)?.this();
        let file = super::file::OverlayFile::new(node, flags, file, true);
        Ok((entry, Arc::new(file)))
    }

    pub(super) fn tmpfile_in(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        self.check(cx, Access::WRITE | Access::EXEC)?;
        let upper = self.copy_up(cx, u64::MAX)?;
        let (made, file) = upper.tmpfile(cx, flags, mode)?;
        let id = super::find::id_above(made.node.id());
        let state = State {
            upper: Some(made.node),
            ..State::default()
        };
        let node = OverlayNode::enter(&self.tree, id, state);
        let attr = node.shown(made.attr);
        self.opened(Entry { node, attr }, flags, file)
    }

    pub(super) fn link_in(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        name: Name<'_>,
        target: &Arc<OverlayNode>,
    ) -> Result<Entry> {
        if target.kind == Kind::Directory {
            self.may_add(cx, name)?;
            return Err(Errno::EPERM);
        }
        let linked = |dir: &dyn Node, cx: &Cx<'_>, name: Name<'_>| {
            let upper = target.upper().ok_or(Errno::ESTALE)?;
            dir.link(cx, name, &*upper)
        };
        if let (Some(upper), Some(_)) = (self.alone(), target.upper()) {
            return self.made(cx, linked(&*upper, cx, name)?, name);
        }
        cx.may_wait()?;
        self.may_add(cx, name)?;
        if target.upper().is_none() && target.state().place.is_none() {
            return Err(Errno::ENOENT);
        }
        target.copy_up(cx, u64::MAX)?;
        self.add(cx, name, &linked)
    }

    /// Checks that the caller may create `name` in this directory, and that it does not exist.
    fn may_add(self: &Arc<Self>, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        self.check(cx, Access::EXEC)?;
        let _names = self.tree.reading(cx)?;
        match self.find(cx, name) {
            Ok(_) => Err(Errno::EEXIST),
            Err(Errno::ENOENT) => self.check(cx, Access::WRITE),
            Err(errno) => Err(errno),
        }
    }

    /// Creates `name` in the directory with `make`, over a whiteout if there is one.
    fn add(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        name: Name<'_>,
        make: &dyn Fn(&dyn Node, &Cx<'_>, Name<'_>) -> Result<Entry>,
    ) -> Result<Entry> {
        cx.may_wait()?;
        self.may_add(cx, name)?;
        let upper = self.copy_up(cx, u64::MAX)?;
        let _names = self.tree.changing();
        let made = match above(&*upper, &ours(cx), name)? {
            Above::There(_) => return Err(Errno::EEXIST),
            Above::Whiteout => {
                let tree = &self.tree;
                let mark = |dir: &dyn Node| tree.marks.set_opaque(dir, &ours(cx));
                let made = |dir: &dyn Node, inner: Name<'_>| make(dir, cx, inner);
                tree.scratch
                    .over_whiteout(&ours(cx), &*upper, name, made, mark)?
            }
            Above::Nothing if self.below(cx, name)?.is_some() => return Err(Errno::EEXIST),
            Above::Nothing => make(&*upper, cx, name)?,
        };
        self.made(cx, made, name)
    }

    /// Returns the entry of a file created in the upper directory.
    fn made(self: &Arc<Self>, cx: &Cx<'_>, mut made: Entry, name: Name<'_>) -> Result<Entry> {
        self.touch();
        // Its attributes may have changed with the rename.
        made.attr = made.node.attr(&ours(cx), Want::STAT)?;
        Ok(self.found_above(cx, made, name)?.entry())
    }

    pub(super) fn unlink_in(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        name: Name<'_>,
        dir: bool,
    ) -> Result<()> {
        if let Some(upper) = self.alone().filter(|_| !dir) {
            self.touch();
            return upper.unlink(cx, name, false);
        }
        cx.may_wait()?;
        self.may_remove(cx, name, dir)?;
        let upper = self.copy_up(cx, u64::MAX)?;
        let _names = self.tree.changing();
        // Checked again: names may have changed before they were locked.
        let Found { node, .. } = self.may_remove_found(cx, name, dir)?;
        let cx = &ours(cx);
        let is_below = self.below(cx, name)?.is_some();
        let there = node.upper().map(|_| node.kind);
        let scratch = &self.tree.scratch;
        match (is_below, there) {
            (true, there) => scratch.white_out(cx, &*upper, name, there)?,
            (false, Some(Kind::Directory)) => self.take_apart(cx, &*upper, name)?,
            (false, _) => upper.unlink(cx, name, false)?,
        }
        node.lost(self, name);
        Ok(())
    }

    /// Removes an upper directory that contains only whiteouts.
    fn take_apart(&self, cx: &Cx<'_>, upper: &dyn Node, name: Name<'_>) -> Result<()> {
        match upper.unlink(cx, name, true) {
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
            removed => return removed,
        }
        let scratch = &self.tree.scratch;
        let temporary = scratch.name();
        let flags = vfs::RenameFlags::NOREPLACE;
        upper.rename(cx, name, &*scratch.dir, temporary.name(), flags)?;
        scratch.discard(cx, &temporary);
        Ok(())
    }

    fn may_remove(self: &Arc<Self>, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        let _names = self.tree.reading(cx)?;
        self.may_remove_found(cx, name, dir).map(drop)
    }

    /// Returns the entry `name` if the caller may remove it, as a directory or as another file. The
    /// caller holds the names.
    fn may_remove_found(self: &Arc<Self>, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<Found> {
        let found = self.find(cx, name)?;
        self.may_take(cx, &found.attr)?;
        match (dir, found.node.kind == Kind::Directory) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) if !found.node.is_empty(cx)? => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        Ok(found)
    }

    /// Checks that the caller may remove an entry from this directory (`fs/namei.c`, may_delete).
    pub(super) fn may_take(&self, cx: &Cx<'_>, victim: &Attr) -> Result<()> {
        const STICKY: u32 = 0o1000;
        self.check(cx, Access::WRITE | Access::EXEC)?;
        let attr = self.real()?.attr(&ours(cx), Want::BASIC)?;
        let owns = |attr: &Attr| perm::owns(attr, cx.caller);
        match attr.mode & STICKY != 0 && !owns(&attr) && !owns(victim) {
            true => Err(Errno::EPERM),
            false => Ok(()),
        }
    }

    /// Returns whether the directory has no entries. The caller holds the names.
    pub(super) fn is_empty(&self, cx: &Cx<'_>) -> Result<bool> {
        let mut empty = true;
        let mut any = |_: DirEntry<'_>| {
            empty = false;
            false
        };
        self.list_held(&ours(cx), 0, vfs::Plus::Names, &mut any)?;
        Ok(empty)
    }

    /// Replaces the upper directory of `node`, which contains only whiteouts, with an empty one
    /// that has the same attributes.
    pub(super) fn clear(&self, cx: &Cx<'_>, node: &OverlayNode, name: Name<'_>) -> Result<()> {
        let (Some(upper), Some(old)) = (self.upper(), node.upper()) else {
            return Ok(());
        };
        let scratch = &self.tree.scratch;
        let temporary = scratch.name();
        let like = old.attr(cx, Want::STAT)?;
        let mode = Mode::exactly(0o700);
        let new = scratch
            .dir
            .make(cx, temporary.name(), Make::Directory, mode)?;
        let owner = SetAttr {
            uid: Some(like.uid),
            gid: Some(like.gid),
            mode: Some(like.mode),
            ..SetAttr::default()
        };
        let flags = vfs::RenameFlags::EXCHANGE;
        let put = new
            .node
            .setattr(cx, &owner)
            .and_then(|_| self.tree.marks.set_opaque(&*new.node, cx))
            .and_then(|()| {
                scratch
                    .dir
                    .rename(cx, temporary.name(), &*upper, name, flags)
            });
        scratch.discard(cx, &temporary);
        put
    }
}

fn open_existing(cx: &Cx<'_>, found: Found, flags: OpenFlags) -> Result<(Entry, Arc<dyn File>)> {
    let Found { node, attr } = found;
    match node.kind {
        _ if flags.contains(OpenFlags::EXCL) => return Err(Errno::EEXIST),
        Kind::Directory => return Err(Errno::EISDIR),
        Kind::Symlink => return Err(Errno::ELOOP),
        _ => {}
    }
    let file = node.open_as(cx, flags)?;
    let attr = match flags.contains(OpenFlags::TRUNC) {
        true => file.attr(&ours(cx), Want::STAT)?,
        false => attr,
    };
    Ok((Entry { node, attr }, file))
}
