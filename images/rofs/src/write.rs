//! Writer: the caller passes a tree in depth-first order; [`Writer`] assigns positions to file data
//! and finally returns superblock and tables. The caller writes the file data, padded with zeros to
//! full blocks.

use alloc::vec;
use alloc::vec::Vec;

use crate::layout::{BLOCK, Entry, Inode, InodeKind, Superblock, blocks, encode_text};

/// An image under construction. A directory's children are added between [`Writer::enter`] and
/// [`Writer::leave`], in any order; inodes are numbered in the order of addition.
pub struct Writer {
    inodes: Vec<Inode>,
    /// The table of entries.
    entries: Vec<u8>,
    entry_count: u64,
    symlinks: Vec<u8>,
    symlink_count: u64,
    /// The block for the next file's data.
    next_block: u64,
    /// The directories entered and not left, the root first.
    open_directories: Vec<OpenDirectory>,
}

/// A directory whose children are not complete.
struct OpenDirectory {
    number: u64,
    /// Its entries so far. They go into the table on [`Writer::leave`], after those of its
    /// subdirectories.
    entries: Vec<u8>,
    count: u64,
}

/// The error for a name or a target longer than 65,535 bytes, the format's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// The parts of an image other than file data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The first block.
    pub superblock: [u8; BLOCK as usize],
    /// Offset in bytes of the tables in the image.
    pub tables_offset: u64,
    /// The tables, padded with zeros: the end of the image.
    pub tables: Vec<u8>,
}

impl Default for Writer {
    fn default() -> Writer {
        Writer::new()
    }
}

impl Writer {
    /// Returns an empty image with its root entered.
    pub fn new() -> Writer {
        let mut writer = Writer {
            inodes: Vec::new(),
            entries: Vec::new(),
            entry_count: 0,
            symlinks: Vec::new(),
            symlink_count: 0,
            // After the superblock.
            next_block: 1,
            open_directories: Vec::new(),
        };
        writer.open_directory();
        writer
    }

    /// Adds a directory and enters it.
    pub fn enter(&mut self, name: &[u8]) -> Result<(), TooLong> {
        let number = self.inodes.len() as u64 + 1;
        self.link(name, number)?;
        self.open_directory();
        Ok(())
    }

    /// Leaves the directory entered last.
    ///
    /// # Panics
    /// If none has been entered.
    pub fn leave(&mut self) {
        assert!(
            self.open_directories.len() > 1,
            "the root is left by finishing"
        );
        self.close_directory();
    }

    /// Adds a file of `size` bytes; returns its inode number, and the offset in bytes for its data.
    pub fn file(&mut self, name: &[u8], size: u64) -> Result<(u64, u64), TooLong> {
        let block = self.next_block;
        let number = self.add_inode(name, InodeKind::File { block, size })?;
        self.next_block += blocks(size);
        Ok((number, block * BLOCK))
    }

    /// Adds a symbolic link; returns its inode number.
    pub fn symlink(&mut self, name: &[u8], target: &[u8]) -> Result<u64, TooLong> {
        if target.len() > usize::from(u16::MAX) {
            return Err(TooLong);
        }
        let index = self.symlink_count;
        let number = self.add_inode(name, InodeKind::Symlink { index })?;
        encode_text(target, &mut self.symlinks);
        self.symlink_count += 1;
        Ok(number)
    }

    /// Adds another name for the inode `number`, which was added before.
    pub fn link(&mut self, name: &[u8], number: u64) -> Result<(), TooLong> {
        if name.len() > usize::from(u16::MAX) {
            return Err(TooLong);
        }
        let open = self
            .open_directories
            .last_mut()
            .expect("the root stays open");
        let entry = Entry {
            inode: number,
            name,
        };
        entry.encode(&mut open.entries);
        open.count += 1;
        Ok(())
    }

    /// Completes the image.
    ///
    /// # Panics
    /// If a directory has not been left.
    pub fn finish(mut self) -> Metadata {
        assert_eq!(self.open_directories.len(), 1, "every directory is left");
        self.close_directory();
        let mut tables = self.entries;
        tables.extend(&self.symlinks);
        for inode in &self.inodes {
            tables.extend(inode.encode());
        }
        let superblock = Superblock {
            tables_block: self.next_block,
            tables_blocks: blocks(tables.len() as u64),
            entries: self.entry_count,
            symlinks: self.symlink_count,
            inodes: self.inodes.len() as u64,
        };
        // OSv's generator pads the last block, adding a whole block if it is full; that block is
        // not counted.
        let padded = (tables.len() / BLOCK as usize + 1) * BLOCK as usize;
        tables.resize(padded, 0);
        Metadata {
            superblock: superblock.encode(),
            tables_offset: self.next_block * BLOCK,
            tables,
        }
    }

    fn add_inode(&mut self, name: &[u8], kind: InodeKind) -> Result<u64, TooLong> {
        let number = self.inodes.len() as u64 + 1;
        self.link(name, number)?;
        self.inodes.push(Inode { number, kind });
        Ok(number)
    }

    fn open_directory(&mut self) {
        let number = self.inodes.len() as u64 + 1;
        // The children are known when the directory is left.
        let kind = InodeKind::Directory { first: 0, count: 0 };
        self.inodes.push(Inode { number, kind });
        self.open_directories.push(OpenDirectory {
            number,
            entries: vec![],
            count: 0,
        });
    }

    fn close_directory(&mut self) {
        let open = self.open_directories.pop().expect("a directory is open");
        self.inodes[open.number as usize - 1].kind = InodeKind::Directory {
            first: self.entry_count,
            count: open.count,
        };
        self.entries.extend(&open.entries);
        self.entry_count += open.count;
    }
}
