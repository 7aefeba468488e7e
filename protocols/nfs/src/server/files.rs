//! Open files at hand, for those whose protocol opens none: READ and WRITE of v3 would otherwise open and
//! close the file each.
//!
//! A file is closed when nobody has used it for [`AGE`], and when it is removed. Who had it opened keeps what it
//! was opened for until then.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vfs::{Caller, Cx, File, Node, NodeId, OpenFlags, Result, or_executed};

use super::Server;
use super::cache::Cache;

/// How long an unused file stays open, or a node at hand: long enough for what a client does in one go, short enough that a program on
/// the host which was just written can be started there (`ETXTBSY`), and that what is removed there takes no space.
pub(super) const AGE: Duration = Duration::from_secs(2);

/// How many callers have a file of one node open: a handful of users, reading and writing.
const MOST_OF_A_NODE: usize = 16;

/// Open files, by node.
pub(super) struct Files {
    nodes: Cache<NodeId, Arc<NodeFiles>>,
}

/// Those of one node.
type NodeFiles = Mutex<Vec<Open>>;

struct Open {
    caller: Caller,
    /// Where he called from: exports tell callers apart by that, too.
    addr: Option<IpAddr>,
    flags: OpenFlags,
    file: Arc<dyn File>,
    used: Duration,
}

impl Files {
    /// Files of about `most` nodes.
    pub(super) fn new(most: usize) -> Files {
        Files {
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
        let mut open = files.lock().expect("no panic holds it");
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
        let mut open = files.lock().expect("no panic holds it");
        // What goes is closed without the lock.
        let gone = (open.len() == MOST_OF_A_NODE).then(|| open.remove(0));
        open.push(new);
        drop(open);
        drop(gone);
    }

    /// Closes those of a node.
    pub(super) fn forget(&self, node: NodeId) {
        self.nodes.remove(&node);
    }

    /// Closes all.
    pub(super) fn forget_all(&self) {
        self.nodes.retain(|_, _| false);
    }

    /// Closes those of a node that others than `owner` have opened: they may not be allowed to any more.
    pub(super) fn forget_strangers(&self, node: NodeId, owner: u32) {
        let Some(files) = self.nodes.get(&node) else {
            return;
        };
        let mut open = files.lock().expect("no panic holds it");
        let gone: Vec<_> = open
            .extract_if(.., |open| open.caller.uid != owner)
            .collect();
        drop(open);
        drop(gone);
    }

    /// Closes those that nobody has used since `since`.
    fn forget_unused(&self, since: Duration) {
        let mut gone = Vec::new();
        self.nodes.retain(|_, files| {
            let mut open = files.lock().expect("no panic holds it");
            gone.extend(open.extract_if(.., |open| open.used < since));
            !open.is_empty()
        });
    }
}

impl Server {
    /// `node`, opened to be read or written as `flags` say, by the caller. A file's owner may do both whatever its mode
    /// says, as whoever opened a file locally may when it is forbidden afterwards (RFC 1813 section 4.4); and who may
    /// execute a file may read it, for that is how a client executes it.
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
        self.keep_file(cx, node.id(), flags, file.clone());
        Ok(file)
    }

    /// Keeps `file` at hand, which the caller has opened.
    pub(super) fn keep_file(
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

    /// Closes files that have not been used for a while.
    pub(super) fn tend_files(&self) {
        if let Some(since) = (self.options.clock)().checked_sub(AGE) {
            self.files.forget_unused(since);
        }
    }
}

fn open(cx: &Cx<'_>, node: &Arc<dyn Node>, flags: OpenFlags) -> Result<Arc<dyn File>> {
    let opened = node.open(cx, flags | OpenFlags::OWNER);
    or_executed(&**node, cx, flags, opened)
}
