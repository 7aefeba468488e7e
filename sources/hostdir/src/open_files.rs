//! The descriptors of open files and directories, which can be evicted while these are idle.
//!
//! Clients hold more files open than a process may have descriptors: Linux's `cache=loose` keeps
//! one for each file that it has written. When no more nodes can be evicted, an idle file's
//! descriptor is closed, if its object has a kernel handle and a name, and opened again on use. Its
//! last name must not be removed meanwhile: before removing a name such files are reopened
//! ([`Opened::keep`]). A file that a process of the host removes in the meantime is lost to a
//! client that has it open: `ESTALE`. A file whose last name was removed through this export is
//! reopened through its node, which keeps its own descriptor. A directory continues at its
//! position, if the file system's cookies permit it.
//!
//! Lock order: the gate; then a file's descriptor; then the lists, for memory only.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, Weak};

use rustix::fs::OFlags;
use vfs::{Cx, Errno, Kind, Name, NodeId, Patience, Result};

use crate::clock::Ring;
use crate::descriptors::{Fd, Share};
use crate::device::Device;
use crate::identity;
use crate::node::HostNode;
use crate::stat::{dev_of, has_name, stat_child};

/// An open file's descriptor, or the information to reopen it.
pub(crate) struct OpenFile {
    node: Arc<HostNode>,
    flags: OFlags,
    held: Mutex<Option<Held>>,
    /// Used since the clock hand last passed.
    touched: AtomicBool,
    /// Set when the descriptor was replaced by another one with another position.
    reopened: AtomicBool,
}

/// A descriptor, and its file's position in the ring; `None` if it is never evicted.
struct Held {
    fd: Arc<Fd>,
    place: Option<u32>,
}

/// Flags that only apply to the first open.
const ONCE: OFlags = OFlags::TRUNC
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::TMPFILE);

/// The files of a tree with descriptors that can be evicted, and those without descriptors.
#[derive(Default)]
pub(crate) struct Opened {
    ring: Mutex<Ring<Weak<OpenFile>>>,
    /// The number of files without a descriptor.
    away: AtomicUsize,
    /// The files without a descriptor, by node and their own addresses: adding and removing one
    /// takes constant time, however many a node has.
    by_node: Mutex<HashMap<NodeId, HashMap<usize, Weak<OpenFile>>>>,
    /// Read-locked while a name is removed, write-locked while a descriptor is evicted.
    gate: RwLock<()>,
}

impl OpenFile {
    /// Returns an open file; `flags` are those that it was opened with.
    pub(crate) fn new(node: Arc<HostNode>, fd: Arc<Fd>, flags: OFlags) -> Arc<OpenFile> {
        let can_return = OpenFile::can_return(node.device(), node.what());
        Arc::new_cyclic(|this: &Weak<OpenFile>| {
            let opened = &node.tree().opened;
            let place = can_return.then(|| opened.ring().insert(this.clone()));
            OpenFile {
                flags: flags - ONCE,
                held: Mutex::new(Some(Held { fd, place })),
                touched: AtomicBool::new(true),
                reopened: AtomicBool::new(false),
                node,
            }
        })
    }

    /// Takes the share of the call's client for opening an object of `kind` on `device`: `None` if
    /// its descriptor can be evicted. Returns `EMFILE` if the client has no share left.
    pub(crate) fn share(device: &Device, kind: Kind, cx: &Cx<'_>) -> Result<Option<Share>> {
        match OpenFile::can_return(device, kind) {
            true => Ok(None),
            false => device.host.shares.take(cx.call.account()),
        }
    }

    fn can_return(device: &Device, kind: Kind) -> bool {
        device.mount().is_some() && (kind == Kind::File || device.keeps_cookies())
    }

    /// Returns the mark that it was reopened, which the reader of its position resets.
    pub(crate) fn reopened(&self) -> &AtomicBool {
        &self.reopened
    }

    pub(crate) fn node(&self) -> &Arc<HostNode> {
        &self.node
    }

    /// Returns its descriptor. Reopening it uses the server's own identity: call this before
    /// [`identity::CallerIdentity::assume`].
    pub(crate) fn fd(self: &Arc<Self>, patience: Patience) -> Result<Arc<Fd>> {
        let mut held = self.held();
        if !self.touched.load(Ordering::Relaxed) {
            self.touched.store(true, Ordering::Relaxed);
        }
        if let Some(held) = &*held {
            return Ok(held.fd.clone());
        }
        let path = self.node.fd(patience)?;
        let (host, opened) = (self.node.host(), &self.node.tree().opened);
        identity::become_server()?;
        let fd = Arc::new(host.open(|| host.proc_fds.reopen(path.as_fd(), self.flags))?);
        let place = Some(opened.ring().insert(Arc::downgrade(self)));
        self.reopened.store(true, Ordering::Relaxed);
        *held = Some(Held {
            fd: fd.clone(),
            place,
        });
        opened.forget(self);
        opened.away.fetch_sub(1, Ordering::Relaxed);
        Ok(fd)
    }

