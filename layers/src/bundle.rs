//! Several exports as one tree: each is a directory at its name, below a root without other
//! entries.
//!
//! A name may contain slashes: the bundle then has directories of its own on the path. These cannot
//! be changed, and a member's name in them is busy, as a mount point is. Members are separate file
//! systems from each other and from these directories: their devices differ, and renames and links
//! across them fail (`EXDEV`).
//!
//! | file | contents |
//! |---|---|
//! | `bundle` | names, and the tree built from them |
//! | `dir` | the bundle's own directories |
//! | `member` | the layer over each member |
//! | `numbers` | numbers and handles of nodes: stable across restarts |
//!
//! A member is usually served directly, too. Locks that the bundle's clients hold on its nodes are
//! therefore held in the member's own [`LockTable`](vfs::lock::LockTable), for all of them
//! together: to the bundle's table the member's table is the host, and the member's other clients
//! are outsiders.
//!
//! Members may be added and removed ([`Bundle::change`]); those that remain keep their state. The
//! bundle's own directories are looked up in each operation, and return `ESTALE` once nothing is
//! below them. A listing that runs during a change may miss a name, or return one twice. Revoking
//! the nodes of a removed member is the task of the member's creator ([`crate::Gate`]).
//!
//! Deliberately absent: members within members.
//!
//! Lock order: none here; the bundle's lock table, then the member's. Changes of members are
//! serialized.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use vfs::lock::Owner;
use vfs::{
    Capabilities, Cx, Errno, Export, FileSystem, Handle, Name, Node, NodeId, Peer, Result, Support,
    Time,
};

use crate::stack;

mod dir;
mod member;
mod numbers;

use self::dir::Dir;
use self::member::Member;
use self::numbers::Numbers;

/// Several exports as one file system.
pub struct Bundle {
    current: Arc<CurrentTree>,
    /// Held while members change.
    changing: Mutex<()>,
}

/// The current tree.
struct CurrentTree {
    tree: ArcSwap<Tree>,
    /// The lock client id of the bundle in the members' lock tables.
    client: u64,
}

/// The error of invalid names: the expected form, and the names found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadNames(String);

impl fmt::Display for BadNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadNames {}

/// A tree built from the paths of its members.
struct Tree {
    /// The root comes first.
    dirs: Vec<Directory>,
    members: Vec<Mount>,
    /// Places by their numbers.
    positions: HashMap<NodeId, Position>,
    /// The time of the last change of members.
    change_time: Time,
}

/// A directory of the bundle's own.
struct Directory {
    number: NodeId,
    parent: NodeId,
    /// Sorted by name.
    children: Vec<(Box<[u8]>, Position)>,
}

/// A member with its layer over it.
#[derive(Clone)]
struct Mount {
    numbers: Numbers,
    export: Arc<Export>,
    fs: Arc<dyn FileSystem>,
}

/// A position in the tree: an index into [`Tree::dirs`] or [`Tree::members`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Directory(usize),
    Member(usize),
}

impl Bundle {
    /// Creates the tree of `members`, each at its name, from which leading and trailing slashes are
    /// removed. `made` is the time shown for its own directories.
    pub fn new(members: &[Arc<Export>], made: Time) -> std::result::Result<Arc<Bundle>, BadNames> {
        let places = Arc::new(CurrentTree {
            tree: ArcSwap::from_pointee(TreeBuilder::new().build(Vec::new(), made)),
            client: Owner::new_client(),
        });
        let changing = Mutex::default();
        let bundle = Bundle {
            current: places,
            changing,
        };
        bundle.change(members, made)?;
        Ok(Arc::new(bundle))
    }

    /// Replaces the members with `members`, at the time `now`. An export that is already a member,
    /// under its name, is unaffected. On failure nothing changes.
    pub fn change(&self, members: &[Arc<Export>], now: Time) -> std::result::Result<(), BadNames> {
        self.change_hiding(members, &[], now)
    }

