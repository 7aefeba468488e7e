//! The state of a session for the live migration of its client.
//!
//! [`Session::save`] writes the result of INIT, the nodes that the client has looked up, its open
//! files and its locks; [`Session::load`] continues with them in another process, with the numbers
//! that the client knows. Nodes are found again by their names or by their handles
//! ([`MigrationMode`]), beneath the root and as any request would, so that a state of unknown
//! origin reaches nothing outside the export.
//!
//! The client is stopped while its state is saved or loaded: no request is served.
//!
//! - A node without a name, whose file is not open, is left out: each use of it returns `ESTALE`,
//!   as the client's FORGET may be on its way.
//! - One whose file is open cannot be migrated. A successor on the same host
//!   ([`Session::save_for_successor`]) finds it by its handle, with a descriptor of it.
//! - Locks are released before they are written, as the next process acquires them from the same
//!   host; [`Session::resume`] acquires them again if the client stays.
//! - Not migrated: the list of nodes with restored privileges (`privileges.rs`), without which a
//!   file that is being copied up loses its set-id bits.
//!
//! Lock order: `released`, then the lock table's.

mod format;
mod paths;

use std::collections::{HashMap, HashSet};
use std::io::{self, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vfs::lock::{Lock, Owner};
use vfs::{AttrMask, Call, Caller, Cx, Errno, Kind, Name, Node, NodeId, Patience, Support};
use wire::SavedState;

use self::format::{Fixed, Location, NodeState, OpenState, Reader, Writer, invalid};
use self::paths::{Names, is_removed};
use super::Session;
use super::handles::Open;
use super::init::Negotiated;
use super::io_modes::IoMode;
use super::lock::{LockRecord, UNKNOWN_HANDLE};
use super::nodes::{NodeRef, SavedNode};
use super::open::Reopened;
use super::table::Incarnation;
use crate::numbers::{MINOR, OLDEST_MINOR, ROOT_ID};

/// The way in which nodes are found again after a migration, with virtiofsd's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MigrationMode {
    /// By their paths below the root: source and destination may be copies of each other.
    #[default]
    FindPaths,
    /// By their file handles: both serve the same directory of the same file system.
    FileHandles,
}

/// The reaction to nodes and files that cannot be migrated, with virtiofsd's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MigrationOnError {
    /// The migration fails, and the client continues where it was.
    #[default]
    Abort,
    /// The client gets an error for each use of them.
    GuestError,
}

/// The options of migrations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Migration {
    /// Used when the state is saved; a load accepts both.
    pub mode: MigrationMode,
    /// Used when the state is saved, and when it is loaded.
    pub on_error: MigrationOnError,
    /// Also saves the handle of each node that is found by its path: a load fails for nodes with
    /// another one.
    pub verify_handles: bool,
}

/// Locks that were released for a migration, each with its node.
pub(super) type ReleasedLocks = Vec<(Arc<dyn Node>, Lock)>;

/// The time for a failed server to release the locks of its guest, which does not run meanwhile.
const RELOCK_TIME: Duration = Duration::from_secs(5);

/// The interval of attempts.
const RELOCK_INTERVAL: Duration = Duration::from_millis(20);

/// The most entries of a list that an error names.
const NAMED: usize = 3;

impl Session {
    /// Returns whether the session can be migrated: its tree outlives the process.
    pub fn can_migrate(&self) -> bool {
        self.capabilities.persistent
    }

    /// Writes the state of the session. No request is in progress, and none is served before
    /// [`Session::resume`].
    ///
    /// Returns an error, with its reason for the log, if a node cannot be migrated and
    /// [`Migration::on_error`] is to abort, or if `to` fails.
    pub fn save(&self, call: &Call, to: &mut dyn Write) -> io::Result<()> {
        self.save_with(self.options.migration, call, to, None)
    }

