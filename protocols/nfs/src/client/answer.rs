//! What answers tell, whatever the version.

use vfs::{Attr, Kind, NodeId};

/// Where a tree begins: nodes of its root's file system go by their own numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tree {
    /// The root's file system.
    pub fsid: u64,
    /// The preferred size of an I/O, bytes.
    pub blksize: u32,
}

impl Tree {
    /// A node's number here: a server's is one of its file system only. 0 is nobody's.
    pub(super) fn node_id(self, fsid: u64, fileid: u64) -> NodeId {
        let id = match fsid == self.fsid {
            true => fileid,
            // Far apart, so that file systems do not meet (the golden ratio's bits, as Fibonacci hashing
            // has them).
            false => fileid ^ (fsid ^ self.fsid).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        };
        id.max(1)
    }
}

/// A node, with what the server tells of it: it need not tell all.
#[derive(Clone, Debug)]
pub struct Made {
    /// What the server calls it.
    pub handle: Option<Box<[u8]>>,
    /// Its attributes.
    pub attr: Option<Attr>,
}

/// What was read.
#[derive(Clone, Copy)]
pub struct ReadData<'r> {
    /// The bytes.
    pub data: &'r [u8],
    /// Whether the file ends behind them.
    pub eof: bool,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// How many bytes.
    pub count: u32,
    /// Whether they are durable already.
    pub durable: bool,
    /// Differs from that of COMMIT if they were lost in between.
    pub verifier: [u8; 8],
}

/// Some entries of a directory.
pub struct Page<'r> {
    /// To go on with.
    pub verifier: [u8; 8],
    /// The entries; in v3, dots among them.
    pub entries: Vec<Listed<'r>>,
    /// Whether there are no more.
    pub eof: bool,
}

/// An entry.
pub struct Listed<'r> {
    /// Its name.
    pub name: &'r [u8],
    /// Its number.
    pub id: NodeId,
    /// Where to go on behind it.
    pub cookie: u64,
    /// What it is, if the server tells that much.
    pub kind: Option<Kind>,
    /// Its attributes.
    pub attr: Option<Attr>,
    /// What the server calls it.
    pub handle: Option<Box<[u8]>>,
}

/// The most bytes of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of a READ.
    pub read: u32,
    /// Of a WRITE.
    pub write: u32,
}
