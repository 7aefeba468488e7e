//! File handles: a byte for the tree, then the source's handle.
//!
//! The root of a single export that has a name is at `/`, and at `/NAME` as well. Clients of v4
//! walk there from `/`. Linux takes a directory below itself with the same handle for a loop
//! (`ELOOP`). It moves a directory found in two places to the latest place, together with the
//! working directories of processes. So for v4 clients the tree at the name is another file system:
//! its nodes have handles of their own and another fsid.
//!
//! The source makes handles that are unforgeable and persistent where it can; this module adds no
//! protection. Recently used nodes are cached, because resolving a handle takes system calls.

use std::sync::Arc;

use vfs::{Attr, Cx, Entry, Errno, Handle, Kind, Name, Node, Result};

use super::Server;
use super::file_cache::IDLE_TIME;
use super::v4::state::NodeKey;

/// The first byte of the handles of nodes in the tree at `/`.
const AT_ROOT: u8 = 1;

/// The first byte of the handles of nodes in the tree at the export's name.
const AT_NAME: u8 = 2;

/// A file handle as encoded in messages: opaque to clients, at most 64 bytes because of v3.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileHandle {
    form: u8,
    handle: Handle,
}

impl FileHandle {
    /// Parses a client's file handle; `None` if the server cannot have made it.
    pub(crate) fn read(bytes: &[u8]) -> Option<FileHandle> {
        let (&form, handle) = bytes.split_first()?;
        if ![AT_ROOT, AT_NAME].contains(&form) {
            return None;
        }
        let handle = Handle::new(handle).ok()?;
        Some(FileHandle { form, handle })
    }

    fn of(handle: Handle) -> FileHandle {
        FileHandle {
            form: AT_ROOT,
            handle,
        }
    }

    /// Returns the handle of the same node in the tree at the export's name if `at_name`, otherwise
    /// in that at `/`.
    fn in_tree(self, at_name: bool) -> FileHandle {
        let form = if at_name { AT_NAME } else { AT_ROOT };
        FileHandle { form, ..self }
    }

    /// Returns whether the node was found through the export's name.
    pub(crate) fn is_at_name(&self) -> bool {
        self.form == AT_NAME
    }

    /// Returns the encoded handle.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [&[self.form], self.handle.bytes()].concat()
    }
}

/// A node, and the one of the export's two trees in which a v4 client found it.
#[derive(Clone)]
pub(crate) struct Located {
    pub(crate) node: Arc<dyn Node>,
    /// Whether it is the tree at the export's name.
    pub(crate) at_name: bool,
}

impl Server {
    /// Returns the node of `handle`.
    pub(crate) fn node(&self, cx: &Cx<'_>, handle: &FileHandle) -> Result<Arc<dyn Node>> {
        if let Some(node) = self.nodes.get(handle) {
            return Ok(node);
        }
        let node = self.export.fs.resolve(cx, &handle.handle)?;
        self.nodes.put(*handle, node.clone());
        Ok(node)
    }

    /// Returns the key of `node` in the state of v4.
    pub(crate) fn key(&self, node: &Arc<dyn Node>) -> NodeKey {
        NodeKey {
            export: 0,
            node: node.id(),
        }
    }

    /// Returns the handle of `node` in the tree at `/`.
    pub(crate) fn handle(&self, cx: &Cx<'_>, node: &Arc<dyn Node>) -> Result<FileHandle> {
        self.handle_in(cx, node, false)
    }

    /// Returns the handle of `node` in the tree at the export's name if `at_name`, otherwise in
    /// that at `/`.
    pub(crate) fn handle_in(
        &self,
        cx: &Cx<'_>,
        node: &Arc<dyn Node>,
        at_name: bool,
    ) -> Result<FileHandle> {
        let handle = node
            .handle(cx)
            .map(|handle| FileHandle::of(handle).in_tree(at_name))
            .map_err(|errno| match errno {
                Errno::EOPNOTSUPP => Errno::EIO,
                errno => errno,
            })?;
        self.nodes.put(handle, node.clone());
        Ok(handle)
    }

    /// Returns the entry `name` of `dir`, which is about to be removed or replaced. To be passed to
    /// [`Server::forget_removed`] afterwards.
    pub(super) fn entry_to_remove(
        &self,
        cx: &Cx<'_>,
        dir: &Arc<dyn Node>,
        name: Name<'_>,
    ) -> Result<Option<Entry>> {
        match dir.lookup(cx, name) {
            Ok(entry) => Ok(Some(entry)),
            Err(errno) if errno.is_signal() => Err(errno),
            Err(_) => Ok(None),
        }
    }

    /// Removes a file that has lost a name from the caches: a removed file takes space as long as
    /// it is cached.
    pub(super) fn forget_removed(&self, cx: &Cx<'_>, removed: Option<Entry>) {
        let Some(Entry { node, attr }) =
            removed.filter(|removed| removed.attr.kind != Kind::Directory)
        else {
            return;
        };
        self.files.forget(node.id());
        if attr.nlink <= 1
            && let Ok(handle) = node.handle(cx)
        {
            for at_name in [false, true] {
                self.nodes.remove(&FileHandle::of(handle).in_tree(at_name));
            }
        }
    }

    /// Returns `ESTALE` for a file with no name left that no client holds: it was removed on the
    /// host, outside the server, and is only cached. Its `attr` includes [`vfs::AttrMask::BASIC`].
    /// A directory has no open state by which a client could hold it.
    ///
    /// To a client a handle that works means that the file exists: SQLite's journal, which a writer
    /// on the host has removed on commit, would be rolled back.
    pub(super) fn check_exists(
        &self,
        cx: &Cx<'_>,
        node: &Arc<dyn Node>,
        attr: &Attr,
    ) -> Result<()> {
        let has_name = attr.nlink > 0 || attr.kind == Kind::Directory;
        if has_name || self.state.is_held(self.key(node)) {
            return Ok(());
        }
        let (node, attr) = (node.clone(), *attr);
        self.forget_removed(cx, Some(Entry { node, attr }));
        Err(Errno::ESTALE)
    }

    /// Evicts the nodes that have been unused for [`IDLE_TIME`]: they may have been removed on the
    /// host, outside the server.
    pub(super) fn maintain_nodes(&self) {
        let now = (self.options.clock)();
        let mut last_eviction = self.last_eviction.lock();
        if now.saturating_sub(*last_eviction) >= IDLE_TIME {
            *last_eviction = now;
            self.nodes.forget_unused();
        }
    }
}
