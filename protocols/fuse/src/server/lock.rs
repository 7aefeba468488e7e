//! GETLK, SETLK and SETLKW: advisory locks of byte ranges and of whole files.
//!
//! An owner is an id from the client: a process's file table or an open file. The client releases
//! an owner's locks with FLUSH and RELEASE. Any remaining locks are released together with the last
//! handle of the file through which a lock was requested, and therefore at the end of the mount.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
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
    /// The number of handles of each node through which locks were requested. Held while the last
    /// handle's locks are released, so that a lock requested meanwhile is not released with them.
    handles: Mutex<HashMap<NodeId, usize>>,
    /// The records of all locks.
    recorded: Option<RecordedLocks>,
}

impl MountLocks {
    pub(super) fn new(export: &Arc<Export>, records: OptionalRecords) -> Arc<MountLocks> {
        Arc::new(MountLocks {
            export: export.clone(),
            client: Owner::new_client(),
            handles: Mutex::default(),
            recorded: records.map(RecordedLocks::new),
        })
    }

    /// Releases the locks of `owner` on a node, or those of all owners.
    fn release(&self, node: &dyn Node, owner: Option<&LockOwnerId>) {
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        let whose =
            |one: &Owner| one.client == self.client && owner.is_none_or(|owner| *one.id == owner.0);
        // First, because others get the locks at once.
        if let Some(recorded) = &self.recorded {
            recorded.remove(node.id(), owner);
        }
        self.export.locks.release(&cx, node, whose);
    }

    /// Records the result of a request for `lock`: it is held, or released.
    fn record(&self, node: NodeId, lock: &Lock, held: bool) {
        if let Some(recorded) = &self.recorded {
            recorded.set(node, lock, held);
        }
    }

    /// Records what is left of an owner's locks while `lock` is requested: others may get the rest
    /// before the request has a result. Returns the locks to record again if it fails.
    fn weaken(&self, node: NodeId, lock: &Lock) -> Vec<Lock> {
        let Some(recorded) = &self.recorded else {
            return Vec::new();
        };
        let request = LockRecord::of(node, lock);
        let stronger = recorded.of_owner(&request, |held| match lock.family {
            // One of another mode is released before the request waits or is refused.
            LockFamily::Flock => held.kind != lock.kind,
            LockFamily::Posix => lock.kind == LockKind::Shared && held.kind == LockKind::Exclusive,
        });
        let mut restored = Vec::new();
        for held in stronger {
            let held = held.lock(self.client);
            if lock.family == LockFamily::Flock {
                recorded.set(node, &held, false);
                continue;
            }
            let part = Lock {
                start: held.start.max(lock.start),
                end: held.end.min(lock.end),
                ..lock.clone()
            };
            recorded.set(node, &part, true);
            restored.push(held);
        }
        restored
    }

    /// Takes a lock that an earlier process had, after [`HandleLocks::record_request`]. Returns an
    /// error if that is not possible.
    pub(super) fn restore(&self, cx: &Cx<'_>, open: &Open, record: &LockRecord) -> Result<()> {
        let lock = record.lock(self.client);
        let locks = &self.export.locks;
        locks.lock(cx, open.node(), lock.clone(), false)?;
        self.record(open.node().id(), &lock, true);
        Ok(())
    }
}

impl HandleLocks {
    /// Records that a lock is requested through this handle.
    pub(super) fn record_request(&self) {
        if self.requested.load(Ordering::Acquire) {
            return;
        }
        let mut handles = self.mount_locks.handles.lock();
        if !self.requested.swap(true, Ordering::AcqRel) {
            *handles.entry(self.node.id()).or_default() += 1;
        }
    }
}

impl Drop for HandleLocks {
    fn drop(&mut self) {
        if !*self.requested.get_mut() {
            return;
        }
        let mut handles = self.mount_locks.handles.lock();
        if let Entry::Occupied(mut count) = handles.entry(self.node.id()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
                self.mount_locks.release(&*self.node, None);
            }
        }
    }
}

/// The lock table's id of one of the client's owners. POSIX and flock(2) owner numbers are separate
/// spaces.
pub(super) struct LockOwnerId([u8; 9]);

impl LockOwnerId {
    pub(super) fn posix(number: u64) -> LockOwnerId {
        LockOwnerId::of(LockFamily::Posix, number)
    }

    pub(super) fn flock(number: u64) -> LockOwnerId {
        LockOwnerId::of(LockFamily::Flock, number)
    }

    fn of(space: LockFamily, number: u64) -> LockOwnerId {
        let mut id = [0; 9];
        id[0] = match space {
            LockFamily::Posix => b'p',
            LockFamily::Flock => b'f',
        };
        id[1..].copy_from_slice(&number.to_le_bytes());
        LockOwnerId(id)
    }
}

