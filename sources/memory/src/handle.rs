//! Handles: the number of a node and the generation of its tree.

use vfs::{Handle, NodeId, Result};

/// Returns the handle of the node `id` in a tree with this generation.
pub(crate) fn handle_of(id: NodeId, generation: u64) -> Result<Handle> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    bytes[8..].copy_from_slice(&generation.to_le_bytes());
    Handle::new(&bytes)
}

/// Returns the number and the generation in a handle, `None` if it is malformed.
pub(crate) fn parse_handle(handle: &Handle) -> Option<(NodeId, u64)> {
    let (id, rest) = handle.bytes().split_first_chunk()?;
    let generation = <[u8; 8]>::try_from(rest).ok()?;
    Some((u64::from_le_bytes(*id), u64::from_le_bytes(generation)))
}
