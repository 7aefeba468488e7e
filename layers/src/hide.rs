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
//! A source may equate names that differ: of case (ext4's casefold, vfat, servers of other
//! systems), of normal forms of Unicode, or with short names (vfat). Where a directory ignores
//! case, the rules do as well. Whether it does is found out with a name in it, so that an empty one
//! takes a name that is hidden from then on. A name that might be another spelling of a hidden one,
//! and that finds something, has to be in the listing of its directory as it is spelled.
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
            let mut children = Vec::new();
            for_each_entry(cx, &*file, mode, |entry| {
                let node = entry.entry.as_ref().map(|entry| &entry.node);
                let id = node.map_or(entry.id, |node| node.id());
                if id != wanted && entry.kind != Some(Kind::Directory) {
                    return;
                }
                children.push((id, entry.name.to_vec()));
            })?;
            for (id, name) in children {
                let Some(below) = self.below(dir, cx, place, &name)? else {
                    continue;
                };
                let below = Arc::new(below);
                self.remember(id, &below);
                if id == wanted {
                    found = Ok(below);
                }
            }
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

    /// Forgets the place of a directory.
    fn forget(&self, dir: NodeId) {
        self.places.lock().remove(&dir);
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
        let bytes = name.bytes();
        let below = self.below(dir, cx, &place, bytes)?.ok_or(hidden)?;
        let is_doubtful = match bytes.is_ascii() {
            true => may_be_short(bytes),
            false => self.rules.may_apply(&place, bytes),
        };
        match is_doubtful && !is_spelled_so(dir, cx, name)? {
            true => Err(hidden),
            false => Ok(below),
        }
    }

    /// Returns the place of the child `name` of the directory `dir`, which has `place`, or nothing
    /// if it is hidden: without regard to case if the directory ignores it.
    fn below(
        &self,
        dir: &dyn Node,
        cx: &Cx<'_>,
        place: &Place,
        name: &[u8],
    ) -> Result<Option<Place>> {
        let below = self.rules.child(place, name);
        let folded = self.rules.child_ignoring_case(place, name);
        match below.is_some() && below != folded && ignores_case(dir, cx, name)? {
            true => Ok(folded),
            false => Ok(below),
        }
    }
}

/// Returns whether the directory `dir` finds its child `name`, or any other one if that is missing,
/// also in another case. The caller may not be permitted to search it.
fn ignores_case(dir: &dyn Node, cx: &Cx<'_>, name: &[u8]) -> Result<bool> {
    let cx = &cx.on_behalf_of(&Caller::ROOT);
    let find = |name: &[u8]| match dir.lookup(cx, Name::new(name)?) {
        Ok(found) => Ok(Some(found.node.id())),
        Err(signal) if signal.is_signal() => Err(signal),
        Err(_) => Ok(None),
    };
    let existing = match find(name)? {
        Some(_) => Some(name.to_vec()),
        None => any_with_letters(dir, cx)?,
    };
    let Some(name) = existing else {
        return Ok(false);
    };
    let swapped = swap_case(&name);
    match (find(&name)?, find(&swapped)?) {
        _ if swapped == name => Ok(false),
        (None, _) | (_, None) => Ok(false),
        (one, other) if one == other => Ok(true),
        // libfuse gives a file a number for each spelling of its name, and lists one of them.
        _ => {
            let is_listed = |name: &[u8]| is_spelled_so(dir, cx, Name::new(name)?);
            Ok(!is_listed(&name)? || !is_listed(&swapped)?)
        }
    }
}

/// Returns the name of a child of `dir` that has ASCII letters.
fn any_with_letters(dir: &dyn Node, cx: &Cx<'_>) -> Result<Option<Vec<u8>>> {
    let file = dir.open(cx, OpenFlags::READ)?;
    let (mut found, mut cookie) = (None, 0);
    loop {
        let before = cookie;
        let mut sink = |entry: DirEntry<'_>| {
            cookie = entry.cookie;
            if entry.name.iter().any(u8::is_ascii_alphabetic) {
                found = Some(entry.name.to_vec());
            }
            found.is_none()
        };
        file.readdir(cx, before, ReaddirMode::Names, &mut sink)?;
        if found.is_some() || cookie == before {
            return Ok(found);
        }
    }
}

