//! GETLK, SETLK and SETLKW: advisory locks of byte ranges and of whole files.
//!
//! An owner is an id from the client: a process's file table or an open file. The client releases
//! the locks of a process with FLUSH, and those of flock(2) with RELEASE. It releases no open file
//! description locks (`F_OFD_SETLK`), which no field of a request tells from those of a process;
//! but an open file is one handle. So RELEASE ends the locks of the owners that have locked through
//! that handle alone. A process has none left then: closing the handle was a FLUSH. Any remaining
//! locks are released together with the last handle of the file through which a lock was
//! requested, and therefore at the end of the mount.
//!
//! Lock order: a node's [`LockedNode`]; then [`MountLocks::nodes`], or the lock table's.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use vfs::lock::{Lock, LockFamily, LockKind, Owner};
use vfs::{Call, Caller, Cx, Errno, Export, Node, NodeId, Result};

use super::RequestContext;
use super::handles::{HandleLocks, Open};
use super::takeover::{OptionalRecords, Place, Records};
use crate::layout::{LkIn, LkOut};
use crate::numbers::{LK_FLOCK, lock_kind};

/// The locks of one incarnation of a mount.
pub(super) struct MountLocks {
    export: Arc<Export>,
    /// The client's number in the lock table.
    pub(super) client: u64,
    /// The nodes with handles through which locks were requested.
    nodes: Mutex<HashMap<NodeId, Arc<Mutex<LockedNode>>>>,
    /// The records of all locks.
    recorded: Option<RecordedLocks>,
}

/// A node with handles through which locks were requested. Its mutex is held while the locks of a
/// handle are released, so that a lock requested meanwhile is not released with them.
#[derive(Default)]
struct LockedNode {
    /// The number of these handles.
    handles: usize,
    /// Whether the last of them is gone: [`MountLocks::nodes`] has it no more.
    is_removed: bool,
    /// The owners that hold locks, by family and number. Each was found in the lock table, which
    /// bounds their number, while the node was locked.
    owners: HashMap<(LockFamily, u64), OwnerHandles>,
}

/// The handles through which an owner has requested its locks.
#[derive(Default)]
struct OwnerHandles {
    known: Vec<u64>,
    /// Whether there may be further ones.
    others: bool,
}

impl OwnerHandles {
    /// The most handles that are remembered for an owner. One that has several is a process.
    const MAX_KNOWN: usize = 4;

    fn add(&mut self, handle: u64) {
        if handle == UNKNOWN_HANDLE {
            self.others = true;
        } else if !self.known.contains(&handle) {
            if self.known.len() < OwnerHandles::MAX_KNOWN {
                self.known.push(handle);
            } else {
                self.others = true;
            }
        }
    }

    /// Removes a handle. Returns whether it was the only one.
    fn remove(&mut self, handle: u64) -> bool {
        let before = self.known.len();
        self.known.retain(|&known| known != handle);
        self.known.len() < before && self.known.is_empty() && !self.others
    }
}

/// The number of no handle.
pub(super) const UNKNOWN_HANDLE: u64 = 0;

impl MountLocks {
    pub(super) fn new(export: &Arc<Export>, records: OptionalRecords) -> Arc<MountLocks> {
        Arc::new(MountLocks {
            export: export.clone(),
            client: Owner::new_client(),
            nodes: Mutex::default(),
            recorded: records.map(RecordedLocks::new),
        })
    }

    /// Releases the locks on a node of the owners that `is_released` selects.
    fn release(&self, node: &dyn Node, is_released: impl Fn(&LockOwnerId) -> bool) {
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        let whose = |one: &Owner| {
            one.client == self.client
                && LockOwnerId::read(&one.id).is_some_and(|id| is_released(&id))
        };
        // First, because others get the locks at once.
        if let Some(recorded) = &self.recorded {
            recorded.remove(node.id(), &is_released);
        }
        self.export.locks.release(&cx, node, whose);
    }

    /// Releases the locks of an owner on a node, through whatever handles.
    fn release_owner(&self, node: &dyn Node, owner: LockOwnerId) {
        let is_locking = self.is_locking(node.id(), owner);
        self.release(node, |one| *one == owner);
        if is_locking {
            self.forget_unlocked(node.id(), owner);
        }
    }

