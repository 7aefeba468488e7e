//! Advisory locks: one table for the clients of all protocols.
//!
//! The table decides between barge's clients; what it decided for all of them together it tells
//! the source through [`Node::host_lock`], so that programs outside barge see it. A request
//! that has to wait is parked ([`Errno::PARKED`]) and tried again when a lock in its way goes:
//! no thread waits. It has no deadlock detection: clients find the deadlocks among their own.
//!
//! Those that wait are woken in the order in which they came. One that comes again only when it likes
//! ([`Call::polled`](crate::Call::polled)) would be late for ever: so it keeps its place, and while it could have its
//! lock, whoever waits behind it leaves it that. Who does not wait is not held up by anybody's place, and one that could not
//! be used yet holds up nobody, or two could wait for each other.
//!
//! Lock order: the table's mutex, held to find a node's locks only; then the node's, held across
//! [`Node::host_lock`]. Nobody is woken while either is held. What a node does for `host_lock` may be to ask
//! another table, whose locks come behind, and which wakes while this one's node is held: so a waker has the request
//! run elsewhere, and runs nothing itself.

use core::hash::{Hash, Hasher};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

mod node;

use self::node::NodeLocks;
use crate::{Call, Cx, Errno, Node, NodeId, Patience, Quota, Result};

/// The two kinds of advisory locks of Linux, which do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Byte ranges of fcntl(2), owned by a process.
    Posix,
    /// Whole files of flock(2), owned by an open file.
    Flock,
}

impl Space {
    /// The range from `start` to `end`, which belongs to it.
    pub const fn range(self, start: u64, end: u64) -> LockRange {
        let space = self;
        LockRange { space, start, end }
    }
}

/// A range of a file that is or may be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// The kind of its locks.
    pub space: Space,
    /// The first byte.
    pub start: u64,
    /// The last byte, [`u64::MAX`] for all there may ever be.
    pub end: u64,
}

/// A lock's strength.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockKind {
    /// Others may share it: a read lock.
    Shared,
    /// Nobody else: a write lock.
    Exclusive,
}

/// What barge as a whole holds towards those outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum HostLock {
    Unlocked,
    Shared,
    Exclusive,
}

/// Who holds a lock. Client and id make an owner; the process id does not: whoever unlocks may be
/// another process that shares the open file, and FUSE gives none then.
#[derive(Clone, Debug)]
pub struct Owner {
    /// Which client, by a number that no other client of any protocol has.
    pub client: u64,
    /// Which of the client's owners: whatever its protocol tells them apart by.
    pub id: Arc<[u8]>,
    /// The process id that the client gave, to tell others.
    pub pid: u32,
}

impl PartialEq for Owner {
    fn eq(&self, other: &Owner) -> bool {
        self.client == other.client && self.id == other.id
    }
}

impl Eq for Owner {}

impl Hash for Owner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.client.hash(state);
        self.id.hash(state);
    }
}

impl Owner {
    /// A number for [`Owner::client`] that this process has not given before.
    pub fn new_client() -> u64 {
        // 0 is nobody's: [`LockTable::holder`] calls those outside barge so.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

/// A range and how it is, or shall be, locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Which kind of lock.
    pub space: Space,
    /// The first byte.
    pub start: u64,
    /// The last byte, [`u64::MAX`] for all there may ever be.
    pub end: u64,
    /// How strong.
    pub kind: LockKind,
    /// Whose it is.
    pub owner: Owner,
}

impl Lock {
    fn range(&self) -> LockRange {
        self.space.range(self.start, self.end)
    }

    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start <= end && start <= self.end
    }

    fn conflicts(&self, other: &Lock) -> bool {
        self.space == other.space
            && self.owner != other.owner
            && self.overlaps(other.start, other.end)
            && (self.kind == LockKind::Exclusive || other.kind == LockKind::Exclusive)
    }
}

/// A lock outside barge that is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outsider {
    /// The first byte of its range.
    pub start: u64,
    /// The last byte of its range.
    pub end: u64,
    /// How strong it is.
    pub kind: LockKind,
    /// The process that holds it, 0 if unknown.
    pub pid: u32,
}

/// How a lock is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// `F_SETLK`: now or not at all.
    No,
    /// As one who waits asks, and leaves those their turn that are before it; but it is refused.
    InTurn,
    /// `F_SETLKW`: it is parked.
    Yes,
}

