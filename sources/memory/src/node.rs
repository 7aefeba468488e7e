//! A node and its state: attributes, extended attributes, contents.

use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use vfs::{Attr, Caller, Device, Entry, Kind, Node, NodeId, Result, Time};

use crate::budget::NodeCharge;
use crate::dir::Dir;
use crate::meta::Meta;
use crate::pages::{PAGE, Pages};
use crate::perm;
use crate::shared::Shared;
use crate::xattr::Xattrs;

/// A node. Directories own their children; children refer to their directory weakly.
pub(crate) struct MemNode {
    pub(crate) shared: Arc<Shared>,
    pub(crate) this: Weak<MemNode>,
    pub(crate) id: NodeId,
    pub(crate) kind: Kind,
    /// The parent of a directory: the root's is itself, a removed one has none.
    parent: Mutex<Weak<MemNode>>,
    state: RwLock<State>,
    _charge: NodeCharge,
}

/// The mutable state of a node.
pub(crate) struct State {
    pub(crate) meta: Meta,
    pub(crate) xattrs: Xattrs,
    pub(crate) body: Body,
    /// Created without a name by `tmpfile`, and may be linked.
    pub(crate) linkable: bool,
}

/// The contents of a node.
pub(crate) enum Body {
    File(Pages),
    Directory(Dir),
    Symlink(Box<[u8]>),
    /// No contents.
    Device(Device),
}

/// The parameters of a new node.
pub(crate) struct NodeParams {
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) body: Body,
    /// The parent of a directory.
    pub(crate) parent: Weak<MemNode>,
}

impl MemNode {
    /// Creates the root of a new tree.
    pub(crate) fn root(shared: &Arc<Shared>, mode: u32, (uid, gid): (u32, u32)) -> Arc<MemNode> {
        let dir = Dir::new(&shared.budget).expect("nothing is charged yet");
        let new = NodeParams {
            kind: Kind::Directory,
            mode: mode & 0o7777,
            uid,
            gid,
            body: Body::Directory(dir),
            parent: Weak::new(),
        };
        let root = MemNode::new(shared, new).expect("a budget has room for the root");
        root.set_parent(root.this.clone());
        root
    }

    /// Creates a node without a name.
    pub(crate) fn new(shared: &Arc<Shared>, new: NodeParams) -> Result<Arc<MemNode>> {
        let extra = match &new.body {
            Body::Symlink(target) => target.len(),
            _ => 0,
        };
        let charge = NodeCharge::new(&shared.budget, extra)?;
        let now = shared.now();
        let state = State {
            meta: Meta {
                mode: new.mode,
                uid: new.uid,
                gid: new.gid,
                nlink: if new.kind == Kind::Directory { 2 } else { 1 },
                atime: now,
                mtime: now,
                ctime: now,
                btime: now,
                change: 1,
            },
            xattrs: Xattrs::new(&shared.budget)?,
            body: new.body,
            linkable: false,
        };
        let node = Arc::new_cyclic(|this| MemNode {
            shared: shared.clone(),
            this: this.clone(),
            id: shared.new_id(),
            kind: new.kind,
            parent: Mutex::new(new.parent),
            state: RwLock::new(state),
            _charge: charge,
        });
        let weak = node.this.clone();
        shared.nodes(node.id).insert(node.id, weak);
        Ok(node)
    }

    /// Returns the node of a trait object, `None` if it is of another tree.
    pub(crate) fn of_same_tree<'a>(&self, node: &'a dyn Node) -> Option<&'a MemNode> {
        node.as_any()
            .downcast_ref::<MemNode>()
            .filter(|node| Arc::ptr_eq(&node.shared, &self.shared))
    }

    pub(crate) fn arc(&self) -> Arc<MemNode> {
        self.this.upgrade().expect("a node lives in an Arc")
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write()
    }

    pub(crate) fn parent_link(&self) -> Option<Arc<MemNode>> {
        self.lock_parent().upgrade()
    }

    pub(crate) fn set_parent(&self, parent: Weak<MemNode>) {
        *self.lock_parent() = parent;
    }

    fn lock_parent(&self) -> MutexGuard<'_, Weak<MemNode>> {
        self.parent.lock()
    }

    pub(crate) fn entry(self: Arc<MemNode>) -> Entry {
        let attr = self.read().attr(&self);
        Entry { node: self, attr }
    }
}