    /// Closes the file for the client. Not done by the last drop: that may happen during an
    /// eviction, with a node's lock held.
    pub(crate) fn close(&self) {
        // Ours is the last reference to a node that is dropped as well. A node that is found again
        // just now keeps the descriptor until it is dropped, which is acceptable.
        if let Some(Held { fd, .. }) = &*self.held()
            && Arc::strong_count(&self.node) > 1
        {
            self.node.settle(fd);
        }
    }

    /// Evicts the descriptor, unless it is in use, was used recently, or could not be reopened.
    fn evict(self: &Arc<Self>) -> bool {
        let opened = &self.node.tree().opened;
        if self.touched.swap(false, Ordering::Relaxed) {
            return false;
        }
        let (Ok(_gate), Ok(mut held)) = (opened.gate.try_write(), self.held.try_lock()) else {
            return false;
        };
        let Some(Held { fd, place }) = &*held else {
            return false;
        };
        let returns = match has_name(fd.as_fd()) {
            true => self.node.part_with(fd),
            false => self.node.has_other_than(fd),
        };
        if !returns || Arc::strong_count(fd) > 1 {
            return false;
        }
        if let Some(place) = *place {
            opened.ring().remove(place);
        }
        let mut by_node = opened.by_node.lock().expect("no panic holds it");
        let files = by_node.entry(self.node.number()).or_default();
        files.insert(self.address(), Arc::downgrade(self));
        opened.away.fetch_add(1, Ordering::Relaxed);
        let gone = held.take();
        drop((by_node, held));
        drop(gone);
        true
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().expect("no panic holds it")
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let opened = &self.node.tree().opened;
        match self.held.get_mut().expect("no panic holds it").take() {
            Some(Held { place, .. }) => {
                if let Some(place) = place {
                    opened.ring().remove(place);
                }
            }
            None => {
                opened.away.fetch_sub(1, Ordering::Relaxed);
                opened.forget(self);
            }
        }
    }
}

impl Opened {
    /// Advances the clock hand, and evicts the descriptor of the file there if possible.
    pub(crate) fn evict_next(&self) -> bool {
        let next = self.ring().advance().and_then(Weak::upgrade);
        next.is_some_and(|file| file.evict())
    }

    /// Reopens the evicted files of `name` in `dir` before that name is removed. The caller holds
    /// the returned guard until the name is gone.
    pub(crate) fn keep(
        &self,
        node: &HostNode,
        dir: BorrowedFd<'_>,
        name: Name<'_>,
    ) -> Result<RwLockReadGuard<'_, ()>> {
        /// The most times that they may be evicted again before the gate is locked.
        const TRIES: u32 = 16;
        for _ in 0..TRIES {
            let gate = self.gate.read().expect("no panic holds it");
            if self.away.load(Ordering::Relaxed) == 0 {
                return Ok(gate);
            }
            let files = match stat_child(dir, name) {
                Ok(stx) if dev_of(&stx) == node.device().dev => {
                    self.away_of(node.device().id(stx.stx_ino))
                }
                _ => Vec::new(),
            };
            if files.is_empty() {
                return Ok(gate);
            }
            // Not under the gate: reopening may have to evict others.
            drop(gate);
            for file in files {
                file.fd(Patience::Full)?;
            }
        }
        Err(Errno::ENFILE)
    }

    /// Returns the files of a node without a descriptor. Called under the gate.
    fn away_of(&self, node: NodeId) -> Vec<Arc<OpenFile>> {
        let by_node = self.by_node.lock().expect("no panic holds it");
        let files: Vec<_> = match by_node.get(&node) {
            Some(files) => files.values().filter_map(Weak::upgrade).collect(),
            None => Vec::new(),
        };
        drop(by_node);
        files
            .into_iter()
            .filter(|file| file.held().is_none())
            .collect()
    }

    /// Removes a file that has a descriptor again or is dropped.
    fn forget(&self, file: &OpenFile) {
        let mut by_node = self.by_node.lock().expect("no panic holds it");
        if let Entry::Occupied(mut files) = by_node.entry(file.node.number()) {
            files.get_mut().remove(&file.address());
            if files.get().is_empty() {
                files.remove();
            }
        }
    }

    fn ring(&self) -> MutexGuard<'_, Ring<Weak<OpenFile>>> {
        self.ring.lock().expect("no panic holds it")
    }
}
