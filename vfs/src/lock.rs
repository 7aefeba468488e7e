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

use crate::{Call, Cx, Errno, Node, NodeId, Patience, Result};

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
#[derive(Default)]
pub struct LockTable {
    nodes: Mutex<HashMap<NodeId, Arc<Mutex<NodeLocks>>>>,
    places: AtomicU64,
}

#[derive(Default)]
struct NodeLocks {
    held: Vec<Lock>,
    /// By their places.
    waiting: Vec<Waiting>,
}

/// A request that waits.
struct Waiting {
    place: u64,
    lock: Lock,
    waker: Waker,
    /// It stays here when it is woken, until it asks again or is cancelled.
    stays: bool,
    /// It stays, and was woken.
    woken: bool,
}

impl LockTable {
    /// How often a lock that an outsider's is in the way of is tried again: nobody tells when
    /// that one goes.
    const OUTSIDER_RETRY: Duration = Duration::from_millis(20);

    /// The most ranges held of one node, `ENOLCK` beyond: far more than databases take, few enough
    /// to look through for each request.
    pub const MAX_HELD: usize = 4096;

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
            (wait.into(), &self.places),
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
        (space, start, end): (Space, u64, u64),
        state: HostLock,
    ) -> Result<()> {
        let kind = match state {
            HostLock::Unlocked => None,
            HostLock::Shared => Some(LockKind::Shared),
            HostLock::Exclusive => Some(LockKind::Exclusive),
        };
        let range = Lock {
            space,
            start,
            end,
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

fn in_the_way_of(held: &[Lock], waiting: &Lock) -> bool {
    held.iter().any(|held| held.conflicts(waiting))
}

impl NodeLocks {
    /// [`LockTable::lock`] of this node; `places` is the last place that was taken. Whoever it changes something
    /// for goes to `woken`.
    fn lock(
        &mut self,
        cx: &Cx<'_>,
        node: &dyn Node,
        lock: Lock,
        (wait, places): (Wait, &AtomicU64),
        woken: &mut Vec<Waker>,
    ) -> Result<()> {
        let result = self.lock_or_park(cx, node, lock, (wait, places), woken);
        match result {
            Err(Errno::PARKED | Errno::WOULD_BLOCK) => {}
            // What it has now is in the way of all that its place was in the way of.
            Ok(()) => drop(self.take_own(cx.call)),
            Err(_) => self.leave(cx.call, woken),
        }
        result
    }

    fn lock_or_park(
        &mut self,
        cx: &Cx<'_>,
        node: &dyn Node,
        lock: Lock,
        (wait, places): (Wait, &AtomicU64),
        woken: &mut Vec<Waker>,
    ) -> Result<()> {
        cx.call.check()?;
        let is_barred = in_the_way_of(&self.held, &lock)
            || wait != Wait::No && self.next(self.before(cx.call.place()), &lock).is_some();
        let retry = if is_barred {
            None
        } else {
            // It may split one in two and come between.
            if self.held.len() + 2 > LockTable::MAX_HELD {
                return Err(Errno::ENOLCK);
            }
            match self.tell_host(cx, node, &lock, Some(lock.kind)) {
                Ok(()) => {
                    self.hold(&lock, Some(lock.kind), woken);
                    return Ok(());
                }
                Err(Errno::EAGAIN) => Some(LockTable::OUTSIDER_RETRY),
                Err(errno) => return Err(errno),
            }
        };
        if wait == Wait::Yes {
            cx.may_wait()?;
        }
        if lock.space == Space::Flock && self.own(&lock).iter().any(|own| own.kind != lock.kind) {
            self.unlock(cx, node, &lock, woken)?;
        }
        if wait != Wait::Yes {
            return Err(Errno::EAGAIN);
        }
        let waker = cx.call.waker().ok_or(Errno::EAGAIN)?;
        self.park(cx.call, lock, waker.clone(), places);
        if let Some(retry) = retry {
            cx.call.wake_within(retry);
        }
        Err(Errno::PARKED)
    }

    /// `call` waits for `lock`, in the place that it has or the last.
    fn park(&mut self, call: &Call, lock: Lock, waker: Waker, places: &AtomicU64) {
        self.take_own(call);
        let place = call.place().unwrap_or_else(|| {
            let place = places.fetch_add(1, Ordering::Relaxed) + 1;
            call.take_place(place);
            place
        });
        let waiting = Waiting {
            place,
            lock,
            waker,
            stays: call.polls(),
            woken: false,
        };
        let at = self.before(Some(place)).len();
        self.waiting.insert(at, waiting);
    }

    /// Those that wait in places before `place`; before one who has none, all.
    fn before(&self, place: Option<u64>) -> &[Waiting] {
        let at = place.map_or(self.waiting.len(), |place| {
            self.waiting.partition_point(|one| one.place < place)
        });
        &self.waiting[..at]
    }

    /// Who of those `before` it is to have what `lock` is in the way of, and could: whoever stays there, for of the others
    /// one that could have it is on its way.
    fn next<'a>(&self, before: &'a [Waiting], lock: &Lock) -> Option<&'a Waiting> {
        before.iter().find(|one| {
            one.stays && one.lock.conflicts(lock) && !in_the_way_of(&self.held, &one.lock)
        })
    }

    fn take_own(&mut self, call: &Call) -> Option<Waiting> {
        let place = call.place()?;
        let at = self.waiting.binary_search_by_key(&place, |one| one.place);
        Some(self.waiting.remove(at.ok()?))
    }

    /// [`LockTable::leave`] of this node.
    fn leave(&mut self, call: &Call, woken: &mut Vec<Waker>) {
        if let Some(own) = self.take_own(call) {
            self.wake(&[own.lock], woken);
        }
    }

    /// [`LockTable::unlock`] of this node. Whoever it changes something for goes to `woken`.
    fn unlock(
        &mut self,
        cx: &Cx<'_>,
        node: &dyn Node,
        range: &Lock,
        woken: &mut Vec<Waker>,
    ) -> Result<()> {
        let splits = self.held.iter().any(|held| {
            held.space == range.space
                && held.owner == range.owner
                && held.start < range.start
                && held.end > range.end
        });
        if splits && self.held.len() + 1 > LockTable::MAX_HELD {
            return Err(Errno::ENOLCK);
        }
        self.tell_host(cx, node, range, None)?;
        self.hold(range, None, woken);
        Ok(())
    }

    /// [`LockTable::mirror`] of this node. Whoever it changes something for goes to `woken`.
    fn mirror(
        &mut self,
        cx: &Cx<'_>,
        node: &dyn Node,
        range: &Lock,
        kind: Option<LockKind>,
        woken: &mut Vec<Waker>,
    ) -> Result<()> {
        if kind.is_some() && self.held.iter().any(|held| held.conflicts(range)) {
            return Err(Errno::EAGAIN);
        }
        // The other table has a bound, too: what it takes off again has room here.
        if kind.is_some() && self.held.len() + 2 > LockTable::MAX_HELD {
            return Err(Errno::ENOLCK);
        }
        let told = self.tell_host(cx, node, range, kind);
        match told {
            Err(errno) if kind.is_some() || errno.is_signal() => return Err(errno),
            _ => self.hold(range, kind, woken),
        }
        told
    }

    /// The owner of `range` holds it as `kind` from now on. Whoever waited for what that frees goes to `woken`.
    fn hold(&mut self, range: &Lock, kind: Option<LockKind>, woken: &mut Vec<Waker>) {
        let mut weakened = self.own(range);
        weakened.retain(|held| kind.is_none_or(|kind| held.kind > kind));
        self.replace(range, kind);
        let mut gone = weakened;
        if let Some(kind) = kind {
            // Whoever stands behind a place that cannot be used any more may go on.
            let taken = Lock {
                kind,
                ..range.clone()
            };
            let places = self.waiting.iter().filter(|one| one.stays);
            let barred = places.filter(|one| one.lock.conflicts(&taken));
            gone.extend(barred.map(|one| one.lock.clone()));
        }
        self.wake(&gone, woken);
    }

    /// What the owner of `range` holds of it.
    fn own(&self, range: &Lock) -> Vec<Lock> {
        let own = self.held.iter().filter(|held| {
            held.space == range.space
                && held.owner == range.owner
                && held.overlaps(range.start, range.end)
        });
        own.map(|held| Lock {
            start: held.start.max(range.start),
            end: held.end.min(range.end),
            ..held.clone()
        })
        .collect()
    }

    /// Moves the requests to those to be woken that one of `gone` was in the way of, be it as a lock or as a place, and
    /// now nothing is: each asks again, and waits again if it has to.
    fn wake(&mut self, gone: &[Lock], woken: &mut Vec<Waker>) {
        let mut at = 0;
        while at < self.waiting.len() {
            let one = &self.waiting[at];
            let is_free = in_the_way_of(gone, &one.lock)
                && !in_the_way_of(&self.held, &one.lock)
                && self.next(&self.waiting[..at], &one.lock).is_none();
            match is_free {
                true if one.stays => {
                    let one = &mut self.waiting[at];
                    if !std::mem::replace(&mut one.woken, true) {
                        woken.push(one.waker.clone());
                    }
                    at += 1;
                }
                true => woken.push(self.waiting.remove(at).waker),
                false => at += 1,
            }
        }
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
        let mut behind: Vec<&Lock> = self
            .held
            .iter()
            .filter(|held| held.space == change.space && held.overlaps(change.start, change.end))
            .collect();
        behind.sort_unstable_by_key(|held| core::cmp::Reverse(held.start));
        let mut here: Vec<&Lock> = Vec::new();
        let mut told = Vec::new();
        for (start, end) in self.stretches(change) {
            here.retain(|held| held.end >= start);
            while let Some(held) = behind.pop_if(|held| held.start <= start) {
                here.push(held);
            }
            let before = together(&here, None);
            let others = together(&here, Some(&change.owner));
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
}

/// What the owners of `held`, but for `except`, together hold.
fn together(held: &[&Lock], except: Option<&Owner>) -> HostLock {
    held.iter()
        .filter(|held| except != Some(&held.owner))
        .map(|held| HostLock::from(held.kind))
        .max()
        .unwrap_or(HostLock::Unlocked)
}

impl From<LockKind> for HostLock {
    fn from(kind: LockKind) -> HostLock {
        match kind {
            LockKind::Shared => HostLock::Shared,
            LockKind::Exclusive => HostLock::Exclusive,
        }
    }
}
