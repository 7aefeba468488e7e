//! Pokes: requests that a guest's kernel sends so that its own inotify(7) events are raised for
//! changes of others.
//!
//! A kernel raises events for its own operations only. So an agent in the guest repeats a change
//! that was made elsewhere, and this layer answers the request with the present state, without an
//! effect on the source. The agent's requests are those of a user id from [`AGENT_UIDS`], a random
//! one for each agent: no other program of the guest has it, and all protocols transmit it. All
//! requests of such a user are this layer's, announced or not, so none of them ever changes the
//! source, whatever happens at the same moment.
//!
//! Before each poke the server announces it ([`Agent::announce`]): from then on, and until the
//! request itself arrives, look-ups of that user show the names as the guest's kernel has to find
//! them, so that it sends the request. A removed object is shown as the node that the guest knows,
//! if this layer remembers it ([`MAX_KNOWN`]), else as a stand-in. Other users see the tree as it
//! is.
//!
//! The layer also remembers the client that changed an object last, with a word for each of
//! [`WRITERS`] hashes, since a client needs no event for its own change.
//!
//! Lock order: no two locks are held together. Each is held for a look-up or an insertion only, and
//! no call is made below meanwhile.

mod stand_in;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use vfs::lock::{HostLock, LockRange};
use vfs::peer::PeerKey;
use vfs::siphash::{self, Key};
use vfs::{
    Access, Attr, AttrMask, BreakCallback, Call, Caller, Cx, DirEntry, DirSink, Entry, Errno, File,
    FileSystem, Handle, Kind, Lease, LeaseKind, Mode, Name, NewNode, Node, NodeId, Op, OpenFlags,
    ReaddirMode, RelaySink, RenameFlags, Result, SetAttr, Sink, StaleNode,
};

use crate::{Layer, Opened, forward};

/// The user ids of agents: above those that SSSD and FreeIPA assign by default (up to 2000200000)
/// and those of containers, below those that systemd reserves (from 0x7ffe0000). A guest's programs
/// must not be taken for its agent.
pub const AGENT_UIDS: Range<u32> = 0x7740_0000..0x7f00_0000;

/// Maximum number of agents of a tree.
pub const MAX_AGENTS: usize = 64;

/// Maximum number of nodes that clients have found and that are remembered, about 300 bytes each.
/// A removed object whose slot another one has taken is shown as a stand-in: the guest's kernel
/// then reports the removal to those that watch the directory, and not to those that watch the
/// object.
pub const MAX_KNOWN: usize = 1 << 14;

/// Number of words that remember the client of the last change. A client gets events for its own
/// changes twice if others have taken the words of these before the source reports them.
pub const WRITERS: usize = 1 << 17;

/// Time within which the request of an announced poke has to arrive.
pub const POKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The state of a name whose change by a client is in progress.
const PENDING: u32 = 0;

/// The state of a name that a client has removed, or that leads to an object that the layer does
/// not know.
const GONE: u32 = 1;

/// The prefix of the names to which the NFS client of Linux renames a file that is open when it is
/// removed.
const SILLY_PREFIX: &[u8] = b".nfs";

/// The layer.
pub struct Pokes {
    agents: RwLock<HashMap<u32, Arc<AgentState>>>,
    /// Nodes that clients have found, each in the slot of its number.
    known: Box<[Mutex<Option<Known>>]>,
    /// The names of these nodes, each in the slot of its hash.
    names: Box<[Mutex<Option<KnownName>>]>,
    /// The client of the last change of an object or name: a hash of each.
    writers: Box<[AtomicU64]>,
    /// The state of a name after the last change of it by a client: a hash of the name, and
    /// [`PENDING`], [`GONE`] or that of the object.
    placed: Box<[AtomicU64]>,
    /// The key of the numbers of stand-ins, and of the hashes of clients.
    key: Key,
    stand_ins: AtomicU64,
}

/// A node that a client has found.
struct Known {
    id: NodeId,
    node: Weak<dyn Node>,
    attr: Attr,
    /// Its handle, if a client has got it.
    handle: Option<Handle>,
}

/// A name by which a client has found a node.
#[derive(Clone, Copy)]
struct KnownName {
    /// The hash of the directory's number and the name.
    hash: u64,
    node: NodeId,
}

/// A name in a directory below the layer, and the entry as which an agent finds it.
pub type ShownName = ((NodeId, Vec<u8>), Entry);

