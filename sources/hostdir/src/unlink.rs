//! Removal of names.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::AtFlags;
use sys::errno;
use vfs::{Cx, Kind, Name, Result};

use crate::attr;
use crate::descriptors::Share;
use crate::node::HostNode;
use crate::stat::{dev_of, stat_child};

impl HostNode {
    /// Implements [`vfs::Node::unlink`].
    pub(crate) fn remove_name(&self, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        self.device().allow_brief(cx.patience)?;
        let fd = self.fd(cx.patience)?;
        self.tree()
            .leases
            .clear_named(cx, self.device(), &fd, name)?;
        let _open_files = self
            .tree()
            .open_files
            .reopen_named(self, fd.as_fd(), name)?;
        self.host().identity.assume(cx)?;
        let pending = PendingUnlink::prepare(cx, self, fd.as_fd(), name)?;
        let flags = if dir {
            AtFlags::REMOVEDIR
        } else {
            AtFlags::empty()
        };
        rustix::fs::unlinkat(&*fd, name.bytes(), flags).map_err(errno)?;
        if let Some(pending) = pending {
            pending.unlinked();
        }
        Ok(())
    }
}

/// The removal of an object's last name, while it is in use.
pub(crate) struct PendingUnlink {
    node: Arc<HostNode>,
    share: Share,
}

impl PendingUnlink {
    /// Prepares for the removal of `name` in the directory `dir`, whose node is `parent`, by the
    /// thread with the caller's identity: `None` if that needs no share. Returns `EMFILE` if an
    /// object would lose its last name and its peer has no share left for it.
    pub(crate) fn prepare(
        cx: &Cx<'_>,
        parent: &HostNode,
        dir: BorrowedFd<'_>,
        name: Name<'_>,
    ) -> Result<Option<PendingUnlink>> {
        if cx.call.account().client().is_none() {
            return Ok(None);
        }
        let device = parent.device();
        let Ok(stx) = stat_child(dir, name) else {
            return Ok(None);
        };
        let attr = attr::of(device, &stx);
        if dev_of(&stx) != device.dev || (attr.kind != Kind::Directory && attr.nlink > 1) {
            return Ok(None);
        }
        let Some(node) = parent.tree().nodes.get(attr.id) else {
            return Ok(None);
        };
        let share = parent.host().shares.take(cx.call.account())?;
        Ok(share.map(|share| PendingUnlink { node, share }))
    }

    /// Records that the name was removed.
    pub(crate) fn unlinked(self) {
        self.node.set_unlinked();
        let unnamed = &self.node.tree().unlinked;
        unnamed.keep(self.node.number(), self.node.kind(), self.share);
    }
}
