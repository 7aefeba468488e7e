//! Nodes that stand for removed objects while an agent removes their names. They have attributes
//! and a handle; all other operations return `ESTALE`.

use std::sync::Arc;

use vfs::{Attr, Device, Entry, Handle, Kind, NodeId, StaleNode, Time};

/// The first bytes of a handle, which no source's has.
const HANDLE_PREFIX: &[u8] = b"removed\0";

/// Returns an entry with a new node of an object that no client knows. No other node has the
/// number `id`.
pub(super) fn unknown(id: NodeId, kind: Kind) -> Entry {
    let none = Time { sec: 0, nsec: 0 };
    let (mode, nlink) = match kind {
        Kind::Directory => (0o755, 2),
        _ => (0o644, 1),
    };
    let attr = Attr {
        id,
        generation: 0,
        kind,
        mode,
        nlink,
        uid: 0,
        gid: 0,
        rdev: Device::default(),
        size: 0,
        blksize: 4096,
        blocks: 0,
        atime: none,
        mtime: none,
        ctime: none,
        btime: None,
        change: 0,
        device: 0,
    };
    of(attr, None)
}

/// Returns an entry with a new node of an object that had these attributes, and this handle.
pub(super) fn of(attr: Attr, handle: Option<Handle>) -> Entry {
    let own = || {
        let bytes = [HANDLE_PREFIX, &attr.id.to_le_bytes()].concat();
        Handle::new(&bytes).expect("16 bytes are less than a handle's")
    };
    let handle = handle.unwrap_or_else(own);
    Entry {
        node: Arc::new(StaleNode::known(attr, handle)),
        attr,
    }
}
