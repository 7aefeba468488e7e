//! Renaming, and the records of locations that it changes.

use std::os::fd::AsFd;

use rustix::fs::RenameFlags as RawRename;
use sys::errno;
use vfs::{Cx, Name, Node, RenameFlags, Result};

use crate::descriptors::Fd;
use crate::handles;
use crate::node::HostNode;
use crate::stat::{dev_of, stat_child};
use crate::unlink::PendingUnlink;

impl HostNode {
    /// Implements [`vfs::Node::rename`].
    pub(crate) fn move_name(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &dyn Node,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let to = self.sibling(to)?;
        self.device().allow_brief(cx.patience)?;
        let from_fd = self.fd(cx.patience)?;
        let to_fd = to.fd(cx.patience)?;
        let leases = &self.tree().leases;
        leases.clear_named(cx, self.device(), &from_fd, name)?;
        leases.clear_named(cx, to.device(), &to_fd, to_name)?;
        let open_files = self
            .tree()
            .open_files
            .reopen_named(to, to_fd.as_fd(), to_name)?;
        self.host().identity.assume(cx)?;
        let replaces = !flags.intersects(RenameFlags::EXCHANGE | RenameFlags::NOREPLACE);
        let pending = match replaces {
            true => PendingUnlink::prepare(cx, to, to_fd.as_fd(), to_name)?,
            false => None,
        };
        let raw = RawRename::from_bits_retain(flags.bits());
        rustix::fs::renameat_with(&*from_fd, name.bytes(), &*to_fd, to_name.bytes(), raw)
            .map_err(errno)?;
        drop(open_files);
        if let Some(pending) = pending {
            pending.unlinked();
        }
        to.record_move(&to_fd, to_name);
        if flags.contains(RenameFlags::EXCHANGE) {
            self.record_move(&from_fd, name);
        }
        Ok(())
    }

    /// Records the new name `name` here, if it belongs to a node that is found by name.
    fn record_move(&self, dir: &Fd, name: Name<'_>) {
        if self.device().mount().is_some() {
            return;
        }
        let Ok(stx) = stat_child(dir.as_fd(), name) else {
            return;
        };
        if dev_of(&stx) != self.device().dev {
            return;
        }
        let (tree, id) = (self.tree(), self.device().id(stx.stx_ino));
        if let Some(node) = tree.nodes.get(id)
            && let Some(dentry) = self.dentry_for(&node, name)
        {
            node.relocate(&dentry);
        }
        handles::record_move(id, self, name);
    }
}
