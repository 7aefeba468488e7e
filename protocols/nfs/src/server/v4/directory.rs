//! Changes to directories: REMOVE, RENAME, LINK (RFC 8881 sections 18.9, 18.25, 18.26).

use std::sync::Arc;

use vfs::{AttrMask, Errno, Kind, Node, RenameFlags};

use super::compound::{Compound, OpError, OpResult};
use super::lookup::component;
use crate::server::RequestContext;
use crate::v4::Status;
use crate::v4::op::Rename;
use crate::v4::reply::Renamed;
use crate::v4::types::ChangeInfo;

impl RequestContext<'_, Compound> {
    /// Returns the change counter of a directory.
    pub(super) fn change(&self, node: &Arc<dyn Node>) -> Result<u64, Errno> {
        Ok(node.attr(&self.cx(), AttrMask::TIMES)?.change)
    }

    /// Returns the change information of a directory whose counter was `before`.
    pub(super) fn change_since(&self, before: u64, node: &Arc<dyn Node>) -> ChangeInfo {
        ChangeInfo {
            // Local programs and other protocols' clients may have changed it as well.
            atomic: false,
            before,
            after: self.change(node).unwrap_or(before),
        }
    }

    pub(super) fn remove(&mut self, bytes: &[u8]) -> OpResult {
        let directory = self.directory()?;
        let child = component(bytes)?;
        let before = self.change(&directory)?;
        let cx = self.cx();
        let server = self.server;
        let victim = server.entry_to_remove(&cx, &directory, child)?;
        match directory.unlink(&cx, child, false) {
            Err(Errno::EISDIR) => directory.unlink(&cx, child, true)?,
            done => done?,
        }
        self.forbid_restart();
        server.forget_removed(&self.cx(), victim);
        let change = self.change_since(before, &directory);
        self.reply.value(&change);
        Ok(())
    }

    pub(super) fn rename(&mut self, args: Rename<'_>) -> OpResult {
        let from = self.saved_node()?;
        let to = self.directory()?;
        if from.kind() != Kind::Directory {
            return Err(Status::Notdir.into());
        }
        let (old, new) = (component(args.from)?, component(args.to)?);
        let (before_from, before_to) = (self.change(&from)?, self.change(&to)?);
        let cx = self.cx();
        let server = self.server;
        let victim = server.entry_to_remove(&cx, &to, new)?;
        from.rename(&cx, old, &*to, new, RenameFlags::empty())
            .map_err(|errno| match errno {
                // The name to be replaced is of another kind.
                Errno::EISDIR | Errno::ENOTDIR => OpError::Status(Status::Exist),
                errno => errno.into(),
            })?;
        self.forbid_restart();
        server.forget_removed(&self.cx(), victim);
        let renamed = Renamed {
            from: self.change_since(before_from, &from),
            to: self.change_since(before_to, &to),
        };
        self.reply.value(&renamed);
        Ok(())
    }

    pub(super) fn link(&mut self, bytes: &[u8]) -> OpResult {
        let target = self.saved_node()?;
        let directory = self.directory()?;
        if target.kind() == Kind::Directory {
            return Err(Status::Isdir.into());
        }
        let child = component(bytes)?;
        let before = self.change(&directory)?;
        let cx = self.cx();
        directory.link(&cx, child, &*target)?;
        self.forbid_restart();
        let change = self.change_since(before, &directory);
        self.reply.value(&change);
        Ok(())
    }
}
