//! Cached open files for protocols without OPEN: READ and WRITE of v3 would otherwise open and
//! close the file each time.
//!
//! A file is closed when it is removed, or if it has been unused for [`IDLE_TIME`]. Until then its
//! opener keeps the access that was checked at the open.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use vfs::{Caller, Cx, File, Node, NodeId, OpenFlags, Result, or_open_for_exec};

use super::Server;
use super::cache::Cache;

/// The time after which an unused file is closed and an unused node evicted. Long enough for a
/// burst of a client's calls; short enough that a program just written can soon be executed on the
/// host (`ETXTBSY`), and that files removed there soon free their space.
pub(super) const IDLE_TIME: Duration = Duration::from_secs(2);

/// The maximum number of cached open files of a node: a handful of users, reading and writing.
const MAX_OF_A_NODE: usize = 16;

/// Open files, by node.
pub(super) struct FileCache {
    nodes: Cache<NodeId, Arc<NodeFiles>>,
}

/// The open files of one node.
type NodeFiles = Mutex<Vec<Open>>;

struct Open {
    caller: Caller,
    /// The caller's address: exports tell callers apart by address as well.
    addr: Option<IpAddr>,
    flags: OpenFlags,
    file: Arc<dyn File>,
    used: Duration,
}

impl FileCache {
    /// Creates a cache for the files of about `most` nodes.
    pub(super) fn new(most: usize) -> FileCache {
        FileCache {
            nodes: Cache::new(most),
        }
    }

    fn get(
        &self,
        cx: &Cx<'_>,
        node: NodeId,
        flags: OpenFlags,
        now: Duration,
    ) -> Option<Arc<dyn File>> {
        let files = self.nodes.get(&node)?;
        let mut open = files.lock();
        let addr = cx.call.addr();
        let found = open.iter_mut().find(|open| {
            open.flags.contains(flags) && open.caller == *cx.caller && open.addr == addr
        })?;
        found.used = now;
        Some(found.file.clone())
    }

    fn put(&self, node: NodeId, new: Open) {
        let files = self.nodes.get(&node).unwrap_or_else(|| {
            let files = Arc::new(NodeFiles::default());
            self.nodes.put(node, files.clone());
            files
        });
        let mut open = files.lock();
        // The evicted file is closed without the lock.
        let evicted = (open.len() == MAX_OF_A_NODE).then(|| open.remove(0));
        open.push(new);
        drop(open);
        drop(evicted);
    }

    /// Closes the files of a node.
    pub(super) fn forget(&self, node: NodeId) {
        self.nodes.remove(&node);
    }

    /// Closes all files.
    pub(super) fn forget_all(&self) {
        self.nodes.retain(|_, _| false);
    }

    /// Closes the files of a node that users other than `owner` have opened: they may have lost
    /// access.
    pub(super) fn forget_other_users(&self, node: NodeId, owner: u32) {
        let Some(files) = self.nodes.get(&node) else {
            return;
        };
        let mut open = files.lock();
        let closed: Vec<_> = open
            .extract_if(.., |open| open.caller.uid != owner)
            .collect();
        drop(open);
        drop(closed);
    }

    /// Closes the files that were last used before `since`.
    fn forget_unused(&self, since: Duration) {
        let mut unused = Vec::new();
        self.nodes.retain(|_, files| {
            let mut open = files.lock();
            unused.extend(open.extract_if(.., |open| open.used < since));
            !open.is_empty()
        });
    }
}

impl Server {
    /// Returns `node` opened by the caller with `flags`. The owner may read and write a file
    /// regardless of its mode, as a local process may continue after the mode changes (RFC 1813
    /// section 4.4). A caller that may execute a file may read it, because that is how a client
    /// executes it.
    pub(super) fn file(
        &self,
        cx: &Cx<'_>,
        node: &Arc<dyn Node>,
        flags: OpenFlags,
    ) -> Result<Arc<dyn File>> {
        let now = (self.options.clock)();
        if let Some(file) = self.files.get(cx, node.id(), flags, now) {
            return Ok(file);
        }
        let file = open(cx, node, flags)?;
        self.cache_file(cx, node.id(), flags, file.clone());
        Ok(file)
    }

    /// Caches `file`, which the caller has opened.
    pub(super) fn cache_file(
        &self,
        cx: &Cx<'_>,
        node: NodeId,
        flags: OpenFlags,
        file: Arc<dyn File>,
    ) {
        let new = Open {
            caller: cx.caller.clone(),
            addr: cx.call.addr(),
            flags,
            file,
            used: (self.options.clock)(),
        };
        self.files.put(node, new);
    }

    /// Closes the files that have been unused for [`IDLE_TIME`].
    pub(super) fn maintain_files(&self) {
        if let Some(since) = (self.options.clock)().checked_sub(IDLE_TIME) {
            self.files.forget_unused(since);
        }
    }
}

fn open(cx: &Cx<'_>, node: &Arc<dyn Node>, flags: OpenFlags) -> Result<Arc<dyn File>> {
    let opened = node.open(cx, flags | OpenFlags::OWNER);
    or_open_for_exec(&**node, cx, flags, opened)
}
