//! Advisory locks: one table for the clients of all protocols.
//!
//! The table arbitrates between barge's clients, and reports the combined state of all of them to
//! the source through [`Node::host_lock`], so that programs outside barge see it. A request that
//! has to wait is parked ([`Errno::PARKED`]) and retried when a conflicting lock is released: no
//! thread blocks. A POSIX lock that would wait for its own owner is refused (`waits`).
//!
//! Waiters are woken in FIFO order. A client that polls
//! ([`Call::retried_by_client`](crate::Call::retried_by_client)) would always lose against the
//! others, so its request keeps its position in the queue, and while its lock could be granted,
//! later waiters that conflict with it do not overtake it. Requests that do not wait ignore these
//! positions, and a waiter whose lock could not be granted yet blocks no other, or two could wait
//! for each other.
//!
//! Lock order: the table's mutex, held to find a node's locks only; then the node's, held across
//! [`Node::host_lock`]; then that of the waiting owners, held for a search. No waker is called
//! while one of them is held. A node may implement `host_lock` with another table, whose mutexes
//! come later in the order, and which wakes while this table's node is locked: so a waker only
//! schedules the request elsewhere, and runs nothing itself.

use core::hash::{Hash, Hasher};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use parking_lot::{Mutex, MutexGuard};

mod node;
mod waits;

use self::node::{LockParameters, NodeLocks};
use self::waits::Waits;
use crate::{Call, Cx, Errno, Node, NodeId, Patience, Quota, Result};

/// The two kinds of advisory locks of Linux, which are independent of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockFamily {
    /// Byte ranges of fcntl(2), owned by a process.
    Posix,
    /// Whole files of flock(2), owned by an open file.
    Flock,
}

impl LockFamily {
    /// Creates the range from `start` to `end` for locks of this kind.
    pub const fn range(self, start: u64, end: u64) -> LockRange {
        let space = self;
        LockRange {
            family: space,
            start,
            end,
        }
    }
}

/// A range of a file that is, or could be, locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// The kind of its locks.
    pub family: LockFamily,
    /// The first byte.
    pub start: u64,
    /// The last byte; [`u64::MAX`] for the end of file, however far it grows.
    pub end: u64,
}

/// The mode of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockKind {
    /// A read lock: others may hold read locks, too.
    Shared,
    /// A write lock: no other owner may hold a lock.
    Exclusive,
}

/// The combined state of the locks of all of barge's clients, as programs outside see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum HostLock {
    Unlocked,
    Shared,
    Exclusive,
}

/// The owner of a lock. Client and id identify an owner; the process id does not: the process that
/// unlocks may be another one that shares the open file, and FUSE sends none then.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The client, as a number that is unique among the clients of all protocols.
    pub client: u64,
    /// The owner within the client: the bytes that its protocol identifies lock owners by.
    pub id: Arc<[u8]>,
    /// The process id that the client sent, to be reported to others.
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
    /// Returns a number for [`Owner::client`] that this process has not used before.
    pub fn new_client() -> u64 {
        // 0 is for lock holders outside barge: [`LockTable::holder`].
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

/// A range and the mode in which it is, or shall be, locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The kind of lock.
    pub family: LockFamily,
    /// The first byte.
    pub start: u64,
    /// The last byte; [`u64::MAX`] for the end of file, however far it grows.
    pub end: u64,
    /// The mode.
    pub kind: LockKind,
    /// The owner.
    pub owner: Owner,
}

impl Lock {
    fn range(&self) -> LockRange {
        self.family.range(self.start, self.end)
    }

    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start <= end && start <= self.end
    }

    fn conflicts(&self, other: &Lock) -> bool {
        self.family == other.family
            && self.owner != other.owner
            && self.overlaps(other.start, other.end)
            && (self.kind == LockKind::Exclusive || other.kind == LockKind::Exclusive)
    }
}

/// A conflicting lock outside barge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignLock {
    /// The first byte of its range.
    pub start: u64,
    /// The last byte of its range.
    pub end: u64,
    /// Its mode.
    pub kind: LockKind,
    /// The process that holds it, 0 if unknown.
    pub pid: u32,
}

/// The behaviour of a lock request that conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// `F_SETLK`: returns `EAGAIN`.
    No,
    /// Returns `EAGAIN`, but also while the lock of an earlier waiter could be granted.
    TryFair,
    /// `F_SETLKW`: parks the request.
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

