//! An overlay: a read-only lower tree with a directory for changes, in the format of Linux's
//! overlayfs (Documentation/filesystems/overlayfs.rst), so that the kernel can mount the same two;
//! the lower tree can be any source.
//!
//! The directory contains three: `upper`, the differences from the lower tree; `work`, which is the
//! kernel's; and `barge`, where every change of several steps is prepared before one rename moves
//! it into `upper`. A crash therefore leaves either the old or the new state, and remains in
//! `barge` are removed at the next start.
//!
//! - A name in `upper` hides the lower one. A character device 0:0 (whiteout) hides it without
//!   replacing it; a directory in both trees is merged, unless the upper one is marked opaque.
//! - A change of a lower file first copies it up, with contents and attributes. Files that are open
//!   use the copy from then on.
//! - A directory that exists in the lower tree cannot be renamed (`EXDEV`, after which mv(1)
//!   copies). Hard links in the lower tree are separate files here.
//! - The topmost tree checks permissions: the host for `upper`, the lower tree otherwise. This
//!   program makes the copies as itself.
//! - Numbers and handles do not change on copy-up: an attribute of the copy records its origin.
//!
//! Deliberately absent: several lower trees, indexes, metadata-only copies (`metacopy` is refused),
//! whiteouts stored as attributes, creation of redirects (an existing `redirect` is followed),
//! locks and leases of the host.
//!
//! Lock order: a node's copying, from the root down; then names; then a node's state, the table of
//! nodes or the listings, one at a time. Copying and names are held across calls to the trees; the
//! rest are not.

mod change;
mod copy;
mod copyup;
mod file;
mod handle;
mod list;
mod listing_cache;
mod lookup;
mod node;
mod operations;
mod origin;
mod rename;
mod staging;
mod tree;
mod xattrs;

use std::any::Any;
use std::sync::Arc;

use vfs::{
    Call, Caller, Capabilities, Cx, Errno, FileSystem, Handle, Kind, Mode, Name, NewNode, Node,
    Result, Support,
};

use self::node::OverlayNode;
use self::staging::Staging;
use self::tree::Tree;
use self::xattrs::OverlayXattrs;

/// A lower tree and the directory of its changes, as one tree.
pub struct Overlay {
    tree: Arc<Tree>,
    root: Arc<OverlayNode>,
}

impl Overlay {
    /// Creates the overlay of `lower` and `upper` in the root of `over`; missing directories are
    /// created. The caller ensures that nobody else changes `over` meanwhile, in particular not the
    /// kernel.
    ///
    /// Returns `EOPNOTSUPP` if `over` has no extended attributes, `ENOTDIR` if either root is not a
    /// directory.
    pub fn new(lower: Arc<dyn FileSystem>, over: Arc<dyn FileSystem>) -> Result<Arc<Overlay>> {
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        let below = lower.root(&cx)?;
        let top = over.root(&cx)?;
        if below.kind() != Kind::Directory || top.kind() != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let upper = directory(&*top, &cx, b"upper", 0o755)?;
        directory(&*top, &cx, b"work", 0o700)?;
        let scratch = directory(&*top, &cx, b"barge", 0o700)?;
        let marks = OverlayXattrs::detect(&*scratch.node, &cx)?;
        let scratch = Staging::new(scratch.node, &cx)?;
        if upper.created {
            copyup::copy_root_attributes(&*below, &*upper.node, &cx, &marks)?;
        }
        let tree = Tree::new(lower, over, scratch, marks);
        let root = OverlayNode::root(&tree, upper.node, below);
        Ok(Arc::new(Overlay { tree, root }))
    }
}

/// A subdirectory of the directory for changes.
struct Subdirectory {
    node: Arc<dyn Node>,
    /// Whether it was created now.
    created: bool,
}

fn directory(top: &dyn Node, cx: &Cx<'_>, name: &[u8], mode: u32) -> Result<Subdirectory> {
    let name = Name::new(name)?;
    let (entry, made) = match top.make(cx, name, NewNode::Directory, Mode::without_umask(mode)) {
        Err(Errno::EEXIST) => (top.lookup(cx, name)?, false),
        made => (made?, true),
    };
    match entry.node.kind() {
        Kind::Directory => Ok(Subdirectory {
            node: entry.node,
            created: made,
        }),
        _ => Err(Errno::ENOTDIR),
    }
}

impl FileSystem for Overlay {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn root(&self, _cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        Ok(self.root.clone())
    }

    fn resolve(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Arc<dyn Node>> {
        Ok(handle::resolve(&self.root, cx, handle)?)
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.tree.changes.sync(cx)
    }

    fn capabilities(&self) -> Capabilities {
        let lower = self.tree.lower.capabilities();
        let over = self.tree.changes.capabilities();
        Capabilities {
            read_only: over.read_only,
            host_locks: Support::None,
            // A change of either tree may be hidden by the other one.
            changes: Support::None,
            handles: over.handles.min(lower.handles),
            change: over.change.min(lower.change),
            holes: over.holes.min(lower.holes),
            persistent: over.persistent && lower.persistent,
            stable_cookies: true,
            no_birth_times: over.no_birth_times && lower.no_birth_times,
            ..over
        }
    }
}