impl Drop for MemNode {
    /// Drops descendants in a loop: a client may have created directories nested deeper than the
    /// stack allows.
    fn drop(&mut self) {
        self.shared.nodes(self.id).remove(&self.id);
        let mut below = self.take_children();
        while let Some(node) = below.pop() {
            if let Some(mut node) = Arc::into_inner(node) {
                below.append(&mut node.take_children());
            }
        }
    }
}

impl MemNode {
    fn take_children(&mut self) -> Vec<Arc<MemNode>> {
        let state = self.state.get_mut();
        state
            .dir_mut()
            .map(|dir| dir.drain().collect())
            .unwrap_or_default()
    }
}

impl State {
    /// Records a change of attributes or links.
    pub(crate) fn changed(&mut self, now: Time) {
        self.meta.ctime = now;
        self.meta.change += 1;
    }

    /// Records a change of contents.
    pub(crate) fn modified(&mut self, now: Time) {
        self.meta.mtime = now;
        self.changed(now);
    }

    /// Removes privileges as a change of contents by `caller` does: set-id bits unless it is the
    /// super-user, file capabilities always (`file_remove_privs` of Linux).
    pub(crate) fn drop_privileges(&mut self, caller: &Caller) {
        if !perm::is_root(caller) {
            self.drop_set_id();
        }
        self.xattrs.drop_capabilities();
    }

    /// Removes set-id bits; set-gid without group execution has another meaning and stays.
    pub(crate) fn drop_set_id(&mut self) {
        let set_gid = if self.meta.mode & 0o010 != 0 {
            0o2000
        } else {
            0
        };
        self.meta.mode &= !(0o4000 | set_gid);
    }

    pub(crate) fn size(&self) -> u64 {
        match &self.body {
            Body::File(pages) => pages.size(),
            Body::Symlink(target) => target.len() as u64,
            Body::Directory(_) | Body::Device(_) => 0,
        }
    }

    /// Returns the attributes of `node`, whose state this is.
    pub(crate) fn attr(&self, node: &MemNode) -> Attr {
        let allocated = match &self.body {
            Body::File(pages) => pages.allocated(),
            _ => 0,
        };
        let meta = &self.meta;
        Attr {
            id: node.id,
            generation: node.shared.generation,
            kind: node.kind,
            mode: meta.mode,
            nlink: meta.nlink,
            uid: meta.uid,
            gid: meta.gid,
            rdev: match self.body {
                Body::Device(device) => device,
                _ => Device::default(),
            },
            size: self.size(),
            blksize: PAGE as u32,
            blocks: allocated / 512,
            atime: meta.atime,
            mtime: meta.mtime,
            ctime: meta.ctime,
            btime: Some(meta.btime),
            change: meta.change,
            device: 0,
        }
    }

    pub(crate) fn dir(&self) -> Option<&Dir> {
        match &self.body {
            Body::Directory(dir) => Some(dir),
            _ => None,
        }
    }

    pub(crate) fn dir_mut(&mut self) -> Option<&mut Dir> {
        match &mut self.body {
            Body::Directory(dir) => Some(dir),
            _ => None,
        }
    }

    pub(crate) fn pages(&self) -> Option<&Pages> {
        match &self.body {
            Body::File(pages) => Some(pages),
            _ => None,
        }
    }

    pub(crate) fn pages_mut(&mut self) -> Option<&mut Pages> {
        match &mut self.body {
            Body::File(pages) => Some(pages),
            _ => None,
        }
    }

    /// Returns whether a read updates atime now: relatime, the default of Linux mounts.
    pub(crate) fn wants_atime(&self, now: Time) -> bool {
        /// Seconds after which a read updates atime in any case: a day.
        const OLD: i64 = 24 * 60 * 60;
        let meta = &self.meta;
        meta.atime <= meta.mtime || meta.atime <= meta.ctime || now.sec - meta.atime.sec >= OLD
    }
}