/// The locks on the nodes of one export, and the requests that wait for some.
pub struct LockTable {
    nodes: Mutex<HashMap<NodeId, Arc<Mutex<NodeLocks>>>>,
    last_position: AtomicU64,
    /// The quota of ranges on all nodes.
    quota: Arc<Quota>,
    /// The owners that wait.
    waits: Arc<Waits>,
}

impl Default for LockTable {
    fn default() -> LockTable {
        LockTable {
            nodes: Mutex::default(),
            last_position: AtomicU64::new(0),
            quota: Quota::shared(LockTable::MAX_RANGES, LockTable::RANGE_BYTES),
            waits: Arc::default(),
        }
    }
}

impl LockTable {
    /// The retry interval while a lock outside barge conflicts: its release is not reported.
    const FOREIGN_RETRY: Duration = Duration::from_millis(20);

    /// The maximum number of ranges on one node, `ENOLCK` beyond: far more than databases use, few
    /// enough to scan for each request. A peer may hold as many of them as it leaves to others.
    pub const MAX_RANGES_PER_NODE: usize = 4096;

    /// The maximum number of ranges on all nodes, `ENOLCK` beyond; a peer may hold as many as it
    /// leaves.
    const MAX_RANGES: usize = 1 << 20;

    /// The memory that a range and its owner take, in bytes.
    const RANGE_BYTES: usize = size_of::<Lock>() + 64;

