//! The content of an image: a tree whose nodes are in one table, so that a file with several names
//! is one node.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use vfs::{Device, Time};

use crate::error::{Error, Result};
use crate::{Contents, contents};

/// Maximum depth of directories: a deeper tree is a cycle, or has paths that no program can name.
pub(crate) const MAX_DEPTH: usize = 2048;

/// Maximum length in bytes of the target of a symbolic link: PATH_MAX of Linux without the NUL.
const MAX_TARGET: usize = 4095;

/// A node of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(usize);

impl NodeId {
    /// The root directory.
    pub const ROOT: NodeId = NodeId(0);
}

/// The attributes of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits, set-id bits and sticky bit: `0o7777`.
    pub mode: u32,
    /// Owner's user ID.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Modification time.
    pub mtime: Time,
    /// Extended attributes by full name, ACLs included.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The type of a node, with its contents.
#[derive(Clone)]
#[allow(missing_docs)]
pub enum Kind {
    /// A directory and its entries.
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
    /// Returns an empty directory.
    pub fn empty_directory() -> Kind {
        Kind::Directory(BTreeMap::new())
    }

    /// Returns a file with these bytes.
    pub fn file(bytes: impl Into<Vec<u8>>) -> Kind {
        Kind::File(Arc::new(contents::Bytes(bytes.into())))
    }

    /// Returns the file type for the file-system traits.
    pub fn vfs_kind(&self) -> vfs::Kind {
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

/// The tree of an image.
#[derive(Clone)]
pub struct Plan {
    nodes: Vec<(Attributes, Kind)>,
}

/// The first visit of a node by [`Plan::walk`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The node.
    pub node: NodeId,
    /// The parent directory's index among the visits; the root is its own parent.
    pub parent: usize,
    /// Its name there; empty for the root.
    pub name: Vec<u8>,
    /// Link count; a directory's includes `.` and the `..` of its subdirectories.
    pub links: u32,
}

impl Plan {
    /// Returns a tree with an empty root.
    pub fn new(root: Attributes) -> Plan {
        Plan {
            nodes: vec![(root, Kind::empty_directory())],
        }
    }

    /// Returns a node's attributes.
    pub fn attributes(&self, node: NodeId) -> &Attributes {
        &self.nodes[node.0].0
    }

    /// Replaces a node's attributes.
    pub fn set_attributes(&mut self, node: NodeId, attributes: Attributes) {
        self.nodes[node.0].0 = attributes;
    }

    /// Returns a node's type and contents.
    pub fn kind(&self, node: NodeId) -> &Kind {
        &self.nodes[node.0].1
    }

    /// Returns the entry `name` of a directory.
    pub fn lookup(&self, dir: NodeId, name: &[u8]) -> Option<NodeId> {
        match self.kind(dir) {
            Kind::Directory(children) => children.get(name).copied(),
            _ => None,
        }
    }

    /// Adds a new node to the directory `dir`, replacing an existing entry. A directory that
    /// replaces a directory keeps its entries.
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

    /// Adds another name for a node that is not a directory.
    ///
    /// # Panics
    /// If `dir` is no directory.
    pub fn link(&mut self, dir: NodeId, name: &[u8], node: NodeId) {
        self.children(dir).insert(name.to_vec(), node);
    }

    /// Removes a name with everything below it.
    pub fn remove(&mut self, dir: NodeId, name: &[u8]) {
        self.children(dir).remove(name);
    }

    /// Removes all entries of a directory.
    pub fn clear(&mut self, dir: NodeId) {
        self.children(dir).clear();
    }

    fn children(&mut self, dir: NodeId) -> &mut BTreeMap<Vec<u8>, NodeId> {
        match &mut self.nodes[dir.0].1 {
            Kind::Directory(children) => children,
            _ => panic!("only directories have children"),
        }
    }

    /// Limits all modification times to `seconds` after the Unix epoch (`SOURCE_DATE_EPOCH`).
    pub fn clamp_times(&mut self, seconds: i64) {
        let latest = Time {
            sec: seconds,
            nsec: 0,
        };
        for (attributes, _) in &mut self.nodes {
            attributes.mtime = attributes.mtime.min(latest);
        }
    }

