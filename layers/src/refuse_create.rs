//! Handling of existing names in layers that refuse to create new ones.

use vfs::{Cx, Entry, Errno, Kind, Name, Node, OpenFlags, Result};

/// Returns the existing child `name` that [`Node::create`] would open, or the error `missing` if it
/// would create one.
pub(crate) fn find_existing(
    dir: &dyn Node,
    cx: &Cx<'_>,
    name: Name<'_>,
    flags: OpenFlags,
    missing: Errno,
) -> Result<Entry> {
    match dir.lookup(cx, name) {
        Err(Errno::ENOENT) => Err(missing),
        Ok(_) if flags.contains(OpenFlags::EXCL) => Err(Errno::EEXIST),
        Ok(entry) if entry.node.kind() == Kind::Directory => Err(Errno::EISDIR),
        found => found,
    }
}

/// Returns why `name` cannot be created: `EEXIST` if it exists, otherwise `refused`.
pub(crate) fn creation_error(dir: &dyn Node, cx: &Cx<'_>, name: Name<'_>, refused: Errno) -> Errno {
    match dir.lookup(cx, name) {
        Ok(_) => Errno::EEXIST,
        Err(Errno::ENOENT) => refused,
        Err(errno) => errno,
    }
}
