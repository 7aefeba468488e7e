//! What a format knows of its nodes. All else about nodes that never change is the same for every format (`node`, `file`).

use std::any::Any;
use std::sync::Arc;

use vfs::acl::Acl;
use vfs::{
    Attr, Capabilities, Cx, Errno, FileSystem, Handle, Kind, Node, NodeId, Patience, Plus, Result,
    Sink, StatFs,
};

/// An opened image of a format. Whatever has to be read for an answer is read with the patience that is given, or
/// `WOULD_BLOCK`.
pub(crate) trait Format: Send + Sync + Sized + 'static {
    /// A node, as it was found.
    type Item: Send + Sync + 'static;

    /// The root, a directory.
    fn root(&self, patience: Patience) -> Result<Self::Item>;

    /// The node that [`Format::handle`] made a handle of; `ESTALE` for any other.
    fn resolve(&self, handle: &Handle, patience: Patience) -> Result<Self::Item>;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Figures of the whole.
    fn statfs(&self) -> StatFs;

    /// A node's attributes.
    fn attr(&self, item: &Self::Item) -> Attr;

    /// A handle that outlives the process.
    fn handle(&self, item: &Self::Item) -> Result<Handle>;

    /// The child `name` of a directory, or `ENOENT`.
    fn find(&self, dir: &Self::Item, name: &[u8], patience: Patience) -> Result<Self::Item>;

    /// A directory's directory; the root's is the root.
    fn parent(&self, dir: &Self::Item, patience: Patience) -> Result<Self::Item>;

    /// Gives `each` the children of a directory behind `cookie`, without dots, until it says stop (`false`).
    fn list(
        &self,
        dir: &Self::Item,
        cookie: u64,
        plus: Plus,
        patience: Patience,
        each: &mut dyn FnMut(Listed<'_, Self::Item>) -> bool,
    ) -> Result<()>;

    /// The target of a symbolic link.
    fn target(&self, item: &Self::Item, patience: Patience) -> Result<Vec<u8>>;

    /// The ACL that says more than the mode, if there is one.
    fn acl(&self, item: &Self::Item, patience: Patience) -> Result<Option<Acl>>;

    /// An extended attribute, if there is one of this name.
    fn xattr(&self, item: &Self::Item, name: &[u8], patience: Patience) -> Result<Option<Vec<u8>>>;

    /// Gives `each` the names of all extended attributes.
    fn xattrs(
        &self,
        item: &Self::Item,
        patience: Patience,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<()>;

    /// Finds out where its contents are, which reading has to know.
    fn ready(&self, item: &Self::Item, patience: Patience) -> Result<()>;

    /// What of a file has `offset`, which is before its end, from there on: its end, and whether it is a hole.
    fn extent(&self, item: &Self::Item, offset: u64, patience: Patience) -> Result<(u64, bool)>;

    /// Puts up to `len` bytes of a file from `offset`, all of them before its end, into `sink`, and says how many.
    fn put(
        &self,
        item: &Self::Item,
        offset: u64,
        len: u64,
        patience: Patience,
        sink: &mut dyn Sink,
    ) -> Result<usize>;
}

/// A child in a listing.
pub(crate) struct Listed<'a, I> {
    pub(crate) name: &'a [u8],
    pub(crate) id: NodeId,
    pub(crate) kind: Option<Kind>,
    pub(crate) cookie: u64,
    /// The node, where the listing was asked for nodes, and it could be read.
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

/// What cannot be read is not there; what could be read later might be.
pub(crate) fn stale(errno: Errno) -> Errno {
    match errno {
        Errno::WOULD_BLOCK => errno,
        _ => Errno::ESTALE,
    }
}

/// A handle of three numbers.
pub(crate) fn handle_of(words: [u64; 3]) -> Result<Handle> {
    Handle::new(words.map(u64::to_le_bytes).as_flattened())
}

/// The numbers of a handle.
pub(crate) fn parse_handle(handle: &Handle) -> Result<[u64; 3]> {
    let (words, rest) = handle.bytes().as_chunks::<8>();
    match (<&[[u8; 8]; 3]>::try_from(words), rest) {
        (Ok(words), []) => Ok(words.map(u64::from_le_bytes)),
        _ => Err(Errno::ESTALE),
    }
}

/// FNV-1a, of 64 bits: for telling images apart, not against forgery.
pub(crate) fn fold(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}
