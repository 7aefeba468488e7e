//! Writing: told of a tree in the order that it is walked, a [`Writer`] says where each file's data goes, and makes
//! superblock and tables in the end. Who drives it has the bytes, and writes zeros behind each file up to a block.

use alloc::vec;
use alloc::vec::Vec;

use crate::layout::{BLOCK, Entry, Inode, InodeKind, Superblock, blocks, encode_text};

/// An image under construction. A directory's children are told between [`Writer::enter`] and [`Writer::leave`], sorted
/// or not; inodes are numbered as they come.
pub struct Writer {
    inodes: Vec<Inode>,
    /// The table of entries, and how many there are in it.
    entries: Vec<u8>,
    count: u64,
    symlinks: Vec<u8>,
    symlink_count: u64,
    /// Where the next file's data goes.
    next_block: u64,
    /// The directories that are being told of, the root first.
    open: Vec<Open>,
}

/// A directory whose children are not all known.
struct Open {
    number: u64,
    /// Its entries so far. They go into the table when it is left: behind those of the directories in it.
    entries: Vec<u8>,
    count: u64,
}

/// A name or a target that is longer than 65,535 bytes, which no image can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// What goes around the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The first block.
    pub superblock: [u8; BLOCK as usize],
    /// Where in the image the tables go, bytes.
    pub tables_at: u64,
    /// The tables with the zeros behind them: the image ends with these.
    pub tables: Vec<u8>,
}

impl Default for Writer {
    fn default() -> Writer {
        Writer::new()
    }
}

impl Writer {
    /// An empty image, whose root is being told of.
    pub fn new() -> Writer {
        let mut writer = Writer {
            inodes: Vec::new(),
            entries: Vec::new(),
            count: 0,
            symlinks: Vec::new(),
            symlink_count: 0,
            // Behind the superblock.
            next_block: 1,
            open: Vec::new(),
        };
        writer.directory();
        writer
    }

    /// A directory, whose children are told next.
    pub fn enter(&mut self, name: &[u8]) -> Result<(), TooLong> {
        let number = self.inodes.len() as u64 + 1;
        self.link(name, number)?;
        self.directory();
        Ok(())
    }

    /// The directory that was entered last has no more children.
    ///
    /// # Panics
    /// If none has been entered.
    pub fn leave(&mut self) {
        assert!(self.open.len() > 1, "the root is left by finishing");
        self.close();
    }

    /// A file of `size` bytes: says its inode's number, and where in the image its bytes go.
    pub fn file(&mut self, name: &[u8], size: u64) -> Result<(u64, u64), TooLong> {
        let block = self.next_block;
        let number = self.child(name, InodeKind::File { block, size })?;
        self.next_block += blocks(size);
        Ok((number, block * BLOCK))
    }

    /// A symbolic link: says its inode's number.
    pub fn symlink(&mut self, name: &[u8], target: &[u8]) -> Result<u64, TooLong> {
        if target.len() > usize::from(u16::MAX) {
            return Err(TooLong);
        }
        let index = self.symlink_count;
        let number = self.child(name, InodeKind::Symlink { index })?;
        encode_text(target, &mut self.symlinks);
        self.symlink_count += 1;
        Ok(number)
    }

    /// A further name of the inode `number`, which was told of before.
    pub fn link(&mut self, name: &[u8], number: u64) -> Result<(), TooLong> {
        if name.len() > usize::from(u16::MAX) {
            return Err(TooLong);
        }
        let open = self.open.last_mut().expect("the root stays open");
        let entry = Entry {
            inode: number,
            name,
        };
        entry.encode(&mut open.entries);
        open.count += 1;
        Ok(())
    }

    /// The whole tree has been told.
    ///
    /// # Panics
    /// If a directory has not been left.
    pub fn finish(mut self) -> Finished {
        assert_eq!(self.open.len(), 1, "every directory is left");
        self.close();
        let mut tables = self.entries;
        tables.extend(&self.symlinks);
        for inode in &self.inodes {
            tables.extend(inode.encode());
        }
        let superblock = Superblock {
            tables_block: self.next_block,
            tables_blocks: blocks(tables.len() as u64),
            entries: self.count,
            symlinks: self.symlink_count,
            inodes: self.inodes.len() as u64,
        };
        // OSv's generator fills up the last block, with a whole one where it is full: that one is not counted.
        let padded = (tables.len() / BLOCK as usize + 1) * BLOCK as usize;
        tables.resize(padded, 0);
        Finished {
            superblock: superblock.encode(),
            tables_at: self.next_block * BLOCK,
            tables,
        }
    }

    fn child(&mut self, name: &[u8], kind: InodeKind) -> Result<u64, TooLong> {
        let number = self.inodes.len() as u64 + 1;
        self.link(name, number)?;
        self.inodes.push(Inode { number, kind });
        Ok(number)
    }

    fn directory(&mut self) {
        let number = self.inodes.len() as u64 + 1;
        // What it has is known when it is left.
        let kind = InodeKind::Directory { first: 0, count: 0 };
        self.inodes.push(Inode { number, kind });
        self.open.push(Open {
            number,
            entries: vec![],
            count: 0,
        });
    }

    fn close(&mut self) {
        let open = self.open.pop().expect("a directory is open");
        self.inodes[open.number as usize - 1].kind = InodeKind::Directory {
            first: self.count,
            count: open.count,
        };
        self.entries.extend(&open.entries);
        self.count += open.count;
    }
}
