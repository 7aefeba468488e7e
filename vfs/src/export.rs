//! File systems, their capabilities, and exports.

use core::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::fd::BorrowedFd;
use crate::lock::LockTable;
use crate::source_stats::Evicted;
use crate::{ChangeStream, Cx, Errno, Node, Result, SourceStats};

/// A file tree: a source, or a layer over another tree.
pub trait FileSystem: Send + Sync {
    /// Returns the concrete file system.
    fn as_any(&self) -> &dyn Any;

    /// Returns the root directory, or the file if a single file is exported.
    fn root(&self, cx: &Cx<'_>) -> Result<Arc<dyn Node>>;

    /// Returns the node whose [`Node::handle`] returned `handle`, perhaps before a restart. Returns
    /// `ESTALE` if the node no longer exists or the handle is forged.
    fn resolve(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Arc<dyn Node>>;

    /// Returns a node for `file`, an open file of this tree, perhaps of another process and without
    /// a name: [`FileSystem::resolve`] finds the file by its handle as long as the node lives.
    /// Returns `EOPNOTSUPP` if the tree has no files of the host.
    fn adopt(&self, _file: BorrowedFd<'_>) -> Result<Arc<dyn Node>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns the node of the source that `node`, one of this tree's, is without the layers over
    /// it, or `None` if there are none. A table of very many nodes has these, and gets those of
    /// this tree with [`FileSystem::with_layers`].
    fn below_layers(&self, _node: &Arc<dyn Node>) -> Option<Arc<dyn Node>> {
        None
    }

    /// Returns the node of this tree for one that [`FileSystem::below_layers`] has returned.
    fn with_layers(&self, node: Arc<dyn Node>) -> Arc<dyn Node> {
        node
    }

    /// Makes everything durable: syncfs(2).
    fn sync(&self, cx: &Cx<'_>) -> Result<()>;

    /// Returns its capabilities. Called once per attach.
    fn capabilities(&self) -> Capabilities;

    /// Returns a stream of all changes from now on. Returns `EOPNOTSUPP` if the source cannot
    /// report them ([`Capabilities::changes`]), `ENOSPC` or `EMFILE` if the host's limits do not
    /// suffice.
    fn watch(&self, _cx: &Cx<'_>) -> Result<Box<dyn ChangeStream>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Asks the server that has the data of an image whether it answers, once and without a cache;
    /// blocks until it does, or a time-out of the source. Returns `Ok` at once for any other tree,
    /// whose root's attributes are read for that.
    fn ping(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the statistics of a source; those of a layer are empty.
    fn source_stats(&self) -> SourceStats {
        SourceStats::default()
    }

    /// Releases what a source caches and no operation uses at the moment, and returns its size.
    /// Later operations read it again. Does nothing for a layer, or a source without a cache.
    fn evict(&self) -> Evicted {
        Evicted::default()
    }

    /// Returns the name of the share that [`crate::Call::note_export`] notes as `number`, if this
    /// is a tree of several shares and has that one.
    fn share_name(&self, _number: u64) -> Option<String> {
        None
    }
}

/// The level of support for a feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Support {
    /// Unsupported: returns `EOPNOTSUPP`.
    #[default]
    None,
    /// Supported by other means, at a cost.
    Emulated,
    /// Supported natively.
    Native,
}

/// The capabilities of a file system, resolved from the source up: a layer may remove or add some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// No operation may change the tree.
    pub read_only: bool,
    /// Extended attributes.
    pub xattr: Support,
    /// POSIX ACLs, as `system.posix_acl_*` attributes that are enforced.
    pub acl: Support,
    /// Locks that programs outside barge see.
    pub host_locks: Support,
    /// Handles that outlive the process.
    pub handles: Support,
    /// A change counter finer than a clock tick.
    pub change: Support,
    /// Holes: seek, extents, punching.
    pub holes: Support,
    /// Copies inside the file system (copy_file_range(2)).
    pub copy: Support,
    /// Clones that share blocks (reflinks).
    pub clone: Support,
    /// Files without a name (`O_TMPFILE`).
    pub tmpfile: Support,
    /// Device nodes.
    pub devices: Support,
    /// New nodes belong to the caller (otherwise all nodes have one owner).
    pub owners: Support,
    /// Streams of changes ([`FileSystem::watch`]). `Emulated`: each directory is watched by
    /// itself, so that the start takes a walk of the tree.
    pub changes: Support,
    /// Directory cookies stay valid across opens.
    pub stable_cookies: bool,
    /// The tree outlives this process: a server that is started later has the same one.
    pub persistent: bool,
    /// No node has or will have a birth time, so clients need not request one again.
    pub no_birth_times: bool,
}

/// A persistent identifier of a node: up to [`Handle::MAX`] opaque bytes, which with the one byte
/// that NFS prepends are the 64 of NFSv3.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    len: u8,
    bytes: [u8; Handle::MAX],
}

impl Handle {
    /// The maximum length in bytes for a source, which leaves 8 bytes of [`Handle::MAX`] for an
    /// identifier of the source where several are combined.
    pub const MAX_SOURCE: usize = Handle::MAX - 8;

    /// The maximum length in bytes.
    pub const MAX: usize = 63;

    /// Creates a handle of `bytes`. Returns `EOVERFLOW` if they are more than [`Handle::MAX`].
    pub fn new(bytes: &[u8]) -> Result<Handle> {
        let mut handle = Handle {
            len: bytes.len() as u8,
            bytes: [0; Handle::MAX],
        };
        handle
            .bytes
            .get_mut(..bytes.len())
            .ok_or(Errno::EOVERFLOW)?
            .copy_from_slice(bytes);
        Ok(handle)
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl core::fmt::Debug for Handle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Handle(")?;
        self.bytes()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// A served file system: its name, and the one lock table that the clients of all protocols share.
pub struct Export {
    /// The name that clients mount (9P's aname, NFS's pseudo path, virtiofs's tag); empty for the
    /// only export.
    pub name: String,
    /// The tree.
    pub fs: Arc<dyn FileSystem>,
    /// The locks of all clients.
    pub locks: LockTable,
    /// Whether local clients may receive the open files' descriptors ([`crate::File::backing`]).
    pub fd_passing: bool,
    local_locks: LocalLocks,
}

/// The clients of an export that keep their locks to themselves, so that its other clients do not
/// see them.
#[derive(Default)]
struct LocalLocks {
    clients: AtomicUsize,
    has_others: AtomicBool,
    /// Called once, with the export's name, when there is another client.
    warn: Option<fn(&str)>,
    warned: AtomicBool,
}

/// A client of an export that keeps its locks to itself, until this is dropped.
pub struct LocalLocksClient(Arc<Export>);

impl Drop for LocalLocksClient {
    fn drop(&mut self) {
        self.0.local_locks.clients.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Export {
    /// Notes a client that does not keep its locks to itself, perhaps repeatedly.
    pub fn note_client(&self) {
        let local = &self.local_locks;
        if !local.has_others.load(Ordering::Relaxed) {
            local.has_others.store(true, Ordering::SeqCst);
        }
        self.warn_of_local_locks(1);
    }

    /// Notes a client that keeps its locks to itself.
    pub fn note_local_locks(self: &Arc<Self>) -> LocalLocksClient {
        let local = &self.local_locks;
        local.clients.fetch_add(1, Ordering::SeqCst);
        let fewest = match local.has_others.load(Ordering::SeqCst) {
            true => 1,
            false => 2,
        };
        self.warn_of_local_locks(fewest);
        LocalLocksClient(self.clone())
    }

    /// Warns if at least `fewest` clients keep their locks to themselves.
    fn warn_of_local_locks(&self, fewest: usize) {
        let local = &self.local_locks;
        if local.clients.load(Ordering::SeqCst) >= fewest
            && let Some(warn) = local.warn
            && !local.warned.swap(true, Ordering::SeqCst)
        {
            warn(&self.name);
        }
    }

    /// Returns the same export, which calls `warn` with its name when a client uses it beside one
    /// that keeps its locks to itself.
    pub fn with_local_locks_warning(mut self, warn: fn(&str)) -> Export {
        self.local_locks.warn = Some(warn);
        self
    }

    /// Returns the name of the share that a request noted as `number`
    /// ([`crate::Call::note_export`]), or that of this export; `None` if it has no name.
    pub fn share_name(&self, number: u64) -> Option<String> {
        let name = self.fs.share_name(number);
        Some(name.unwrap_or_else(|| self.name.clone())).filter(|name| !name.is_empty())
    }

    /// Creates an export of `fs` under `name`.
    pub fn new(name: impl Into<String>, fs: Arc<dyn FileSystem>) -> Export {
        Export {
            name: name.into(),
            fs,
            locks: LockTable::default(),
            fd_passing: false,
            local_locks: LocalLocks::default(),
        }
    }

    /// Returns the same export, which passes descriptors of open files to local clients if
    /// `hands_over`.
    pub fn with_fd_passing(self, hands_over: bool) -> Export {
        Export {
            fd_passing: hands_over,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_keeps_its_bytes_and_its_bound() {
        assert_eq!(
            Handle::new(&[7; 63]).map(|h| h.bytes().to_vec()),
            Ok(vec![7; 63])
        );
        assert_eq!(Handle::new(&[7; 64]), Err(Errno::EOVERFLOW));
        assert_eq!(
            format!("{:?}", Handle::new(&[1, 0xab]).expect("short")),
            "Handle(01ab)"
        );
    }
}