    /// Returns the state of the session, as [`Session::save`] writes it, for another process of
    /// this host, with the same sources. Nodes that it cannot find are lost to the client, as if
    /// [`Migration::on_error`] said so. It finds open files without a name with the
    /// [descriptors](SavedState::files) of the state.
    pub fn save_for_successor(&self, call: &Call) -> io::Result<SavedState> {
        let by_handle = Migration {
            mode: MigrationMode::FileHandles,
            on_error: MigrationOnError::Abort,
            verify_handles: false,
        };
        let mut saved = SavedState::default();
        let SavedState { bytes, files } = &mut saved;
        // Other handles end with this process.
        if self.capabilities.handles == Support::Native
            && self.save_with(by_handle, call, bytes, Some(files)).is_ok()
        {
            return Ok(saved);
        }
        // Other file systems are mounted below the root, or privileges are missing.
        bytes.clear();
        files.clear();
        let by_path = Migration {
            mode: MigrationMode::FindPaths,
            on_error: MigrationOnError::GuestError,
            verify_handles: false,
        };
        self.save_with(by_path, call, bytes, Some(files))?;
        Ok(saved)
    }

    /// Writes the state. Saves open files without a name by their handles, and adds a descriptor of
    /// each to `files`, if there is such a list.
    fn save_with(
        &self,
        migration: Migration,
        call: &Call,
        to: &mut dyn Write,
        files: Option<&mut Vec<OwnedFd>>,
    ) -> io::Result<()> {
        // An earlier save may have released locks.
        self.resume(call);
        let call = call.internal();
        let cx = &Cx {
            caller: &Caller::ROOT,
            patience: Patience::Full,
            call: &call,
        };
        let incarnation = self.incarnation.load(Ordering::Acquire);
        let mut bytes = io::BufWriter::new(to);
        let mut writer = Writer(&mut bytes);
        let Some(negotiated) = self.negotiated() else {
            writer.head(0)?;
            return writer.end();
        };
        let opens = self.saved_opens(incarnation);
        let keep = files.map(|files| KeptFiles::new(&opens, files));
        let saved = self.saved_nodes(migration, cx, incarnation, &opens, keep)?;
        let why = "has no name below the root, or no handle";
        self.report(migration.on_error, &saved.lost, "node", why)?;
        let why = "was removed, and cannot be kept open";
        let continues = MigrationOnError::GuestError;
        self.report(continues, &saved.not_kept, "node", why)?;
        let nodes = saved.nodes;
        writer.head(negotiated.pack())?;
        writer.fixed(&Fixed {
            max_write: self.options.max_write,
            generations: self.nodes.next_generation(),
            root: self.nodes.root_number(),
            next_handle: self.handles.next(),
        })?;
        writer.count(nodes.len())?;
        nodes.iter().try_for_each(|node| writer.node(node))?;
        writer.count(opens.len())?;
        opens.iter().try_for_each(|(open, _)| writer.open(open))?;
        let locks = self.release_for_migration(cx, &opens);
        writer.count(locks.len())?;
        locks.iter().try_for_each(|lock| writer.lock(lock))?;
        writer.end()
    }

    /// Continues after [`Session::save`]: acquires the locks again that it has released. The server
    /// that the migration failed at may hold them a little longer; a lock that somebody else has
    /// taken meanwhile is lost, which is logged.
    pub fn resume(&self, call: &Call) {
        let call = call.sibling();
        let cx = Cx {
            caller: &Caller::ROOT,
            patience: Patience::Full,
            call: &call,
        };
        let deadline = Instant::now() + RELOCK_TIME;
        for (node, lock) in std::mem::take(&mut *self.released.lock()) {
            let (inode, range) = (node.id(), lock.start..=lock.end);
            let lock = || self.export.locks.lock(&cx, &*node, lock.clone(), false);
            let locked = loop {
                match lock() {
                    // Its release is not reported.
                    Err(Errno::EAGAIN) if Instant::now() < deadline => {
                        std::thread::sleep(RELOCK_INTERVAL);
                    }
                    done => break done,
                }
            };
            if let Err(errno) = locked {
                let client = self.client;
                tracing::error!(
                    client,
                    inode,
                    ?range,
                    "a lock of the guest is lost: {errno:?}"
                );
            }
        }
    }