    fn node(&self, node: NodeId) -> Option<Arc<Mutex<LockedNode>>> {
        self.nodes.lock().get(&node).cloned()
    }

    fn is_locking(&self, node: NodeId, owner: LockOwnerId) -> bool {
        let lock_owner = owner.of_client(self.client, 0);
        self.export
            .locks
            .is_locking(node, owner.family, &lock_owner)
    }

    /// Notes that an owner was granted a lock through a handle.
    fn note_granted(&self, node: NodeId, owner: LockOwnerId, handle: u64) {
        let Some(locked) = self.node(node) else {
            return;
        };
        let mut locked = locked.lock();
        // Another thread of the owner may have unlocked it meanwhile.
        if self.is_locking(node, owner) {
            let handles = locked.owners.entry((owner.family, owner.number));
            handles.or_default().add(handle);
        }
    }

    /// Forgets the handles of an owner that holds no lock on a node any more.
    fn forget_unlocked(&self, node: NodeId, owner: LockOwnerId) {
        let Some(locked) = self.node(node) else {
            return;
        };
        let mut locked = locked.lock();
        if !self.is_locking(node, owner) {
            locked.owners.remove(&(owner.family, owner.number));
        }
    }

    /// Returns the handle through which an owner has its locks on a node, or [`UNKNOWN_HANDLE`] if
    /// there are several.
    pub(super) fn handle_of(&self, node: NodeId, lock: &Lock) -> u64 {
        let (Some(locked), Some(owner)) = (self.node(node), LockOwnerId::read(&lock.owner.id))
        else {
            return UNKNOWN_HANDLE;
        };
        let locked = locked.lock();
        match locked.owners.get(&(owner.family, owner.number)) {
            Some(OwnerHandles {
                known,
                others: false,
            }) if known.len() == 1 => known[0],
            _ => UNKNOWN_HANDLE,
        }
    }

    /// Records the result of a request for `lock`: it is held, or released.
    fn record(&self, lock: &LockRecord, held: bool) {
        if let Some(recorded) = &self.recorded {
            recorded.set(lock, held);
        }
    }

    /// Records what is left of an owner's locks while `request` is served: others may get the rest
    /// before the request has a result. Returns the locks to record again if it fails.
    fn weaken(&self, request: &LockRecord) -> Vec<LockRecord> {
        let Some(recorded) = &self.recorded else {
            return Vec::new();
        };
        let stronger = recorded.of_owner(request, |held| match request.family {
            // One of another mode is released before the request waits or is refused.
            LockFamily::Flock => held.kind != request.kind,
            LockFamily::Posix => {
                request.kind == LockKind::Shared && held.kind == LockKind::Exclusive
            }
        });
        let mut restored = Vec::new();
        for held in stronger {
            if request.family == LockFamily::Flock {
                recorded.set(&held, false);
                continue;
            }
            let part = LockRecord {
                start: held.start.max(request.start),
                end: held.end.min(request.end),
                ..request.clone()
            };
            recorded.set(&part, true);
            restored.push(held);
        }
        restored
    }

    /// Takes a lock that an earlier process had, after [`HandleLocks::record_request`]. Returns an
    /// error if that is not possible.
    pub(super) fn restore(&self, cx: &Cx<'_>, open: &Open, record: &LockRecord) -> Result<()> {
        let (node, locks) = (open.node(), &self.export.locks);
        locks.lock(cx, node, record.lock(self.client), false)?;
        self.note_granted(node.id(), record.owner_id(), record.handle);
        let record = LockRecord {
            node: node.id(),
            ..record.clone()
        };
        self.record(&record, true);
        Ok(())
    }
}

impl HandleLocks {
    /// Records that a lock is requested through this handle, whose number is `handle`.
    pub(super) fn record_request(&self, handle: u64) {
        if self.requested.load(Ordering::Acquire) != UNKNOWN_HANDLE {
            return;
        }
        let nodes = &self.mount_locks.nodes;
        loop {
            let locked = nodes.lock().entry(self.node.id()).or_default().clone();
            let mut locked = locked.lock();
            if locked.is_removed {
                continue;
            }
            if self.requested.swap(handle, Ordering::AcqRel) == UNKNOWN_HANDLE {
                locked.handles += 1;
            }
            return;
        }
    }
}

