//! Nodes as the kernel's table keeps them: each in one block of memory.
//!
//! A million of them have to fit. A node has its handle and name at its end, in one of several
//! lengths, each of which fills a block of malloc(3). A request expands it to an [`NfsNode`].

use std::any::Any;
use std::sync::Arc;

use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, Attr, AttrMask, Cx, Entry, File, Kind, Mode, Name, NewNode, Node, NodeId, OpenFlags,
    RenameFlags, Result, SetAttr, StatFs, XattrFlags,
};

use super::node::NfsNode;
use super::shared::Shared;
use super::version::{Handle, Place, ProtocolVersion};

/// A node whose handle and name have `N` bytes at most, with what `D` keeps of its directory.
struct CompactNode<V: ProtocolVersion, D, const N: usize> {
    shared: Arc<Shared<V>>,
    id: NodeId,
    dir: D,
    place: Option<Place>,
    kind: Kind,
    handle_len: u8,
    /// The handle, unless it is in `dir`, and then the name, if it has one. The rest is zero, which
    /// no name contains.
    bytes: [u8; N],
}

/// The part of a node that refers to its directory.
trait KeptDir: Send + Sync + 'static {
    /// Whether it is a directory.
    const IS_SOME: bool;

    fn new(dir: Option<&Arc<Handle>>) -> Self;

    fn get(&self) -> Option<&Arc<Handle>>;
}

/// No reference: nodes are opened by handle.
impl KeptDir for () {
    const IS_SOME: bool = false;

    fn new(_: Option<&Arc<Handle>>) {}

    fn get(&self) -> Option<&Arc<Handle>> {
        None
    }
}

/// The handle of the directory that the node was found in, which all files there share, or of the
/// node itself if that is a directory.
impl KeptDir for Arc<Handle> {
    const IS_SOME: bool = true;

    fn new(dir: Option<&Arc<Handle>>) -> Arc<Handle> {
        dir.expect("a node with a directory").clone()
    }

    fn get(&self) -> Option<&Arc<Handle>> {
        Some(self)
    }
}

/// Calls a macro with each kind of directory and length of handle and name. With the rest of a node
/// and the counters of its `Arc`, the blocks are 72, 88, 104, 120, 136 and 168 bytes, or 184, 248
/// and 440. The longest handle is 128 bytes (`NFS4_FHSIZE`), and the longest name 255.
macro_rules! for_each_form {
    ($call:ident) => {
        $call!((), 34, 50, 66, 82, 98, 130);
        $call!(Arc<Handle>, 26, 42, 58, 74, 90, 106, 138, 202, 394);
    };
}

impl<V: ProtocolVersion> NfsNode<V> {
    /// Returns the node to be kept.
    pub(super) fn compact(&self) -> Arc<dyn Node> {
        let has_own = self.kind == Kind::Directory && self.dir.is_some();
        let handle: &[u8] = if has_own { &[] } else { &self.handle };
        let name = self.name.as_ref().map_or(&[][..], |name| name.bytes());
        let len = handle.len() + name.len();
        macro_rules! smallest {
            ($dir:ty, $($most:literal),*) => {
                if self.dir.is_some() == <$dir>::IS_SOME {
                    $(if len <= $most {
                        return Arc::new(CompactNode::<V, $dir, $most>::new(self, handle, name));
                    })*
                }
            };
        }
        for_each_form!(smallest);
        // No server may have such a handle: the node is kept as it is.
        Arc::new(self.clone())
    }

    /// Returns a node of any server as one of a mount of this version.
    pub(super) fn of(node: &dyn Node) -> Option<NfsNode<V>> {
        let node = node.as_any();
        macro_rules! any {
            ($dir:ty, $($most:literal),*) => {
                $(if let Some(node) = node.downcast_ref::<CompactNode<V, $dir, $most>>() {
                    return Some(node.expand());
                })*
            };
        }
        for_each_form!(any);
        node.downcast_ref::<NfsNode<V>>().cloned()
    }
}

