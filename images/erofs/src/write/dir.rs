//! Directory blocks: encoding.

use alloc::vec::Vec;

use super::BLOCK;
use crate::layout::{Dirent, FileType};

/// A directory entry to write.
pub(super) struct Entry<'a> {
    pub(super) name: &'a [u8],
    /// Index of the inode.
    pub(super) inode: usize,
}

/// Returns all entries of a directory, `.` and `..` included, sorted by name.
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

/// Returns the number of entries in each block, and the size in bytes of the last block.
pub(super) fn split_blocks(entries: &[Entry<'_>]) -> (Vec<usize>, usize) {
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

/// Encodes one block: entries, then names.
pub(super) fn encode_block(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_sorted_and_cut_into_blocks() {
        let child = |name: Vec<u8>, at| (name, at);
        let mut children: Vec<_> = (0..16_u8)
            .map(|at| child([&[b'a' + at][..], &[b'n'; 254]].concat(), 2))
            .collect();
        children.insert(0, child(b"!".to_vec(), 2));
        let all = entries(0, 1, &children);
        let first: Vec<_> = all
            .iter()
            .take(3)
            .map(|entry| (entry.name, entry.inode))
            .collect();
        assert_eq!(first, [(&b"!"[..], 2), (b".", 0), (b"..", 1)]);
        // Entries of 13, 13 and 14 bytes, 15 of 267 bytes, and one that does not fit.
        assert_eq!(split_blocks(&all), (alloc::vec![18, 1], 267));
        let bytes = encode_block(&all[..18], |at| (at as u64, FileType::Directory));
        assert_eq!(bytes.len(), 40 + 15 * 267);
        assert_eq!(bytes[..12], [2, 0, 0, 0, 0, 0, 0, 0, 216, 0, 2, 0]);
        assert_eq!(bytes[216..220], *b"!...");
    }
}
