//! What layers that let nothing be made still do with names that are there.

use vfs::{Cx, Entry, Errno, Kind, Name, Node, OpenFlags, Result};

/// The child `name` that [`Node::create`] would open as it is; `missing` if it would have to make
/// one.
pub(crate) fn find(
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

/// Why `name` is not made: because it is there, or else `refused`.
pub(crate) fn refuse(dir: &dyn Node, cx: &Cx<'_>, name: Name<'_>, refused: Errno) -> Errno {
    match dir.lookup(cx, name) {
        Ok(_) => Errno::EEXIST,
        Err(Errno::ENOENT) => refused,
        Err(errno) => errno,
    }
}
