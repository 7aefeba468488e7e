//! A walk that reads everything in a tree, for sources of untrusted and possibly inconsistent
//! trees.

use vfs::{Caller, FileSystem, Kind, ReaddirMode, Whence};

use crate::context::{TestNode, run};
use crate::test_node::R;

/// Bytes to read at the start and at the end of a file: enough for any layout.
const READ_SIZE: usize = 70_000;

/// Walks the tree of `fs` up to `most` nodes, calls all reading operations of each, and returns the
/// number of nodes. Errors are accepted.
pub fn walk_all(fs: &dyn FileSystem, most: usize) -> usize {
    let caller = Caller::ROOT;
    let Ok(root) = run(&caller, |cx| fs.root(cx)) else {
        return 0;
    };
    let mut left = vec![TestNode { node: root, caller }];
    let mut nodes = 0;
    while let Some(node) = left.pop() {
        nodes += 1;
        if nodes == most {
            break;
        }
        read_node(fs, &node);
        if node.kind() != Kind::Directory {
            continue;
        }
        let Ok(dir) = node.open(R) else { continue };
        let entries = dir
            .readdir(0, ReaddirMode::Entries, most)
            .unwrap_or_default();
        for entry in entries {
            let _ = dir.readdir(entry.cookie, ReaddirMode::Names, 2);
            if vfs::Name::new(&entry.name).is_ok() {
                left.extend(node.lookup(&entry.name));
            }
        }
    }
    nodes
}

fn read_node(fs: &dyn FileSystem, node: &TestNode) {
    let attr = node.attr();
    let _ = (node.statfs(), node.parent().map(drop), node.readlink());
    let handle = node.handle();
    if let Ok(handle) = handle {
        let _ = run(&node.caller, |cx| fs.resolve(cx, &handle)).map(drop);
    }
    for name in node.xattrs().unwrap_or_default() {
        let _ = node.xattr(&name);
    }
    if node.kind() != Kind::File {
        return;
    }
    let Ok(file) = node.open(R) else { return };
    for offset in [0, attr.size / 2, attr.size.saturating_sub(READ_SIZE as u64)] {
        if let Ok(bytes) = file.read(offset, READ_SIZE) {
            assert!(
                bytes.len() as u64 <= attr.size - offset,
                "more than there is"
            );
        }
        let _ = (
            file.seek(offset, Whence::Data),
            file.seek(offset, Whence::Hole),
        );
    }
}