    /// Reads a state and continues with it. No request is in progress.
    ///
    /// Returns an error, with its reason for the log, if the state is invalid or needs features
    /// that this session does not have, or if a node is missing and [`Migration::on_error`] is to
    /// abort. The session is then as before INIT.
    pub fn load(&self, call: &Call, from: &mut dyn Read) -> io::Result<()> {
        self.load_with(self.options.migration.on_error, call, from)
    }

    /// Does the same as [`Session::load`] with the state of another process of this host
    /// ([`Session::save_for_successor`]).
    pub fn load_as_successor(&self, call: &Call, state: &SavedState) -> io::Result<()> {
        let adopted = self.adopt(&state.files);
        self.load_with(MigrationOnError::GuestError, call, &mut &state.bytes[..])?;
        let open_nodes = &self.handles.open_nodes;
        for (node, file) in adopted {
            open_nodes.keep(self.nodes.nodeid_of(node.id()), file.as_fd());
        }
        Ok(())
    }

    fn load_with(
        &self,
        on_error: MigrationOnError,
        call: &Call,
        from: &mut dyn Read,
    ) -> io::Result<()> {
        let incarnation = self.reset();
        let loaded = Load {
            session: self,
            on_error,
            incarnation,
            cx: &Cx {
                caller: &Caller::ROOT,
                patience: Patience::Full,
                call: &call.internal(),
            },
            call,
            nodes: HashMap::new(),
            lost: Vec::new(),
        }
        .run(&mut Reader::new(&mut BufReader::new(from)));
        if loaded.is_err() {
            self.reset();
        }
        loaded
    }

    fn saved_opens(&self, incarnation: Incarnation) -> Vec<(OpenState, Arc<Open>)> {
        let mut opens = self.handles.snapshot(incarnation, |fh, open| {
            let state = OpenState {
                fh,
                nodeid: open.nodeid,
                flags: open.flags,
                direct: open
                    .io_mode
                    .as_ref()
                    .is_some_and(|io_mode| io_mode.mode() == IoMode::Direct),
                locks: open.locks.requested.load(Ordering::Acquire) != UNKNOWN_HANDLE,
            };
            (state, open.clone())
        });
        opens.sort_by_key(|(open, _)| open.fh);
        opens
    }

    /// Returns the nodes to write. Those without a name whose files are open are among them if
    /// these can be kept.
    fn saved_nodes(
        &self,
        migration: Migration,
        cx: &Cx<'_>,
        incarnation: Incarnation,
        opens: &[(OpenState, Arc<Open>)],
        mut keep: Option<KeptFiles<'_>>,
    ) -> io::Result<SavedNodes> {
        let known = self.nodes.snapshot(incarnation);
        let root = known.iter().find(|node| node.nodeid == ROOT_ID);
        let root = root.ok_or_else(|| invalid("a root"))?.clone();
        let mut list = NodeList {
            migration,
            cx,
            nodes: Vec::with_capacity(known.len()),
            numbers: HashMap::new(),
            root: root.node.node.id(),
        };
        list.push(Location::Root, &root);
        let names = match migration.mode {
            MigrationMode::FileHandles => Names::default(),
            MigrationMode::FindPaths => {
                let nodes = known.iter().map(|known| &known.node.node);
                // The tree is not searched for nodes that are kept.
                let wanted = nodes.filter(|node| keep.is_none() || !is_removed(cx, &***node));
                let wanted = wanted.map(|node| (node.id(), node.clone())).collect();
                Names::find(cx, &root.node.node, &wanted)
            }
        };
        let by_id: HashMap<NodeId, &SavedNode> = known
            .iter()
            .map(|node| (node.node.node.id(), node))
            .collect();
        let opened: HashSet<u64> = opens.iter().map(|(open, _)| open.nodeid).collect();
        let (mut lost, mut not_kept) = (Vec::new(), Vec::new());
        for node in known.iter().filter(|node| node.nodeid != ROOT_ID) {
            let is_removed = || is_removed(cx, &*node.node.node);
            let found = match migration.mode {
                MigrationMode::FindPaths => list.push_path(&names, &by_id, node),
                MigrationMode::FileHandles => !is_removed() && list.push(Location::Handle, node),
            };
            if found || !opened.contains(&node.nodeid) && is_removed() {
                continue;
            }
            match &mut keep {
                Some(keep) if is_removed() => {
                    if !keep.push(&mut list, node) {
                        not_kept.push(node.nodeid);
                    }
                }
                _ => lost.push(node.nodeid),
            }
        }
        Ok(SavedNodes {
            nodes: list.nodes,
            lost,
            not_kept,
        })
    }

