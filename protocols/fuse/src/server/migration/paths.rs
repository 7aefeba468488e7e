//! Finds the names of nodes in the tree.
//!
//! A client's kernel knows the directory in which it has found a node. So the names in those
//! directories that the client has looked up come first; the rest of the tree is searched only for
//! nodes that the host has moved, or whose directory the client has forgotten.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vfs::{Cx, DirEntry, DirSink, Errno, Kind, Node, NodeId, OpenFlags, ReaddirMode, Result};

/// The time for a search of the whole tree, during which the client is stopped.
const SEARCH_TIME: Duration = Duration::from_secs(30);

/// The names of nodes, by the source's numbers.
#[derive(Default)]
pub(super) struct Names {
    /// The directory and the name in it.
    names: HashMap<NodeId, (NodeId, Vec<u8>)>,
}

impl Names {
    /// Finds the names of all `wanted` nodes below `root`, as far as they have one.
    pub(super) fn find(
        cx: &Cx<'_>,
        root: &Arc<dyn Node>,
        wanted: &HashMap<NodeId, Arc<dyn Node>>,
    ) -> Names {
        let mut found = Names::default();
        let mut missing: HashSet<NodeId> = wanted.keys().copied().collect();
        missing.remove(&root.id());
        // Names alone have the number of a mount point where another file system is mounted.
        for (what, everywhere) in [
            (ReaddirMode::Names, false),
            (ReaddirMode::Entries, false),
            (ReaddirMode::Entries, true),
        ] {
            let deadline = everywhere.then(|| Instant::now() + SEARCH_TIME);
            let mut visited = HashSet::from([root.id()]);
            let mut directories = VecDeque::from([root.clone()]);
            while let Some(directory) = directories.pop_front() {
                if missing.is_empty() || is_over(deadline) {
                    break;
                }
                let mut listing = Listing {
                    directory: directory.id(),
                    everywhere,
                    deadline,
                    wanted,
                    missing: &mut missing,
                    names: &mut found.names,
                    visited: &mut visited,
                    below: &mut directories,
                    cookie: 0,
                    progress: false,
                };
                // A directory that cannot be read hides its nodes, which are reported then.
                let _ = listing.read(cx, &*directory, what);
            }
        }
        found
    }

    /// Returns the directory of a node and its name there.
    pub(super) fn get(&self, id: NodeId) -> Option<&(NodeId, Vec<u8>)> {
        self.names.get(&id)
    }
}

fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() > deadline)
}

/// The entries of one directory.
struct Listing<'a> {
    directory: NodeId,
    /// Whether to go into directories that are not wanted.
    everywhere: bool,
    /// The end of the search, also within a long listing.
    deadline: Option<Instant>,
    wanted: &'a HashMap<NodeId, Arc<dyn Node>>,
    missing: &'a mut HashSet<NodeId>,
    names: &'a mut HashMap<NodeId, (NodeId, Vec<u8>)>,
    visited: &'a mut HashSet<NodeId>,
    below: &'a mut VecDeque<Arc<dyn Node>>,
    cookie: u64,
    progress: bool,
}

impl Listing<'_> {
    fn read(&mut self, cx: &Cx<'_>, directory: &dyn Node, what: ReaddirMode) -> Result<()> {
        let file = directory.open(cx, OpenFlags::READ)?;
        loop {
            self.progress = false;
            file.readdir(cx, self.cookie, what, self)?;
            if !self.progress || is_over(self.deadline) {
                return Ok(());
            }
        }
    }
}

impl DirSink for Listing<'_> {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        if is_over(self.deadline) {
            return false;
        }
        (self.cookie, self.progress) = (entry.cookie, true);
        let (id, node) = match &entry.entry {
            Some(found) => (found.node.id(), Some(&found.node)),
            None => (entry.id, None),
        };
        let known = self.wanted.get(&id);
        let name = || (self.directory, entry.name.to_vec());
        if self.missing.remove(&id) {
            self.names.insert(id, name());
        }
        let node = known.or(node.filter(|_| self.everywhere));
        if let Some(node) = node
            && node.kind() == Kind::Directory
            && self.visited.insert(id)
        {
            self.names.entry(id).or_insert_with(name);
            self.below.push_back(node.clone());
        }
        true
    }
}

/// Returns whether a node has no name any more.
pub(super) fn is_removed(cx: &Cx<'_>, node: &dyn Node) -> bool {
    match node.attr(cx, vfs::AttrMask::STAT) {
        Ok(attr) => attr.nlink == 0,
        Err(errno) => errno == Errno::ESTALE || errno == Errno::ENOENT,
    }
}
