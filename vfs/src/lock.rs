//! Advisory locks: one table for the clients of all protocols.
//!
//! The table decides between barge's clients; what it decided for all of them together it tells
//! the source through [`Node::host_lock`], so that programs outside barge see it. A request
//! that has to wait is parked ([`Errno::PARKED`]) and tried again when a lock in its way goes:
//! no thread waits. It has no deadlock detection: clients find the deadlocks among their own.
//!
//! Lock order: the table's mutex, held to find a node's locks only; then the node's, held across
//! [`Node::host_lock`].

use core::time::Duration;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use crate::{Cx, Errno, Node, NodeId, Result};

/// The two kinds of advisory locks of Linux, which do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Byte ranges of fcntl(2), owned by a process.
    Posix,
    /// Whole files of flock(2), owned by an open file.
    Flock,
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

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Which client, by a number that no other client of any protocol has.
    pub client: u64,
    /// Which of the client's owners: whatever its protocol tells them apart by.
    pub id: Arc<[u8]>,
    /// The process id that the client gave, to tell others.
    pub pid: u32,
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

/// Who holds which lock on the nodes of one export.
#[derive(Default)]
pub struct LockTable {
    nodes: Mutex<HashMap<NodeId, Arc<Mutex<NodeLocks>>>>,
}

#[derive(Default)]
struct NodeLocks {
    held: Vec<Lock>,
    waiting: Vec<(Lock, Waker)>,
}

impl LockTable {
    /// How often a lock that an outsider's is in the way of is tried again: nobody tells when
    /// that one goes.
    const OUTSIDER_RETRY: Duration = Duration::from_millis(20);

    /// Locks, replacing what the same owner holds of the range. `EAGAIN` if another is in the way;
    /// with `wait`, [`Errno::PARKED`] instead, and the caller asks again when woken.
    pub fn lock(&self, cx: &Cx<'_>, node: &dyn Node, lock: Lock, wait: bool) -> Result<()> {
        let locks = self.node(node.id());
        let done = locks
            .lock()
            .expect("no panic holds it")
            .lock(cx, node, lock, wait);
        if done.is_err() {
            self.forget_if_free(node.id(), locks);
        }
        done
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
        let locks = self.node(node.id());
        {
            let mut locks = locks.lock().expect("no panic holds it");
            let range = Lock {
                space,
                start,
                end,
                kind: LockKind::Shared,
                owner: owner.clone(),
            };
            locks.tell_host(cx, node, &range, None)?;
            locks.replace(&range, None);
            locks.wake(start, end);
        }
        self.forget_if_free(node.id(), locks);
        Ok(())
    }

    /// Takes every lock of the owners that `whose` names off a node: at the close of a file, or
    /// the end of a client. Requests of theirs that wait are woken to find themselves cancelled.
    pub fn release(&self, cx: &Cx<'_>, node: &dyn Node, whose: impl Fn(&Owner) -> bool) {
        let locks = self.node(node.id());
        let held: Vec<Lock> = {
            let mut locks = locks.lock().expect("no panic holds it");
            locks.waiting.retain(|(lock, waker)| {
                let theirs = whose(&lock.owner);
                if theirs {
                    waker.wake_by_ref();
                }
                !theirs
            });
            locks
                .held
                .iter()
                .filter(|lock| whose(&lock.owner))
                .cloned()
                .collect()
        };
        for lock in held {
            // Unlocking takes nothing that could be short; a host that refuses keeps its own
            // idea of the lock until the node is closed.
            let _ = self.unlock(cx, node, lock.space, lock.start, lock.end, &lock.owner);
        }
        self.forget_if_free(node.id(), locks);
    }