/// A change that an agent repeats. Directories and names are those below the layer.
#[derive(Clone)]
pub enum Poke {
    /// The name exists now; the agent creates it.
    Create {
        /// The directory.
        dir: NodeId,
        /// The name in it.
        name: Vec<u8>,
        /// The object, as the agent finds it, if the name does not exist after all.
        stand_in: Option<Entry>,
    },
    /// The agent sets the times of the node.
    Change {
        /// The node.
        node: NodeId,
    },
    /// The agent renames the object.
    Rename {
        /// The old directory and name.
        from: (NodeId, Vec<u8>),
        /// The new directory and name.
        to: (NodeId, Vec<u8>),
        /// The object, as the agent finds it under the old name.
        entry: Entry,
        /// The object that had the new name before, as the agent finds it.
        replaced: Entry,
    },
    /// The agent removes the name.
    Delete {
        /// The directory.
        dir: NodeId,
        /// The name in it.
        name: Vec<u8>,
        /// The removed object, as the agent finds it.
        entry: Entry,
        /// The directories above that are gone as well, as the agent finds them.
        above: Vec<ShownName>,
    },
}

/// An agent, until dropped.
pub struct Agent {
    pokes: Arc<Pokes>,
    uid: u32,
    state: Arc<AgentState>,
}

struct AgentState {
    /// The name that the agent has to look up.
    challenge: Vec<u8>,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// The client whose request looked up the challenge.
    client: Option<Option<PeerKey>>,
    /// The announced poke, until its request has arrived.
    announced: Option<(Poke, Instant)>,
}

impl Progress {
    /// Returns the announced poke, unless its time is over.
    fn poke(&self) -> Option<&Poke> {
        let (poke, end) = self.announced.as_ref()?;
        (Instant::now() < *end).then_some(poke)
    }
}

/// The answer to an agent's look-up.
enum View {
    /// That of the source.
    Present,
    /// No entry.
    Absent,
    /// This entry.
    As(Box<Entry>),
    /// This entry, of a name that is gone.
    Gone(Box<Entry>),
}

impl Pokes {
    /// Creates a layer without agents. `key` is secret.
    pub fn new(key: Key) -> Arc<Pokes> {
        Arc::new(Pokes {
            agents: RwLock::default(),
            known: (0..MAX_KNOWN).map(|_| Mutex::default()).collect(),
            names: (0..MAX_KNOWN).map(|_| Mutex::default()).collect(),
            writers: (0..WRITERS).map(|_| AtomicU64::new(0)).collect(),
            placed: (0..WRITERS).map(|_| AtomicU64::new(0)).collect(),
            key,
            stand_ins: AtomicU64::new(0),
        })
    }

    /// Adds an agent whose requests have the user id `uid` of [`AGENT_UIDS`], and which proves that
    /// it is a client of this tree by a look-up of the name `challenge` in any directory. Returns
    /// `ENFILE` if there are [`MAX_AGENTS`], `EEXIST` if `uid` is taken, `EINVAL` if it is not of
    /// these ids.
    pub fn add(self: &Arc<Self>, uid: u32, challenge: Vec<u8>) -> Result<Agent> {
        if !AGENT_UIDS.contains(&uid) {
            return Err(Errno::EINVAL);
        }
        let state = Arc::new(AgentState {
            challenge,
            progress: Mutex::default(),
        });
        let mut agents = self.agents.write();
        if agents.contains_key(&uid) {
            return Err(Errno::EEXIST);
        }
        if agents.len() >= MAX_AGENTS {
            return Err(Errno::ENFILE);
        }
        agents.insert(uid, state.clone());
        Ok(Agent {
            pokes: self.clone(),
            uid,
            state,
        })
    }

    /// Returns the entry by which an agent finds an object of `kind` whose name is gone from the
    /// tree below: the node that clients know by the number `id`, or a stand-in. May block.
    pub fn removed(&self, tree: &dyn FileSystem, id: Option<NodeId>, kind: Kind) -> Entry {
        let recalled = id.and_then(|id| self.recall(tree, id));
        if let Some(Entry { node, attr }) = recalled.filter(|entry| entry.attr.kind == kind) {
            let call = Call::detached();
            let now = node.attr(&Cx::new(&Caller::ROOT, &call), AttrMask::STAT);
            // The client subtracts the removed name from the number of links.
            let attr = match now {
                Ok(now) if node.as_any().downcast_ref::<StaleNode>().is_none() => Attr {
                    nlink: now.nlink.saturating_add(1),
                    ..now
                },
                _ => Attr { nlink: 1, ..attr },
            };
            return Entry { node, attr };
        }
        self.unknown(kind)
    }

