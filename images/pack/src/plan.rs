//! What goes into an image: a tree whose nodes are in one table, so that a file of several names is one node.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use vfs::{Device, Time};

use crate::error::{Error, Result};
use crate::{Contents, contents};

/// The most directories one below the other: a tree that goes deeper has no end, or no path that a program could name.
pub(crate) const MOST_LEVELS: usize = 2048;

/// A node of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(usize);

impl NodeId {
    /// The root directory.
    pub const ROOT: NodeId = NodeId(0);
}

/// What a node has besides contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits, set-id bits and sticky bit: `0o7777`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of contents.
    pub mtime: Time,
    /// Extended attributes by whole name, ACLs among them.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What a node is.
#[derive(Clone)]
#[allow(missing_docs)]
pub enum Kind {
    /// A directory and what its names stand for.
    Directory(BTreeMap<Vec<u8>, NodeId>),
    File(Arc<dyn Contents>),
    /// A symbolic link and its target.
    Symlink(Vec<u8>),
    Fifo,
    Socket,
    CharDevice(Device),
    BlockDevice(Device),
}

impl Kind {
    /// A directory that nothing is in.
    pub fn empty_directory() -> Kind {
        Kind::Directory(BTreeMap::new())
    }

    /// A file of these bytes.
    pub fn file(bytes: impl Into<Vec<u8>>) -> Kind {
        Kind::File(Arc::new(contents::Bytes(bytes.into())))
    }

    /// As the file-system traits have it.
    pub fn kind(&self) -> vfs::Kind {
        match self {
            Kind::Directory(_) => vfs::Kind::Directory,
            Kind::File(_) => vfs::Kind::File,
            Kind::Symlink(_) => vfs::Kind::Symlink,
            Kind::Fifo => vfs::Kind::Fifo,
            Kind::Socket => vfs::Kind::Socket,
            Kind::CharDevice(_) => vfs::Kind::CharDevice,
            Kind::BlockDevice(_) => vfs::Kind::BlockDevice,
        }
    }
}

/// A tree to be written.
#[derive(Clone)]
pub struct Plan {
    nodes: Vec<(Attributes, Kind)>,
}

/// A node as [`Plan::walk`] meets it first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The node.
    pub node: NodeId,
    /// The directory it was found in, by index among the visits; the root's is its own.
    pub parent: usize,
    /// Its name there; empty for the root.
    pub name: Vec<u8>,
    /// How many names it has; a directory's with `.` and those `..` that lead to it.
    pub links: u32,
}

impl Plan {
    /// An empty root.
    pub fn new(root: Attributes) -> Plan {
        Plan {
            nodes: vec![(root, Kind::empty_directory())],
        }
    }

    /// What a node has.
    pub fn attributes(&self, node: NodeId) -> &Attributes {
        &self.nodes[node.0].0
    }

    /// Gives a node other attributes.
    pub fn set_attributes(&mut self, node: NodeId, attributes: Attributes) {
        self.nodes[node.0].0 = attributes;
    }

    /// What a node is.
    pub fn kind(&self, node: NodeId) -> &Kind {
        &self.nodes[node.0].1
    }

    /// What a directory has by that name.
    pub fn lookup(&self, dir: NodeId, name: &[u8]) -> Option<NodeId> {
        match self.kind(dir) {
            Kind::Directory(children) => children.get(name).copied(),
            _ => None,
        }
    }

    /// Puts a new node into the directory `dir`, in the place of what has that name. Only a directory that
    /// comes in the place of a directory keeps what is in that.
    pub fn add(&mut self, dir: NodeId, name: &[u8], attributes: Attributes, kind: Kind) -> NodeId {
        if let (Kind::Directory(_), Some(there)) = (&kind, self.lookup(dir, name))
            && let Kind::Directory(_) = self.kind(there)
        {
            self.set_attributes(there, attributes);
            return there;
        }
        let node = NodeId(self.nodes.len());
        self.nodes.push((attributes, kind));
        self.link(dir, name, node);
        node
    }

    /// Gives a node that is no directory a further name.
    ///
    /// # Panics
    /// If `dir` is no directory.
    pub fn link(&mut self, dir: NodeId, name: &[u8], node: NodeId) {
        self.children(dir).insert(name.to_vec(), node);
    }

    /// Takes a name away, and what is below it.
    pub fn remove(&mut self, dir: NodeId, name: &[u8]) {
        self.children(dir).remove(name);
    }

    /// Takes all names of a directory away.
    pub fn clear(&mut self, dir: NodeId) {
        self.children(dir).clear();
    }

    fn children(&mut self, dir: NodeId) -> &mut BTreeMap<Vec<u8>, NodeId> {
        match &mut self.nodes[dir.0].1 {
            Kind::Directory(children) => children,
            _ => panic!("only directories have children"),
        }
    }

