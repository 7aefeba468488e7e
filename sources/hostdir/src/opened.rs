//! The descriptors of open files and directories, which can be had back while those idle.
//!
//! Clients hold more files open than a process may have descriptors: Linux's `cache=loose` keeps
//! one for each file that it has written. So when nodes have no more to give, an idle file gives
//! its descriptor up, if its object has a kernel handle and a name, and opens it again when it is
//! used. Its last name must not go meanwhile: whoever takes names away has such files opened first
//! ([`Opened::keep`]). A file that the host removes in the meantime is lost to a client that has it
//! open: `ESTALE`. A file that has lost its last name by us is opened again through its node, which
//! keeps its own descriptor. A directory goes on where it was, if the file system's cookies are
//! good for that.
//!
//! Lock order: the gate; then a file's descriptor; then the lists, for memory only.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, Weak};

use rustix::fs::OFlags;
use vfs::{Cx, Errno, Kind, Name, NodeId, Patience, Result};

use crate::device::{self, Device};
use crate::fds::{Fd, Share};
use crate::node::{HostNode, has_name};
use crate::ring::Ring;
use crate::tree;

/// An open file's descriptor, or how to have it again.
pub(crate) struct OpenFile {
    node: Arc<HostNode>,
    flags: OFlags,
    held: Mutex<Option<Held>>,
    /// Used since the clock hand last came by.
    touched: AtomicBool,
    /// Set when the descriptor was replaced by another one, at another position.
    reopened: AtomicBool,
}

/// A descriptor, and where its file stands in the ring; nowhere if it never gives it up.
struct Held {
    fd: Arc<Fd>,
    place: Option<u32>,
}

/// What opening does once, and not when it is done again.
const ONCE: OFlags = OFlags::TRUNC
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::TMPFILE);

/// The files of a tree whose descriptors may go, and those whose have gone.
#[derive(Default)]
pub(crate) struct Opened {
    ring: Mutex<Ring<Weak<OpenFile>>>,
    /// How many have given theirs up.
    away: AtomicUsize,
    /// Those that have, by node and their own addresses: whatever many files of a node have none, one
    /// comes and goes in no time.
    by_node: Mutex<HashMap<NodeId, HashMap<usize, Weak<OpenFile>>>>,
    /// Held by who takes names away; whoever takes a descriptor away needs it for himself.
    gate: RwLock<()>,
}

impl OpenFile {
    /// `flags` as it was opened with.
    pub(crate) fn new(node: Arc<HostNode>, fd: Arc<Fd>, flags: OFlags) -> Arc<OpenFile> {
        let can_return = OpenFile::can_return(node.device(), node.what());
        Arc::new_cyclic(|this: &Weak<OpenFile>| {
            let opened = &node.device().tree.opened;
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

    /// Takes the share of the call's client that an object of `kind` on `device` needs when it is
    /// opened: `None` if it can give its descriptor up. Returns `EMFILE` if the client has none left.
    pub(crate) fn share(device: &Device, kind: Kind, cx: &Cx<'_>) -> Result<Option<Share>> {
        match OpenFile::can_return(device, kind) {
            true => Ok(None),
            false => device.tree.shares.take(cx.call.account()),
        }
    }

    fn can_return(device: &Device, kind: Kind) -> bool {
        device.mount().is_some() && (kind == Kind::File || device.keeps_cookies())
    }

    /// Whether it has been opened again since this was asked last.
    pub(crate) fn take_reopened(&self) -> bool {
        self.reopened.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn node(&self) -> &Arc<HostNode> {
        &self.node
    }

    /// Its descriptor. If it has to be opened again that is done as the server itself: so first this,
    /// then [`tree::Tree::act`].
    pub(crate) fn fd(self: &Arc<Self>, patience: Patience) -> Result<Arc<Fd>> {
        let mut held = self.held();
        if !self.touched.load(Ordering::Relaxed) {
            self.touched.store(true, Ordering::Relaxed);
        }
        if let Some(held) = &*held {
            return Ok(held.fd.clone());
        }
        let path = self.node.fd(patience)?;
        let tree = &self.node.device().tree;
        tree.act_as_server()?;
        let fd = Arc::new(tree.open(|| tree.reopen(path.as_fd(), self.flags))?);
        let place = Some(tree.opened.ring().insert(Arc::downgrade(self)));
        self.reopened.store(true, Ordering::Relaxed);
        *held = Some(Held {
            fd: fd.clone(),
            place,
        });
        tree.opened.forget(self);
        tree.opened.away.fetch_sub(1, Ordering::Relaxed);
        Ok(fd)
    }

    /// The client closes it. Not left to whoever drops it last: that may be one who makes room for a
    /// descriptor, with a node's lock held.
    pub(crate) fn close(&self) {
        // Ours is the last count of a node that goes along. One that is found again just now keeps
        // the descriptor until it goes, which is the lesser evil.
        if let Some(Held { fd, .. }) = &*self.held()
            && Arc::strong_count(&self.node) > 1
        {
            self.node.settle(fd);
        }
    }

    /// Gives the descriptor up, unless it is in use, was used lately, or could not be had again.
    fn evict(self: &Arc<Self>) -> bool {
        let opened = &self.node.device().tree.opened;
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
        let opened = &self.node.device().tree.opened;
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
    /// Has the file that the clock hand comes to give its descriptor up, if it can.
    pub(crate) fn evict_next(&self) -> bool {
        let next = self.ring().advance().and_then(Weak::upgrade);
        next.is_some_and(|file| file.evict())
    }

    /// Before the name `name` is taken away in `dir`: whoever has that object open keeps it. Hold on to
    /// what this returns until the name is gone.
    pub(crate) fn keep(
        &self,
        node: &HostNode,
        dir: BorrowedFd<'_>,
        name: Name<'_>,
    ) -> Result<RwLockReadGuard<'_, ()>> {
        /// So often they may have lost it again before the gate was shut.
        const TRIES: u32 = 16;
        for _ in 0..TRIES {
            let gate = self.gate.read().expect("no panic holds it");
            if self.away.load(Ordering::Relaxed) == 0 {
                return Ok(gate);
            }
            let files = match tree::stat_child(dir, name) {
                Ok(stx) if device::dev_of(&stx) == node.device().dev => {
                    self.away_of(node.device().id(stx.stx_ino))
                }
                _ => Vec::new(),
            };
            if files.is_empty() {
                return Ok(gate);
            }
            // Not under the gate: others have to give theirs up for it.
            drop(gate);
            for file in files {
                file.fd(Patience::Full)?;
            }
        }
        Err(Errno::ENFILE)
    }

    /// Those of a node that have no descriptor. Under the gate.
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

    /// A file that has a descriptor again, or is no more.
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
