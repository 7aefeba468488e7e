//! Operations on the names in a directory, except renaming.
//!
//! Errors are determined in the order of Linux's `fs/namei.c`: search permission, existence of the
//! name, write permission, the sticky bit, the kind of node.

use std::sync::Arc;

use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use vfs::{
    Access, Caller, Cx, Device, Entry, Errno, File, Kind, Mode, Name, NewNode, OpenFlags, Result,
};

use crate::dir::Dir;
use crate::file::OpenFile;
use crate::node::{Body, MemNode, NodeParams, State};
use crate::pages::Pages;
use crate::perm;

/// The maximum number of links to a node: ext4's limit, which programs are used to.
const LINK_MAX: u32 = 65000;

/// The maximum length of a symbolic link's target: `PATH_MAX` includes a NUL.
const TARGET_MAX: usize = 4095;

/// The device number of a whiteout, which every user may create.
pub(crate) const WHITEOUT: Device = Device { major: 0, minor: 0 };

impl MemNode {
    /// Locks this directory for look-ups. Returns an error unless the caller may search it.
    pub(crate) fn search(&self, caller: &Caller) -> Result<RwLockReadGuard<'_, State>> {
        let state = self.read();
        self.check_search(&state, caller)?;
        Ok(state)
    }

    /// Locks this directory for look-ups and changes. Write permission is checked later, by
    /// [`MemNode::check_change`].
    fn search_mut(&self, caller: &Caller) -> Result<RwLockWriteGuard<'_, State>> {
        let state = self.write();
        self.check_search(&state, caller)?;
        Ok(state)
    }

    pub(crate) fn check_search(&self, state: &State, caller: &Caller) -> Result<()> {
        if self.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        perm::check(&state.meta, self.kind, caller, Access::EXEC)
    }

    pub(crate) fn check_change(&self, state: &State, caller: &Caller) -> Result<()> {
        if state.meta.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        perm::check(&state.meta, self.kind, caller, Access::WRITE)
    }

    pub(crate) fn find(&self, caller: &Caller, name: Name<'_>) -> Result<Entry> {
        let state = self.search(caller)?;
        let child = state.dir().and_then(|dir| dir.get(name.bytes())).cloned();
        drop(state);
        Ok(child.ok_or(Errno::ENOENT)?.entry())
    }

    pub(crate) fn make_node(
        &self,
        caller: &Caller,
        name: Name<'_>,
        what: NewNode<'_>,
        mode: Mode,
    ) -> Result<Entry> {
        let mut state = self.search_mut(caller)?;
        if state
            .dir()
            .is_some_and(|dir| dir.get(name.bytes()).is_some())
        {
            return Err(Errno::EEXIST);
        }
        self.check_change(&state, caller)?;
        let node = self.new_child(&state, caller, what, mode)?;
        self.attach(&mut state, name, node.clone())?;
        drop(state);
        Ok(node.entry())
    }

    pub(crate) fn create_file(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let mut state = self.search_mut(cx.caller)?;
        let there = state.dir().and_then(|dir| dir.get(name.bytes())).cloned();
        let Some(node) = there else {
            self.check_change(&state, cx.caller)?;
            let node = self.new_child(&state, cx.caller, NewNode::File, mode)?;
            self.attach(&mut state, name, node.clone())?;
            drop(state);
            let file = Arc::new(OpenFile::new(node.clone(), flags));
            return Ok((node.entry(), file));
        };
        drop(state);
        if flags.contains(OpenFlags::EXCL) {
            return Err(Errno::EEXIST);
        }
        if node.kind == Kind::Directory {
            return Err(Errno::EISDIR);
        }
        let file = node.open_file(cx, flags)?;
        Ok((node.entry(), file))
    }

    pub(crate) fn make_unnamed(
        &self,
        caller: &Caller,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        if !flags.contains(OpenFlags::WRITE) {
            return Err(Errno::EINVAL);
        }
        let state = self.search(caller)?;
        self.check_change(&state, caller)?;
        let node = self.new_child(&state, caller, NewNode::File, mode)?;
        drop(state);
        {
            let mut new = node.write();
            new.meta.nlink = 0;
            new.linkable = !flags.contains(OpenFlags::EXCL);
        }
        let file = Arc::new(OpenFile::new(node.clone(), flags));
        Ok((node.entry(), file))
    }

    pub(crate) fn add_link(
        &self,
        caller: &Caller,
        name: Name<'_>,
        target: &MemNode,
    ) -> Result<Entry> {
        let mut state = self.search_mut(caller)?;
        if state
            .dir()
            .is_some_and(|dir| dir.get(name.bytes()).is_some())
        {
            return Err(Errno::EEXIST);
        }
        self.check_change(&state, caller)?;
        if target.kind == Kind::Directory {
            return Err(Errno::EPERM);
        }
        let mut linked = target.write();
        match linked.meta.nlink {
            0 if !linked.linkable => return Err(Errno::ENOENT),
            LINK_MAX.. => return Err(Errno::EMLINK),
            _ => {}
        }
        self.attach(&mut state, name, target.arc())?;
        linked.linkable = false;
        linked.meta.nlink += 1;
        linked.changed(self.shared.now());
        drop((linked, state));
        Ok(target.arc().entry())
    }

    pub(crate) fn remove(&self, caller: &Caller, name: Name<'_>, dir: bool) -> Result<()> {
        let mut state = self.search_mut(caller)?;
        let child = state.dir().and_then(|dir| dir.get(name.bytes())).cloned();
        let child = child.ok_or(Errno::ENOENT)?;
        self.check_change(&state, caller)?;
        let mut victim = child.write();
        perm::check_sticky(&state.meta, &victim.meta, caller)?;
        match (dir, child.kind == Kind::Directory) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            _ => {}
        }
        if victim.dir().is_some_and(|dir| !dir.is_empty()) {
            return Err(Errno::ENOTEMPTY);
        }
        state.dir_mut().expect("searched").remove(name.bytes());
        self.unlinked(&mut state, &child, &mut victim);
        state.modified(self.shared.now());
        Ok(())
    }

    /// Updates link counts after `child` lost its name in this directory.
    pub(crate) fn unlinked(&self, state: &mut State, child: &MemNode, victim: &mut State) {
        if child.kind == Kind::Directory {
            victim.meta.nlink = 0;
            state.meta.nlink -= 1;
            child.set_parent(Default::default());
        } else {
            victim.meta.nlink -= 1;
        }
        victim.changed(self.shared.now());
    }

    /// Creates a node for `caller` in this directory, without a name.
    pub(crate) fn new_child(
        &self,
        state: &State,
        caller: &Caller,
        what: NewNode<'_>,
        mode: Mode,
    ) -> Result<Arc<MemNode>> {
        let budget = &self.shared.budget;
        let (kind, body) = match what {
            NewNode::File => (Kind::File, Body::File(Pages::new(budget)?)),
            NewNode::Directory => (Kind::Directory, Body::Directory(Dir::new(budget)?)),
            NewNode::Symlink(b"") => return Err(Errno::ENOENT),
            NewNode::Symlink(target) if target.len() > TARGET_MAX => {
                return Err(Errno::ENAMETOOLONG);
            }
            NewNode::Symlink(target) => (Kind::Symlink, Body::Symlink(target.into())),
            NewNode::Fifo => (Kind::Fifo, Body::Device(Device::default())),
            NewNode::Socket => (Kind::Socket, Body::Device(Device::default())),
            NewNode::CharDevice(device) if perm::is_root(caller) || device == WHITEOUT => {
                (Kind::CharDevice, Body::Device(device))
            }
            NewNode::BlockDevice(device) if perm::is_root(caller) => {
                (Kind::BlockDevice, Body::Device(device))
            }
            NewNode::CharDevice(_) | NewNode::BlockDevice(_) => return Err(Errno::EPERM),
        };
        let set_gid = state.meta.mode & 0o2000 != 0;
        let new = NodeParams {
            kind,
            mode: perm::new_mode(kind, mode.bits & !mode.umask, &state.meta, caller),
            uid: caller.uid,
            gid: if set_gid { state.meta.gid } else { caller.gid },
            body,
            parent: self.this.clone(),
        };
        MemNode::new(&self.shared, new)
    }

    /// Adds `node` at the unused name `name`.
    fn attach(&self, state: &mut State, name: Name<'_>, node: Arc<MemNode>) -> Result<()> {
        let is_dir = node.kind == Kind::Directory;
        let dir = state.dir_mut().expect("searched");
        dir.put(name.bytes(), node)?;
        if is_dir {
            state.meta.nlink += 1;
        }
        state.modified(self.shared.now());
        Ok(())
    }
}
