//! Complete listings of directories, for programs and image creation.

use crate::{Cx, DirEntry, Entry, Node, OpenFlags, ReaddirMode, Result};

/// A directory entry with its node.
pub struct NamedEntry {
    /// The entry's name.
    pub name: Vec<u8>,
    /// The node, or `None` if it could not be looked up.
    pub entry: Option<Entry>,
}

/// Returns all entries of the directory `dir`, sorted by name.
pub fn list(cx: &Cx<'_>, dir: &dyn Node) -> Result<Vec<NamedEntry>> {
    let open = dir.open(cx, OpenFlags::READ)?;
    let (mut entries, mut last) = (Vec::new(), 0);
    loop {
        let (before, cookie) = (entries.len(), last);
        open.readdir(cx, cookie, ReaddirMode::Entries, &mut |entry: DirEntry<
            '_,
        >| {
            last = entry.cookie;
            entries.push(NamedEntry {
                name: entry.name.to_vec(),
                entry: entry.entry,
            });
            true
        })?;
        if entries.len() == before {
            break;
        }
    }
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}
