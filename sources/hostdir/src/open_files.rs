//! The descriptors of open files and directories, which can be evicted while these are idle.
//!
//! Clients hold more files open than a process may have descriptors: Linux's `cache=loose` keeps
//! one for each file that it has written. When no more nodes can be evicted, an idle file's
//! descriptor is closed, if its object has a kernel handle and a name, and opened again on use. Its
//! last name must not be removed meanwhile: before removing a name such files are reopened
//! ([`OpenFiles::reopen_named`]). A file that a process of the host removes in the meantime is lost
//! to a client that has it open: `ESTALE`. A file whose last name was removed through this export
//! is reopened through its node, which keeps its own descriptor. A directory continues at its
//! position, if the file system's cookies permit it.
//!
//! Lock order: the eviction lock; then a file's descriptor; then the lists, for memory only.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use rustix::fs::OFlags;
use vfs::{Cx, Errno, Kind, Name, NodeId, Patience, Result};

use crate::clock::ClockRing;
use crate::descriptors::{Fd, Share};
use crate::device::Device;
use crate::identity;
use crate::node::HostNode;
use crate::stat::{dev_of, has_name, stat_child};

/// An open file's descriptor, or the information to reopen it.
pub(crate) struct OpenFile {
    node: Arc<HostNode>,
    flags: OFlags,
    descriptor: Mutex<Option<Descriptor>>,
    /// Used since the clock hand last passed.
    recently_used: AtomicBool,
    /// Set when the descriptor was replaced by another one with another position.
    reopened: AtomicBool,
}

/// A descriptor, and its file's position in the ring; `None` if it is never evicted.
struct Descriptor {
    fd: Arc<Fd>,
    ring_position: Option<u32>,
}

/// Flags that only apply to the first open.
const FIRST_OPEN_ONLY: OFlags = OFlags::TRUNC
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::TMPFILE);

/// The files of a tree with descriptors that can be evicted, and those without descriptors.
#[derive(Default)]
pub(crate) struct OpenFiles {
    ring: Mutex<ClockRing<Weak<OpenFile>>>,
    /// The number of files without a descriptor.
    evicted: AtomicUsize,
    /// The files without a descriptor, by node and their own addresses: adding and removing one
    /// takes constant time, however many a node has.
    by_node: Mutex<HashMap<NodeId, HashMap<usize, Weak<OpenFile>>>>,
    /// Read-locked while a name is removed, write-locked while a descriptor is evicted.
    eviction_lock: RwLock<()>,
}

impl OpenFile {
    /// Returns an open file; `flags` are those that it was opened with.
    pub(crate) fn new(node: Arc<HostNode>, fd: Arc<Fd>, flags: OFlags) -> Arc<OpenFile> {
        let can_reopen = OpenFile::can_reopen(node.device(), node.kind());
        node.count_open();
        Arc::new_cyclic(|this: &Weak<OpenFile>| {
            let open_files = &node.tree().open_files;
            let ring_position = can_reopen.then(|| open_files.ring().insert(this.clone()));
            OpenFile {
                flags: flags - FIRST_OPEN_ONLY,
                descriptor: Mutex::new(Some(Descriptor { fd, ring_position })),
                recently_used: AtomicBool::new(true),
                reopened: AtomicBool::new(false),
                node,
            }
        })
    }

    /// Takes the share of the call's client for opening an object of `kind` on `device`: `None` if
    /// its descriptor can be evicted. Returns `EMFILE` if the client has no share left.
    pub(crate) fn share(device: &Device, kind: Kind, cx: &Cx<'_>) -> Result<Option<Share>> {
        match OpenFile::can_reopen(device, kind) {
            true => Ok(None),
            false => device.host.shares.take(cx.call.account()),
        }
    }

    fn can_reopen(device: &Device, kind: Kind) -> bool {
        device.mount().is_some() && (kind == Kind::File || device.has_stable_cookies())
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
        let mut descriptor = self.descriptor();
        if !self.recently_used.load(Ordering::Relaxed) {
            self.recently_used.store(true, Ordering::Relaxed);
        }
        if let Some(descriptor) = &*descriptor {
            return Ok(descriptor.fd.clone());
        }
        let path = self.node.fd(patience)?;
        let (host, open_files) = (self.node.host(), &self.node.tree().open_files);
        identity::assume_server()?;
        let fd = Arc::new(host.open(|| host.proc_fds.reopen(path.as_fd(), self.flags))?);
        let ring_position = Some(open_files.ring().insert(Arc::downgrade(self)));
        self.reopened.store(true, Ordering::Relaxed);
        *descriptor = Some(Descriptor {
            fd: fd.clone(),
            ring_position,
        });
        open_files.forget(self);
        open_files.evicted.fetch_sub(1, Ordering::Relaxed);
        Ok(fd)
    }