    /// Returns a stand-in with a number of its own.
    fn unknown(&self, kind: Kind) -> Entry {
        let number = self.stand_ins.fetch_add(1, Ordering::Relaxed);
        let hash = siphash::hash(&self.key, &number.to_le_bytes());
        stand_in::unknown(1 << 63 | hash, kind)
    }

    /// Returns the entry by which clients have found `name` in the directory `dir` of `tree`, the
    /// one below, if this layer remembers it: the name may be gone. May block.
    pub fn remembered(&self, tree: &dyn FileSystem, dir: NodeId, name: &[u8]) -> Option<Entry> {
        let hash = self.hash((dir, name));
        let known = *self.names[hash as usize % MAX_KNOWN].lock();
        let known = known.filter(|known| known.hash == hash)?;
        self.recall(tree, known.node)
    }

    /// Returns the node that clients know by the number `id`, or a stand-in of it, with its
    /// attributes when it was found last. A stand-in has the number and the handle of the object
    /// only if it is gone, as far as its handle or its number of links shows.
    fn recall(&self, tree: &dyn FileSystem, id: NodeId) -> Option<Entry> {
        let (node, attr, handle) = {
            let slot = self.known[slot_of(id)].lock();
            let known = slot.as_ref().filter(|known| known.id == id)?;
            (known.node.upgrade(), known.attr, known.handle)
        };
        if let Some(node) = node {
            return Some(Entry { node, attr });
        }
        let call = Call::detached().internal();
        let resolved = handle.map(|handle| tree.resolve(&Cx::new(&Caller::ROOT, &call), &handle));
        Some(match resolved {
            Some(Ok(node)) if node.id() == id => Entry { node, attr },
            Some(Err(Errno::ESTALE)) => stand_in::of(attr, handle),
            _ if attr.nlink > 1 && attr.kind != Kind::Directory => self.unknown(attr.kind),
            _ => stand_in::of(attr, handle),
        })
    }

    /// Returns the identity of the object that a client has found as `name` in the directory
    /// `dir`, [`GONE`] if it is not remembered.
    fn known_identity(&self, dir: NodeId, name: Name<'_>) -> u32 {
        let hash = self.hash((dir, name.bytes()));
        let known = *self.names[hash as usize % MAX_KNOWN].lock();
        let attr = known
            .filter(|known| known.hash == hash)
            .and_then(|known| self.known_attr(known.node));
        attr.map_or(GONE, |attr| self.identity(&attr))
    }

    /// Returns the attributes of the node `id` when a client found it last, if they are remembered.
    fn known_attr(&self, id: NodeId) -> Option<Attr> {
        let slot = self.known[slot_of(id)].lock();
        Some(slot.as_ref().filter(|known| known.id == id)?.attr)
    }

    /// Returns the handle that a client has of the node `id`, if it is remembered.
    fn known_handle(&self, id: NodeId) -> Option<Handle> {
        let slot = self.known[slot_of(id)].lock();
        slot.as_ref().filter(|known| known.id == id)?.handle
    }

    /// Returns whether the last change through this layer of the name `name` in the directory
    /// `dir`, or without a name of the node `dir`, was made by `client`.
    pub fn is_own(&self, client: Option<PeerKey>, dir: NodeId, name: Option<&[u8]>) -> bool {
        let hash = self.change_hash(dir, name);
        let word = self.writers[hash as usize % WRITERS].load(Ordering::Relaxed);
        word == self.word(hash, client)
    }

    /// Returns whether `client` has made the last change of the name `name` in the directory `dir`
    /// through this layer, and has given the name to the object `entry`. If it has given the name
    /// to another object, a change by the host has replaced that since.
    pub fn is_own_object(
        &self,
        client: Option<PeerKey>,
        dir: NodeId,
        name: &[u8],
        entry: &Entry,
    ) -> bool {
        if !self.is_own(client, dir, Some(name)) {
            return false;
        }
        let hash = self.change_hash(dir, Some(name));
        let word = self.placed[hash as usize % WRITERS].load(Ordering::Relaxed);
        let state = word as u32;
        word >> 32 != hash >> 32 || state == PENDING || state == self.identity(&entry.attr)
    }