    /// Releases the client's locks, and returns them.
    fn release_for_migration(
        &self,
        cx: &Cx<'_>,
        opens: &[(OpenState, Arc<Open>)],
    ) -> Vec<LockRecord> {
        let mut locks = Vec::new();
        let mut released = self.released.lock();
        let mut seen = HashSet::new();
        for (state, open) in opens.iter().filter(|(state, _)| state.locks) {
            if !seen.insert(state.nodeid) {
                continue;
            }
            let (mount_locks, node) = (&open.locks.mount_locks, open.node().id());
            let client = mount_locks.client;
            for lock in self.export.locks.held_by(node, client) {
                let handle = mount_locks.handle_of(node, &lock);
                locks.push(LockRecord::of(state.nodeid, &lock, handle));
                released.push((open.locks.node.clone(), lock));
            }
            let ours = |owner: &Owner| owner.client == client;
            self.export.locks.release(cx, open.node(), ours);
        }
        locks
    }

    /// Logs nodes or files that cannot be migrated, or returns an error, as `on_error` says.
    fn report(
        &self,
        on_error: MigrationOnError,
        lost: &[u64],
        what: &str,
        why: &str,
    ) -> io::Result<()> {
        let Some(first) = lost
            .get(..lost.len().min(NAMED))
            .filter(|some| !some.is_empty())
        else {
            return Ok(());
        };
        let count = lost.len();
        let text = format!("{count} cannot be migrated: {what} {first:?} {why}");
        match on_error {
            MigrationOnError::Abort => Err(io::Error::other(text)),
            MigrationOnError::GuestError => {
                tracing::warn!(client = self.client, "{text}");
                Ok(())
            }
        }
    }
}

/// The nodes of a session that is saved.
struct SavedNodes {
    /// Those to write, parents first.
    nodes: Vec<NodeState>,
    /// The ids of those that cannot be migrated.
    lost: Vec<u64>,
    /// The ids of those without a name whose open files cannot be kept.
    not_kept: Vec<u64>,
}

/// Open files without a name, whose nodes are found by handle with a descriptor.
struct KeptFiles<'a> {
    /// An open file of each node.
    opens: HashMap<u64, &'a Arc<Open>>,
    files: &'a mut Vec<OwnedFd>,
}

impl<'a> KeptFiles<'a> {
    fn new(opens: &'a [(OpenState, Arc<Open>)], files: &'a mut Vec<OwnedFd>) -> KeptFiles<'a> {
        let opens = opens.iter().map(|(state, open)| (state.nodeid, open));
        KeptFiles {
            opens: opens.collect(),
            files,
        }
    }

    /// Adds a node to the list, and a descriptor of its open file. Returns false if there is no
    /// descriptor or no handle.
    fn push(&mut self, list: &mut NodeList<'_>, node: &SavedNode) -> bool {
        let open = self.opens.get(&node.nodeid);
        let backing = open.and_then(|open| open.file.backing(list.cx));
        let file = backing.and_then(|file| file.as_fd().try_clone_to_owned().ok());
        let added = file.is_some() && list.push(Location::Handle, node);
        self.files.extend(file.filter(|_| added));
        added
    }
}