impl Drop for HandleLocks {
    fn drop(&mut self) {
        let handle = *self.requested.get_mut();
        if handle == UNKNOWN_HANDLE {
            return;
        }
        let id = self.node.id();
        let Some(locked) = self.mount_locks.node(id) else {
            return;
        };
        let mut locked = locked.lock();
        locked.handles -= 1;
        if locked.handles == 0 {
            self.mount_locks.release(&*self.node, |_| true);
            locked.is_removed = true;
            self.mount_locks.nodes.lock().remove(&id);
            return;
        }
        let owners = locked
            .owners
            .extract_if(|_, handles| handles.remove(handle));
        let owners: HashSet<(LockFamily, u64)> = owners.map(|(owner, _)| owner).collect();
        if !owners.is_empty() {
            let ends = |one: &LockOwnerId| owners.contains(&(one.family, one.number));
            self.mount_locks.release(&*self.node, ends);
        }
    }
}

/// One of the client's owners. POSIX and flock(2) owner numbers are separate spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockOwnerId {
    family: LockFamily,
    number: u64,
}

impl LockOwnerId {
    pub(super) fn posix(number: u64) -> LockOwnerId {
        LockOwnerId {
            family: LockFamily::Posix,
            number,
        }
    }

    pub(super) fn flock(number: u64) -> LockOwnerId {
        LockOwnerId {
            family: LockFamily::Flock,
            number,
        }
    }

    /// Returns the owner with this id in the lock table.
    fn read(id: &[u8]) -> Option<LockOwnerId> {
        let (family, number) = id.split_first_chunk::<1>()?;
        let family = match family {
            b"p" => LockFamily::Posix,
            b"f" => LockFamily::Flock,
            _ => return None,
        };
        let number = u64::from_le_bytes(number.try_into().ok()?);
        Some(LockOwnerId { family, number })
    }

    /// Returns the owner in the lock table, of the client with the number `client`.
    fn of_client(self, client: u64, pid: u32) -> Owner {
        let mut id = [0; 9];
        id[0] = match self.family {
            LockFamily::Posix => b'p',
            LockFamily::Flock => b'f',
        };
        id[1..].copy_from_slice(&self.number.to_le_bytes());
        Owner {
            client,
            id: id[..].into(),
            pid,
        }
    }
}

impl RequestContext<'_> {
    pub(super) fn release_locks(&self, open: &Open, owner: LockOwnerId) {
        open.locks.mount_locks.release_owner(open.node(), owner);
    }

    pub(super) fn setlk(&mut self, args: &LkIn, wait: bool) -> Result<()> {
        let open = self.opened(args.fh)?;
        let request = requested_lock(&open, args)?;
        let locks = &self.session.export.locks;
        let mount_locks = &open.locks.mount_locks;
        let lock = request.lock(mount_locks.client);
        let node = open.node();
        match args.kind {
            lock_kind::UNLCK => {
                // First, because others get the lock at once.
                mount_locks.record(&request, false);
                let (family, start, end) = (lock.family, lock.start, lock.end);
                locks.unlock(&self.cx, node, family, start, end, &lock.owner)?;
                mount_locks.forget_unlocked(node.id(), request.owner_id());
            }
            _ => {
                open.locks.record_request(args.fh);
                let stronger = mount_locks.weaken(&request);
                let taken = locks.lock(&self.cx, node, lock, wait);
                match taken {
                    Ok(()) => {
                        mount_locks.note_granted(node.id(), request.owner_id(), args.fh);
                        mount_locks.record(&request, true);
                    }
                    Err(_) => {
                        for lock in &stronger {
                            mount_locks.record(lock, true);
                        }
                    }
                }
                taken?;
            }
        }
        self.reply(&[])
    }

    pub(super) fn getlk(&mut self, args: &LkIn) -> Result<()> {
        let open = self.opened(args.fh)?;
        let lock = requested_lock(&open, args)?.lock(open.locks.mount_locks.client);
        let locks = &self.session.export.locks;
        let answer = match locks.holder(&self.cx, open.node(), &lock)? {
            None => LkOut {
                start: args.start,
                end: args.end,
                kind: lock_kind::UNLCK,
                pid: 0,
            },
            Some(held) => LkOut {
                start: held.start.min(MAX_OFFSET),
                end: held.end.min(MAX_OFFSET),
                kind: match held.kind {
                    LockKind::Shared => lock_kind::RDLCK,
                    LockKind::Exclusive => lock_kind::WRLCK,
                },
                pid: held.owner.pid,
            },
        };
        self.reply(&[&answer.encode()])
    }
}

