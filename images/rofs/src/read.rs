//! Reader: the superblock, and tables that are validated completely before use.
//!
//! Images are untrusted: counts are checked against the table size before memory is allocated,
//! every index and range is checked, and directories must form one tree, so that every walk
//! terminates.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::layout::{BLOCK, Entry, Inode, InodeKind, MAGIC, Superblock, VERSION, blocks};

/// An error in an image, with its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt {
    /// Offset in the image of the invalid byte, or of the invalid structure.
    pub offset: u64,
    /// A description of the error.
    pub message: &'static str,
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at byte {})", self.message, self.offset)
    }
}

impl core::error::Error for Corrupt {}

type Result<T> = core::result::Result<T, Corrupt>;

/// Maximum size in bytes of the tables: they are read into memory, and a sparse file can claim any
/// size.
const MAX_TABLES: u64 = 1 << 30;

fn corrupt<T>(at: u64, what: &'static str) -> Result<T> {
    Err(Corrupt {
        offset: at,
        message: what,
    })
}

impl Superblock {
    /// Parses the first block of an image of `size` bytes.
    pub fn parse(block: &[u8; BLOCK as usize], size: u64) -> Result<Superblock> {
        let (numbers, _) = block.as_chunks();
        let number = |at: usize| u64::from_le_bytes(numbers[at]);
        if number(0) != MAGIC {
            return corrupt(0, "not a ROFS image: the magic number is not 0xdeadbead");
        }
        if number(1) != VERSION {
            return corrupt(8, "a ROFS version other than 1");
        }
        if number(2) != BLOCK {
            return corrupt(16, "a block size other than 512 bytes");
        }
        let superblock = Superblock {
            tables_block: number(3),
            tables_blocks: number(4),
            entries: number(5),
            symlinks: number(6),
            inodes: number(7),
        };
        let end = superblock
            .tables_block
            .checked_add(superblock.tables_blocks)
            .filter(|&end| superblock.tables_block > 0 && end <= size / BLOCK);
        if end.is_none() {
            return corrupt(24, "tables beyond the end of the image");
        }
        if superblock.tables_blocks > MAX_TABLES / BLOCK {
            return corrupt(32, "tables of more than 1 GiB, the limit");
        }
        // Minimum sizes. The counts are untrusted, hence 128 bits.
        let least = u128::from(superblock.entries) * Entry::FIXED_SIZE as u128
            + u128::from(superblock.symlinks) * 2
            + u128::from(superblock.inodes) * Inode::SIZE as u128;
        let capacity = u128::from(superblock.tables_blocks) * u128::from(BLOCK);
        if least > capacity {
            return corrupt(
                40,
                "more entries, links and inodes than the tables have room for",
            );
        }
        Ok(superblock)
    }

    /// Returns the offset and size in bytes of the tables.
    pub fn tables(&self) -> (u64, u64) {
        (self.tables_block * BLOCK, self.tables_blocks * BLOCK)
    }
}

/// The tables of an image: everything but file contents. Immutable, so threads share them without
/// locks.
#[derive(Debug)]
pub struct Tables {
    bytes: Vec<u8>,
    /// Offset of each entry in the tables.
    entries: Vec<usize>,
    /// Offset of each link's length in the tables.
    symlinks: Vec<usize>,
    inodes: Vec<Inode>,
    /// The parent directory of each inode, by index; the root is its own parent.
    parents: Vec<u64>,
}

/// A child of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// The inode it names.
    pub inode: Inode,
}

impl Tables {
    /// Validates the tables in `bytes`.
    pub fn parse(superblock: &Superblock, bytes: Vec<u8>) -> Result<Tables> {
        let (base, len) = superblock.tables();
        if bytes.len() as u64 != len {
            return corrupt(base, "incomplete tables");
        }
        let mut at = 0;
        let entries = text_offsets(
            &bytes,
            &mut at,
            superblock.entries,
            Entry::FIXED_SIZE - 2,
            base,
        )?;
        let symlinks = text_offsets(&bytes, &mut at, superblock.symlinks, 0, base)?;
        let inodes_at = at;
        let mut inodes = Vec::with_capacity(superblock.inodes as usize);
        for number in 1..=superblock.inodes {
            let here = base + at as u64;
            let Some(raw) = bytes[at..].first_chunk() else {
                return corrupt(here, "an inode beyond the end of the tables");
            };
            let Some(inode) = Inode::decode(raw) else {
                return corrupt(
                    here,
                    "an inode that is neither a directory, a file nor a symbolic link",
                );
            };
            if inode.number != number {
                return corrupt(
                    here + 8,
                    "an inode whose number is not its index in the table",
                );
            }
            let (what, good) = match inode.kind {
                InodeKind::Directory { first, count } => (
                    "a directory with entries beyond the table",
                    in_bounds(first, count, superblock.entries),
                ),
                InodeKind::File { block, size } => (
                    "a file with data outside the data area",
                    size == 0
                        || block > 0 && in_bounds(block, blocks(size), superblock.tables_block),
                ),
                InodeKind::Symlink { index } => (
                    "a symbolic link without its target",
                    index < superblock.symlinks,
                ),
            };
            if !good {
                return corrupt(here + 16, what);
            }
            inodes.push(inode);
            at += Inode::SIZE;
        }
        let mut tables = Tables {
            parents: vec![0; inodes.len()],
            bytes,
            entries,
            symlinks,
            inodes,
        };
        tables.validate_tree(base, base + inodes_at as u64)?;
        Ok(tables)
    }