/// Returns a name with the case of its letters swapped: of ASCII letters if there are any, which
/// all sources that ignore case equate.
fn swap_case(name: &[u8]) -> Vec<u8> {
    let swap = |byte: &u8| match byte.is_ascii_lowercase() {
        true => byte.to_ascii_uppercase(),
        false => byte.to_ascii_lowercase(),
    };
    match std::str::from_utf8(name) {
        Ok(text) if !name.iter().any(u8::is_ascii_alphabetic) => {
            let lower = text.to_lowercase();
            match lower == text {
                true => text.to_uppercase().into(),
                false => lower.into(),
            }
        }
        _ => name.iter().map(swap).collect(),
    }
}

/// Returns whether a name may be the short one of a file, or one with an end that is ignored, as on
/// vfat and NTFS.
fn may_be_short(name: &[u8]) -> bool {
    name.contains(&b'~') || name.contains(&b':') || name.ends_with(b".") || name.ends_with(b" ")
}

/// Returns whether `name` is in the listing of `dir` as it is spelled, or finds nothing there.
fn is_spelled_so(dir: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> Result<bool> {
    let cx = &cx.on_behalf_of(&Caller::ROOT);
    match dir.lookup(cx, name) {
        Err(Errno::ENOENT) => return Ok(true),
        found => found.map(drop)?,
    }
    let file = dir.open(cx, OpenFlags::READ)?;
    let mut listed = false;
    for_each_entry(cx, &*file, ReaddirMode::Names, |entry| {
        listed |= entry.name == name.bytes();
    })?;
    Ok(listed)
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
        self.child(inner, cx, name, Errno::EACCES)?;
        let entry = inner.make(cx, name, what, mode)?;
        if what == NewNode::Directory {
            // Its number may be that of one that was removed, and that its directory ignores case
            // may not have been known before.
            match self.child(inner, cx, name, Errno::ENOENT) {
                Ok(place) => self.remember(entry.node.id(), &Arc::new(place)),
                Err(_) => self.forget(entry.node.id()),
            }
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
        let moving = self.uniform.is_none().then(|| self.moves.write());
        inner.rename(cx, name, to, to_name, flags)?;
        drop(moving);
        // That its new directory ignores case may not have been known before.
        if self.uniform.is_none() && self.child(to, cx, to_name, Errno::ENOENT) != Ok(from) {
            self.places.lock().clear();
        }
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
        let Some(place) = self.place_of_found(inner.node, cx)? else {
            return Ok(());
        };
        // Whether the directory ignores case, once it matters: a source that calls the sink may
        // hold a lock that a lookup takes.
        let mut ignores = None;
        let mut at = cookie;
        loop {
            let mut doubtful = None;
            let start = at;
            let mut showing = RelaySink::new(sink, |sink, entry| {
                let exact = self.rules.child(&place, entry.name);
                let folded = self.rules.child_ignoring_case(&place, entry.name);
                let below = match ignores {
                    _ if exact.is_none() || exact == folded => exact,
                    Some(true) => folded,
                    Some(false) => exact,
                    None => {
                        doubtful = Some(entry.name.to_vec());
                        return false;
                    }
                };
                let Some(below) = below else {
                    at = entry.cookie;
                    return true;
                };
                let found = entry.entry.as_ref().map(|entry| &entry.node);
                if let Some(dir) = found.filter(|node| node.kind() == Kind::Directory) {
                    self.remember(dir.id(), &Arc::new(below));
                }
                let after = entry.cookie;
                let fits = sink.entry(entry);
                if fits {
                    at = after;
                }
                fits
            });
            inner.readdir(cx, start, plus, &mut showing)?;
            match doubtful {
                Some(name) => ignores = Some(ignores_case(inner.node, cx, &name)?),
                None => return Ok(()),
            }
        }
    }

    forward! {
        id above
        root sync
        handle attr setattr access statfs open readlink tmpfile
        xattr xattrs set_xattr remove_xattr host_lock host_lock_holder
        file_attr file_setattr read write fsync flush allocate seek extents copy lease
    }
}