    /// Does the same, and hides the names of those members that are among `hidden`: clients that
    /// have their nodes or handles continue to use them.
    pub fn change_hiding(
        &self,
        members: &[Arc<Export>],
        hidden: &[Arc<Export>],
        now: Time,
    ) -> std::result::Result<(), BadNames> {
        let _alone = self.changing.lock();
        let old = self.current.tree.load_full();
        let mut members: Vec<(&str, &Arc<Export>)> = members
            .iter()
            .map(|export| (export.name.trim_matches('/'), export))
            .collect();
        // Numbers that depend on all names must not depend on the order of the exports.
        members.sort_by_key(|(path, _)| *path);
        let mut plan = TreeBuilder::new();
        let mut placed = Vec::with_capacity(members.len());
        for (path, export) in members {
            placed.push((plan.add_member(path)?, export));
        }
        let members = old.members.iter();
        let known: HashMap<_, _> = members.map(|old| (old.numbers.position, old)).collect();
        let stays = |number| known.get(&number).copied();
        let numbers = placed.iter().filter_map(|((_, number), _)| stays(*number));
        let mut tags: HashSet<_> = numbers.map(|old| old.numbers.tag()).collect();
        let mut mounts = Vec::with_capacity(placed.len());
        for ((dir, number), export) in placed {
            let old = stays(number);
            if let Some(old) = old.filter(|old| Arc::ptr_eq(&old.export, export)) {
                mounts.push(old.clone());
                continue;
            }
            let numbers = match old {
                Some(old) => old.numbers,
                None => Numbers::new(number, &mut tags).ok_or_else(|| {
                    BadNames(format!("expected at most {} names", Numbers::MAX_MEMBERS))
                })?,
            };
            let (dir, export) = (plan.dirs[dir].number, export.clone());
            let member = Member::new(&self.current, dir, numbers, export.clone());
            let fs = stack(export.fs.clone(), member);
            mounts.push(Mount {
                numbers,
                export,
                fs,
            });
        }
        let is_hidden = |mount: &Mount| hidden.iter().any(|it| Arc::ptr_eq(it, &mount.export));
        for dir in &mut plan.dirs {
            dir.children.retain(|(_, position)| match position {
                Position::Member(at) => !is_hidden(&mounts[*at]),
                Position::Directory(_) => true,
            });
        }
        self.current.tree.store(Arc::new(plan.build(mounts, now)));
        Ok(())
    }
}

impl Tree {
    fn number(&self, position: Position) -> NodeId {
        match position {
            Position::Directory(at) => self.dirs[at].number,
            Position::Member(at) => self.members[at].numbers.position,
        }
    }
}

impl CurrentTree {
    fn tree(&self) -> Arc<Tree> {
        self.tree.load_full()
    }
}

/// A tree under construction.
struct TreeBuilder {
    dirs: Vec<Directory>,
    positions: HashMap<NodeId, Position>,
    members: usize,
}

impl TreeBuilder {
    fn new() -> TreeBuilder {
        let number = numbers::of_path(b"");
        let root = Directory {
            number,
            parent: number,
            children: Vec::new(),
        };
        TreeBuilder {
            dirs: vec![root],
            positions: HashMap::from([(number, Position::Directory(0))]),
            members: 0,
        }
    }

    fn build(self, members: Vec<Mount>, made: Time) -> Tree {
        Tree {
            dirs: self.dirs,
            members,
            positions: self.positions,
            change_time: made,
        }
    }

    /// Adds the next member at `path`. Returns the index of its directory, and its number.
    fn add_member(&mut self, path: &str) -> std::result::Result<(usize, NodeId), BadNames> {
        let bad = |why| {
            BadNames(format!(
                "expected a name such as srv/a, got '{path}': {why}"
            ))
        };
        let mut dir = 0;
        let mut end = 0;
        for name in path.split('/') {
            let name = Name::new(name.as_bytes()).map_err(|_| bad("invalid name"))?;
            end += name.bytes().len();
            let last = end == path.len();
            let children = &self.dirs[dir].children;
            match children.binary_search_by(|(child, _)| (**child).cmp(name.bytes())) {
                Ok(at) => match children[at].1 {
                    Position::Directory(below) if !last => dir = below,
                    Position::Directory(_) => return Err(bad("it contains others")),
                    Position::Member(_) if last => return Err(bad("it occurs twice")),
                    Position::Member(_) => return Err(bad("another contains it")),
                },
                Err(at) => {
                    let number = numbers::of_path(&path.as_bytes()[..end]);
                    let new = match last {
                        true => Position::Member(self.members),
                        false => Position::Directory(self.dirs.len()),
                    };
                    if self.positions.insert(number, new).is_some() {
                        return Err(bad("its number collides with another name's"));
                    }
                    let child = (Box::from(name.bytes()), new);
                    self.dirs[dir].children.insert(at, child);
                    if last {
                        self.members += 1;
                        return Ok((dir, number));
                    }
                    self.dirs.push(Directory {
                        number,
                        parent: self.dirs[dir].number,
                        children: Vec::new(),
                    });
                    dir = self.dirs.len() - 1;
                }
            }
            // The slash.
            end += 1;
        }
        unreachable!("the last name is a member's or refused")
    }
}

impl FileSystem for Bundle {
    fn as_any(&self) -> &dyn Any {
        self
    }