impl From<bool> for Wait {
    fn from(wait: bool) -> Wait {
        match wait {
            true => Wait::Yes,
            false => Wait::No,
        }
    }
}

/// Who holds which lock on the nodes of one export.
pub struct LockTable {
    nodes: Mutex<HashMap<NodeId, Arc<Mutex<NodeLocks>>>>,
    places: AtomicU64,
    /// The ranges held of all nodes.
    held: Arc<Quota>,
}

impl Default for LockTable {
    fn default() -> LockTable {
        LockTable {
            nodes: Mutex::default(),
            places: AtomicU64::new(0),
            held: Quota::shared(LockTable::MOST, LockTable::SIZE),
        }
    }
}

impl LockTable {
    /// How often a lock that an outsider's is in the way of is tried again: nobody tells when
    /// that one goes.
    const OUTSIDER_RETRY: Duration = Duration::from_millis(20);

    /// The most ranges held of one node, `ENOLCK` beyond: far more than databases take, few enough
    /// to look through for each request. A peer may have as many of them as it leaves to others.
    pub const MAX_HELD: usize = 4096;

    /// The most ranges held of all nodes, `ENOLCK` beyond; a peer may have as many as it leaves.
    const MOST: usize = 1 << 20;

    /// The bytes of a range and its owner.
    const SIZE: usize = size_of::<Lock>() + 64;

    /// Locks, replacing what the same owner holds of the range. `EAGAIN` if another is in the way;
    /// with [`Wait::Yes`], [`Errno::PARKED`] instead, and the caller asks again when woken. `EINVAL` for a
    /// range that ends before it starts.
    ///
    /// As with flock(2), a whole-file lock of another kind is given up before the new one is waited
    /// or refused for: two readers that both want to write would wait for each other forever.
    pub fn lock(
        &self,
        cx: &Cx<'_>,
        node: &dyn Node,
        lock: Lock,
        wait: impl Into<Wait>,
    ) -> Result<()> {
        if lock.start > lock.end {
            return Err(Errno::EINVAL);
        }
        let locks = self.node(node.id());
        let mut woken = Vec::new();
        let result = locks.lock().expect("no panic holds it").lock(
            cx,
            node,
            lock,
            (wait.into(), &self.places, &self.held),
            &mut woken,
        );
        self.forget_if_free(node.id(), locks);
        wake(woken);
        result
    }

    /// Takes `call` out of those that wait for a lock of `node`: it was cancelled, or asks no more.
    pub fn leave(&self, node: NodeId, call: &Call) {
        let Some(locks) = self.known(node) else {
            return;
        };
        let mut woken = Vec::new();
        locks
            .lock()
            .expect("no panic holds it")
            .leave(call, &mut woken);
        self.forget_if_free(node, locks);
        wake(woken);
    }

    /// What somebody waits for who comes before whoever begins to wait for `lock`, and could have it.
    pub fn next(&self, node: NodeId, lock: &Lock) -> Option<Lock> {
        let locks = self.known(node)?;
        let locks = locks.lock().expect("no panic holds it");
        let next = locks.next(&locks.waiting, lock);
        next.map(|next| next.lock.clone())
    }

    /// Takes `owner`'s locks off a range.
    pub fn unlock(
        &self,
        cx: &Cx<'_>,
        node: &dyn Node,
        space: Space,
        start: u64,
        end: u64,
        owner: &Owner,
    ) -> Result<()> {
        if start > end {
            return Err(Errno::EINVAL);
        }
        let Some(locks) = self.known(node.id()) else {
            return Ok(());
        };
        let range = Lock {
            space,
            start,
            end,
            kind: LockKind::Shared,
            owner: owner.clone(),
        };
        let mut woken = Vec::new();
        let result = locks
            .lock()
            .expect("no panic holds it")
            .unlock(cx, node, &range, &mut woken);
        self.forget_if_free(node.id(), locks);
        wake(woken);
        result
    }

