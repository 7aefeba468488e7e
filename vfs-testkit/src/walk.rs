//! A walk that reads everything in a tree, for sources of untrusted and possibly inconsistent
//! trees.

use vfs::{Caller, FileSystem, Kind, Plus, Seek};

use crate::context::{Seen, run};
use crate::seen::R;

/// Bytes to read at the start and at the end of a file: enough for any layout.
const PIECE: usize = 70_000;

/// Walks the tree of `fs` up to `most` nodes, calls all reading operations of each, and returns the
/// number of nodes. Errors are accepted.
pub fn walk_all(fs: &dyn FileSystem, most: usize) -> usize {
    let who = Caller::ROOT;
    let Ok(root) = run(&who, |cx| fs.root(cx)) else {
        return 0;
    };
    let mut left = vec![Seen { node: root, who }];
    let mut nodes = 0;
    while let Some(node) = left.pop() {
        nodes += 1;
        if nodes == most {
            break;
        }
        ask(fs, &node);
        if node.kind() != Kind::Directory {
            continue;
        }
        let Ok(dir) = node.open(R) else { continue };
        let entries = dir.readdir(0, Plus::Entries, most).unwrap_or_default();
        for entry in entries {
            let _ = dir.readdir(entry.cookie, Plus::Names, 2);
            if vfs::Name::new(&entry.name).is_ok() {
                left.extend(node.lookup(&entry.name));
            }
        }
    }
    nodes
}

fn ask(fs: &dyn FileSystem, node: &Seen) {
    let attr = node.attr();
    let _ = (node.statfs(), node.parent().map(drop), node.readlink());
    let handle = node.handle();
    if let Ok(handle) = handle {
        let _ = run(&node.who, |cx| fs.resolve(cx, &handle)).map(drop);
    }
    for name in node.xattrs().unwrap_or_default() {
        let _ = node.xattr(&name);
    }
    if node.kind() != Kind::File {
        return;
    }
    let Ok(file) = node.open(R) else { return };
    for offset in [0, attr.size / 2, attr.size.saturating_sub(PIECE as u64)] {
        if let Ok(bytes) = file.read(offset, PIECE) {
            assert!(
                bytes.len() as u64 <= attr.size - offset,
                "more than there is"
            );
        }
        let _ = (file.seek(offset, Seek::Data), file.seek(offset, Seek::Hole));
    }
}
