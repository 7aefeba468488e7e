//! Handles. An upper node has the upper file system's handle, after a byte; a node that is or was
//! in the lower tree keeps a handle that tells its location there:
//!
//! ```text
//! 1 | the upper's handle
//! 2 | number u64 | the lower handle of its directory, or its own if it is a directory
//! ```
//!
//! A handle resolves to its node while this process has that node. Otherwise a handle of the second
//! form is resolved by name, by listing each directory on the path: it is stale if something on it
//! was renamed.

use std::sync::Arc;

use vfs::{Cx, DirEntry, Entry, Errno, Handle, Kind, Name, Node, OpenFlags, ReaddirMode, Result};

use super::lookup::upper_id;
use super::node::{OverlayNode, State, live_node};
use super::origin::{Origin, origin_of};
use super::tree::as_process;

/// The first byte of the first form.
const UPPER: u8 = 1;

/// The maximum depth of a directory that can be resolved by name, the most components that fit in
/// `PATH_MAX`.
const MAX_DEPTH: usize = 2048;

/// Implements [`Node::handle`].
pub(super) fn of(node: &OverlayNode, cx: &Cx<'_>) -> Result<Handle> {
    let state = node.state();
    let bytes = match (origin_of(node, cx, &state), &state.upper) {
        (Some(origin), _) => origin?,
        (None, Some(upper)) => {
            let mut bytes = vec![UPPER];
            bytes.extend_from_slice(upper.handle(cx)?.bytes());
            bytes
        }
        (None, None) => return Err(Errno::ESTALE),
    };
    match bytes.len() <= Handle::MAX_SOURCE {
        true => Handle::new(&bytes),
        false => Err(Errno::EOPNOTSUPP),
    }
}

/// Implements [`vfs::FileSystem::resolve`].
pub(super) fn resolve(
    root: &Arc<OverlayNode>,
    cx: &Cx<'_>,
    handle: &Handle,
) -> Result<Arc<OverlayNode>> {
    let tree = &root.tree;
    let Some((&form, rest)) = handle.bytes().split_first() else {
        return Err(Errno::ESTALE);
    };
    if form == UPPER {
        return resolve_upper(root, cx, &Handle::new(rest)?);
    }
    let origin = Origin::read(handle.bytes()).ok_or(Errno::ESTALE)?;
    let directory = Handle::new(origin.directory)?;
    // Checked first: a client that makes up the number does not have the directory's handle.
    let directory = tree.lower.resolve(&as_process(cx), &directory)?;
    if let Some(node) = live_node(tree, origin.id) {
        return match of(&node, cx) {
            Ok(own) if own == *handle => Ok(node),
            Ok(_) => Err(Errno::ESTALE),
            Err(errno) => Err(errno),
        };
    }
    cx.check_may_block()?;
    let cx = &as_process(cx);
    let _names = tree.names_shared(cx)?;
    let mut found = descend(
        root,
        cx,
        &path_of(&*tree.lower.root(cx)?, cx, directory.clone())?,
    )?;
    if directory.id() != origin.id {
        let name = name_where(&*directory, cx, |entry, name| {
            found.lower_id(&entry.attr, name) == origin.id
        })?;
        found = found.find(cx, Name::new(&name)?)?.node;
    }
    match of(&found, cx)? == *handle {
        true => Ok(found),
        false => Err(Errno::ESTALE),
    }
}

fn resolve_upper(
    root: &Arc<OverlayNode>,
    cx: &Cx<'_>,
    handle: &Handle,
) -> Result<Arc<OverlayNode>> {
    let tree = &root.tree;
    let cx = &as_process(cx);
    let upper = tree.changes.resolve(cx, handle)?;
    let id = upper_id(upper.id());
    if let Some(node) = live_node(tree, id) {
        return Ok(node);
    }
    if upper.kind() != Kind::Directory {
        let state = State {
            upper: Some(upper),
            ..State::default()
        };
        return Ok(OverlayNode::get_or_create(tree, id, state));
    }
    cx.check_may_block()?;
    let _names = tree.names_shared(cx)?;
    let top = root.upper().ok_or(Errno::ESTALE)?;
    let found = descend(root, cx, &path_of(&*top, cx, upper)?)?;
    match found.id == id {
        true => Ok(found),
        false => Err(Errno::ESTALE),
    }
}

/// Returns the names on the path from `top` to `dir`, the last one first.
fn path_of(top: &dyn Node, cx: &Cx<'_>, mut dir: Arc<dyn Node>) -> Result<Vec<Vec<u8>>> {
    let mut path = Vec::new();
    while dir.id() != top.id() {
        let parent = dir.parent(cx)?.node;
        if path.len() == MAX_DEPTH || parent.id() == dir.id() {
            return Err(Errno::ESTALE);
        }
        let id = dir.id();
        path.push(name_where(&*parent, cx, |entry, _| entry.node.id() == id)?);
        dir = parent;
    }
    Ok(path)
}

fn descend(root: &Arc<OverlayNode>, cx: &Cx<'_>, path: &[Vec<u8>]) -> Result<Arc<OverlayNode>> {
    let mut node = root.clone();
    for name in path.iter().rev() {
        let found = node.find(cx, Name::new(name)?);
        node = found.map_err(|_| Errno::ESTALE)?.node;
        if node.kind != Kind::Directory {
            return Err(Errno::ESTALE);
        }
    }
    Ok(node)
}

/// Returns the name of the entry for which `is_it` is true, `ESTALE` if there is none.
fn name_where(
    dir: &dyn Node,
    cx: &Cx<'_>,
    is_it: impl Fn(&Entry, Name<'_>) -> bool,
) -> Result<Vec<u8>> {
    let mut found = None;
    let mut search = |entry: DirEntry<'_>| {
        let name = Name::new(entry.name).ok().zip(entry.entry);
        let is_found = name.is_some_and(|(name, entry)| is_it(&entry, name));
        found = is_found.then(|| entry.name.to_vec());
        !is_found
    };
    let listing = dir.open(cx, OpenFlags::READ)?;
    listing.readdir(cx, 0, ReaddirMode::Entries, &mut search)?;
    found.ok_or(Errno::ESTALE)
}
