//! Blocks of directories.

use alloc::vec::Vec;

use super::BLOCK;
use crate::layout::{Dirent, FileType};

/// An entry to write.
pub(super) struct Entry<'a> {
    pub(super) name: &'a [u8],
    /// Index of the inode.
    pub(super) inode: usize,
}

/// All entries of a directory in their order, `.` and `..` among them.
pub(super) fn entries<'a>(
    own: usize,
    parent: usize,
    children: &'a [(Vec<u8>, usize)],
) -> Vec<Entry<'a>> {
    let mut all = Vec::with_capacity(children.len() + 2);
    all.push(Entry {
        name: b".",
        inode: own,
    });
    all.push(Entry {
        name: b"..",
        inode: parent,
    });
    all.extend(children.iter().map(|(name, inode)| Entry {
        name,
        inode: *inode,
    }));
    all.sort_by_key(|entry| entry.name);
    all
}

/// How many entries go into each block, and how many bytes the last one has.
pub(super) fn cut(entries: &[Entry<'_>]) -> (Vec<usize>, usize) {
    let (mut blocks, mut count, mut used) = (Vec::new(), 0, 0);
    for entry in entries {
        let bytes = Dirent::SIZE + entry.name.len();
        if used + bytes > BLOCK as usize {
            blocks.push(count);
            (count, used) = (0, 0);
        }
        count += 1;
        used += bytes;
    }
    blocks.push(count);
    (blocks, used)
}

/// One block: entries, then names.
pub(super) fn block(
    entries: &[Entry<'_>],
    inode: impl Fn(usize) -> (u64, FileType),
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK as usize);
    let mut name_offset = entries.len() * Dirent::SIZE;
    for entry in entries {
        let (nid, file_type) = inode(entry.inode);
        let dirent = Dirent {
            nid,
            name_offset: name_offset as u16,
            file_type: file_type as u8,
            reserved: 0,
        };
        bytes.extend(dirent.encode());
        name_offset += entry.name.len();
    }
    for entry in entries {
        bytes.extend(entry.name);
    }
    bytes
}
