//! Creating, linking and removing names. Where a whiteout may exist or is needed, the change takes
//! several steps and may block; a directory without a lower one passes it to the upper directory.

use std::sync::Arc;

use vfs::{
    Access, Attr, AttrMask, Cx, DirEntry, Entry, Errno, File, Kind, Mode, Name, NewNode, Node,
    OpenFlags, Result, SetAttr, perm,
};

use super::file::OverlayFile;
use super::lookup::{Found, UpperEntry, look_up_upper, upper_id};
use super::node::{OverlayNode, State};
use super::tree::as_process;
use super::xattrs::WHITEOUT;

impl OverlayNode {
    /// Returns the upper node, if there is no lower one.
    fn upper_only(&self) -> Option<Arc<dyn Node>> {
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
        what: NewNode<'_>,
        mode: Mode,
    ) -> Result<Entry> {
        if what == NewNode::CharDevice(WHITEOUT) {
            return Err(Errno::EPERM);
        }
        if let Some(upper) = self.upper_only() {
            let made = upper.make(cx, name, what, mode)?;
            return self.created_entry(cx, made, name);
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
        if let Some(upper) = self.upper_only() {
            let (made, file) = upper.create(cx, name, flags, mode)?;
            let entry = self.created_entry(cx, made, name)?;
            return self.opened(entry, flags, file);
        }
        cx.check_may_block()?;
        loop {
            let found = {
                let _names = self.tree.names_shared(cx)?;
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
        let file = OverlayFile::new(node, flags, file, true);
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
        let id = upper_id(made.node.id());
        let state = State {
            upper: Some(made.node),
            ..State::default()
        };
        let node = OverlayNode::get_or_create(&self.tree, id, state);
        let attr = node.overlay_attr(made.attr);
        self.opened(Entry { node, attr }, flags, file)
    }

    pub(super) fn link_in(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        name: Name<'_>,
        target: &Arc<OverlayNode>,
    ) -> Result<Entry> {
        if target.kind == Kind::Directory {
            self.check_add(cx, name)?;
            return Err(Errno::EPERM);
        }
        let linked = |dir: &dyn Node, cx: &Cx<'_>, name: Name<'_>| {
            let upper = target.upper().ok_or(Errno::ESTALE)?;
            dir.link(cx, name, &*upper)
        };
        if let (Some(upper), Some(_)) = (self.upper_only(), target.upper()) {
            return self.created_entry(cx, linked(&*upper, cx, name)?, name);
        }
        cx.check_may_block()?;
        self.check_add(cx, name)?;
        if target.upper().is_none() && target.state().dentry.is_none() {
            return Err(Errno::ENOENT);
        }
        target.copy_up(cx, u64::MAX)?;
        self.add(cx, name, &linked)
    }

    /// Checks that the caller may create `name` in this directory, and that it does not exist.
    fn check_add(self: &Arc<Self>, cx: &Cx<'_>, name: Name<'_>) -> Result<()> {
        self.check(cx, Access::EXEC)?;
        let _names = self.tree.names_shared(cx)?;
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
        cx.check_may_block()?;
        self.check_add(cx, name)?;
        let upper = self.copy_up(cx, u64::MAX)?;
        let _names = self.tree.names_exclusive();
        let made = match look_up_upper(&*upper, &as_process(cx), name)? {
            UpperEntry::Found(_) => return Err(Errno::EEXIST),
            UpperEntry::Whiteout => {
                let tree = &self.tree;
                let mark = |dir: &dyn Node| tree.xattrs.set_opaque(dir, &as_process(cx));
                let made = |dir: &dyn Node, inner: Name<'_>| make(dir, cx, inner);
                tree.staging
                    .replace_whiteout(&as_process(cx), &*upper, name, made, mark)?
            }
            UpperEntry::Absent if self.lower_entry(cx, name)?.is_some() => {
                return Err(Errno::EEXIST);
            }
            UpperEntry::Absent => make(&*upper, cx, name)?,
        };
        self.created_entry(cx, made, name)
    }

    /// Returns the entry of a file created in the upper directory.
    fn created_entry(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        mut made: Entry,
        name: Name<'_>,
    ) -> Result<Entry> {
        self.bump_epoch();
        // Its attributes may have changed with the rename.
        made.attr = made.node.attr(&as_process(cx), AttrMask::STAT)?;
        Ok(self.found_upper(cx, made, name)?.entry())
    }

    pub(super) fn unlink_in(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        name: Name<'_>,
        dir: bool,
    ) -> Result<()> {
        if let Some(upper) = self.upper_only().filter(|_| !dir) {
            self.bump_epoch();
            return upper.unlink(cx, name, false);
        }
        cx.check_may_block()?;
        self.check_remove(cx, name, dir)?;
        let upper = self.copy_up(cx, u64::MAX)?;
        let _names = self.tree.names_exclusive();
        // Checked again: names may have changed before they were locked.
        let Found { node, .. } = self.check_remove_locked(cx, name, dir)?;
        let cx = &as_process(cx);
        let is_below = self.lower_entry(cx, name)?.is_some();
        let there = node.upper().map(|_| node.kind);
        let scratch = &self.tree.staging;
        match (is_below, there) {
            (true, there) => scratch.create_whiteout(cx, &*upper, name, there)?,
            (false, Some(Kind::Directory)) => self.remove_upper_dir(cx, &*upper, name)?,
            (false, _) => upper.unlink(cx, name, false)?,
        }
        node.remove_dentry(self, name);
        Ok(())
    }

    /// Removes an upper directory that contains only whiteouts.
    fn remove_upper_dir(&self, cx: &Cx<'_>, upper: &dyn Node, name: Name<'_>) -> Result<()> {
        match upper.unlink(cx, name, true) {
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
            removed => return removed,
        }
        let scratch = &self.tree.staging;
        let temporary = scratch.temp_name();
        let flags = vfs::RenameFlags::NOREPLACE;
        upper.rename(cx, name, &*scratch.dir, temporary.name(), flags)?;
        scratch.discard(cx, &temporary);
        Ok(())
    }

    fn check_remove(self: &Arc<Self>, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        let _names = self.tree.names_shared(cx)?;
        self.check_remove_locked(cx, name, dir).map(drop)
    }

    /// Returns the entry `name` if the caller may remove it, as a directory or as another file. The
    /// caller holds the names.
    fn check_remove_locked(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        name: Name<'_>,
        dir: bool,
    ) -> Result<Found> {
        let found = self.find(cx, name)?;
        self.check_delete(cx, &found.attr)?;
        match (dir, found.node.kind == Kind::Directory) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) if !found.node.is_empty(cx)? => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        Ok(found)
    }

    /// Checks that the caller may remove an entry from this directory (`fs/namei.c`, may_delete).
    pub(super) fn check_delete(&self, cx: &Cx<'_>, victim: &Attr) -> Result<()> {
        const STICKY: u32 = 0o1000;
        self.check(cx, Access::WRITE | Access::EXEC)?;
        let attr = self.real()?.attr(&as_process(cx), AttrMask::BASIC)?;
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
        self.list_locked(&as_process(cx), 0, vfs::ReaddirMode::Names, &mut any)?;
        Ok(empty)
    }

    /// Replaces the upper directory of `node`, which contains only whiteouts, with an empty one
    /// that has the same attributes.
    pub(super) fn replace_with_empty(
        &self,
        cx: &Cx<'_>,
        node: &OverlayNode,
        name: Name<'_>,
    ) -> Result<()> {
        let (Some(upper), Some(old)) = (self.upper(), node.upper()) else {
            return Ok(());
        };
        let scratch = &self.tree.staging;
        let temporary = scratch.temp_name();
        let like = old.attr(cx, AttrMask::STAT)?;
        let mode = Mode::without_umask(0o700);
        let new = scratch
            .dir
            .make(cx, temporary.name(), NewNode::Directory, mode)?;
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
            .and_then(|_| self.tree.xattrs.set_opaque(&*new.node, cx))
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
        true => file.attr(&as_process(cx), AttrMask::STAT)?,
        false => attr,
    };
    Ok((Entry { node, attr }, file))
}
