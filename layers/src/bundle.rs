//! Several exports as one tree: each is a directory by its name, below a root that has nothing else.
//!
//! A name may have slashes: then there are directories of the bundle's own on the way. Those cannot be
//! changed, and a member's place in them is busy, as a mount point is. Members are other file systems to one another
//! and to these directories: devices differ, and nothing is moved or linked across (`EXDEV`).
//!
//! | file | what |
//! |---|---|
//! | `bundle` | names, and what they make of a tree |
//! | `dir` | the directories of the bundle's own |
//! | `member` | the layer over each member |
//! | `numbers` | what nodes are known by: stable across restarts |
//!
//! A member is usually served by itself, too. So whatever locks the bundle's clients hold of its nodes the member
//! holds for all of them together in the member's own [`LockTable`](vfs::lock::LockTable): to the bundle's table that one
//! is the host, and another of its clients is an outsider.
//!
//! Members may come and go ([`Bundle::change`]): what is known of those that stay stays. A directory of the bundle's own is looked up
//! anew in each operation, and `ESTALE` once nothing is below it. Who reads one while its members change may miss a name, or see one twice.
//! That a member's nodes end with it is for whoever made the member ([`crate::Gate`]).
//!
//! What it lacks on purpose: members within members.
//!
//! Lock order: none here; the bundle's lock table, then the member's. Members are changed one change at a time.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use vfs::lock::Owner;
use vfs::{
    Capabilities, Cx, Errno, Export, FileSystem, Handle, Level, Name, Node, NodeId, Result, Time,
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
    places: Arc<Places>,
    /// Held while members change.
    changing: Mutex<()>,
}

/// What is where now.
struct Places {
    tree: ArcSwap<Tree>,
    /// All of the bundle's clients, as members know them.
    client: u64,
}

/// Names that make no tree: what was expected, and what came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadNames(String);

impl fmt::Display for BadNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadNames {}

/// Places, by the paths that members are named by.
struct Tree {
    /// The root is the first.
    dirs: Vec<Directory>,
    members: Vec<Mounted>,
    /// What has which number.
    places: HashMap<NodeId, Place>,
    /// When this began to be so.
    made: Time,
}

/// A directory of the bundle's own.
struct Directory {
    number: NodeId,
    up: NodeId,
    /// In the order of their names.
    children: Vec<(Box<[u8]>, Place)>,
}

/// A member behind its layer.
#[derive(Clone)]
struct Mounted {
    numbers: Numbers,
    export: Arc<Export>,
    fs: Arc<dyn FileSystem>,
}

/// What is at a path: an index into [`Tree::dirs`] or [`Tree::members`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Directory(usize),
    Member(usize),
}

impl Bundle {
    /// The tree of `members`, each at its name; slashes around that do not count. `made` is what its own
    /// directories have for times.
    pub fn new(members: &[Arc<Export>], made: Time) -> std::result::Result<Arc<Bundle>, BadNames> {
        let places = Arc::new(Places {
            tree: ArcSwap::from_pointee(Plan::new().tree(Vec::new(), made)),
            client: Owner::new_client(),
        });
        let changing = Mutex::default();
        let bundle = Bundle { places, changing };
        bundle.change(members, made)?;
        Ok(Arc::new(bundle))
    }

    /// Has `members` from now on, at the time `now`. An export that is there already, under its name, is left as it is. If it fails
    /// all is as it was.
    pub fn change(&self, members: &[Arc<Export>], now: Time) -> std::result::Result<(), BadNames> {
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.places.tree.load_full();
        let mut members: Vec<(&str, &Arc<Export>)> = members
            .iter()
            .map(|export| (export.name.trim_matches('/'), export))
            .collect();
        // What is derived from all of them must not depend on the order that they came in.
        members.sort_by_key(|(path, _)| *path);
        let mut plan = Plan::new();
        let mut placed = Vec::with_capacity(members.len());
        for (path, export) in members {
            placed.push((plan.place(path)?, export));
        }
        let stays = |number| old.members.iter().find(|old| old.numbers.place == number);
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
                None => Numbers::new(number, &mut tags)
                    .ok_or_else(|| BadNames(format!("expected at most {} names", Numbers::MOST)))?,
            };
            let (dir, export) = (plan.dirs[dir].number, export.clone());
            let member = Member::new(&self.places, dir, numbers, export.clone());
            let fs = stack(export.fs.clone(), member);
            mounts.push(Mounted {
                numbers,
                export,
                fs,
            });
        }
        self.places.tree.store(Arc::new(plan.tree(mounts, now)));
        Ok(())
    }
}

impl Tree {
    fn number(&self, place: Place) -> NodeId {
        match place {
            Place::Directory(at) => self.dirs[at].number,
            Place::Member(at) => self.members[at].numbers.place,
        }
    }
}

impl Places {
    fn tree(&self) -> Arc<Tree> {
        self.tree.load_full()
    }
}

/// A tree while names are put into it.
struct Plan {
    dirs: Vec<Directory>,
    places: HashMap<NodeId, Place>,
    members: usize,
}

impl Plan {
    fn new() -> Plan {
        let number = numbers::of_place(b"");
        let root = Directory {
            number,
            up: number,
            children: Vec::new(),
        };
        Plan {
            dirs: vec![root],
            places: HashMap::from([(number, Place::Directory(0))]),
            members: 0,
        }
    }

