//! The location of a node in the lower tree: its handle as a lower node (the second form of
//! `handle`), which an attribute of its copy records.

use vfs::{Cx, Errno, Kind, NodeId, Result};

use super::node::{OverlayNode, State};
use super::tree::as_process;

/// The first byte of such a handle.
const LOWER: u8 = 2;

/// A handle as a lower node.
pub(super) struct Origin<'a> {
    pub(super) id: NodeId,
    pub(super) directory: &'a [u8],
}

impl<'a> Origin<'a> {
    pub(super) fn read(bytes: &'a [u8]) -> Option<Origin<'a>> {
        let (&LOWER, rest) = bytes.split_first()? else {
            return None;
        };
        let (id, directory) = rest.split_first_chunk()?;
        Some(Origin {
            id: NodeId::from_le_bytes(*id),
            directory,
        })
    }
}

/// Returns the handle of a node that is or was in the lower tree.
pub(super) fn origin_of(node: &OverlayNode, cx: &Cx<'_>, state: &State) -> Option<Result<Vec<u8>>> {
    if let Some(origin) = &state.origin {
        return Some(Ok(origin.clone()));
    }
    let directory = match (&state.lower, &state.dentry) {
        (None, _) => return None,
        (Some(lower), _) if node.kind == Kind::Directory => lower.handle(&as_process(cx)),
        // A lower name was found in a lower directory.
        (Some(_), Some(dentry)) => match dentry.parent.state().lower {
            Some(parent) => parent.handle(&as_process(cx)),
            None => return None,
        },
        (Some(_), None) => Err(Errno::ESTALE),
    };
    Some(directory.map(|directory| {
        let mut bytes = vec![LOWER];
        bytes.extend_from_slice(&node.id.to_le_bytes());
        bytes.extend_from_slice(directory.bytes());
        bytes
    }))
}