    /// The lock in the way of `lock`, if any: `F_GETLK`.
    pub fn holder(&self, cx: &Cx<'_>, node: &dyn Node, lock: &Lock) -> Result<Option<Lock>> {
        let locks = self.node(node.id());
        let inside = {
            let locks = locks.lock().expect("no panic holds it");
            locks
                .held
                .iter()
                .filter(|held| held.conflicts(lock))
                .min_by_key(|l| l.start)
                .cloned()
        };
        self.forget_if_free(node.id(), locks);
        if inside.is_some() {
            return Ok(inside);
        }
        let outside = node.host_lock_holder(cx, lock.space, lock.start, lock.end, lock.kind)?;
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

    fn node(&self, id: NodeId) -> Arc<Mutex<NodeLocks>> {
        self.nodes().entry(id).or_default().clone()
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

impl NodeLocks {
    /// [`LockTable::lock`] of this node.
    fn lock(&mut self, cx: &Cx<'_>, node: &dyn Node, lock: Lock, wait: bool) -> Result<()> {
        self.waiting.retain(|(waiting, _)| *waiting != lock);
        cx.call.check()?;
        let retry = if self.held.iter().any(|held| held.conflicts(&lock)) {
            None
        } else {
            match self.tell_host(cx, node, &lock, Some(lock.kind)) {
                Ok(()) => {
                    self.replace(&lock, Some(lock.kind));
                    self.wake(lock.start, lock.end);
                    return Ok(());
                }
                Err(Errno::EAGAIN) => Some(LockTable::OUTSIDER_RETRY),
                Err(errno) => return Err(errno),
            }
        };
        if !wait {
            return Err(Errno::EAGAIN);
        }
        cx.may_wait()?;
        let waker = cx.call.waker().ok_or(Errno::EAGAIN)?;
        self.waiting.push((lock, waker.clone()));
        if let Some(retry) = retry {
            cx.call.wake_within(retry);
        }
        Err(Errno::PARKED)
    }

    /// Tells the host what the range becomes when `change`'s owner holds it as `kind`: stretch by
    /// stretch where barge's clients together would hold something else than before. All or
    /// nothing.
    fn tell_host(
        &self,
        cx: &Cx<'_>,
        node: &dyn Node,
        change: &Lock,
        kind: Option<LockKind>,
    ) -> Result<()> {
        let mut told = Vec::new();
        for (start, end) in self.stretches(change) {
            let before = self.together(change.space, start, end, None);
            let others = self.together(change.space, start, end, Some(&change.owner));
            let after = others.max(kind.map_or(HostLock::Unlocked, HostLock::from));
            if before == after {
                continue;
            }
            if let Err(errno) = node.host_lock(cx, change.space, start, end, after) {
                for (start, end, before) in told {
                    let _ = node.host_lock(cx, change.space, start, end, before);
                }
                return Err(errno);
            }
            told.push((start, end, before));
        }
        Ok(())
    }

    /// `change`'s range, cut wherever a lock held begins or ends.
    fn stretches(&self, change: &Lock) -> Vec<(u64, u64)> {
        let mut starts = vec![change.start];
        for held in self.held.iter().filter(|held| held.space == change.space) {
            starts.extend(
                [Some(held.start), held.end.checked_add(1)]
                    .into_iter()
                    .flatten(),
            );
        }
        starts.retain(|at| (change.start..=change.end).contains(at));
        starts.sort_unstable();
        starts.dedup();
        let ends = starts
            .iter()
            .skip(1)
            .map(|next| next - 1)
            .chain([change.end]);
        starts.iter().copied().zip(ends).collect()
    }

    /// What barge's clients, but for `except`, together hold of a stretch.
    fn together(&self, space: Space, start: u64, end: u64, except: Option<&Owner>) -> HostLock {
        self.held
            .iter()
            .filter(|held| held.space == space && held.overlaps(start, end))
            .filter(|held| except != Some(&held.owner))
            .map(|held| HostLock::from(held.kind))
            .max()
            .unwrap_or(HostLock::Unlocked)
    }

    /// Makes the owner of `range` hold it as `kind` and nothing else of it, joining neighbours.
    fn replace(&mut self, range: &Lock, kind: Option<LockKind>) {
        let mut new = kind.map(|kind| Lock {
            kind,
            ..range.clone()
        });
        let mut pieces = Vec::new();
        self.held.retain(|held| {
            if held.owner != range.owner || held.space != range.space {
                return true;
            }
            let touches = held.start <= range.end.saturating_add(1)
                && range.start <= held.end.saturating_add(1);
            match &mut new {
                Some(new) if touches && held.kind == new.kind => {
                    new.start = new.start.min(held.start);
                    new.end = new.end.max(held.end);
                    return false;
                }
                _ if !held.overlaps(range.start, range.end) => return true,
                _ => {}
            }
            if held.start < range.start {
                pieces.push(Lock {
                    end: range.start - 1,
                    ..held.clone()
                });
            }
            if held.end > range.end {
                pieces.push(Lock {
                    start: range.end + 1,
                    ..held.clone()
                });
            }
            false
        });
        self.held.extend(pieces);
        self.held.extend(new);
    }

    /// Wakes those who wait for some of the range, the longest waiting first.
    fn wake(&self, start: u64, end: u64) {
        for (lock, waker) in &self.waiting {
            if lock.overlaps(start, end) {
                waker.wake_by_ref();
            }
        }
    }
}

impl From<LockKind> for HostLock {
    fn from(kind: LockKind) -> HostLock {
        match kind {
            LockKind::Shared => HostLock::Shared,
            LockKind::Exclusive => HostLock::Exclusive,
        }
    }
}
