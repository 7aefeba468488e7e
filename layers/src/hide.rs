//! Hides files and directories by patterns, or all that are not listed: their names are missing
//! from listings, cannot be looked up (`ENOENT`) and cannot be created (`EACCES`), and all below
//! them is out of reach, also through `..` and by file handles.
//!
//! The rules apply to the path by which an object is found. A client can move nothing to a place
//! with other rules (`EXDEV`, as between projects of XFS): it could show so what is hidden. An
//! object that a client has found stays accessible when programs of the host move it to a hidden
//! place, as one that is open does; its parent there does not become accessible. A file with
//! several names is accessible by those that are shown. A file handle of a file is not checked
//! again, so handles must be sealed, with another key for other rules ([`Hide::digest`]).
//!
//! Rules with paths need the place of a directory in the tree, which is remembered by its number,
//! for 262,144 directories. That of another one, for example after a start, is found by its names
//! in its parents.
//!
//! Locks: `moves` is held shared while a place is searched, and exclusively while a client moves
//! something; then `places`, held for a lookup or an insertion only.

mod rules;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use vfs::listing::for_each_entry;
use vfs::{
    Caller, Capabilities, Cx, DirSink, Entry, Errno, File, FileSystem, Handle, Kind, Mode, Name,
    NewNode, Node, NodeId, OpenFlags, ReaddirMode, RelaySink, RenameFlags, Result, Support,
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
    /// The place of all directories, if it is the same.
    uniform: Option<Arc<Place>>,
    /// Places of directories that were found.
    places: Mutex<HashMap<NodeId, Arc<Place>>>,
    moves: RwLock<()>,
}

impl Hide {
    /// Returns the layer with these rules.
    pub fn new(rules: Rules) -> Hide {
        Hide {
            uniform: rules.are_uniform().then(|| Arc::new(rules.root())),
            rules,
            places: Mutex::default(),
            moves: RwLock::default(),
        }
    }

    /// Returns a hash of the rules.
    pub fn digest(&self) -> [u8; 32] {
        self.rules.digest()
    }

    /// Returns the place of the directory `dir`, or `ESTALE` if it is hidden. It is searched unless
    /// it is remembered.
    fn find_place(&self, dir: &dyn Node, cx: &Cx<'_>) -> Result<Arc<Place>> {
        match self.known(dir.id()) {
            Some(place) => Ok(place),
            None => self.search(dir, cx, |above| self.known(above)),
        }
    }

    fn known(&self, dir: NodeId) -> Option<Arc<Place>> {
        self.places.lock().get(&dir).cloned()
    }

    /// Finds the place of the directory `dir` by its names in the directories above, up to one that
    /// `known` has. Returns `ESTALE` if one of them is hidden.
    fn search(
        &self,
        dir: &dyn Node,
        cx: &Cx<'_>,
        known: impl Fn(NodeId) -> Option<Arc<Place>>,
    ) -> Result<Arc<Place>> {
        let _unmoved = self.moves.read();
        // The caller may not be permitted to list the directories above.
        let cx = &cx.on_behalf_of(&Caller::ROOT);
        let mut path: Vec<Arc<dyn Node>> = Vec::new();
        let mut place = loop {
            let at = path.last().map_or(dir, |above| &**above);
            let above = at.parent(cx)?.node;
            if above.id() == at.id() {
                break Arc::new(self.rules.root());
            }
            let known = known(above.id());
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
            place = self.place_in(&*above, &place, below, cx)?;
        }
        self.remember(dir.id(), &place);
        Ok(place)
    }