/// The list of nodes that is written.
struct NodeList<'a> {
    migration: Migration,
    cx: &'a Cx<'a>,
    nodes: Vec<NodeState>,
    /// The numbers of nodes in the list, by the source's numbers.
    numbers: HashMap<NodeId, u32>,
    root: NodeId,
}

impl NodeList<'_> {
    /// Adds a node. Returns false if it has no handle and needs one.
    fn push(&mut self, at: Location, node: &SavedNode) -> bool {
        let needs_handle = at == Location::Handle;
        let verified = self.migration.verify_handles && matches!(at, Location::Child(..));
        let handle = match needs_handle || verified {
            true => node.node.node.handle(self.cx).ok(),
            false => None,
        };
        if (needs_handle || verified) && handle.is_none() {
            return false;
        }
        let id = node.node.node.id();
        self.numbers.insert(id, self.nodes.len() as u32);
        self.nodes.push(NodeState {
            at,
            kind: node.node.node.kind(),
            nodeid: node.nodeid,
            lookups: node.lookups,
            generation: node.generation,
            handle,
        });
        true
    }

    /// Adds a node with the directories above it. Returns false if a name is missing.
    fn push_path(
        &mut self,
        names: &Names,
        known: &HashMap<NodeId, &SavedNode>,
        node: &SavedNode,
    ) -> bool {
        let mut above: Vec<(NodeId, NodeId, Vec<u8>)> = Vec::new();
        let mut id = node.node.node.id();
        while id != self.root && !self.numbers.contains_key(&id) {
            let Some((parent, name)) = names.get(id) else {
                return false;
            };
            // Names that were found while directories moved may form a cycle.
            if above.iter().any(|&(above, ..)| above == id) {
                return false;
            }
            above.push((id, *parent, name.clone()));
            id = *parent;
        }
        for (id, parent, name) in above.into_iter().rev() {
            let Some(&parent) = self.numbers.get(&parent) else {
                return false;
            };
            let at = Location::Child(parent, name);
            let added = match known.get(&id) {
                Some(node) => self.push(at, node),
                None => {
                    self.numbers.insert(id, self.nodes.len() as u32);
                    self.nodes.push(NodeState {
                        at,
                        kind: Kind::Directory,
                        nodeid: 0,
                        lookups: 0,
                        generation: 0,
                        handle: None,
                    });
                    true
                }
            };
            if !added {
                return false;
            }
        }
        true
    }
}

/// A state that is being loaded.
struct Load<'a> {
    session: &'a Session,
    on_error: MigrationOnError,
    incarnation: Incarnation,
    /// The context of walks and opens.
    cx: &'a Cx<'a>,
    /// The client's own call.
    call: &'a Call,
    /// The nodes that were found, by the client's ids.
    nodes: HashMap<u64, Arc<dyn Node>>,
    /// The ids of those that were not.
    lost: Vec<u64>,
}

