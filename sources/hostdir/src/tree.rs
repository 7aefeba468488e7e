//! An export's stores, and its nodes: one for each object that is in use.
//!
//! The stores refer neither to the tree nor to nodes: they get what they need as arguments, most of
//! all the [`Host`]. Only nodes, open files and their operations use the tree.
//!
//! Lock order of the whole crate: a directory's cursor, then a node's mirror of locks, then a
//! node's slot (two of those only child before parent, and only with `try_lock`), then the devices,
//! then a shard of the table. No system call is made under a shard's lock.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use rustix::fs::Statx;
use vfs::{Attr, Kind, Name, Patience, PeerKey, Result};

use crate::attr;
use crate::containment::{Containment, SearchLimiter};
use crate::descriptors::{Evict, Fd};
use crate::device::Device;
use crate::dir_cache::DirCache;
use crate::dir_cursor::DirCursors;
use crate::handle_index::HandleIndex;
use crate::host::{Host, HostOptions};
use crate::lease::Leases;
use crate::locks::LockMirrors;
use crate::node::{Dentry, HostNode};
use crate::node_table::{self, Found, NodeTable};
use crate::open_files::OpenFiles;
use crate::stat::{dev_of, stat};
use crate::unlinked::UnlinkedShares;

/// The nodes and stores of an export.
pub(crate) struct Tree {
    pub(crate) host: Arc<Host>,
    pub(crate) nodes: NodeTable<HostNode>,
    pub(crate) open_files: OpenFiles,
    pub(crate) mirrors: LockMirrors,
    pub(crate) leases: Leases,
    pub(crate) unlinked: UnlinkedShares,
    pub(crate) dir_cache: DirCache,
    pub(crate) cursors: DirCursors,
    pub(crate) handle_index: HandleIndex,
    search_limiter: SearchLimiter,
    devices: Mutex<HashMap<u64, Weak<TreeDevice>>>,
    root: OnceLock<Weak<HostNode>>,
    /// Held while a directory's recorded parent changes, so that no cycle of parents arises.
    pub(crate) moving: Mutex<()>,
}

/// A device that has nodes of a tree.
pub(crate) struct TreeDevice {
    pub(crate) device: Device,
    pub(crate) tree: Arc<Tree>,
}

impl Tree {
    /// Returns the tree of the object that `root` is open on, and its node, which keeps that
    /// descriptor.
    pub(crate) fn new(options: HostOptions, root: Fd) -> Result<(Arc<Tree>, Arc<HostNode>)> {
        let host = Arc::new(Host::new(options, root.as_fd())?);
        let tree = Arc::new(Tree {
            host: host.clone(),
            nodes: NodeTable::new(),
            open_files: OpenFiles::default(),
            mirrors: LockMirrors::default(),
            leases: Leases::default(),
            unlinked: UnlinkedShares::default(),
            dir_cache: DirCache::default(),
            cursors: DirCursors::default(),
            handle_index: HandleIndex::default(),
            search_limiter: SearchLimiter::default(),
            devices: Mutex::default(),
            root: OnceLock::new(),
            moving: Mutex::new(()),
        });
        let evictor: Weak<Tree> = Arc::downgrade(&tree);
        host.budget.set_evictor(evictor);
        let (node, _) = tree.enter(None, root, None)?;
        node.pin();
        tree.root.get_or_init(|| Arc::downgrade(&node));
        Ok((tree, node))
    }

    /// Returns the root node, as long as the export lives.
    pub(crate) fn root(&self) -> Option<Arc<HostNode>> {
        self.root.get()?.upgrade()
    }

