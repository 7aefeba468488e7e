//! Renames. The entries are copied up first; a directory merged with a lower one cannot be moved,
//! for lower files cannot be (`EXDEV`).

use std::sync::Arc;

use vfs::{Cx, Errno, Kind, Name, RenameFlags, Result};

use super::lookup::{Found, UpperEntry, look_up_upper};
use super::node::{Dentry, OverlayNode};
use super::tree::as_process;

/// A source or target of a rename.
struct RenameEnd<'a> {
    dir: &'a Arc<OverlayNode>,
    name: Name<'a>,
    found: Option<Found>,
}

impl RenameEnd<'_> {
    fn node(&self) -> Option<&Arc<OverlayNode>> {
        self.found.as_ref().map(|found| &found.node)
    }

    fn is_dir(&self) -> bool {
        self.node().is_some_and(|node| node.kind == Kind::Directory)
    }

    /// Looks up the entry again, with the names locked. Returns whether it is unchanged and its
    /// directory is in the upper tree.
    fn is_unchanged(&self, cx: &Cx<'_>) -> Result<bool> {
        let now = match self.dir.find(cx, self.name) {
            Err(Errno::ENOENT) => None,
            found => Some(found?.node.id),
        };
        Ok(now == self.node().map(|node| node.id) && self.dir.upper().is_some())
    }
}

impl OverlayNode {
    pub(super) fn rename_in(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &Arc<OverlayNode>,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        cx.check_may_block()?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if flags.contains(RenameFlags::WHITEOUT)
            || exchange && flags.contains(RenameFlags::NOREPLACE)
        {
            return Err(Errno::EINVAL);
        }
        loop {
            cx.call.check()?;
            let (from, onto) = {
                let _names = self.tree.names_shared(cx)?;
                let from = Some(self.find(cx, name)?);
                let onto = match to.find(cx, to_name) {
                    Err(Errno::ENOENT) => None,
                    found => Some(found?),
                };
                let end = |dir, name, found| RenameEnd { dir, name, found };
                let ends = (end(self, name, from), end(to, to_name, onto));
                if check_rename(cx, &ends.0, &ends.1, flags)? == SameFile::Yes {
                    return Ok(());
                }
                ends
            };
            self.copy_up(cx, u64::MAX)?;
            to.copy_up(cx, u64::MAX)?;
            if let Some(node) = from.node() {
                node.copy_up(cx, u64::MAX)?;
            }
            if let Some(node) = onto.node().filter(|_| exchange) {
                node.copy_up(cx, u64::MAX)?;
            }
            let _names = self.tree.names_exclusive();
            if from.is_unchanged(&as_process(cx))? && onto.is_unchanged(&as_process(cx))? {
                check_rename(cx, &from, &onto, flags)?;
                return rename_upper(cx, &from, &onto, exchange);
            }
        }
    }
}

#[derive(PartialEq)]
enum SameFile {
    Yes,
    No,
}

/// Checks whether the rename is allowed, as far as possible before the host is asked.
fn check_rename(
    cx: &Cx<'_>,
    from: &RenameEnd<'_>,
    onto: &RenameEnd<'_>,
    flags: RenameFlags,
) -> Result<SameFile> {
    let exchange = flags.contains(RenameFlags::EXCHANGE);
    let source = from.found.as_ref().ok_or(Errno::ENOENT)?;
    let stays = |node: &OverlayNode| node.kind == Kind::Directory && node.state().lower.is_some();
    match &onto.found {
        Some(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(Errno::EEXIST),
        None if exchange => return Err(Errno::ENOENT),
        _ if is_within(onto.dir, &source.node) => return Err(Errno::EINVAL),
        // The target contains the source.
        Some(target) if is_within(from.dir, &target.node) => {
            return Err(match exchange {
                true => Errno::EINVAL,
                false => Errno::ENOTEMPTY,
            });
        }
        Some(target) if target.node.id == source.node.id => return Ok(SameFile::Yes),
        _ => {}
    }
    from.dir.check_delete(cx, &source.attr)?;
    let Some(target) = &onto.found else {
        onto.dir.check(cx, vfs::Access::WRITE | vfs::Access::EXEC)?;
        return match stays(&source.node) {
            true => Err(Errno::EXDEV),
            false => Ok(SameFile::No),
        };
    };
    onto.dir.check_delete(cx, &target.attr)?;
    match (from.is_dir(), onto.is_dir()) {
        _ if exchange => {}
        (true, false) => return Err(Errno::ENOTDIR),
        (false, true) => return Err(Errno::EISDIR),
        (true, true) if !target.node.is_empty(cx)? => return Err(Errno::ENOTEMPTY),
        _ => {}
    }
    if stays(&source.node) || exchange && stays(&target.node) {
        return Err(Errno::EXDEV);
    }
    Ok(SameFile::No)
}

fn is_within(dir: &Arc<OverlayNode>, above: &OverlayNode) -> bool {
    let mut next = Some(dir.clone());
    while let Some(dir) = next {
        if dir.id == above.id {
            return true;
        }
        next = dir.state().dentry.map(|dentry| dentry.parent);
    }
    false
}

/// Renames the upper entries. The caller holds the names.
fn rename_upper(
    cx: &Cx<'_>,
    from: &RenameEnd<'_>,
    onto: &RenameEnd<'_>,
    exchange: bool,
) -> Result<()> {
    let ours = &as_process(cx);
    let tree = &from.dir.tree;
    let upper = |node: &OverlayNode| node.upper().ok_or(Errno::ESTALE);
    let (dir, to) = (upper(from.dir)?, upper(onto.dir)?);
    let is_below = |end: &RenameEnd<'_>| -> Result<bool> {
        Ok(end.dir.lower_entry(ours, end.name)?.is_some())
    };
    let (below_from, below_onto) = (is_below(from)?, is_below(onto)?);
    let mark = |end: &RenameEnd<'_>, hides: bool| match end.node() {
        Some(node) if hides && node.kind == Kind::Directory => {
            tree.xattrs.set_opaque(&*upper(node)?, ours)
        }
        _ => Ok(()),
    };
    mark(from, below_onto)?;
    let mut flags = RenameFlags::empty();
    let mut leaves_whiteout = false;
    if exchange {
        mark(onto, below_from)?;
        flags = RenameFlags::EXCHANGE;
    } else {
        let target = onto.node().filter(|target| target.kind == Kind::Directory);
        if let Some(target) = target {
            onto.dir.replace_with_empty(ours, target, onto.name)?;
        }
        let whiteout = matches!(look_up_upper(&*to, ours, onto.name)?, UpperEntry::Whiteout);
        if whiteout && from.is_dir() {
            // A directory cannot replace a whiteout.
            flags = RenameFlags::EXCHANGE;
            leaves_whiteout = !below_from;
        } else if below_from {
            flags = RenameFlags::WHITEOUT;
        }
    }
    // The host checks permissions, too.
    dir.rename(cx, from.name, &*to, onto.name, flags)?;
    if leaves_whiteout {
        dir.unlink(ours, from.name, false)?;
    }
    let dentry = |end: &RenameEnd<'_>| Dentry {
        parent: end.dir.clone(),
        name: end.name.bytes().into(),
    };
    if let Some(node) = onto.node() {
        match exchange {
            true => node.update_state(|state| state.dentry = Some(dentry(from))),
            false => node.remove_dentry(onto.dir, onto.name),
        }
    }
    if let Some(node) = from.node() {
        node.update_state(|state| state.dentry = Some(dentry(onto)));
    }
    from.dir.bump_epoch();
    onto.dir.bump_epoch();
    Ok(())
}