impl<V: ProtocolVersion, D: KeptDir, const N: usize> CompactNode<V, D, N> {
    fn new(node: &NfsNode<V>, handle: &[u8], name: &[u8]) -> CompactNode<V, D, N> {
        let mut bytes = [0; N];
        bytes[..handle.len()].copy_from_slice(handle);
        bytes[handle.len()..][..name.len()].copy_from_slice(name);
        CompactNode {
            shared: node.shared.clone(),
            id: node.id,
            dir: D::new(node.dir.as_ref()),
            place: node.place,
            kind: node.kind,
            handle_len: handle.len() as u8,
            bytes,
        }
    }

    fn expand(&self) -> NfsNode<V> {
        let (handle, name) = self.bytes.split_at(self.handle_len.into());
        let dir = self.dir.get();
        let handle = match dir {
            Some(dir) if self.kind == Kind::Directory => (**dir).clone(),
            _ => handle.into(),
        };
        let end = name.iter().position(|&byte| byte == 0);
        let name = Name::new(&name[..end.unwrap_or(name.len())]).ok();
        NfsNode {
            shared: self.shared.clone(),
            id: self.id,
            kind: self.kind,
            place: self.place,
            handle,
            dir: dir.cloned(),
            name: name.map(p9::CompactName::new),
        }
    }
}

impl<V: ProtocolVersion, D: KeptDir, const N: usize> Node for CompactNode<V, D, N> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> NodeId {
        self.id
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn handle(&self, cx: &Cx<'_>) -> Result<vfs::Handle> {
        Node::handle(&self.expand(), cx)
    }

    fn attr(&self, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        self.expand().attr(cx, want)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        self.expand().setattr(cx, set)
    }

    fn access(&self, cx: &Cx<'_>, want: Access) -> Result<Access> {
        self.expand().access(cx, want)
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        self.expand().statfs(cx)
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        self.expand().open(cx, flags)
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.expand().readlink(cx)
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        self.expand().lookup(cx, name)
    }

    fn parent(&self, cx: &Cx<'_>) -> Result<Entry> {
        self.expand().parent(cx)
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        self.expand().create(cx, name, flags, mode)
    }

    fn make(&self, cx: &Cx<'_>, name: Name<'_>, what: NewNode<'_>, mode: Mode) -> Result<Entry> {
        self.expand().make(cx, name, what, mode)
    }

    fn tmpfile(&self, cx: &Cx<'_>, flags: OpenFlags, mode: Mode) -> Result<(Entry, Arc<dyn File>)> {
        self.expand().tmpfile(cx, flags, mode)
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &dyn Node) -> Result<Entry> {
        self.expand().link(cx, name, target)
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        self.expand().unlink(cx, name, dir)
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &dyn Node,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.expand().rename(cx, name, to, to_name, flags)
    }

    fn xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.expand().xattr(cx, name)
    }

    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.expand().xattrs(cx)
    }

    fn set_xattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.expand().set_xattr(cx, name, value, flags)
    }

    fn remove_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        self.expand().remove_xattr(cx, name)
    }

    fn host_lock(&self, cx: &Cx<'_>, range: LockRange, state: HostLock) -> Result<()> {
        self.expand().host_lock(cx, range, state)
    }

    fn host_lock_holder(
        &self,
        cx: &Cx<'_>,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<ForeignLock>> {
        self.expand().host_lock_holder(cx, range, kind)
    }
}

#[cfg(test)]
mod tests {
    use super::super::v3::V3;
    use super::*;

    #[test]
    fn each_node_fills_a_block() {
        // After the two counters of the `Arc`.
        macro_rules! check {
            ($dir:ty, $($most:literal),*) => {
                let rest = 22 + size_of::<$dir>();
                $(assert_eq!(size_of::<CompactNode<V3, $dir, $most>>(), rest + $most);)*
            };
        }
        for_each_form!(check);
    }
}