    /// Returns the check that an object is below the root.
    pub(crate) fn containment(&self) -> Result<Containment<'_>> {
        let root = self.root().map(|root| root.fd(Patience::Full));
        Ok(Containment {
            host: &self.host,
            root: root.transpose()?,
            search_limiter: &self.search_limiter,
        })
    }

    /// Returns the devices that have nodes.
    pub(crate) fn devices(&self) -> Vec<Arc<TreeDevice>> {
        let devices = self.devices.lock();
        devices.values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the node of `fd`'s object, and its attributes. `near` is the device that it is
    /// probably on, `from` the location where it was found, if by name. The node uses `fd` unless
    /// it has a descriptor.
    pub(crate) fn enter(
        self: &Arc<Tree>,
        near: Option<&Arc<TreeDevice>>,
        fd: Fd,
        from: Option<(&HostNode, Name<'_>)>,
    ) -> Result<(Arc<HostNode>, Attr)> {
        self.enter_shared(near, &Arc::new(fd), from)
    }

    /// [`Tree::enter`] for a descriptor that an open file shares.
    pub(crate) fn enter_shared(
        self: &Arc<Tree>,
        near: Option<&Arc<TreeDevice>>,
        fd: &Arc<Fd>,
        from: Option<(&HostNode, Name<'_>)>,
    ) -> Result<(Arc<HostNode>, Attr)> {
        let stx = stat(fd.as_fd())?;
        let tree_device = match near {
            Some(near) if near.device.dev == dev_of(&stx) => near.clone(),
            _ => self.device(fd.as_fd(), &stx)?,
        };
        let attr = attr::of(&tree_device.device, &stx);
        let dentry = match from {
            Some((parent, name)) if tree_device.device.mount().is_none() => {
                Dentry::new(parent, name)
            }
            _ => None,
        };
        let mut stale = None;
        loop {
            let found = self.nodes.get_or_insert(attr.id, stale.as_ref(), || {
                Arc::new(HostNode::new(
                    &tree_device,
                    &attr,
                    fd.clone(),
                    dentry.clone(),
                ))
            });
            match found {
                Found::Inserted(node) => {
                    if let Some((parent, _)) = from {
                        parent.expect_known_child(false);
                        node.record_directory(parent);
                    }
                    return Ok((node, attr));
                }
                Found::Existing(node) => {
                    if node.adopt(attr.kind, fd, dentry.as_deref()) {
                        if let Some((parent, _)) = from {
                            parent.expect_known_child(true);
                            node.record_directory(parent);
                        }
                        return Ok((node, attr));
                    }
                    stale = Some(node);
                }
            }
        }
    }

    fn device(self: &Arc<Tree>, fd: BorrowedFd<'_>, stx: &Statx) -> Result<Arc<TreeDevice>> {
        let dev = dev_of(stx);
        let devices = || self.devices.lock();
        if let Some(device) = devices().get(&dev).and_then(Weak::upgrade) {
            return Ok(device);
        }
        let new = Arc::new(TreeDevice {
            device: Device::new(&self.host, fd, stx)?,
            tree: self.clone(),
        });
        let mut devices = devices();
        if let Some(device) = devices.get(&dev).and_then(Weak::upgrade) {
            return Ok(device);
        }
        devices.retain(|_, device| device.strong_count() > 0);
        devices.insert(dev, Arc::downgrade(&new));
        Ok(new)
    }
}

impl Evict for Tree {
    fn evict(&self, open: usize) -> bool {
        // Twice around, as the first round only clears the marks of recent use; and more, since the
        // hand passes unevenly filled shards in turn.
        for _ in 0..2 * open + 8 * node_table::SHARDS {
            let node = self.nodes.next_in_ring();
            if node.is_some_and(|node| node.evict()) || self.open_files.evict_next() {
                return true;
            }
        }
        // Objects that clients merely remember go before a request fails. Removed directories are
        // the last: one may be a program's current directory.
        let directories = [false, true];
        directories.into_iter().any(|directory| {
            let mut nodes =
                (0..open + node_table::SHARDS).filter_map(|_| self.nodes.next_in_ring());
            nodes.any(|node| (node.kind() == Kind::Directory) == directory && node.give_up())
        })
    }

    fn give_up(&self, peer: PeerKey) -> bool {
        let unlinked = self.unlinked.of_peer(peer);
        // A quarter of them, so that later shortages are rare.
        let mut most = unlinked.len().div_ceil(4);
        let mut given_up = false;
        for node in unlinked.into_iter().filter_map(|id| self.nodes.get(id)) {
            // A directory goes only if there is nothing else.
            let is_last = most == 0 || given_up && node.kind() == Kind::Directory;
            if is_last {
                break;
            }
            if node.give_up() {
                (most, given_up) = (most - 1, true);
            }
        }
        given_up
    }
}
