//! Hides files and directories by patterns, or all that are not listed: their names are missing
//! from listings, cannot be looked up (`ENOENT`) and cannot be created (`EACCES`), and all below
//! them is out of reach, also through `..` and by file handles.
//!
//! The rules apply to the path by which an object is found. An object that a client has found stays
//! accessible when programs of the host move it to a hidden place, as one that is open does; its
//! parent there does not become accessible. A file with several names is accessible by those that
//! are shown. A file handle of a file is not checked again, so handles must be sealed, with another
//! key for other rules ([`Hide::digest`]).
//!
//! Rules with paths need the place of a directory in the tree, which is remembered by its number,
//! for 262,144 directories. That of another one, for example after a start, is found by its
//! names in its parents.
//!
//! Locks: `moves` is held shared while a place is searched, and exclusively while a client moves a
//! directory; then `places`, held for a lookup or an insertion only.

mod rules;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use vfs::{
    Caller, Capabilities, Cx, DirEntry, DirSink, Entry, Errno, File, FileSystem, Handle, Kind,
    Mode, Name, NewNode, Node, NodeId, OpenFlags, ReaddirMode, RelaySink, RenameFlags, Result,
    Support,
};

pub use rules::{PathList, Pattern, Rules};

use crate::{Layer, Opened, forward};
use rules::Place;

/// The maximum number of directories whose places are remembered.
const MAX_PLACES: usize = 1 << 18;

/// The maximum depth of a directory whose place is searched.
const MAX_DEPTH: usize = 4096;

/// The layer.
#[derive(Debug)]
pub struct Hide {
    rules: Rules,
    digest: [u8; 32],
    /// The place of all directories, if it is the same.
    uniform: Option<Arc<Place>>,
    places: Mutex<Places>,
    moves: RwLock<()>,
}

#[derive(Debug, Default)]
struct Places {
    by_node: HashMap<NodeId, Arc<Place>>,
    /// The number of times that the places were forgotten.
    generation: u64,
}

impl Hide {
    /// Returns the layer with these rules.
    pub fn new(rules: Rules) -> Hide {
        Hide {
            digest: rules.digest(),
            uniform: rules.are_uniform().then(|| Arc::new(rules.root())),
            rules,
            places: Mutex::default(),
            moves: RwLock::default(),
        }
    }

    /// Returns a hash of the rules.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Returns the place of the directory `dir`.
    fn place(&self, dir: &dyn Node, cx: &Cx<'_>) -> Result<Arc<Place>> {
        match &self.uniform {
            Some(place) => Ok(place.clone()),
            None => self.find_place(dir, cx),
        }
    }

    /// Returns the place of the directory `dir`, or `ESTALE` if it is hidden. It is searched unless
    /// it is remembered.
    fn find_place(&self, dir: &dyn Node, cx: &Cx<'_>) -> Result<Arc<Place>> {
        let _unmoved = self.moves.read();
        let generation = {
            let places = self.places.lock();
            if let Some(place) = places.by_node.get(&dir.id()) {
                return Ok(place.clone());
            }
            places.generation
        };
        // The caller may not be permitted to list the directories above.
        let cx = &cx.on_behalf_of(&Caller::ROOT);
        let mut path: Vec<Arc<dyn Node>> = Vec::new();
        let mut place = loop {
            let at = path.last().map_or(dir, |above| &**above);
            let above = at.parent(cx)?.node;
            if above.id() == at.id() {
                break Arc::new(self.rules.root());
            }
            let known = self.places.lock().by_node.get(&above.id()).cloned();
            path.push(above);
            if let Some(known) = known {
                break known;
            }
            if path.len() > MAX_DEPTH {
                return Err(Errno::ESTALE);
            }
        };
        while let Some(above) = path.pop() {
            let below = path.last().map_or(dir.id(), |below| below.id());
            let name = name_of(&*above, below, cx)?;
            let child = self.rules.child(&place, &name).ok_or(Errno::ESTALE)?;
            place = Arc::new(child);
            self.remember(below, &place, generation);
        }
        self.remember(dir.id(), &place, generation);
        Ok(place)
    }

    /// Remembers the place of a directory, unless places were forgotten since `generation`.
    fn remember(&self, dir: NodeId, place: &Arc<Place>, generation: u64) {
        let mut places = self.places.lock();
        if places.generation != generation {
            return;
        }
        if places.by_node.len() >= MAX_PLACES && !places.by_node.contains_key(&dir) {
            places.by_node.clear();
        }
        places.by_node.insert(dir, place.clone());
    }

    /// Returns the place of an open or found directory, or nothing if it is in no place: it was
    /// removed, or moved to a hidden place.
    fn place_of_found(&self, dir: &dyn Node, cx: &Cx<'_>) -> Result<Option<Arc<Place>>> {
        match self.place(dir, cx) {
            Err(Errno::ESTALE | Errno::ENOENT) => Ok(None),
            place => place.map(Some),
        }
    }