impl RequestContext<'_> {
    pub(super) fn release_locks(&self, open: &Open, owners: LockOwnerId) {
        let lockers = &open.locks.mount_locks;
        lockers.release(open.node(), Some(&owners));
    }

    pub(super) fn setlk(&mut self, args: &LkIn, wait: bool) -> Result<()> {
        let open = self.opened(args.fh)?;
        let lock = requested_lock(&open, args)?;
        let locks = &self.session.export.locks;
        let recorded = &open.locks.mount_locks;
        let node = open.node().id();
        match args.kind {
            lock_kind::UNLCK => {
                // First, because others get the lock at once.
                recorded.record(node, &lock, false);
                let (family, start, end) = (lock.family, lock.start, lock.end);
                locks.unlock(&self.cx, open.node(), family, start, end, &lock.owner)?;
            }
            _ => {
                open.locks.record_request();
                let stronger = recorded.weaken(node, &lock);
                let taken = locks.lock(&self.cx, open.node(), lock.clone(), wait);
                match taken {
                    Ok(()) => recorded.record(node, &lock, true),
                    Err(_) => {
                        for lock in &stronger {
                            recorded.record(node, lock, true);
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
        let lock = requested_lock(&open, args)?;
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

fn requested_lock(open: &Open, args: &LkIn) -> Result<Lock> {
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
    Ok(Lock {
        family: space,
        start,
        end,
        kind: match args.kind {
            lock_kind::RDLCK | lock_kind::UNLCK => LockKind::Shared,
            lock_kind::WRLCK => LockKind::Exclusive,
            _ => return Err(Errno::EINVAL),
        },
        owner: Owner {
            client: open.locks.mount_locks.client,
            id: LockOwnerId::of(space, args.owner).0[..].into(),
            pid: args.pid,
        },
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

/// A lock for another process or another server.
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
}

impl LockRecord {
    const FLOCK: u64 = 1;
    const EXCLUSIVE: u64 = 2;

    /// Decodes a record. Returns `None` if it is not one that this server writes.
    pub(super) fn decode(words: &[u64; 6]) -> Option<LockRecord> {
        let [node, bits, owner, start, end, pid] = *words;
        (bits <= 3 && start <= end).then_some(LockRecord {
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
        })
    }

    fn encode(&self) -> [u64; 6] {
        let mut bits = 0;
        if self.family == LockFamily::Flock {
            bits |= LockRecord::FLOCK;
        }
        if self.kind == LockKind::Exclusive {
            bits |= LockRecord::EXCLUSIVE;
        }
        let pid = self.pid.into();
        [self.node, bits, self.owner, self.start, self.end, pid]
    }

    /// Returns the record of `lock`, which an owner of this module has.
    pub(super) fn of(node: u64, lock: &Lock) -> LockRecord {
        let number = lock.owner.id.get(1..).and_then(|id| id.try_into().ok());
        LockRecord {
            node,
            family: lock.family,
            kind: lock.kind,
            owner: number.map_or(0, u64::from_le_bytes),
            start: lock.start,
            end: lock.end,
            pid: lock.owner.pid,
        }
    }

    /// Returns the lock of the client with the number `client`.
    pub(super) fn lock(&self, client: u64) -> Lock {
        Lock {
            family: self.family,
            start: self.start,
            end: self.end,
            kind: self.kind,
            owner: Owner {
                client,
                id: LockOwnerId::of(self.family, self.owner).0[..].into(),
                pid: self.pid,
            },
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
    fn set(&self, node: NodeId, lock: &Lock, held: bool) {
        let lock = LockRecord::of(node, lock);
        let mut nodes = self.nodes.lock();
        let locks = nodes.entry(node).or_default();
        let concerned = |one: &LockRecord| {
            one.has_owner_of(&lock) && one.start <= lock.end && lock.start <= one.end
        };
        let replaced: Vec<_> = locks.extract_if(.., |(one, _)| concerned(one)).collect();
        let parts = replaced.iter().flat_map(|(one, _)| one.without(&lock));
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

    /// Removes the locks of `owner`, or of all owners, on a node.
    fn remove(&self, node: NodeId, owner: Option<&LockOwnerId>) {
        let mut nodes = self.nodes.lock();
        let Some(locks) = nodes.get_mut(&node) else {
            return;
        };
        let is_released = |one: &LockRecord| {
            owner.is_none_or(|owner| LockOwnerId::of(one.family, one.owner).0 == owner.0)
        };
        for (_, place) in locks.extract_if(.., |(one, _)| is_released(one)) {
            self.records.remove_lock(place);
        }
        if locks.is_empty() {
            nodes.remove(&node);
        }
    }
}

/// The largest offset in a file (`OFFSET_MAX`): a lock that ends there has no end.
const MAX_OFFSET: u64 = i64::MAX as u64;
