//! A read-only view: changes fail with `EROFS`, as on a file system mounted read-only.
//!
//! Locks are allowed. Reading leaves atime unchanged where the caller may request that (for its own
//! files, or for all as the super-user); elsewhere the source below may update it.

use std::sync::Arc;

use vfs::{
    Access, Capabilities, Cx, Entry, Errno, File, Kind, Mode, Name, NewNode, Node, NodeId, Op,
    OpenFlags, Result,
};

use crate::{Layer, forward, refuse_create};

/// The layer.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOnly;

impl ReadOnly {
    fn refuse<T>(
        &self,
        _op: Op,
        _node: NodeId,
        _cx: &Cx<'_>,
        _run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        Err(Errno::EROFS)
    }
}

/// Returns whether opening with `flags` changes something, or permits changes.
fn may_change(flags: OpenFlags) -> bool {
    flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC)
}

impl Layer for ReadOnly {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        Capabilities {
            read_only: true,
            ..inner
        }
    }

    fn access(&self, inner: &dyn Node, cx: &Cx<'_>, want: Access) -> Result<Access> {
        let contained = matches!(inner.kind(), Kind::File | Kind::Directory | Kind::Symlink);
        let refused = if contained {
            Access::WRITE
        } else {
            Access::empty()
        };
        inner.access(cx, want - refused)
    }

    fn open(&self, inner: &dyn Node, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        if may_change(flags) && inner.kind() == Kind::File {
            return Err(Errno::EROFS);
        }
        match inner.open(cx, flags | OpenFlags::NOATIME) {
            Err(Errno::EPERM) if !flags.contains(OpenFlags::NOATIME) => inner.open(cx, flags),
            opened => opened,
        }
    }

    fn create(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        _mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        if may_change(flags) && !flags.contains(OpenFlags::EXCL) {
            return Err(Errno::EROFS);
        }
        let entry = refuse_create::find_existing(inner, cx, name, flags, Errno::EROFS)?;
        let file = self.open(&*entry.node, cx, flags)?;
        Ok((entry, file))
    }

    fn make(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        _what: NewNode<'_>,
        _mode: Mode,
    ) -> Result<Entry> {
        Err(refuse_create::creation_error(inner, cx, name, Errno::EROFS))
    }

    fn link(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>, _: &dyn Node) -> Result<Entry> {
        Err(refuse_create::creation_error(inner, cx, name, Errno::EROFS))
    }

    forward! { with refuse:
        setattr tmpfile unlink rename set_xattr remove_xattr
        file_setattr write allocate copy
    }

    forward! {
        id above
        root resolve sync
        handle attr statfs readlink lookup parent xattr xattrs host_lock host_lock_holder
        file_attr read readdir fsync flush seek extents lease
    }
}