    /// Returns the hash of an object. The number alone may be used again.
    fn identity(&self, attr: &Attr) -> u32 {
        let birth = attr.btime.map(|time| (time.sec, time.nsec));
        (self.hash((attr.id, birth)) as u32).max(GONE + 1)
    }

    fn hash(&self, of: impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        of.hash(&mut hasher);
        siphash::hash(&self.key, &hasher.finish().to_le_bytes())
    }

    /// Returns the hash of a changed name, or of the node `dir`.
    fn change_hash(&self, dir: NodeId, name: Option<&[u8]>) -> u64 {
        self.hash((dir, name))
    }

    /// Returns the word for a change by `client` of the object with this hash.
    fn word(&self, hash: u64, client: Option<PeerKey>) -> u64 {
        hash & !0xffff_ffff | self.hash(client) & 0xffff_ffff
    }

    /// Records a change by the calling client. Called before the change: the source may report it
    /// at once.
    fn record(&self, cx: &Cx<'_>, dir: NodeId, name: Option<Name<'_>>) {
        let hash = self.change_hash(dir, name.map(Name::bytes));
        let word = self.word(hash, cx.call.account().client());
        self.writers[hash as usize % WRITERS].store(word, Ordering::Relaxed);
    }

    /// Runs a change of the name `name` in the directory `dir` by the calling client, and records
    /// it with the object that has the name after it, as `placed` returns it.
    fn change_name<T>(
        &self,
        cx: &Cx<'_>,
        dir: NodeId,
        name: Name<'_>,
        run: impl FnOnce() -> Result<T>,
        placed: impl FnOnce(&T) -> u32,
    ) -> Result<T> {
        self.record(cx, dir, Some(name));
        let hash = self.change_hash(dir, Some(name.bytes()));
        let slot = &self.placed[hash as usize % WRITERS];
        let word = |state: u32| hash & !0xffff_ffff | u64::from(state);
        let old = slot.swap(word(PENDING), Ordering::Relaxed);
        let done = run();
        let new = match &done {
            Ok(done) => word(placed(done)),
            Err(_) => old,
        };
        // Not if another change has begun meanwhile.
        let current = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = slot.compare_exchange(word(PENDING), new, current.0, current.1);
        done
    }

    /// Remembers a node that a client has found as `name` in the directory `dir`.
    fn remember(&self, dir: NodeId, name: &[u8], entry: &Entry) {
        let id = entry.node.id();
        let hash = self.hash((dir, name));
        let known = KnownName { hash, node: id };
        *self.names[hash as usize % MAX_KNOWN].lock() = Some(known);
        let mut known = Known {
            id,
            node: Arc::downgrade(&entry.node),
            attr: entry.attr,
            handle: None,
        };
        let mut slot = self.known[slot_of(id)].lock();
        known.handle = slot
            .as_ref()
            .filter(|old| old.id == id)
            .and_then(|old| old.handle);
        let old = slot.replace(known);
        drop(slot);
        // The last reference frees memory: not under the lock.
        drop(old);
    }

    /// Returns the state of the calling agent. Returns `EACCES` if there is none of that user, or
    /// if another client acts as that user.
    fn agent(&self, cx: &Cx<'_>) -> Result<Arc<AgentState>> {
        let state = self.agents.read().get(&cx.caller.uid).cloned();
        let state = state.ok_or(Errno::EACCES)?;
        match state.progress.lock().client {
            Some(client) if client != cx.call.account().client() => Err(Errno::EACCES),
            _ => Ok(state.clone()),
        }
    }

