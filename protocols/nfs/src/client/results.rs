//! Results that v3 and v4 have in common.

use vfs::{Attr, Kind, NodeId};

/// A mounted tree. Nodes of its root's file system keep their file ids.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tree {
    /// The id of the root's file system.
    pub fsid: u64,
    /// The preferred size of an I/O in bytes.
    pub blksize: u32,
}

impl Tree {
    /// Returns a node id for the whole tree: file ids are unique only in their file system. Never
    /// 0.
    pub(super) fn node_id(self, fsid: u64, fileid: u64) -> NodeId {
        let id = match fsid == self.fsid {
            true => fileid,
            // Spreads file systems apart so that their ids rarely collide (the golden ratio's bits,
            // as in Fibonacci hashing).
            false => fileid ^ (fsid ^ self.fsid).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        };
        id.max(1)
    }
}

/// A node with its handle and attributes, which a server may omit.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    /// Its file handle.
    pub handle: Option<Box<[u8]>>,
    /// Its attributes.
    pub attr: Option<Attr>,
}

/// The results of a read.
#[derive(Clone, Copy)]
pub struct ReadData<'r> {
    /// The data.
    pub data: &'r [u8],
    /// Whether the data reach the end of the file.
    pub eof: bool,
}

/// The results of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The number of bytes.
    pub count: u32,
    /// Whether they are on stable storage.
    pub durable: bool,
    /// The write verifier: COMMIT returns another one if the data may have been lost in between.
    pub verifier: [u8; 8],
}

/// A part of a directory's entries.
pub struct DirPage<'r> {
    /// The cookie verifier for the next request.
    pub verifier: [u8; 8],
    /// The entries; in v3 they include `.` and `..`.
    pub entries: Vec<ListedEntry<'r>>,
    /// Whether the directory has no more entries.
    pub eof: bool,
}

/// A directory entry.
pub struct ListedEntry<'r> {
    /// Its name.
    pub name: &'r [u8],
    /// Its node id.
    pub id: NodeId,
    /// The cookie for continuing after it.
    pub cookie: u64,
    /// Its type, if the server returns it.
    pub kind: Option<Kind>,
    /// Its attributes.
    pub attr: Option<Attr>,
    /// Its file handle.
    pub handle: Option<Box<[u8]>>,
}

/// The maximum number of data bytes in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum of a READ.
    pub read: u32,
    /// The maximum of a WRITE.
    pub write: u32,
}