fn requested_lock(open: &Open, args: &LkIn) -> Result<LockRecord> {
    let space = match args.lk_flags & LK_FLOCK {
        0 => LockFamily::Posix,
        _ => LockFamily::Flock,
    };
    let (start, end) = match space {
        LockFamily::Flock => (0, u64::MAX),
        LockFamily::Posix if args.start > args.end || args.start > MAX_OFFSET => {
            return Err(Errno::EINVAL);
        }
        LockFamily::Posix if args.end >= MAX_OFFSET => (args.start, u64::MAX),
        LockFamily::Posix => (args.start, args.end),
    };
    Ok(LockRecord {
        node: open.node().id(),
        family: space,
        kind: match args.kind {
            lock_kind::RDLCK | lock_kind::UNLCK => LockKind::Shared,
            lock_kind::WRLCK => LockKind::Exclusive,
            _ => return Err(Errno::EINVAL),
        },
        owner: args.owner,
        start,
        end,
        pid: args.pid,
        handle: args.fh,
    })
}

/// The records of locks, as the lock table merges and splits them. One that is granted is recorded
/// after the table has changed and before the reply, one that is released before the table changes:
/// two owners never have records that conflict. A request whose reply is lost is carried out again.
struct RecordedLocks {
    records: Arc<Records>,
    /// The locks of each node with their places.
    nodes: Mutex<HashMap<NodeId, Vec<(LockRecord, Place)>>>,
}

/// A lock of a client, also for another process or another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LockRecord {
    /// The source's number of the node for another process, the client's for another server.
    pub(super) node: u64,
    pub(super) family: LockFamily,
    pub(super) kind: LockKind,
    /// The client's number of the owner.
    pub(super) owner: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) pid: u32,
    /// The handle through which it was requested, or [`UNKNOWN_HANDLE`].
    pub(super) handle: u64,
}

impl LockRecord {
    const FLOCK: u64 = 1;
    const EXCLUSIVE: u64 = 2;
    /// The bits below the handle.
    const BITS: u32 = 2;

    /// Decodes a record. Returns `None` if it is not one that this server writes.
    pub(super) fn decode(words: &[u64; 6]) -> Option<LockRecord> {
        let [node, bits, owner, start, end, pid] = *words;
        (start <= end).then_some(LockRecord {
            node,
            family: match bits & LockRecord::FLOCK {
                0 => LockFamily::Posix,
                _ => LockFamily::Flock,
            },
            kind: match bits & LockRecord::EXCLUSIVE {
                0 => LockKind::Shared,
                _ => LockKind::Exclusive,
            },
            owner,
            start,
            end,
            pid: u32::try_from(pid).ok()?,
            handle: bits >> LockRecord::BITS,
        })
    }

    fn encode(&self) -> [u64; 6] {
        let mut bits = self.handle << LockRecord::BITS;
        if self.family == LockFamily::Flock {
            bits |= LockRecord::FLOCK;
        }
        if self.kind == LockKind::Exclusive {
            bits |= LockRecord::EXCLUSIVE;
        }
        let pid = self.pid.into();
        [self.node, bits, self.owner, self.start, self.end, pid]
    }