    /// No node was changed later than `seconds` after the Unix epoch (`SOURCE_DATE_EPOCH`).
    pub fn clamp_times(&mut self, seconds: i64) {
        let latest = Time {
            sec: seconds,
            nsec: 0,
        };
        for (attributes, _) in &mut self.nodes {
            attributes.mtime = attributes.mtime.min(latest);
        }
    }

    /// Everybody is `uid`, every group `gid`, where given.
    pub fn set_owners(&mut self, uid: Option<u32>, gid: Option<u32>) {
        for (attributes, _) in &mut self.nodes {
            attributes.uid = uid.unwrap_or(attributes.uid);
            attributes.gid = gid.unwrap_or(attributes.gid);
        }
    }

    /// All nodes that have a name, each once: a directory before what is in it, children by name. The order in which they
    /// were added does not show.
    pub fn walk(&self) -> Result<Vec<Visit>> {
        let mut visits: Vec<Visit> = Vec::with_capacity(self.nodes.len());
        let mut seen = BTreeMap::<NodeId, usize>::new();
        // What is still to be met, the next one last: name, node, index of the directory, levels.
        let mut pending = vec![(Vec::new(), NodeId::ROOT, 0, 0)];
        while let Some((name, node, parent, level)) = pending.pop() {
            let at = match seen.entry(node) {
                Entry::Occupied(met) => {
                    visits[*met.get()].links += 1;
                    continue;
                }
                Entry::Vacant(new) => *new.insert(visits.len()),
            };
            visits.push(Visit {
                node,
                parent,
                name,
                links: 1,
            });
            if let Kind::Directory(children) = self.kind(node) {
                // `.` besides the name (the root's `..`).
                visits[at].links += 1;
                if at != 0 {
                    visits[parent].links += 1;
                }
                if level == MOST_LEVELS {
                    let what = format!("more than {MOST_LEVELS} directories one below the other");
                    return Err(Error::of(&path(&visits, at), what));
                }
                let children = children.iter().rev();
                pending.extend(children.map(|(name, &node)| (name.clone(), node, at, level + 1)));
            }
        }
        Ok(visits)
    }
}

/// The path of a visit, for people.
pub(crate) fn path(visits: &[Visit], mut at: usize) -> Vec<u8> {
    let mut names = Vec::new();
    while at != 0 {
        names.push(&visits[at].name[..]);
        at = visits[at].parent;
    }
    names.push(b"");
    names.reverse();
    match names.len() {
        1 => b"/".to_vec(),
        _ => names.join(&b'/'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_several_names_is_met_once() {
        let mut plan = Plan::new(Attributes::default());
        let none = Attributes::default;
        let b = plan.add(NodeId::ROOT, b"b", none(), Kind::empty_directory());
        let file = plan.add(b, b"file", none(), Kind::file("x"));
        plan.link(NodeId::ROOT, b"a", file);
        plan.add(NodeId::ROOT, b"gone", none(), Kind::Fifo);
        plan.remove(NodeId::ROOT, b"gone");
        let visits = plan.walk().expect("a tree");
        let shown: Vec<_> = visits
            .iter()
            .enumerate()
            .map(|(at, visit)| (path(&visits, at), visit.links))
            .collect();
        let want = [(&b"/"[..], 3), (b"/a", 2), (b"/b", 2)];
        assert_eq!(shown, want.map(|(path, links)| (path.to_vec(), links)));
    }

    #[test]
    fn a_directory_in_the_place_of_a_directory_keeps_what_is_in_it() {
        let mut plan = Plan::new(Attributes::default());
        let add = |plan: &mut Plan, name: &[u8], kind, mode| {
            let attributes = Attributes {
                mode,
                ..Attributes::default()
            };
            plan.add(NodeId::ROOT, name, attributes, kind)
        };
        let dir = add(&mut plan, b"d", Kind::empty_directory(), 0o700);
        plan.add(dir, b"x", Attributes::default(), Kind::Fifo);
        assert_eq!(add(&mut plan, b"d", Kind::empty_directory(), 0o755), dir);
        assert_eq!(plan.attributes(dir).mode, 0o755);
        assert!(plan.lookup(dir, b"x").is_some());
        let file = add(&mut plan, b"d", Kind::file(""), 0o644);
        assert_eq!(plan.lookup(NodeId::ROOT, b"d"), Some(file));
    }

    #[test]
    fn a_tree_without_an_end_is_refused() {
        let mut plan = Plan::new(Attributes::default());
        let mut dir = NodeId::ROOT;
        for _ in 0..=MOST_LEVELS {
            dir = plan.add(dir, b"d", Attributes::default(), Kind::empty_directory());
        }
        let error = plan.walk().expect_err("too deep").to_string();
        assert!(error.contains("one below the other"), "{error}");
    }
}