    /// Makes `owner`, whom another table stands behind, hold a range as `state`: that one's nodes do so for
    /// [`Node::host_lock`] where this table is to them what a host is. `EAGAIN` if another is in the way.
    /// Whoever is refused holds what it held; but nothing stays locked that was to be unlocked, even if the
    /// host says no.
    pub fn mirror(
        &self,
        cx: &Cx<'_>,
        node: &dyn Node,
        owner: &Owner,
        range: LockRange,
        state: HostLock,
    ) -> Result<()> {
        let kind = match state {
            HostLock::Unlocked => None,
            HostLock::Shared => Some(LockKind::Shared),
            HostLock::Exclusive => Some(LockKind::Exclusive),
        };
        let range = Lock {
            space: range.space,
            start: range.start,
            end: range.end,
            kind: kind.unwrap_or(LockKind::Shared),
            owner: owner.clone(),
        };
        let locks = self.node(node.id());
        let mut woken = Vec::new();
        let result = locks
            .lock()
            .expect("no panic holds it")
            .mirror(cx, node, &range, kind, &mut woken);
        self.forget_if_free(node.id(), locks);
        wake(woken);
        result
    }

    /// Takes every lock of the owners that `whose` names off a node: at the close of a file, or
    /// the end of a client. Requests of theirs that wait are woken, to find themselves cancelled
    /// or to wait again.
    ///
    /// May wait for the host, whatever the patience; a host that refuses keeps its own idea of the
    /// lock until the node is closed.
    pub fn release(&self, cx: &Cx<'_>, node: &dyn Node, whose: impl Fn(&Owner) -> bool) {
        let Some(locks) = self.known(node.id()) else {
            return;
        };
        let cx = Cx {
            patience: Patience::Full,
            ..*cx
        };
        let mut woken = Vec::new();
        {
            let mut locks = locks.lock().expect("no panic holds it");
            let held: Vec<Lock> = locks
                .held
                .iter()
                .filter(|lock| whose(&lock.owner))
                .cloned()
                .collect();
            let waiting = locks.waiting.extract_if(.., |one| whose(&one.lock.owner));
            let mut gone: Vec<Lock> = waiting
                .map(|one| {
                    woken.push(one.waker);
                    one.lock
                })
                .collect();
            for lock in held {
                let _ = locks.tell_host(&cx, node, &lock, None);
                locks.replace(&lock, None);
                locks.settle(lock.owner.client, None);
                gone.push(lock);
            }
            locks.wake(&gone, &mut woken);
        }
        self.forget_if_free(node.id(), locks);
        wake(woken);
    }

    /// The lock in the way of `lock`, if any: `F_GETLK`.
    pub fn holder(&self, cx: &Cx<'_>, node: &dyn Node, lock: &Lock) -> Result<Option<Lock>> {
        let inside = self.known(node.id()).and_then(|locks| {
            let locks = locks.lock().expect("no panic holds it");
            let in_the_way = locks.held.iter().filter(|held| held.conflicts(lock));
            in_the_way.min_by_key(|held| held.start).cloned()
        });
        if inside.is_some() {
            return Ok(inside);
        }
        let outside = node.host_lock_holder(cx, lock.range(), lock.kind)?;
        Ok(outside.map(|held| Lock {
            space: lock.space,
            start: held.start,
            end: held.end,
            kind: held.kind,
            owner: Owner {
                client: 0,
                id: Arc::from([]),
                pid: held.pid,
            },
        }))
    }

    /// Whether nobody holds any lock or waits for one.
    pub fn is_empty(&self) -> bool {
        self.nodes().is_empty()
    }

    fn node(&self, id: NodeId) -> Arc<Mutex<NodeLocks>> {
        self.nodes().entry(id).or_default().clone()
    }

    fn known(&self, id: NodeId) -> Option<Arc<Mutex<NodeLocks>>> {
        self.nodes().get(&id).cloned()
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeId, Arc<Mutex<NodeLocks>>>> {
        self.nodes.lock().expect("no panic holds it")
    }

    fn forget_if_free(&self, id: NodeId, locks: Arc<Mutex<NodeLocks>>) {
        let mut nodes = self.nodes();
        // Two: the map's and ours. Any more is another thread that is about to use it.
        if Arc::strong_count(&locks) == 2 {
            let locks = locks.lock().expect("no panic holds it");
            if locks.held.is_empty() && locks.waiting.is_empty() {
                nodes.remove(&id);
            }
        }
    }
}

/// Wakes those that something changed for, the longest waiting first.
fn wake(wakers: Vec<Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}

impl From<LockKind> for HostLock {
    fn from(kind: LockKind) -> HostLock {
        match kind {
            LockKind::Shared => HostLock::Shared,
            LockKind::Exclusive => HostLock::Exclusive,
        }
    }
}
