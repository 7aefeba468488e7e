//! A tree that nothing can be written to, with a directory over it that takes what is written: as Linux's overlayfs has it
//! (Documentation/filesystems/overlayfs.rst), so that the kernel can mount the same two, and any other source works below.
//!
//! The directory has three: `upper`, what differs from the tree below; `work`, which is the kernel's; and `barge`, where whatever takes more
//! than one step is made, before one rename puts it into `upper`. So what a crash leaves is the old or the new; what lies in `barge` then is
//! removed at the next start.
//!
//! - A name in `upper` hides the one below. A character device 0:0 (whiteout) hides it and is nothing itself; a directory there and one below
//!   are one, unless the upper is marked opaque.
//! - What is changed below is copied up first, contents, attributes and all. Who has it open sees the copy from then on.
//! - A directory that is below too is not renamed (`EXDEV`, on which mv(1) copies). Names of one file below are files of their own.
//! - Who may do what is decided by what is on top: the host in `upper`, the tree below where nothing is over it. Copies are this program's.
//! - Numbers and handles stay the same when something is copied up: the copy has a mark that tells what it was.
//!
//! What it lacks on purpose: several trees below, indexes, copies of attributes alone, locks and leases of the host, marks of
//! whiteouts and directories' whereabouts by attributes that the kernel makes on request only (`metacopy`, which is refused; `redirect_dir`, which is
//! followed).
//!
//! Lock order: a node's copying, from the root down; then names; then a node's state, the table of nodes or the listings, one at a time. Copying and names
//! are held across calls to the trees; the rest are not.

mod change;
mod copy;
mod copyup;
mod file;
mod find;
mod handle;
mod list;
mod marks;
mod node;
mod rename;
mod scratch;

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use vfs::{
    Call, Caller, Capabilities, Cx, Entry, Errno, FileSystem, Handle, Kind, Level, Make, Mode,
    Name, Node, NodeId, Patience, Result,
};

use self::list::Listings;
use self::marks::Marks;
use self::node::OverlayNode;
use self::scratch::Scratch;

/// A tree below and what is over it, as one.
pub struct Overlay {
    tree: Arc<Tree>,
    root: Arc<OverlayNode>,
}

/// What all nodes share.
struct Tree {
    lower: Arc<dyn FileSystem>,
    /// The directory's file system.
    over: Arc<dyn FileSystem>,
    scratch: Scratch,
    marks: Marks,
    nodes: Mutex<HashMap<NodeId, Weak<OverlayNode>>>,
    /// Held to write while names change, and to read while they are looked up.
    names: RwLock<()>,
    listings: Listings,
}

impl Overlay {
    /// `lower` below what `over`'s root has in `upper`; what it lacks is made. The caller sees to it that nobody else
    /// changes it meanwhile, the kernel least of all.
    ///
    /// `EOPNOTSUPP` if `over` has no extended attributes, which marks are; `ENOTDIR` if either is no directory.
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
        let marks = Marks::find(&*scratch.node, &cx)?;
        let scratch = Scratch::new(scratch.node, &cx)?;
        if upper.made {
            copyup::dress_root(&*below, &*upper.node, &cx, &marks)?;
        }
        let tree = Arc::new(Tree {
            lower,
            over,
            scratch,
            marks,
            nodes: Mutex::default(),
            names: RwLock::new(()),
            listings: Listings::default(),
        });
        let root = OverlayNode::root(&tree, upper.node, below);
        Ok(Arc::new(Overlay { tree, root }))
    }
}

/// A directory of what is over the tree.
struct Own {
    node: Arc<dyn Node>,
    /// It was not there.
    made: bool,
}

fn directory(top: &dyn Node, cx: &Cx<'_>, name: &[u8], mode: u32) -> Result<Own> {
    let name = Name::new(name)?;
    let (entry, made) = match top.make(cx, name, Make::Directory, Mode::exactly(mode)) {
        Err(Errno::EEXIST) => (top.lookup(cx, name)?, false),
        made => (made?, true),
    };
    match entry.node.kind() {
        Kind::Directory => Ok(Own {
            node: entry.node,
            made,
        }),
        _ => Err(Errno::ENOTDIR),
    }
}

impl Tree {
    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeId, Weak<OverlayNode>>> {
        self.nodes.lock().expect("no panic holds it")
    }

    /// Names stay as they are while it is held.
    fn reading(&self, cx: &Cx<'_>) -> Result<RwLockReadGuard<'_, ()>> {
        match self.names.try_read() {
            Ok(guard) => Ok(guard),
            Err(_) if cx.patience < Patience::Full => Err(Errno::WOULD_BLOCK),
            Err(_) => Ok(self.names.read().expect("no panic holds it")),
        }
    }

    /// Names change by who holds it only.
    fn changing(&self) -> RwLockWriteGuard<'_, ()> {
        self.names.write().expect("no panic holds it")
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
        self.tree.over.sync(cx)
    }

    fn capabilities(&self) -> Capabilities {
        let lower = self.tree.lower.capabilities();
        let over = self.tree.over.capabilities();
        Capabilities {
            read_only: over.read_only,
            host_locks: Level::None,
            handles: over.handles.min(lower.handles),
            change: over.change.min(lower.change),
            holes: over.holes.min(lower.holes),
            stable_cookies: true,
            no_births: over.no_births && lower.no_births,
            ..over
        }
    }
}

/// The same request, as this program's own.
fn ours<'a>(cx: &Cx<'a>) -> Cx<'a> {
    cx.on_behalf_of(&Caller::ROOT)
}

/// Something that was found, before anybody was told.
struct Found {
    node: Arc<OverlayNode>,
    attr: vfs::Attr,
}

impl Found {
    fn entry(self) -> Entry {
        Entry {
            node: self.node,
            attr: self.attr,
        }
    }
}