    /// Returns the record of `lock`, which an owner of this module has, requested through `handle`.
    pub(super) fn of(node: u64, lock: &Lock, handle: u64) -> LockRecord {
        LockRecord {
            node,
            family: lock.family,
            kind: lock.kind,
            owner: LockOwnerId::read(&lock.owner.id).map_or(0, |owner| owner.number),
            start: lock.start,
            end: lock.end,
            pid: lock.owner.pid,
            handle,
        }
    }

    /// Returns the lock of the client with the number `client`.
    pub(super) fn lock(&self, client: u64) -> Lock {
        Lock {
            family: self.family,
            start: self.start,
            end: self.end,
            kind: self.kind,
            owner: self.owner_id().of_client(client, self.pid),
        }
    }

    /// Returns this lock, with its handle only if it is one of `handles`: those that are open.
    pub(super) fn of_handles(mut self, handles: &[u64]) -> LockRecord {
        if !handles.contains(&self.handle) {
            self.handle = UNKNOWN_HANDLE;
        }
        self
    }

    fn owner_id(&self) -> LockOwnerId {
        LockOwnerId {
            family: self.family,
            number: self.owner,
        }
    }

    fn has_owner_of(&self, other: &LockRecord) -> bool {
        (self.family, self.owner) == (other.family, other.owner)
    }

    /// Returns the parts of this lock that are left without the range of `other`.
    fn without(&self, other: &LockRecord) -> Vec<LockRecord> {
        let before = other.start.checked_sub(1).filter(|&end| end >= self.start);
        let after = other.end.checked_add(1).filter(|&start| start <= self.end);
        let before = before.map(|end| LockRecord {
            end: end.min(self.end),
            ..self.clone()
        });
        let after = after.map(|start| LockRecord {
            start: start.max(self.start),
            ..self.clone()
        });
        before.into_iter().chain(after).collect()
    }
}

impl RecordedLocks {
    fn new(records: Arc<Records>) -> RecordedLocks {
        RecordedLocks {
            records,
            nodes: Mutex::default(),
        }
    }

    /// Records that the range of `lock` is held in its mode, or not held, by its owner.
    fn set(&self, lock: &LockRecord, held: bool) {
        let node = lock.node;
        let mut nodes = self.nodes.lock();
        let locks = nodes.entry(node).or_default();
        let concerned = |one: &LockRecord| {
            one.has_owner_of(lock) && one.start <= lock.end && lock.start <= one.end
        };
        let replaced: Vec<_> = locks.extract_if(.., |(one, _)| concerned(one)).collect();
        let parts = replaced.iter().flat_map(|(one, _)| one.without(lock));
        let parts: Vec<LockRecord> = parts.chain(held.then_some(lock.clone())).collect();
        for part in parts {
            match self.records.add_lock(&part.encode()) {
                Some(place) => locks.push((part, place)),
                None => self.records.set_incomplete(),
            }
        }
        for (_, place) in replaced {
            self.records.remove_lock(place);
        }
        if locks.is_empty() {
            nodes.remove(&node);
        }
    }

    /// Returns the locks of the owner of `request` in its range that `select` selects.
    fn of_owner(
        &self,
        request: &LockRecord,
        select: impl Fn(&LockRecord) -> bool,
    ) -> Vec<LockRecord> {
        let nodes = self.nodes.lock();
        let locks = nodes.get(&request.node).into_iter().flatten();
        let locks = locks.map(|(one, _)| one).filter(|one| {
            one.has_owner_of(request) && one.start <= request.end && request.start <= one.end
        });
        locks.filter(|one| select(one)).cloned().collect()
    }

    /// Removes the locks on a node of the owners that `is_released` selects.
    fn remove(&self, node: NodeId, is_released: impl Fn(&LockOwnerId) -> bool) {
        let mut nodes = self.nodes.lock();
        let Some(locks) = nodes.get_mut(&node) else {
            return;
        };
        for (_, place) in locks.extract_if(.., |(one, _)| is_released(&one.owner_id())) {
            self.records.remove_lock(place);
        }
        if locks.is_empty() {
            nodes.remove(&node);
        }
    }
}

/// The largest offset in a file (`OFFSET_MAX`): a lock that ends there has no end.
const MAX_OFFSET: u64 = i64::MAX as u64;
