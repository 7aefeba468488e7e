//! Renames, the only operation on two directories and two children.

use std::sync::Arc;

use parking_lot::RwLockWriteGuard;
use vfs::{Access, Caller, Errno, Kind, Mode, Name, NewNode, RenameFlags, Result};

use crate::node::{MemNode, State};
use crate::perm;
use crate::tree::WHITEOUT;

/// The one or two directories of a rename, locked.
struct Dirs<'a> {
    from: RwLockWriteGuard<'a, State>,
    to: Option<RwLockWriteGuard<'a, State>>,
}

impl Dirs<'_> {
    fn to(&mut self) -> &mut State {
        self.to.as_mut().unwrap_or(&mut self.from)
    }
}

impl MemNode {
    pub(crate) fn rename_child(
        &self,
        caller: &Caller,
        name: Name<'_>,
        to: &MemNode,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange && flags.intersects(RenameFlags::NOREPLACE | RenameFlags::WHITEOUT) {
            return Err(Errno::EINVAL);
        }
        let same_dir = std::ptr::eq(self, to);
        let _no_other_move = (!same_dir).then(|| self.shared.renames.lock());
        let mut dirs = self.lock_dirs(to);
        self.check_search(&dirs.from, caller)?;
        to.check_search(dirs.to(), caller)?;
        let child = |state: &State, name: Name<'_>| {
            let dir = state.dir().expect("searched");
            dir.get(name.bytes()).cloned()
        };
        let source = child(&dirs.from, name).ok_or(Errno::ENOENT)?;
        let target = child(dirs.to(), to_name);
        match &target {
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(Errno::EEXIST),
            None if exchange => return Err(Errno::ENOENT),
            _ => {}
        }
        // A move within one directory cannot form a loop, and without the lock of renames the
        // ancestors may change meanwhile.
        if !same_dir && to.is_at_or_below(&source) {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = &target {
            if !same_dir && self.is_at_or_below(target) {
                let loops = if exchange {
                    Errno::EINVAL
                } else {
                    Errno::ENOTEMPTY
                };
                return Err(loops);
            }
            if Arc::ptr_eq(&source, target) {
                return Ok(());
            }
        }

        let (mut moved, mut met) = lock_children(&source, target.as_deref());
        self.check_change(&dirs.from, caller)?;
        perm::check_sticky(&dirs.from.meta, &moved.meta, caller)?;
        to.check_change(dirs.to(), caller)?;
        let source_is_dir = source.kind == Kind::Directory;
        let may_have_new_parent = |node: &MemNode, state: &State| {
            if same_dir || node.kind != Kind::Directory {
                return Ok(());
            }
            perm::check(&state.meta, node.kind, caller, Access::WRITE)
        };
        if let (Some(target), Some(met)) = (&target, &met) {
            perm::check_sticky(&dirs.to().meta, &met.meta, caller)?;
            match (source_is_dir, target.kind == Kind::Directory) {
                _ if exchange => may_have_new_parent(target, met)?,
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                _ => {}
            }
        }
        may_have_new_parent(&source, &moved)?;
        if !exchange
            && met
                .as_ref()
                .and_then(|met| met.dir())
                .is_some_and(|dir| !dir.is_empty())
        {
            return Err(Errno::ENOTEMPTY);
        }

        let whiteout = match flags.contains(RenameFlags::WHITEOUT) {
            true => {
                let what = NewNode::CharDevice(WHITEOUT);
                Some(self.new_child(&dirs.from, caller, what, Mode::without_umask(0))?)
            }
            false => None,
        };
        let to_dir = dirs.to().dir_mut().expect("searched");
        let replaced = to_dir.put(to_name.bytes(), source.clone())?;
        let from_dir = dirs.from.dir_mut().expect("searched");
        let left = if exchange { replaced } else { whiteout };
        match left {
            Some(node) => drop(from_dir.put(name.bytes(), node)?),
            None => drop(from_dir.remove(name.bytes())),
        }

        if source_is_dir {
            dirs.from.meta.nlink -= 1;
            dirs.to().meta.nlink += 1;
            source.set_parent(to.this.clone());
        }
        let now = self.shared.now();
        moved.changed(now);
        if let (Some(target), Some(met)) = (&target, &mut met) {
            if !exchange {
                to.unlinked(dirs.to(), target, met);
            } else if target.kind == Kind::Directory {
                dirs.to().meta.nlink -= 1;
                dirs.from.meta.nlink += 1;
                target.set_parent(self.this.clone());
            }
            if exchange {
                met.changed(now);
            }
        }
        dirs.from.modified(now);
        if let Some(to) = &mut dirs.to {
            to.modified(now);
        }
        Ok(())
    }

    /// Locks this directory and `to`, an ancestor first. Requires the lock of renames unless both
    /// are the same.
    fn lock_dirs<'a>(&'a self, to: &'a MemNode) -> Dirs<'a> {
        if std::ptr::eq(self, to) {
            return Dirs {
                from: self.write(),
                to: None,
            };
        }
        let to_first = self.is_at_or_below(to) || !to.is_at_or_below(self) && to.id < self.id;
        if to_first {
            let to = to.write();
            Dirs {
                from: self.write(),
                to: Some(to),
            }
        } else {
            let from = self.write();
            Dirs {
                from,
                to: Some(to.write()),
            }
        }
    }

    /// Returns whether this directory is `other` or a descendant of it. Requires the lock of
    /// renames.
    fn is_at_or_below(&self, other: &MemNode) -> bool {
        let mut at = self.arc();
        loop {
            if std::ptr::eq(&*at, other) {
                return true;
            }
            match at.parent_link() {
                Some(parent) if !Arc::ptr_eq(&parent, &at) => at = parent,
                _ => return false,
            }
        }
    }
}

/// Locks the two children of a rename: directories first, then by number.
fn lock_children<'a>(
    source: &'a MemNode,
    target: Option<&'a MemNode>,
) -> (
    RwLockWriteGuard<'a, State>,
    Option<RwLockWriteGuard<'a, State>>,
) {
    let Some(target) = target else {
        return (source.write(), None);
    };
    let rank = |node: &MemNode| (node.kind != Kind::Directory, node.id);
    if rank(source) < rank(target) {
        let moved = source.write();
        (moved, Some(target.write()))
    } else {
        let met = target.write();
        (source.write(), Some(met))
    }
}