    /// Returns the place of the child `name` of `dir`, or `hidden` if it is hidden.
    fn child(&self, dir: &dyn Node, cx: &Cx<'_>, name: Name<'_>, hidden: Errno) -> Result<Place> {
        let place = self.place_of_found(dir, cx)?.ok_or(Errno::ENOENT)?;
        self.rules.child(&place, name.bytes()).ok_or(hidden)
    }

    /// Forgets all places, because a directory may have got another one.
    fn forget(&self) {
        let mut places = self.places.lock();
        places.by_node.clear();
        places.generation += 1;
    }
}

/// Returns the name of the child `wanted` of a directory.
fn name_of(dir: &dyn Node, wanted: NodeId, cx: &Cx<'_>) -> Result<Vec<u8>> {
    /// Finds a number among entries, and has the last cookie.
    struct Finder {
        wanted: NodeId,
        found: Option<Vec<u8>>,
        cookie: u64,
    }

    impl DirSink for Finder {
        fn entry(&mut self, entry: DirEntry<'_>) -> bool {
            if entry.id == self.wanted {
                self.found = Some(entry.name.to_vec());
            }
            self.cookie = entry.cookie;
            self.found.is_none()
        }
    }

    let mut finder = Finder {
        wanted,
        found: None,
        cookie: 0,
    };
    let file = dir.open(cx, OpenFlags::READ)?;
    loop {
        let before = finder.cookie;
        file.readdir(cx, before, ReaddirMode::Names, &mut finder)?;
        if let Some(name) = finder.found {
            return Ok(name);
        }
        if finder.cookie == before {
            return Err(Errno::ESTALE);
        }
    }
}

impl Layer for Hide {
    fn allows_passthrough(&self) -> bool {
        true
    }

    /// Changes are not reported: those of hidden objects would be among them.
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        Capabilities {
            changes: Support::None,
            ..inner
        }
    }

    fn resolve(
        &self,
        inner: &dyn FileSystem,
        cx: &Cx<'_>,
        handle: &Handle,
    ) -> Result<Arc<dyn Node>> {
        let node = inner.resolve(cx, handle)?;
        if node.kind() == Kind::Directory {
            self.find_place(&*node, cx)?;
        }
        Ok(node)
    }

    fn lookup(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        let generation = self.places.lock().generation;
        let place = self.child(inner, cx, name, Errno::ENOENT)?;
        let entry = inner.lookup(cx, name)?;
        if self.uniform.is_none() && entry.node.kind() == Kind::Directory {
            self.remember(entry.node.id(), &Arc::new(place), generation);
        }
        Ok(entry)
    }

    fn parent(&self, inner: &dyn Node, cx: &Cx<'_>) -> Result<Entry> {
        let parent = inner.parent(cx)?;
        // It may have been moved to a hidden place.
        self.find_place(&*parent.node, cx)?;
        Ok(parent)
    }

    fn create(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        self.child(inner, cx, name, Errno::EACCES)?;
        inner.create(cx, name, flags, mode)
    }

    fn make(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        what: NewNode<'_>,
        mode: Mode,
    ) -> Result<Entry> {
        self.child(inner, cx, name, Errno::EACCES)?;
        inner.make(cx, name, what, mode)
    }

    fn link(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        target: &dyn Node,
    ) -> Result<Entry> {
        self.child(inner, cx, name, Errno::EACCES)?;
        inner.link(cx, name, target)
    }

    fn unlink(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        self.child(inner, cx, name, Errno::ENOENT)?;
        inner.unlink(cx, name, dir)
    }

    fn rename(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &dyn Node,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.child(inner, cx, name, Errno::ENOENT)?;
        self.child(to, cx, to_name, Errno::EACCES)?;
        let may_be_dir = |dir: &dyn Node, name| {
            let found = dir.lookup(cx, name);
            found.is_ok_and(|entry| entry.node.kind() == Kind::Directory)
        };
        let moves_dirs =
            self.uniform.is_none() && (may_be_dir(inner, name) || may_be_dir(to, to_name));
        if !moves_dirs {
            return inner.rename(cx, name, to, to_name, flags);
        }
        let _moving = self.moves.write();
        inner.rename(cx, name, to, to_name, flags)?;
        self.forget();
        Ok(())
    }

    fn readdir(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let generation = self.places.lock().generation;
        let Some(place) = self.place_of_found(inner.node, cx)? else {
            return Ok(());
        };
        let mut showing = RelaySink::new(sink, |sink, entry| {
            let Some(below) = self.rules.child(&place, entry.name) else {
                return true;
            };
            let found = entry.entry.as_ref().map(|entry| &entry.node);
            let found = found.filter(|node| node.kind() == Kind::Directory);
            let id = found.map(|node| node.id());
            let taken = sink.entry(entry);
            if let Some(id) = id.filter(|_| taken && self.uniform.is_none()) {
                self.remember(id, &Arc::new(below), generation);
            }
            taken
        });
        inner.readdir(cx, cookie, plus, &mut showing)
    }

    forward! {
        id above
        root sync
        handle attr setattr access statfs open readlink tmpfile
        xattr xattrs set_xattr remove_xattr host_lock host_lock_holder
        file_attr file_setattr read write fsync flush allocate seek extents copy lease
    }
}