    /// Locks a range, replacing the owner's locks in it. If another owner's lock conflicts, returns
    /// `EAGAIN`, or with [`Wait::Yes`] [`Errno::PARKED`], and the caller retries when woken.
    /// Returns `EINVAL` if the range ends before it starts, and `EDEADLK` if a byte range would
    /// wait for an owner that waits for this one.
    ///
    /// As with flock(2), a whole-file lock of another mode is released before the request for the
    /// new one waits or is refused: two readers that both want to write would wait for each other
    /// forever.
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
        let parameters = LockParameters {
            wait: wait.into(),
            last_position: &self.last_position,
            quota: &self.quota,
            waits: &self.waits,
        };
        let result = locks.lock().lock(cx, node, lock, parameters, &mut woken);
        self.forget_if_free(node.id(), locks);
        wake(woken);
        result
    }

    /// Removes `call` from the waiters of `node`, because it was cancelled or no longer waits.
    pub fn cancel_wait(&self, node: NodeId, call: &Call) {
        let Some(locks) = self.find_node(node) else {
            return;
        };
        let mut woken = Vec::new();
        locks.lock().cancel_wait(call, &mut woken);
        self.forget_if_free(node, locks);
        wake(woken);
    }

    /// Returns the lock of a waiter that has priority over a new waiter for `lock` and could be
    /// granted.
    pub fn next_waiter(&self, node: NodeId, lock: &Lock) -> Option<Lock> {
        let locks = self.find_node(node)?;
        let locks = locks.lock();
        let next = locks.next_waiter(&locks.waiting, lock);
        next.map(|next| next.lock.clone())
    }

    /// Releases `owner`'s locks in a range.
    pub fn unlock(
        &self,
        cx: &Cx<'_>,
        node: &dyn Node,
        space: LockFamily,
        start: u64,
        end: u64,
        owner: &Owner,
    ) -> Result<()> {
        if start > end {
            return Err(Errno::EINVAL);
        }
        let Some(locks) = self.find_node(node.id()) else {
            return Ok(());
        };
        let range = Lock {
            family: space,
            start,
            end,
            kind: LockKind::Shared,
            owner: owner.clone(),
        };
        let mut woken = Vec::new();
        let result = locks.lock().unlock(cx, node, &range, &mut woken);
        self.forget_if_free(node.id(), locks);
        wake(woken);
        result
    }

    /// Sets the lock of `owner`, which represents all clients of another lock table, on a range to
    /// `state`: an implementation of [`Node::host_lock`] for nodes to which this table is the host.
    /// Returns `EAGAIN` if another owner's lock conflicts. After an error `owner` keeps what it
    /// held, except that an unlock takes effect here even if the host refuses it.
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
            family: range.family,
            start: range.start,
            end: range.end,
            kind: kind.unwrap_or(LockKind::Shared),
            owner: owner.clone(),
        };
        let locks = self.node(node.id());
        let mut woken = Vec::new();
        let result = locks.lock().mirror(cx, node, &range, kind, &mut woken);
        self.forget_if_free(node.id(), locks);
        wake(woken);
        result
    }

    /// Releases every lock of the owners that `whose` selects on a node, when a file is closed or a
    /// client disconnects. Their waiting requests are woken, to find themselves cancelled or to
    /// wait again.
    ///
    /// May block on the host, regardless of the patience; a host that refuses keeps its view of the
    /// lock until the node is closed.
    pub fn release(&self, cx: &Cx<'_>, node: &dyn Node, whose: impl Fn(&Owner) -> bool) {
        let Some(locks) = self.find_node(node.id()) else {
            return;
        };
        let cx = Cx {
            patience: Patience::Full,
            ..*cx
        };
        let mut woken = Vec::new();
        {
            let mut locks = locks.lock();
            let held: Vec<Lock> = locks
                .held
                .iter()
                .filter(|lock| whose(&lock.owner))
                .cloned()
                .collect();
            let waiting = locks.waiting.extract_if(.., |one| whose(&one.lock.owner));
            let mut removed: Vec<Lock> = waiting
                .map(|one| {
                    woken.push(one.waker);
                    one.lock
                })
                .collect();
            for lock in held {
                let _ = locks.update_host(&cx, node, &lock, None);
                locks.replace(&lock, None);
                locks.update_charge(lock.owner.client, None);
                removed.push(lock);
            }
            locks.wake(&removed, &mut woken);
        }
        self.forget_if_free(node.id(), locks);
        wake(woken);
    }

    /// Returns the lock that conflicts with `lock`, if any: `F_GETLK`.
    pub fn holder(&self, cx: &Cx<'_>, node: &dyn Node, lock: &Lock) -> Result<Option<Lock>> {
        let inside = self.find_node(node.id()).and_then(|locks| {
            let locks = locks.lock();
            let in_the_way = locks.held.iter().filter(|held| held.conflicts(lock));
            in_the_way.min_by_key(|held| held.start).cloned()
        });
        if inside.is_some() {
            return Ok(inside);
        }
        let outside = node.host_lock_holder(cx, lock.range(), lock.kind)?;
        Ok(outside.map(|held| Lock {
            family: lock.family,
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

    /// Returns the locks on a node that the owners of a client hold.
    pub fn held_by(&self, node: NodeId, client: u64) -> Vec<Lock> {
        let Some(locks) = self.find_node(node) else {
            return Vec::new();
        };
        let locks = locks.lock();
        let held = locks.held.iter();
        held.filter(|lock| lock.owner.client == client)
            .cloned()
            .collect()
    }

    /// Returns whether `owner` holds locks of a kind on a node, or waits for one.
    pub fn is_locking(&self, node: NodeId, family: LockFamily, owner: &Owner) -> bool {
        self.find_node(node).is_some_and(|locks| {
            let locks = locks.lock();
            let waiting = locks.waiting.iter().map(|one| &one.lock);
            let mut all = locks.held.iter().chain(waiting);
            all.any(|lock| lock.family == family && lock.owner == *owner)
        })
    }

    /// Returns whether the table has neither locks nor waiters.
    pub fn is_empty(&self) -> bool {
        self.nodes().is_empty()
    }

    fn node(&self, id: NodeId) -> Arc<Mutex<NodeLocks>> {
        self.nodes().entry(id).or_default().clone()
    }

    fn find_node(&self, id: NodeId) -> Option<Arc<Mutex<NodeLocks>>> {
        self.nodes().get(&id).cloned()
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeId, Arc<Mutex<NodeLocks>>>> {
        self.nodes.lock()
    }

    fn forget_if_free(&self, id: NodeId, locks: Arc<Mutex<NodeLocks>>) {
        let mut nodes = self.nodes();
        // Two references: the map's and ours. Any more belong to threads that are about to use the
        // node.
        if Arc::strong_count(&locks) == 2 {
            let locks = locks.lock();
            if locks.held.is_empty() && locks.waiting.is_empty() {
                nodes.remove(&id);
            }
        }
    }
}

/// Wakes requests whose locks may be granted now, the longest waiting first.
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
