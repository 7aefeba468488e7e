//! File handles: a byte that says whose they are, and the source's own.
//!
//! The root of a single export that has a name is at `/`, and at `/NAME` as well. Clients of v4
//! walk there from `/`, and Linux takes a directory with the same handle below itself for a loop
//! (`ELOOP`): so the root has another handle at its name.
//!
//! Sources make handles that cannot be forged and outlive the process where they can; nothing is added here.
//! A node whose handle was seen lately is kept at hand, for resolving one takes system calls.

use std::sync::{Arc, PoisonError};

use vfs::{Cx, Entry, Errno, Handle, Kind, Name, Node, Result};

use super::Server;
use super::files::AGE;

/// The first byte of every handle of ours.
const FORM: u8 = 1;

/// The first byte of the handle of the root at the export's name.
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

    /// The handle of the same directory at the export's name.
    pub(crate) fn at_name(self) -> FileHandle {
        FileHandle {
            form: NAMED,
            ..self
        }
    }

    /// Whether it is one of [`FileHandle::at_name`].
    pub(crate) fn is_at_name(&self) -> bool {
        self.form == NAMED
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [&[self.form], self.handle.bytes()].concat()
    }
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

    /// The handle of `node`.
    pub(crate) fn handle(&self, cx: &Cx<'_>, node: &Arc<dyn Node>) -> Result<FileHandle> {
        let handle = node
            .handle(cx)
            .map(FileHandle::of)
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
            self.nodes.remove(&FileHandle::of(handle));
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
