//! The interface of an image format. Behaviour common to all immutable nodes is in `node` and
//! `file`.

use std::any::Any;
use std::sync::Arc;

use vfs::acl::Acl;
use vfs::{
    Attr, Capabilities, Cx, Errno, FileSystem, Handle, Kind, Node, NodeId, Patience, ReaddirMode,
    Result, Sink, StatFs,
};

/// An opened image of one format. Methods that need to read return `WOULD_BLOCK` if the given
/// patience is too low.
pub(crate) trait Format: Send + Sync + Sized + 'static {
    /// A node, as a lookup found it.
    type Item: Send + Sync + 'static;

    /// Returns the root directory.
    fn root(&self, patience: Patience) -> Result<Self::Item>;

    /// Returns the node of a handle made by [`Format::handle`], or `ESTALE` for any other handle.
    fn resolve(&self, handle: &Handle, patience: Patience) -> Result<Self::Item>;

    /// Returns the file system's capabilities.
    fn capabilities(&self) -> Capabilities;

    /// Returns statfs(2) figures.
    fn statfs(&self) -> StatFs;

    /// Returns a node's attributes.
    fn attr(&self, item: &Self::Item) -> Attr;

    /// Returns a file handle that stays valid across restarts.
    fn handle(&self, item: &Self::Item) -> Result<Handle>;

    /// Returns the child `name` of a directory, or `ENOENT`.
    fn find(&self, dir: &Self::Item, name: &[u8], patience: Patience) -> Result<Self::Item>;

    /// Returns a directory's parent; the root is its own parent.
    fn parent(&self, dir: &Self::Item, patience: Patience) -> Result<Self::Item>;

    /// Calls `each` for the children of a directory after `cookie`, without `.` and `..`, until it
    /// returns `false`.
    fn list(
        &self,
        dir: &Self::Item,
        cookie: u64,
        plus: ReaddirMode,
        patience: Patience,
        each: &mut dyn FnMut(ListedEntry<'_, Self::Item>) -> bool,
    ) -> Result<()>;

    /// Returns the target of a symbolic link.
    fn target(&self, item: &Self::Item, patience: Patience) -> Result<Vec<u8>>;

    /// Returns the access ACL, if there is one.
    fn acl(&self, item: &Self::Item, patience: Patience) -> Result<Option<Acl>>;

    /// Returns the extended attribute `name`, if there is one.
    fn xattr(&self, item: &Self::Item, name: &[u8], patience: Patience) -> Result<Option<Vec<u8>>>;

    /// Calls `each` with the names of all extended attributes.
    fn xattrs(
        &self,
        item: &Self::Item,
        patience: Patience,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<()>;

    /// Loads the location of a file's contents, which reads depend on.
    fn load_extents(&self, item: &Self::Item, patience: Patience) -> Result<()>;

    /// Returns the end of the extent that contains `offset`, and whether it is a hole. `offset` is
    /// before the end of the file.
    fn extent(&self, item: &Self::Item, offset: u64, patience: Patience) -> Result<(u64, bool)>;

    /// Puts up to `len` bytes of a file from `offset` into `sink` and returns how many. The range
    /// ends before the end of the file.
    fn put(
        &self,
        item: &Self::Item,
        offset: u64,
        len: u64,
        patience: Patience,
        sink: &mut dyn Sink,
    ) -> Result<usize>;
}

/// A directory entry in a listing.
pub(crate) struct ListedEntry<'a, I> {
    pub(crate) name: &'a [u8],
    pub(crate) id: NodeId,
    pub(crate) kind: Option<Kind>,
    pub(crate) cookie: u64,
    /// The node, if the listing requested nodes and it could be read.
    pub(crate) item: Option<I>,
}

/// An image as a file system.
pub(crate) struct Tree<F>(pub(crate) Arc<F>);

impl<F: Format> FileSystem for Tree<F> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn root(&self, cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        Ok(self.node(self.0.root(cx.patience)?))
    }

    fn resolve(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Arc<dyn Node>> {
        Ok(self.node(self.0.resolve(handle, cx.patience)?))
    }

    fn sync(&self, _cx: &Cx<'_>) -> Result<()> {
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
}

/// Maps every error but `WOULD_BLOCK` to `ESTALE`: a node that cannot be read does not exist.
pub(crate) fn stale(errno: Errno) -> Errno {
    match errno {
        Errno::WOULD_BLOCK => errno,
        _ => Errno::ESTALE,
    }
}

/// Returns a file handle of three numbers.
pub(crate) fn handle_of(words: [u64; 3]) -> Result<Handle> {
    Handle::new(words.map(u64::to_le_bytes).as_flattened())
}

/// Parses the numbers of a file handle, or returns `ESTALE`.
pub(crate) fn parse_handle(handle: &Handle) -> Result<[u64; 3]> {
    let (words, rest) = handle.bytes().as_chunks::<8>();
    match (<&[[u8; 8]; 3]>::try_from(words), rest) {
        (Ok(words), []) => Ok(words.map(u64::from_le_bytes)),
        _ => Err(Errno::ESTALE),
    }
}

/// Returns the 64-bit FNV-1a hash of `bytes`: tells images apart, but does not resist forgery.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}
