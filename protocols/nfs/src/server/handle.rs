//! File handles: a byte that says whose they are, and the source's own.
//!
//! The root of a single export that has a name is at `/`, and at `/NAME` as well. Clients of v4
//! walk there from `/`. Linux takes a directory with the same handle below itself for a loop
//! (`ELOOP`), and moves one that it finds in two places to the place where it was found last, with
//! the working directories of processes. So the tree at the name is another file system to clients
//! of v4: each of its nodes has a handle and an fsid of its own there.
//!
//! Sources make handles that cannot be forged and outlive the process where they can; nothing is added here.
//! A node whose handle was seen lately is kept at hand, for resolving one takes system calls.

use std::sync::{Arc, PoisonError};

use vfs::{Cx, Entry, Errno, Handle, Kind, Name, Node, Result};

use super::Server;
use super::files::AGE;

/// The first byte of every handle of ours.
const FORM: u8 = 1;

/// The first byte of the handles of nodes that were found through the export's name.
const NAMED: u8 = 2;

/// A file handle as it travels: opaque to clients, at most 64 bytes for v3's sake.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileHandle {
    form: u8,
    handle: Handle,
}

impl FileHandle {
    /// The handle in a client's bytes; `None` if it never was one of ours.
    pub(crate) fn read(bytes: &[u8]) -> Option<FileHandle> {
        let (&form, handle) = bytes.split_first()?;
        if ![FORM, NAMED].contains(&form) {
            return None;
        }
        let handle = Handle::new(handle).ok()?;
        Some(FileHandle { form, handle })
    }

    fn of(handle: Handle) -> FileHandle {
        FileHandle { form: FORM, handle }
    }

    /// The handle of the same node in the tree `at_name`.
    fn in_tree(self, at_name: bool) -> FileHandle {
        let form = if at_name { NAMED } else { FORM };
        FileHandle { form, ..self }
    }

    /// Whether its node was found through the export's name.
    pub(crate) fn is_at_name(&self) -> bool {
        self.form == NAMED
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [&[self.form], self.handle.bytes()].concat()
    }
}

/// A node, and in which of the export's two trees a client of v4 found it.
#[derive(Clone)]
pub(crate) struct Located {
    pub(crate) node: Arc<dyn Node>,
    /// Whether that is the tree at the export's name.
    pub(crate) at_name: bool,
}

impl Server {
    /// The node that `handle` names.
    pub(crate) fn node(&self, cx: &Cx<'_>, handle: &FileHandle) -> Result<Arc<dyn Node>> {
        if let Some(node) = self.nodes.get(handle) {
            return Ok(node);
        }
        let node = self.export.fs.resolve(cx, &handle.handle)?;
        self.nodes.put(*handle, node.clone());
        Ok(node)
    }

    /// The handle of `node` in the tree at `/`.
    pub(crate) fn handle(&self, cx: &Cx<'_>, node: &Arc<dyn Node>) -> Result<FileHandle> {
        self.handle_in(cx, node, false)
    }

    /// The handle of `node` in the tree at the export's name if `at_name`, otherwise in that at `/`.
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

    /// What `name` in `dir` is, which is about to be another's or nobody's: for [`Server::let_go`] when it is.
    pub(super) fn going(
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

    /// Takes out of the caches what has lost a name: a file without any takes space as long as somebody has it at hand.
    pub(super) fn let_go(&self, cx: &Cx<'_>, gone: Option<Entry>) {
        let Some(Entry { node, attr }) = gone.filter(|gone| gone.attr.kind != Kind::Directory)
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

    /// Takes out of the cache what nobody has used for a while: others than the server's clients may have removed it.
    pub(super) fn tend_nodes(&self) {
        let now = (self.options.clock)();
        let mut tended = self.tended.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_sub(*tended) >= AGE {
            *tended = now;
            self.nodes.forget_unused();
        }
    }
}