    /// Returns `EACCES` to a process of another user of this host that all members refuse: their
    /// names are not for it either.
    fn root(&self, cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        let is_untrusted = |peer: &Peer| !peer.is_trusted();
        let members = &self.current.tree().members;
        if cx.call.peer().is_some_and(is_untrusted)
            && !members.is_empty()
            && (members.iter()).all(|member| member.fs.root(cx).err() == Some(Errno::EACCES))
        {
            return Err(Errno::EACCES);
        }
        Ok(Dir::node(&self.current, numbers::of_path(b"")))
    }

    fn resolve(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Arc<dyn Node>> {
        let (number, rest) = numbers::parse(handle).ok_or(Errno::ESTALE)?;
        let tree = self.current.tree();
        match tree.positions.get(&number) {
            Some(&Position::Member(at)) => tree.members[at].fs.resolve(cx, &rest),
            Some(&Position::Directory(_)) if rest.bytes().is_empty() => {
                Ok(Dir::node(&self.current, number))
            }
            _ => Err(Errno::ESTALE),
        }
    }

    fn share_name(&self, number: u64) -> Option<String> {
        let tree = self.current.tree();
        match tree.positions.get(&number) {
            Some(&Position::Member(at)) => Some(tree.members[at].export.name.clone()),
            _ => None,
        }
    }

    /// Syncs every member, even after errors of others.
    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        let mut done = Ok(());
        for member in &self.current.tree().members {
            match member.fs.sync(cx) {
                Err(errno) if errno.is_signal() => return Err(errno),
                synced => done = done.and(synced),
            }
        }
        done
    }

    fn capabilities(&self) -> Capabilities {
        let tree = self.current.tree();
        let members = tree.members.iter();
        members
            .map(|member| member.fs.capabilities())
            .fold(OWN_CAPABILITIES, common_capabilities)
    }
}

/// The capabilities of the bundle's own directories; the most capable value where members decide.
const OWN_CAPABILITIES: Capabilities = Capabilities {
    read_only: true,
    xattr: Support::Native,
    acl: Support::Native,
    host_locks: Support::Native,
    handles: Support::Native,
    change: Support::Native,
    // Streams of members are not combined.
    changes: Support::None,
    holes: Support::Native,
    copy: Support::Native,
    clone: Support::Native,
    tmpfile: Support::Native,
    devices: Support::Native,
    owners: Support::Native,
    persistent: true,
    stable_cookies: true,
    no_birth_times: false,
};

/// Returns the capabilities that both have. The result is read-only if both are.
fn common_capabilities(one: Capabilities, other: Capabilities) -> Capabilities {
    Capabilities {
        read_only: one.read_only && other.read_only,
        xattr: one.xattr.min(other.xattr),
        acl: one.acl.min(other.acl),
        host_locks: one.host_locks.min(other.host_locks),
        handles: one.handles.min(other.handles),
        change: one.change.min(other.change),
        changes: one.changes.min(other.changes),
        holes: one.holes.min(other.holes),
        copy: one.copy.min(other.copy),
        clone: one.clone.min(other.clone),
        tmpfile: one.tmpfile.min(other.tmpfile),
        devices: one.devices.min(other.devices),
        owners: one.owners.min(other.owners),
        persistent: one.persistent && other.persistent,
        stable_cookies: one.stable_cookies && other.stable_cookies,
        no_birth_times: one.no_birth_times && other.no_birth_times,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_make_a_tree_or_say_why_not() {
        let plan = |paths: &[&str]| {
            let mut plan = TreeBuilder::new();
            let placed = paths
                .iter()
                .map(|path| plan.add_member(path).map(|(dir, _)| dir));
            let dirs = placed.collect::<std::result::Result<Vec<_>, _>>();
            dirs.map_err(|BadNames(text)| text.rsplit(": ").next().map(str::to_owned))
        };
        let why = |text: &str| Err(Some(text.to_owned()));
        assert_eq!(plan(&["a", "b"]), Ok(vec![0, 0]));
        assert_eq!(
            plan(&["srv/a", "srv/b", "b", "srv/c/d"]),
            Ok(vec![1, 1, 0, 2])
        );
        assert_eq!(plan(&["a", "a"]), why("it occurs twice"));
        assert_eq!(plan(&["a", "a/b"]), why("another contains it"));
        assert_eq!(plan(&["a/b", "a"]), why("it contains others"));
        for bad in ["", "a//b", "..", "a/./b", "a\0"] {
            assert_eq!(plan(&[bad]), why("invalid name"), "{bad:?}");
        }
    }
}
