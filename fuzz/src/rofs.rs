//! ROFS images: refused, or traversed completely, without returning a byte that is not in them.

use rofs::{BLOCK, InodeKind, Superblock, Tables};

/// Reads an image, unchanged and with a superblock that fits its size.
pub fn image(data: &[u8]) {
    read(data);
    let mut fitting = data.to_vec();
    let size = (fitting.len() as u64)
        .next_multiple_of(BLOCK)
        .max(2 * BLOCK);
    fitting.resize(size as usize, 0);
    let number = |at: usize| u64::from(fitting[at]);
    let superblock = Superblock {
        tables_block: 1,
        tables_blocks: size / BLOCK - 1,
        entries: number(40) % 16,
        symlinks: number(48) % 4,
        inodes: number(56) % 16,
    };
    fitting[..BLOCK as usize].copy_from_slice(&superblock.encode());
    read(&fitting);
}

fn read(image: &[u8]) {
    let size = image.len() as u64;
    let Some(block) = image.first_chunk() else {
        return;
    };
    let Ok(superblock) = Superblock::parse(block, size) else {
        return;
    };
    assert_eq!(
        Superblock::parse(&superblock.encode(), size),
        Ok(superblock)
    );
    let (at, len) = superblock.tables();
    let tables = image[at as usize..(at + len) as usize].to_vec();
    let Ok(tables) = Tables::parse(&superblock, tables) else {
        return;
    };
    // The traversal of a tree ends.
    let mut pending = vec![tables.root()];
    let mut met = 0;
    while let Some(inode) = pending.pop() {
        met += 1;
        assert!(met <= superblock.entries + 1);
        assert!(tables.parent(inode.number).is_some());
        match inode.kind {
            InodeKind::Directory { .. } => {
                pending.extend(tables.children(inode.number, 0).map(|child| child.inode));
            }
            InodeKind::File { block, size: bytes } => {
                assert!(bytes == 0 || block * BLOCK + bytes <= size);
            }
            InodeKind::Symlink { .. } => assert!(tables.target(inode.number).is_some()),
        }
    }
}