impl Load<'_> {
    fn run(mut self, reader: &mut Reader<'_>) -> io::Result<()> {
        let packed = reader.head()?;
        if packed == 0 {
            return reader.end();
        }
        let agreed = Negotiated::unpack(packed).ok_or_else(|| invalid("a version of FUSE"))?;
        let fixed = reader.fixed()?;
        self.check_features(agreed, fixed.max_write)?;
        self.load_nodes(reader, &fixed)?;
        self.load_opens(reader, agreed, &fixed)?;
        self.load_locks(reader)?;
        reader.end()?;
        let (incarnation, packed) = (self.incarnation, agreed.pack());
        let negotiated = &self.session.negotiated;
        negotiated
            .compare_exchange(incarnation, packed, Ordering::AcqRel, Ordering::Relaxed)
            .map_err(|_| io::Error::other("the session was reset meanwhile"))?;
        self.session.note_client(agreed);
        if let Some(records) = &self.session.records {
            let root = self.session.export.fs.root(self.cx);
            records.set_root(&*root.map_err(failed("the root"))?, self.cx);
            records.set_negotiated(packed);
        }
        let nodes = self.nodes.len();
        tracing::info!(client = self.session.client, nodes, "migrated");
        Ok(())
    }

    /// Checks that this session can continue with all that the client was granted.
    fn check_features(&self, agreed: Negotiated, max_write: u32) -> io::Result<()> {
        if !(OLDEST_MINOR..=MINOR).contains(&agreed.minor()) {
            return Err(invalid("a supported version of FUSE"));
        }
        let options = &self.session.options;
        let fewer = agreed.flags - self.session.continues();
        if !fewer.is_empty() {
            let why = format!("the guest uses features that this server lacks: {fewer:?}");
            return Err(io::Error::other(why));
        }
        let missing = options.required - agreed.flags;
        if !missing.is_empty() {
            let why = format!("the guest lacks features that this server requires: {missing:?}");
            return Err(io::Error::other(why));
        }
        if max_write > options.max_write {
            let most = options.max_write;
            let why = format!("the guest writes {max_write} bytes at once, this server {most}");
            return Err(io::Error::other(why));
        }
        Ok(())
    }

    fn load_nodes(&mut self, reader: &mut Reader<'_>, fixed: &Fixed) -> io::Result<()> {
        let root = self
            .session
            .export
            .fs
            .root(self.cx)
            .map_err(failed("the root"))?;
        let most = self.session.options.max_nodes.saturating_mul(2);
        let count = reader.count(most, "nodes")?;
        // The nodes of the list, for those below them.
        let mut list: Vec<Option<Arc<dyn Node>>> = Vec::new();
        for number in 0..count {
            let state = reader.node()?;
            let is_root = state.at == Location::Root;
            if is_root != (number == 0) || is_root != (state.nodeid == ROOT_ID) {
                return Err(invalid("one root"));
            }
            let found = self.find(&state, &root, &list);
            let stored = match &found {
                Some(node) if state.nodeid != 0 => self.store(&state, fixed, node)?,
                found => found.is_some(),
            };
            if !stored && state.nodeid != 0 {
                self.lost.push(state.nodeid);
            }
            list.push(found.filter(|_| stored));
        }
        if count == 0 {
            return Err(invalid("a root"));
        }
        self.session.nodes.end_restore(fixed.generations);
        self.session.report(
            self.on_error,
            &self.lost,
            "node",
            "was not found, or is another one",
        )
    }

    /// Returns the node in question, unless it is gone or has become another one.
    fn find(
        &self,
        state: &NodeState,
        root: &Arc<dyn Node>,
        list: &[Option<Arc<dyn Node>>],
    ) -> Option<Arc<dyn Node>> {
        let node = match &state.at {
            Location::Root => root.clone(),
            Location::Child(parent, name) => {
                let parent = list.get(*parent as usize)?.as_ref()?;
                let name = Name::new(name).ok()?;
                parent.lookup(self.cx, name).ok()?.node
            }
            Location::Handle => {
                let fs = &self.session.export.fs;
                fs.resolve(self.cx, state.handle.as_ref()?).ok()?
            }
        };
        let same = node.kind() == state.kind
            && match (&state.at, &state.handle) {
                (Location::Child(..), Some(handle)) => node.handle(self.cx).ok()? == *handle,
                _ => true,
            };
        same.then_some(node)
    }

    /// Adds a node to the session's table. Returns false if the node has another id already: two
    /// of the client's nodes have become one.
    fn store(
        &mut self,
        state: &NodeState,
        fixed: &Fixed,
        node: &Arc<dyn Node>,
    ) -> io::Result<bool> {
        let nodes = &self.session.nodes;
        let Ok(attr) = node.attr(self.cx, AttrMask::BASIC) else {
            return Ok(false);
        };
        let saved = SavedNode {
            nodeid: state.nodeid,
            node: NodeRef {
                node: node.clone(),
                device: attr.device,
            },
            lookups: state.lookups,
            generation: state.generation,
        };
        match nodes.restore(self.cx, self.incarnation, fixed.root, saved) {
            Ok(()) => {
                self.nodes.insert(state.nodeid, node.clone());
                Ok(true)
            }
            Err(Errno::EEXIST) => Ok(false),
            Err(errno) => Err(failed("the table of nodes")(errno)),
        }
    }

    fn load_opens(
        &mut self,
        reader: &mut Reader<'_>,
        agreed: Negotiated,
        fixed: &Fixed,
    ) -> io::Result<()> {
        let handles = &self.session.handles;
        if fixed.next_handle > MAX_HANDLE {
            return Err(invalid("a number of open files"));
        }
        let mut lost = Vec::new();
        for _ in 0..reader.count(self.session.options.max_handles, "open files")? {
            let state = reader.open()?;
            if state.fh >= fixed.next_handle {
                return Err(invalid("open files with numbers below the next one"));
            }
            let opened = match self.nodes.get(&state.nodeid) {
                Some(node) => self.open(agreed, &state, node),
                None => Err(Errno::ESTALE),
            };
            match opened {
                Ok(open) => {
                    let reserved = handles.reserve(self.call.account());
                    let stored = reserved.and_then(|slot| {
                        slot.insert_recorded(self.incarnation, state.fh, open, NO_REQUEST)
                    });
                    stored.map_err(failed("the table of open files"))?;
                }
                Err(errno) => {
                    tracing::debug!(client = self.session.client, ?state, ?errno, "not opened");
                    lost.push(state.nodeid);
                }
            }
        }
        handles.set_next(fixed.next_handle);
        self.session.report(
            self.on_error,
            &lost,
            "open file of node",
            "cannot be opened again",
        )
    }

    fn open(
        &self,
        agreed: Negotiated,
        state: &OpenState,
        node: &Arc<dyn Node>,
    ) -> vfs::Result<Open> {
        let reopened = Reopened {
            nodeid: state.nodeid,
            flags: state.flags,
            io_mode: match state.direct {
                true => IoMode::Direct,
                false => IoMode::Cached,
            },
        };
        let session = self.session;
        let open = session.reopen(self.cx, self.incarnation, agreed, node.clone(), &reopened)?;
        if state.locks {
            open.locks.record_request(state.fh);
        }
        Ok(open)
    }

    fn load_locks(&self, reader: &mut Reader<'_>) -> io::Result<()> {
        let mut lost = Vec::new();
        let cx = Cx {
            call: self.call,
            ..*self.cx
        };
        let opens = self.session.saved_opens(self.incarnation);
        let locked = opens.iter().filter(|(open, _)| open.locks);
        let mut by_node: HashMap<u64, (Vec<u64>, &Arc<Open>)> = HashMap::new();
        for (state, open) in locked {
            let of_node = by_node.entry(state.nodeid);
            of_node.or_insert((Vec::new(), open)).0.push(state.fh);
        }
        for _ in 0..reader.count(MAX_LOCKS, "locks")? {
            let state = reader.lock()?;
            // Locks end with the open files through which they were requested.
            let Some((handles, open)) = by_node.get(&state.node) else {
                lost.push(state.node);
                continue;
            };
            let state = state.of_handles(handles);
            if let Err(errno) = open.locks.mount_locks.restore(&cx, open, &state) {
                tracing::debug!(client = self.session.client, ?state, ?errno, "not locked");
                lost.push(state.node);
            }
        }
        self.session.report(
            self.on_error,
            &lost,
            "lock of node",
            "cannot be acquired again",
        )
    }
}

/// The largest number of an open file: more than a client opens in the life of a server.
const MAX_HANDLE: u64 = 1 << 62;

/// The number of no request.
const NO_REQUEST: u64 = 0;

/// The most locks of a client, as the lock table's.
const MAX_LOCKS: usize = 1 << 20;

/// Returns a function that describes a failure with `what`.
fn failed(what: &str) -> impl Fn(Errno) -> io::Error {
    move |errno| io::Error::other(format!("{what}: {errno:?}"))
}