    fn tree(self, members: Vec<Mounted>, made: Time) -> Tree {
        Tree {
            dirs: self.dirs,
            members,
            places: self.places,
            made,
        }
    }

    /// Makes a place for the next member at `path`. Says which directory that is in, and its number.
    fn place(&mut self, path: &str) -> std::result::Result<(usize, NodeId), BadNames> {
        let bad = |why| BadNames(format!("expected names as srv/a, got '{path}': {why}"));
        let mut dir = 0;
        let mut end = 0;
        for name in path.split('/') {
            let name = Name::new(name.as_bytes()).map_err(|_| bad("that is no name"))?;
            end += name.bytes().len();
            let last = end == path.len();
            let children = &self.dirs[dir].children;
            match children.binary_search_by(|(child, _)| (**child).cmp(name.bytes())) {
                Ok(at) => match children[at].1 {
                    Place::Directory(below) if !last => dir = below,
                    Place::Directory(_) => return Err(bad("others are below it")),
                    Place::Member(_) if last => return Err(bad("it is there twice")),
                    Place::Member(_) => return Err(bad("it is below another")),
                },
                Err(at) => {
                    let number = numbers::of_place(&path.as_bytes()[..end]);
                    let new = match last {
                        true => Place::Member(self.members),
                        false => Place::Directory(self.dirs.len()),
                    };
                    if self.places.insert(number, new).is_some() {
                        return Err(bad("its number is another's"));
                    }
                    let child = (Box::from(name.bytes()), new);
                    self.dirs[dir].children.insert(at, child);
                    if last {
                        self.members += 1;
                        return Ok((dir, number));
                    }
                    self.dirs.push(Directory {
                        number,
                        up: self.dirs[dir].number,
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

    fn root(&self, _: &Cx<'_>) -> Result<Arc<dyn Node>> {
        Ok(Dir::node(&self.places, numbers::of_place(b"")))
    }

    fn resolve(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Arc<dyn Node>> {
        let (number, rest) = numbers::parse(handle).ok_or(Errno::ESTALE)?;
        let tree = self.places.tree();
        match tree.places.get(&number) {
            Some(&Place::Member(at)) => tree.members[at].fs.resolve(cx, &rest),
            Some(&Place::Directory(_)) if rest.bytes().is_empty() => {
                Ok(Dir::node(&self.places, number))
            }
            _ => Err(Errno::ESTALE),
        }
    }

    /// Every member, whatever becomes of the others.
    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        let mut done = Ok(());
        for member in &self.places.tree().members {
            match member.fs.sync(cx) {
                Err(errno) if errno.is_signal() => return Err(errno),
                synced => done = done.and(synced),
            }
        }
        done
    }

    fn capabilities(&self) -> Capabilities {
        let tree = self.places.tree();
        let members = tree.members.iter();
        members
            .map(|member| member.fs.capabilities())
            .fold(OWN, least)
    }
}

/// What the directories of the bundle's own can do, or leaves to members.
const OWN: Capabilities = Capabilities {
    read_only: true,
    xattr: Level::Native,
    acl: Level::Native,
    host_locks: Level::Native,
    handles: Level::Native,
    change: Level::Native,
    holes: Level::Native,
    copy: Level::Native,
    clone: Level::Native,
    tmpfile: Level::Native,
    devices: Level::Native,
    owners: Level::Native,
    stable_cookies: true,
    no_births: false,
};

/// What both can do. Something can be changed if either can.
fn least(one: Capabilities, other: Capabilities) -> Capabilities {
    Capabilities {
        read_only: one.read_only && other.read_only,
        xattr: one.xattr.min(other.xattr),
        acl: one.acl.min(other.acl),
        host_locks: one.host_locks.min(other.host_locks),
        handles: one.handles.min(other.handles),
        change: one.change.min(other.change),
        holes: one.holes.min(other.holes),
        copy: one.copy.min(other.copy),
        clone: one.clone.min(other.clone),
        tmpfile: one.tmpfile.min(other.tmpfile),
        devices: one.devices.min(other.devices),
        owners: one.owners.min(other.owners),
        stable_cookies: one.stable_cookies && other.stable_cookies,
        no_births: one.no_births && other.no_births,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_make_a_tree_or_say_why_not() {
        let plan = |paths: &[&str]| {
            let mut plan = Plan::new();
            let placed = paths
                .iter()
                .map(|path| plan.place(path).map(|(dir, _)| dir));
            let dirs = placed.collect::<std::result::Result<Vec<_>, _>>();
            dirs.map_err(|BadNames(text)| text.rsplit(": ").next().map(str::to_owned))
        };
        let why = |text: &str| Err(Some(text.to_owned()));
        assert_eq!(plan(&["a", "b"]), Ok(vec![0, 0]));
        assert_eq!(
            plan(&["srv/a", "srv/b", "b", "srv/c/d"]),
            Ok(vec![1, 1, 0, 2])
        );
        assert_eq!(plan(&["a", "a"]), why("it is there twice"));
        assert_eq!(plan(&["a", "a/b"]), why("it is below another"));
        assert_eq!(plan(&["a/b", "a"]), why("others are below it"));
        for bad in ["", "a//b", "..", "a/./b", "a\0"] {
            assert_eq!(plan(&[bad]), why("that is no name"), "{bad:?}");
        }
    }
}