    /// Returns the user whose rights the operation has: an agent sees as much as the super-user of
    /// its client does.
    fn effective<'a>(&self, cx: &Cx<'a>) -> &'a Caller {
        match is_agent(cx) && self.agent(cx).is_ok() {
            true => &Caller::ROOT,
            false => cx.caller,
        }
    }

    /// Runs a change of `node`, and records it. Refuses it to agents.
    fn change<T>(
        &self,
        _: Op,
        node: NodeId,
        cx: &Cx<'_>,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        refuse_agents(cx)?;
        self.record(cx, node, None);
        run()
    }

    /// Runs an operation that no poke consists of.
    fn refuse<T>(
        &self,
        _: Op,
        _: NodeId,
        cx: &Cx<'_>,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        refuse_agents(cx)?;
        run()
    }

    /// Returns whether `name` leads to an object to which the calling agent's client itself has
    /// given it: its kernel must not remove or rename that object for an earlier change by others.
    fn is_own_again(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> Result<bool> {
        let client = cx.call.account().client();
        if !self.is_own(client, inner.id(), Some(name.bytes())) {
            return Ok(false);
        }
        match inner.lookup(&cx.on_behalf_of(&Caller::ROOT), name) {
            Ok(entry) => Ok(self.is_own_object(client, inner.id(), name.bytes(), &entry)),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the object at `name`, which an agent creates as `kind`.
    fn create_again(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        kind: Kind,
    ) -> Result<Entry> {
        let agent = self.agent(cx)?;
        let is_it = |poke: &Poke| match poke {
            Poke::Create {
                dir, name: created, ..
            } => *dir == inner.id() && created[..] == *name.bytes(),
            _ => false,
        };
        if !agent.is_announced(is_it) {
            return Err(Errno::EPERM);
        }
        let entry = match inner.lookup(&cx.on_behalf_of(&Caller::ROOT), name) {
            Err(Errno::ENOENT) => agent.stand_in().ok_or(Errno::ENOENT)?,
            found => found?,
        };
        if entry.attr.kind != kind {
            return Err(Errno::EEXIST);
        }
        // An existing inode: the guest may know it by another name.
        cx.call.note_existing();
        // It may be replaced before the next poke.
        cx.call.note_uncacheable();
        self.remember(inner.id(), name.bytes(), &entry);
        agent.consume(is_it);
        Ok(entry)
    }
}

impl Agent {
    /// Returns the client whose request looked up the challenge, `None` if none has. The client
    /// itself is `None` if it is not identified.
    pub fn client(&self) -> Option<Option<PeerKey>> {
        self.state.progress.lock().client
    }

    /// Returns its user id.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Announces `poke`, for [`POKE_TIMEOUT`]; the one before it is withdrawn.
    pub fn announce(&self, poke: Poke) {
        let announced = Some((poke, Instant::now() + POKE_TIMEOUT));
        let old = std::mem::replace(&mut self.state.progress.lock().announced, announced);
        // Dropping a node may take time: not under the lock.
        drop(old);
    }

    /// Withdraws the announced poke. Returns whether its request has arrived.
    pub fn withdraw(&self) -> bool {
        let announced = self.state.progress.lock().announced.take();
        announced.is_none()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.pokes.agents.write().remove(&self.uid);
    }
}

impl AgentState {
    /// Returns whether a poke is announced for which `is_it` returns true.
    fn is_announced(&self, is_it: impl Fn(&Poke) -> bool) -> bool {
        let progress = self.progress.lock();
        progress.poke().is_some_and(is_it)
    }

    /// Withdraws the announced poke if `is_it` returns true for it, as its request has arrived.
    /// Returns whether it was announced.
    fn consume(&self, is_it: impl Fn(&Poke) -> bool) -> bool {
        let mut progress = self.progress.lock();
        let consumed = match progress.poke().is_some_and(is_it) {
            true => progress.announced.take(),
            false => None,
        };
        drop(progress);
        consumed.is_some()
    }

    /// Returns the answer to a look-up of `name` in the directory `dir`.
    fn view(&self, dir: NodeId, name: &[u8]) -> View {
        let progress = self.progress.lock();
        let Some(poke) = progress.poke() else {
            return View::Present;
        };
        let is_it = |other_dir: NodeId, other: &[u8]| other_dir == dir && other == name;
        match poke {
            Poke::Create { dir, name, .. } if is_it(*dir, name) => View::Absent,
            Poke::Rename { to, replaced, .. } if is_it(to.0, &to.1) => {
                View::As(Box::new(replaced.clone()))
            }
            Poke::Rename { from, entry, .. } if is_it(from.0, &from.1) => {
                View::Gone(Box::new(entry.clone()))
            }
            Poke::Delete {
                dir, name, entry, ..
            } if is_it(*dir, name) => View::Gone(Box::new(entry.clone())),
            Poke::Delete { above, .. } => {
                let shown = above.iter().find(|(at, _)| is_it(at.0, &at.1));
                shown.map_or(View::Present, |(_, entry)| {
                    View::Gone(Box::new(entry.clone()))
                })
            }
            _ => View::Present,
        }
    }

    /// Returns the attributes of the node `id`, if its removal is announced, or that of something
    /// below it.
    fn attr_of_removed(&self, id: NodeId) -> Option<Attr> {
        let progress = self.progress.lock();
        let is_it = |entry: &&Entry| entry.node.id() == id;
        let found = match progress.poke()? {
            Poke::Delete { entry, above, .. } => {
                let mut all = above.iter().map(|(_, entry)| entry).chain([entry]);
                all.find(is_it)
            }
            Poke::Rename { replaced, .. } => Some(replaced).filter(is_it),
            _ => None,
        };
        found.map(|entry| entry.attr)
    }

    /// Returns the stand-in of the object whose creation is announced, if there is one.
    fn stand_in(&self) -> Option<Entry> {
        let progress = self.progress.lock();
        match progress.poke() {
            Some(Poke::Create { stand_in, .. }) => stand_in.clone(),
            _ => None,
        }
    }

    /// Returns the nodes that the announced poke shows although they are gone.
    fn shown(&self) -> Vec<Arc<dyn Node>> {
        let progress = self.progress.lock();
        match progress.poke() {
            Some(Poke::Rename {
                entry, replaced, ..
            }) => vec![replaced.node.clone(), entry.node.clone()],
            Some(Poke::Delete { entry, above, .. }) => {
                let above = above.iter().map(|(_, entry)| entry.node.clone());
                above.chain([entry.node.clone()]).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Returns whether the caller is an agent, whether or not it is known.
fn is_agent(cx: &Cx<'_>) -> bool {
    AGENT_UIDS.contains(&cx.caller.uid) && !cx.call.is_internal()
}

fn refuse_agents(cx: &Cx<'_>) -> Result<()> {
    match is_agent(cx) {
        true => Err(Errno::EACCES),
        false => Ok(()),
    }
}

/// Returns the slot of the node `id`. Numbers of a file system are consecutive.
fn slot_of(id: NodeId) -> usize {
    (id ^ id >> 48) as usize % MAX_KNOWN
}

impl Layer for Pokes {
    fn allows_passthrough(&self) -> bool {
        false
    }

    fn resolve(
        &self,
        inner: &dyn FileSystem,
        cx: &Cx<'_>,
        handle: &Handle,
    ) -> Result<Arc<dyn Node>> {
        if !is_agent(cx) {
            return inner.resolve(cx, handle);
        }
        let agent = self.agent(cx)?;
        match inner.resolve(&cx.on_behalf_of(&Caller::ROOT), handle) {
            Err(Errno::ESTALE) => {
                let mut shown = agent.shown().into_iter();
                let is_it = |node: &Arc<dyn Node>| match node.as_any().downcast_ref::<StaleNode>() {
                    Some(stand_in) => stand_in.known_handle() == Some(*handle),
                    None => self.known_handle(node.id()) == Some(*handle),
                };
                shown.find(is_it).ok_or(Errno::ESTALE)
            }
            resolved => resolved,
        }
    }

    fn handle(&self, inner: &dyn Node, cx: &Cx<'_>) -> Result<Handle> {
        let id = inner.id();
        let handle = match inner.handle(&cx.on_behalf_of(self.effective(cx))) {
            // A removed object may have no handle any more but that of its clients.
            Err(errno) if is_agent(cx) && errno != Errno::WOULD_BLOCK => {
                self.agent(cx)?;
                return self.known_handle(id).ok_or(errno);
            }
            handle => handle?,
        };
        if let Some(known) = &mut *self.known[slot_of(id)].lock()
            && known.id == id
        {
            known.handle = Some(handle);
        }
        Ok(handle)
    }

    fn access(&self, inner: &dyn Node, cx: &Cx<'_>, want: Access) -> Result<Access> {
        match is_agent(cx) {
            true => self.agent(cx).map(|_| want),
            false => inner.access(cx, want),
        }
    }

    fn lookup(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        if !is_agent(cx) {
            let entry = inner.lookup(cx, name)?;
            self.remember(inner.id(), name.bytes(), &entry);
            return Ok(entry);
        }
        let agent = self.agent(cx)?;
        if agent.challenge == name.bytes() {
            // The list of clients may refuse this one; its users do not matter.
            let call = cx.call.internal();
            let below = Cx {
                caller: &Caller::ROOT,
                call: &call,
                ..*cx
            };
            return match inner.lookup(&below, name) {
                Err(Errno::ENOENT) => {
                    let client = cx.call.account().client();
                    agent.progress.lock().client.get_or_insert(client);
                    Err(Errno::ENOENT)
                }
                Err(errno) => Err(errno),
                Ok(_) => Err(Errno::EACCES),
            };
        }
        // Other programs use the names that the agent's requests leave in the client's cache.
        cx.call.note_uncacheable();
        let view = match agent.view(inner.id(), name.bytes()) {
            View::Gone(_) if self.is_own_again(inner, cx, name)? => View::Present,
            view => view,
        };
        match view {
            View::Present => {
                let entry = inner.lookup(&cx.on_behalf_of(&Caller::ROOT), name)?;
                self.remember(inner.id(), name.bytes(), &entry);
                Ok(entry)
            }
            View::Absent => Err(Errno::ENOENT),
            View::As(entry) | View::Gone(entry) => Ok(*entry),
        }
    }

    /// Leaves the attributes as they are for an agent: the present ones are the reply, also to the
    /// client's further requests about an object that it has created again.
    fn setattr(&self, inner: &dyn Node, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        if !is_agent(cx) {
            self.record(cx, inner.id(), None);
            return inner.setattr(cx, set);
        }
        let agent = self.agent(cx)?;
        let attr = Layer::attr(self, inner, cx, AttrMask::STAT)?;
        let id = inner.id();
        agent.consume(|poke| matches!(poke, Poke::Change { node } if *node == id));
        Ok(attr)
    }

    fn file_setattr(&self, inner: Opened<'_>, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        if is_agent(cx) {
            self.agent(cx)?;
            return inner.attr(&cx.on_behalf_of(&Caller::ROOT), AttrMask::STAT);
        }
        self.record(cx, inner.node.id(), None);
        inner.setattr(cx, set)
    }

    fn create(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        if !is_agent(cx) {
            let (entry, file) = self.change_name(
                cx,
                inner.id(),
                name,
                || inner.create(cx, name, flags, mode),
                |(entry, _)| self.identity(&entry.attr),
            )?;
            self.remember(inner.id(), name.bytes(), &entry);
            self.record(cx, entry.node.id(), None);
            return Ok((entry, file));
        }
        let agent = self.agent(cx)?;
        let root = cx.on_behalf_of(&Caller::ROOT);
        let found = match inner.lookup(&root, name) {
            Err(Errno::ENOENT) => agent.stand_in().ok_or(Errno::ENOENT)?,
            found => found?,
        };
        // Before the request counts as arrived, since it may take more patience.
        let file = match found.attr.kind {
            Kind::File => found.node.open(&root, OpenFlags::READ)?,
            _ => return Err(Errno::EEXIST),
        };
        let entry = self.create_again(inner, cx, name, Kind::File)?;
        match entry.node.id() == found.node.id() {
            true => Ok((entry, file)),
            false => Err(Errno::ESTALE),
        }
    }

    fn make(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        what: NewNode<'_>,
        mode: Mode,
    ) -> Result<Entry> {
        if is_agent(cx) {
            return self.create_again(inner, cx, name, what.kind());
        }
        let entry = self.change_name(
            cx,
            inner.id(),
            name,
            || inner.make(cx, name, what, mode),
            |entry| self.identity(&entry.attr),
        )?;
        self.remember(inner.id(), name.bytes(), &entry);
        self.record(cx, entry.node.id(), None);
        Ok(entry)
    }

    fn link(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        target: &dyn Node,
    ) -> Result<Entry> {
        refuse_agents(cx)?;
        self.record(cx, target.id(), None);
        let entry = self.change_name(
            cx,
            inner.id(),
            name,
            || inner.link(cx, name, target),
            |entry| self.identity(&entry.attr),
        )?;
        self.remember(inner.id(), name.bytes(), &entry);
        Ok(entry)
    }

    fn unlink(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        if !is_agent(cx) {
            let run = || inner.unlink(cx, name, dir);
            return self.change_name(cx, inner.id(), name, run, |()| GONE);
        }
        let agent = self.agent(cx)?;
        let is_it = |poke: &Poke| match poke {
            Poke::Delete {
                dir: up,
                name: removed,
                entry,
                ..
            } => {
                *up == inner.id()
                    && removed[..] == *name.bytes()
                    && (entry.attr.kind == Kind::Directory) == dir
            }
            _ => false,
        };
        if agent.is_announced(is_it) && self.is_own_again(inner, cx, name)? {
            return Err(Errno::EPERM);
        }
        // The client removes the name that a rename of its own has made.
        let silly = name.bytes().starts_with(SILLY_PREFIX) && !dir;
        match agent.consume(is_it) || silly {
            true => Ok(()),
            // A protocol that does not say what it removes tries both.
            false if !dir => Err(Errno::EISDIR),
            false => Err(Errno::EPERM),
        }
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
        if !is_agent(cx) {
            // The objects as the client has found them.
            let (moved, replaced) = (
                self.known_identity(inner.id(), name),
                self.known_identity(to.id(), to_name),
            );
            let left = match flags.contains(RenameFlags::EXCHANGE) {
                true => replaced,
                false => GONE,
            };
            let run = || inner.rename(cx, name, to, to_name, flags);
            let run = || self.change_name(cx, to.id(), to_name, run, |()| moved);
            return self.change_name(cx, inner.id(), name, run, |()| left);
        }
        let agent = self.agent(cx)?;
        let is_at = |at: &(NodeId, Vec<u8>), dir: &dyn Node, name: Name<'_>| {
            at.0 == dir.id() && at.1[..] == *name.bytes()
        };
        // The client keeps a replaced file that is open under a name of its own.
        let keeps_replaced = |poke: &Poke| match poke {
            Poke::Rename { to: into, .. } => {
                is_at(into, inner, name) && to_name.bytes().starts_with(SILLY_PREFIX)
            }
            _ => false,
        };
        if agent.is_announced(keeps_replaced) {
            return Ok(());
        }
        let is_it = |poke: &Poke| match poke {
            Poke::Rename { from, to: into, .. } => {
                is_at(from, inner, name) && is_at(into, to, to_name)
            }
            // The client renames a file that is open instead of removing it.
            Poke::Delete {
                dir, name: removed, ..
            } => {
                *dir == inner.id()
                    && removed[..] == *name.bytes()
                    && to_name.bytes().starts_with(SILLY_PREFIX)
            }
            _ => false,
        };
        if agent.is_announced(is_it) && self.is_own_again(inner, cx, name)? {
            return Err(Errno::EPERM);
        }
        match agent.consume(is_it) {
            true => Ok(()),
            false => Err(Errno::EPERM),
        }
    }

    fn open(&self, inner: &dyn Node, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        refuse_agents(cx)?;
        if flags.contains(OpenFlags::TRUNC) {
            self.record(cx, inner.id(), None);
        }
        inner.open(cx, flags)
    }

    fn readdir(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        refuse_agents(cx)?;
        if plus == ReaddirMode::Names {
            return inner.readdir(cx, cookie, plus, sink);
        }
        let mut remembering = RelaySink::new(sink, |sink, entry: DirEntry<'_>| {
            if let Some(found) = &entry.entry {
                self.remember(inner.node.id(), entry.name, found);
            }
            sink.entry(entry)
        });
        inner.readdir(cx, cookie, plus, &mut remembering)
    }

    fn read(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        refuse_agents(cx)?;
        inner.read(cx, offset, len, sink)
    }

    fn host_lock(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        range: LockRange,
        state: HostLock,
    ) -> Result<()> {
        if state != HostLock::Unlocked {
            refuse_agents(cx)?;
        }
        inner.host_lock(cx, range, state)
    }

    fn lease(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        kind: LeaseKind,
        broken: &BreakCallback,
    ) -> Result<Box<dyn Lease>> {
        refuse_agents(cx)?;
        inner.lease(cx, kind, broken)
    }

    /// Returns the attributes of a removed object to an agent as they were before: clients check
    /// the number of links.
    fn attr(&self, inner: &dyn Node, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        if !is_agent(cx) {
            return inner.attr(cx, want);
        }
        let agent = self.agent(cx)?;
        if let Some(attr) = agent.attr_of_removed(inner.id()) {
            return Ok(attr);
        }
        let attr = match inner.attr(&cx.on_behalf_of(&Caller::ROOT), want) {
            Err(Errno::ESTALE | Errno::ENOENT) => self.known_attr(inner.id()),
            attr => Some(attr?),
        };
        let attr = attr.ok_or(Errno::ESTALE)?;
        Ok(Attr {
            nlink: attr.nlink.max(1),
            ..attr
        })
    }

    forward! { by effective:
        root sync statfs readlink parent xattr xattrs host_lock_holder
        file_attr fsync flush seek extents
    }

    forward! { with change: set_xattr remove_xattr write allocate }

    forward! { with refuse: tmpfile copy }

    forward! { capabilities id above }
}