    /// Sets the owner and the group of all nodes, where given.
    pub fn set_owners(&mut self, uid: Option<u32>, gid: Option<u32>) {
        for (attributes, _) in &mut self.nodes {
            attributes.uid = uid.unwrap_or(attributes.uid);
            attributes.gid = gid.unwrap_or(attributes.gid);
        }
    }

    /// Returns the total size in bytes of the files among `visits`, holes included.
    pub fn contents_size(&self, visits: &[Visit]) -> u64 {
        let size = |visit: &Visit| match self.kind(visit.node) {
            Kind::File(contents) => contents.len(),
            _ => 0,
        };
        visits.iter().map(size).fold(0, u64::saturating_add)
    }

    /// Returns all nodes that have a name, each once: a directory before its entries, entries
    /// sorted by name. The order of addition has no influence. Returns an error if the tree has too
    /// many levels, or a symbolic link that Linux cannot have.
    pub fn walk(&self) -> Result<Vec<Visit>> {
        let mut visits: Vec<Visit> = Vec::with_capacity(self.nodes.len());
        let mut seen = BTreeMap::<NodeId, usize>::new();
        // Nodes to visit, the next one last: name, node, parent's index, depth.
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
            if let Kind::Symlink(target) = self.kind(node) {
                let path = || visit_path(&visits, at);
                check_target(target).map_err(|what| Error::with_path(&path(), what))?;
            }
            if let Kind::Directory(children) = self.kind(node) {
                // `.`, besides the name (for the root, its `..`).
                visits[at].links += 1;
                if at != 0 {
                    visits[parent].links += 1;
                }
                if level == MAX_DEPTH {
                    let what = format!("more than {MAX_DEPTH} nested directories");
                    return Err(Error::with_path(&visit_path(&visits, at), what));
                }
                let children = children.iter().rev();
                pending.extend(children.map(|(name, &node)| (name.clone(), node, at, level + 1)));
            }
        }
        Ok(visits)
    }
}

/// Returns a message if Linux cannot have a symbolic link with this target: it is empty, has a NUL,
/// or is too long. Linux would cut it.
fn check_target(target: &[u8]) -> core::result::Result<(), String> {
    if target.is_empty() {
        Err("is a symbolic link without a target".to_owned())
    } else if target.len() > MAX_TARGET {
        let len = target.len();
        Err(format!(
            "is a symbolic link with a target of {len} bytes, expected at most {MAX_TARGET}"
        ))
    } else if target.contains(&0) {
        Err("is a symbolic link with a zero byte in its target".to_owned())
    } else {
        Ok(())
    }
}

/// Returns the path of a visit, for messages.
pub(crate) fn visit_path(visits: &[Visit], mut at: usize) -> Vec<u8> {
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
            .map(|(at, visit)| (visit_path(&visits, at), visit.links))
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
    fn a_symbolic_link_that_linux_would_cut_is_refused() {
        let walk = |target: &[u8]| {
            let mut plan = Plan::new(Attributes::default());
            let link = Kind::Symlink(target.to_vec());
            plan.add(NodeId::ROOT, b"link", Attributes::default(), link);
            plan.walk()
        };
        assert!(walk(&[b'y'; MAX_TARGET]).is_ok());
        for target in [&[b'y'; MAX_TARGET + 1][..], &[b'y'; 5000], b"", b"a\0b"] {
            let error = walk(target).expect_err("refused").to_string();
            assert!(error.contains("/link: is a symbolic link"), "{error}");
        }
    }

    #[test]
    fn a_tree_without_an_end_is_refused() {
        let mut plan = Plan::new(Attributes::default());
        let mut dir = NodeId::ROOT;
        for _ in 0..=MAX_DEPTH {
            dir = plan.add(dir, b"d", Attributes::default(), Kind::empty_directory());
        }
        let error = plan.walk().expect_err("too deep").to_string();
        assert!(error.contains("nested directories"), "{error}");
    }
}
