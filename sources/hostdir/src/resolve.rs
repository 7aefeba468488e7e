//! Resolution of names beneath the root: one component at a time with openat2(2) and
//! `RESOLVE_BENEATH`, following no links, and the way up to the parent directory.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags, Statx};
use vfs::{Attr, AttrMask, Cx, Errno, Kind, Name, Result};

use crate::containment;
use crate::descriptors::Fd;
use crate::node::HostNode;
use crate::stat::{dev_of, stat, stat_child};
use crate::{attr, identity};

impl HostNode {
    /// Looks up the child `name` with openat2(2) and statx(2), or with statx(2) alone if the
    /// children being looked up are in the table already.
    pub(crate) fn look_up(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<(Arc<HostNode>, Attr)> {
        let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        if self.device().cached_names(cx.patience)? {
            resolve |= ResolveFlags::CACHED;
        }
        let dir = self.fd(cx.patience)?;
        self.host().identity.assume(cx)?;
        if self.expects_known_child() && !resolve.contains(ResolveFlags::CACHED) {
            let stx = stat_child(dir.as_fd(), name)?;
            if let Some(known) = self.known_child(&stx, name) {
                return Ok(known);
            }
        }
        let child = self.open_child(dir.as_fd(), name, resolve);
        match child {
            Err(Errno::EAGAIN) if resolve.contains(ResolveFlags::CACHED) => Err(Errno::WOULD_BLOCK),
            child => self.enter_child(child?, name),
        }
    }

    /// Returns the live node of `name`, which has these attributes. A node that is not open may be
    /// of another incarnation of the number and is not returned.
    fn known_child(&self, stx: &Statx, name: Name<'_>) -> Option<(Arc<HostNode>, Attr)> {
        if dev_of(stx) != self.device().dev {
            return None;
        }
        let attr = attr::of(self.device(), stx);
        let node = self.tree().nodes.get(attr.id)?;
        if node.kind() != attr.kind || !node.is_open() {
            return None;
        }
        if let Some(dentry) = self.dentry_for(&node, name) {
            node.relocate(&dentry);
        }
        node.record_directory(self);
        Some((node, attr))
    }

    /// Looks up the child `name` with full patience, after a completed change.
    pub(crate) fn child(&self, dir: &Fd, name: Name<'_>) -> Result<(Arc<HostNode>, Attr)> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let fd = self.open_child(dir.as_fd(), name, resolve)?;
        self.enter_child(fd, name)
    }

    fn open_child(&self, dir: BorrowedFd<'_>, name: Name<'_>, resolve: ResolveFlags) -> Result<Fd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.host()
            .open(|| rustix::fs::openat2(dir, name.bytes(), flags, Mode::empty(), resolve))
    }

    fn enter_child(&self, fd: Fd, name: Name<'_>) -> Result<(Arc<HostNode>, Attr)> {
        self.tree()
            .enter(Some(self.tree_device()), fd, Some((self, name)))
    }

    /// Returns the parent directory, after a check that this is the root or below it: otherwise
    /// `ESTALE`. The root is its own parent.
    pub(crate) fn parent_directory(&self, cx: &Cx<'_>) -> Result<(Arc<HostNode>, Attr)> {
        if self.kind() != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        self.device().allow_brief(cx.patience)?;
        let fd = self.fd(cx.patience)?;
        if self.host().is_root(&stat(fd.as_fd())?) {
            let attr = attr::read(self.device(), fd.as_fd(), AttrMask::STAT)?;
            return Ok((self.shared().ok_or(Errno::ESTALE)?, attr));
        }
        self.host().identity.assume(cx)?;
        let up = self.host().open(|| containment::open_parent(fd.as_fd()))?;
        identity::assume_server()?;
        let tree = self.tree();
        if !tree.containment()?.is_directory_beneath(&up)? {
            return Err(Errno::ESTALE);
        }
        tree.enter(Some(self.tree_device()), up, None)
    }
}