    /// Checks that directories form one tree, and that names are valid.
    fn validate_tree(&mut self, base: u64, inodes_at: u64) -> Result<()> {
        let offset_of = |number: u64| inodes_at + (number - 1) * Inode::SIZE as u64;
        match self.inodes.first().map(|root| root.kind) {
            Some(InodeKind::Directory { .. }) => self.parents[0] = 1,
            _ => return corrupt(inodes_at, "a root that is not a directory"),
        }
        let mut pending = vec![1_u64];
        let mut met = vec![false; self.entries.len()];
        while let Some(number) = pending.pop() {
            let Some((first, count)) = self.entry_range(number) else {
                continue;
            };
            for (index, met) in met.iter_mut().enumerate().skip(first).take(count) {
                let here = base + self.entries[index] as u64;
                if core::mem::replace(met, true) {
                    return corrupt(here, "an entry of two directories");
                }
                let entry = self.entry(index);
                let bad_name = entry.name.is_empty()
                    || [&b"."[..], b".."].contains(&entry.name)
                    || entry.name.iter().any(|byte| [0, b'/'].contains(byte));
                if bad_name {
                    return corrupt(here, "an entry with an invalid name");
                }
                let Some(child) = self.inode(entry.inode) else {
                    return corrupt(here, "an entry with a nonexistent inode");
                };
                let parent = &mut self.parents[child.number as usize - 1];
                let seen = core::mem::replace(parent, number) != 0;
                if let InodeKind::Directory { .. } = child.kind {
                    if seen {
                        return corrupt(here, "a directory that has two names");
                    }
                    pending.push(child.number);
                }
            }
        }
        match self.parents.iter().position(|&parent| parent == 0) {
            Some(lost) => corrupt(offset_of(lost as u64 + 1), "an inode without a name"),
            None => Ok(()),
        }
    }

    /// Returns the number of inodes.
    pub fn len(&self) -> u64 {
        self.inodes.len() as u64
    }

    /// Returns `false`: there is always a root.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// Returns the root directory.
    pub fn root(&self) -> Inode {
        self.inodes[0]
    }

    /// Returns the inode with this number, if there is one.
    pub fn inode(&self, number: u64) -> Option<Inode> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        self.inodes.get(index).copied()
    }

    /// Returns a directory that contains the inode; the root is its own parent.
    pub fn parent(&self, number: u64) -> Option<Inode> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        self.inode(*self.parents.get(index)?)
    }

    /// Returns the children of a directory from index `from`, in table order; none for other
    /// inodes.
    pub fn children(&self, number: u64, from: u64) -> impl Iterator<Item = Child<'_>> {
        let (first, count) = self.entry_range(number).unwrap_or_default();
        let skip = usize::try_from(from).unwrap_or(usize::MAX).min(count);
        (first + skip..first + count).map(|index| {
            let entry = self.entry(index);
            Child {
                name: entry.name,
                inode: self.inodes[entry.inode as usize - 1],
            }
        })
    }

    /// Returns the target of a symbolic link, nothing for other inodes.
    pub fn target(&self, number: u64) -> Option<&[u8]> {
        match self.inode(number)?.kind {
            InodeKind::Symlink { index } => {
                Some(text(&self.bytes, self.symlinks[index as usize])?.0)
            }
            _ => None,
        }
    }

    /// Returns the first entry and the number of entries of a directory.
    fn entry_range(&self, number: u64) -> Option<(usize, usize)> {
        match self.inode(number)?.kind {
            InodeKind::Directory { first, count } => Some((first as usize, count as usize)),
            _ => None,
        }
    }

    fn entry(&self, index: usize) -> Entry<'_> {
        let at = self.entries[index];
        let inode = self.bytes[at..].first_chunk().copied();
        let name = text(&self.bytes, at + Entry::FIXED_SIZE - 2);
        Entry {
            inode: u64::from_le_bytes(inode.expect("entries were looked at")),
            name: name.expect("entries were looked at").0,
        }
    }
}

/// Returns the offset of each of `count` texts, with `before` bytes before their lengths. Sets `at`
/// to the end of the last.
fn text_offsets(
    bytes: &[u8],
    at: &mut usize,
    count: u64,
    before: usize,
    base: u64,
) -> Result<Vec<usize>> {
    let mut places = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let Some((_, end)) = text(bytes, *at + before) else {
            let what = "an entry or a link beyond the end of the tables";
            return corrupt(base + *at as u64, what);
        };
        places.push(*at);
        *at = end;
    }
    Ok(places)
}

/// Returns the text whose length is at `at`, and the offset of its end.
fn text(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let (len, rest) = bytes.get(at..)?.split_first_chunk()?;
    let len = usize::from(u16::from_le_bytes(*len));
    Some((rest.get(..len)?, at + 2 + len))
}

fn in_bounds(first: u64, count: u64, all: u64) -> bool {
    first.checked_add(count).is_some_and(|end| end <= all)
}