    /// Closes the file for the client. Not done by the last drop: that may happen during an
    /// eviction, with a node's lock held.
    pub(crate) fn close(&self) {
        // Ours is the last reference to a node that is dropped as well. A node that is found again
        // just now keeps the descriptor until it is dropped, which is acceptable.
        if let Some(Descriptor { fd, .. }) = &*self.descriptor()
            && Arc::strong_count(&self.node) > 1
        {
            self.node.replace_with_path(fd);
        }
    }

    /// Evicts the descriptor, unless it is in use, was used recently, or could not be reopened.
    fn evict(self: &Arc<Self>) -> bool {
        let open_files = &self.node.tree().open_files;
        if self.recently_used.swap(false, Ordering::Relaxed) {
            return false;
        }
        let (Some(_eviction), Some(mut descriptor)) = (
            open_files.eviction_lock.try_write(),
            self.descriptor.try_lock(),
        ) else {
            return false;
        };
        let Some(Descriptor { fd, ring_position }) = &*descriptor else {
            return false;
        };
        let returns = match has_name(fd.as_fd()) {
            true => self.node.replace_with_handle(fd),
            false => self.node.has_descriptor_besides(fd),
        };
        if !returns || Arc::strong_count(fd) > 1 {
            return false;
        }
        if let Some(ring_position) = *ring_position {
            open_files.ring().remove(ring_position);
        }
        let mut by_node = open_files.by_node.lock();
        let files = by_node.entry(self.node.number()).or_default();
        files.insert(self.address(), Arc::downgrade(self));
        open_files.evicted.fetch_add(1, Ordering::Relaxed);
        let closed = descriptor.take();
        drop((by_node, descriptor));
        drop(closed);
        true
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn descriptor(&self) -> MutexGuard<'_, Option<Descriptor>> {
        self.descriptor.lock()
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.node.count_close();
        let open_files = &self.node.tree().open_files;
        match self.descriptor.get_mut().take() {
            Some(Descriptor { ring_position, .. }) => {
                if let Some(ring_position) = ring_position {
                    open_files.ring().remove(ring_position);
                }
            }
            None => {
                open_files.evicted.fetch_sub(1, Ordering::Relaxed);
                open_files.forget(self);
            }
        }
    }
}

impl OpenFiles {
    /// Advances the clock hand, and evicts the descriptor of the file there if possible.
    pub(crate) fn evict_next(&self) -> bool {
        let next = self.ring().advance().and_then(Weak::upgrade);
        next.is_some_and(|file| file.evict())
    }

    /// Reopens the evicted files of `name` in `dir` before that name is removed. The caller holds
    /// the returned guard until the name is removed.
    pub(crate) fn reopen_named(
        &self,
        node: &HostNode,
        dir: BorrowedFd<'_>,
        name: Name<'_>,
    ) -> Result<RwLockReadGuard<'_, ()>> {
        /// The most times that they may be evicted again before evictions are locked out.
        const TRIES: u32 = 16;
        for _ in 0..TRIES {
            let eviction = self.eviction_lock.read();
            if self.evicted.load(Ordering::Relaxed) == 0 {
                return Ok(eviction);
            }
            let files = match stat_child(dir, name) {
                Ok(stx) if dev_of(&stx) == node.device().dev => {
                    self.evicted_of(node.device().id(stx.stx_ino))
                }
                _ => Vec::new(),
            };
            if files.is_empty() {
                return Ok(eviction);
            }
            // Not under the eviction lock: reopening may have to evict others.
            drop(eviction);
            for file in files {
                file.fd(Patience::Full)?;
            }
        }
        Err(Errno::ENFILE)
    }

    /// Returns the files of a node without a descriptor. Called under the eviction lock.
    fn evicted_of(&self, node: NodeId) -> Vec<Arc<OpenFile>> {
        let by_node = self.by_node.lock();
        let files: Vec<_> = match by_node.get(&node) {
            Some(files) => files.values().filter_map(Weak::upgrade).collect(),
            None => Vec::new(),
        };
        drop(by_node);
        files
            .into_iter()
            .filter(|file| file.descriptor().is_none())
            .collect()
    }

    /// Removes a file that has a descriptor again or is dropped.
    fn forget(&self, file: &OpenFile) {
        let mut by_node = self.by_node.lock();
        if let Entry::Occupied(mut files) = by_node.entry(file.node.number()) {
            files.get_mut().remove(&file.address());
            if files.get().is_empty() {
                files.remove();
            }
        }
    }

    fn ring(&self) -> MutexGuard<'_, ClockRing<Weak<OpenFile>>> {
        self.ring.lock()
    }
}