    /// Returns the place of the child `wanted` of the directory `dir`, which has `place`, or
    /// `ESTALE` if it is hidden. The places of the directories beside it are remembered, as clients
    /// use several of a directory.
    fn place_in(
        &self,
        dir: &dyn Node,
        place: &Place,
        wanted: NodeId,
        cx: &Cx<'_>,
    ) -> Result<Arc<Place>> {
        let file = dir.open(cx, OpenFlags::READ)?;
        // Only an entry that is looked up has the number of a file system that is mounted there.
        for mode in [ReaddirMode::Names, ReaddirMode::Entries] {
            let mut found = Err(Errno::ESTALE);
            for_each_entry(cx, &*file, mode, |entry| {
                let node = entry.entry.as_ref().map(|entry| &entry.node);
                let id = node.map_or(entry.id, |node| node.id());
                if id != wanted && entry.kind != Some(Kind::Directory) {
                    return;
                }
                let Some(below) = self.rules.child(place, entry.name) else {
                    return;
                };
                let below = Arc::new(below);
                self.remember(id, &below);
                if id == wanted {
                    found = Ok(below);
                }
            })?;
            if found.is_ok() {
                return found;
            }
        }
        Err(Errno::ESTALE)
    }

    /// Remembers the place of a directory.
    fn remember(&self, dir: NodeId, place: &Arc<Place>) {
        let mut places = self.places.lock();
        if places.len() >= MAX_PLACES && !places.contains_key(&dir) {
            places.clear();
        }
        places.insert(dir, place.clone());
    }

    /// Returns the place of an open or found directory, or nothing if it is in no place: it was
    /// removed, or moved to a hidden place.
    fn place_of_found(&self, dir: &dyn Node, cx: &Cx<'_>) -> Result<Option<Arc<Place>>> {
        let place = match &self.uniform {
            Some(place) => return Ok(Some(place.clone())),
            None => self.find_place(dir, cx),
        };
        match place {
            Err(Errno::ESTALE | Errno::ENOENT) => Ok(None),
            place => place.map(Some),
        }
    }

    /// Returns the place of the child `name` of `dir`, or `hidden` if it is hidden.
    fn child(&self, dir: &dyn Node, cx: &Cx<'_>, name: Name<'_>, hidden: Errno) -> Result<Place> {
        let place = self.place_of_found(dir, cx)?.ok_or(Errno::ENOENT)?;
        self.rules.child(&place, name.bytes()).ok_or(hidden)
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
        let place = self.child(inner, cx, name, Errno::ENOENT)?;
        let entry = inner.lookup(cx, name)?;
        if entry.node.kind() == Kind::Directory {
            self.remember(entry.node.id(), &Arc::new(place));
        }
        Ok(entry)
    }

    fn parent(&self, inner: &dyn Node, cx: &Cx<'_>) -> Result<Entry> {
        let parent = inner.parent(cx)?;
        // A program of the host may have moved the directory to a hidden place, and the number of
        // its parent there may be that of one that was found and removed.
        self.search(&*parent.node, cx, |_| None)?;
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
        let place = self.child(inner, cx, name, Errno::EACCES)?;
        let entry = inner.make(cx, name, what, mode)?;
        if what == NewNode::Directory {
            // Its number may be that of one that was removed.
            self.remember(entry.node.id(), &Arc::new(place));
        }
        Ok(entry)
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
        let from = self.child(inner, cx, name, Errno::ENOENT)?;
        if self.child(to, cx, to_name, Errno::EACCES)? != from {
            return Err(Errno::EXDEV);
        }
        let _moving = self.uniform.is_none().then(|| self.moves.write());
        inner.rename(cx, name, to, to_name, flags)
    }

    fn readdir(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let Some(place) = self.place_of_found(inner.node, cx)? else {
            return Ok(());
        };
        let mut showing = RelaySink::new(sink, |sink, entry| {
            let Some(below) = self.rules.child(&place, entry.name) else {
                return true;
            };
            let found = entry.entry.as_ref().map(|entry| &entry.node);
            if let Some(dir) = found.filter(|node| node.kind() == Kind::Directory) {
                self.remember(dir.id(), &Arc::new(below));
            }
            sink.entry(entry)
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
