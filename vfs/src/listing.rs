//! Complete listings of directories.

use crate::{Cx, DirEntry, Entry, File, Node, OpenFlags, ReaddirMode, Result};

/// A directory entry with its node.
pub struct NamedEntry {
    /// The entry's name.
    pub name: Vec<u8>,
    /// The node, or `None` if it could not be looked up.
    pub entry: Option<Entry>,
}

/// Passes each entry of the open directory `dir` to `each`, from its start to its end.
pub fn for_each_entry(
    cx: &Cx<'_>,
    dir: &dyn File,
    mode: ReaddirMode,
    mut each: impl FnMut(DirEntry<'_>),
) -> Result<()> {
    let mut cookie = 0;
    loop {
        let before = cookie;
        dir.readdir(cx, before, mode, &mut |entry: DirEntry<'_>| {
            cookie = entry.cookie;
            each(entry);
            true
        })?;
        if cookie == before {
            return Ok(());
        }
    }
}

/// Returns all entries of the directory `dir`, sorted by name.
pub fn list(cx: &Cx<'_>, dir: &dyn Node) -> Result<Vec<NamedEntry>> {
    let open = dir.open(cx, OpenFlags::READ)?;
    let mut entries = Vec::new();
    for_each_entry(cx, &*open, ReaddirMode::Entries, |entry| {
        entries.push(NamedEntry {
            name: entry.name.to_vec(),
            entry: entry.entry,
        });
    })?;
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}
