//! Directories: sorted blocks of sorted entries.

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::{Contents, Error, Image, Storage};
use crate::layout::{Dirent, FileType};

/// The maximum length of a name in bytes.
const NAME_MAX: usize = 255;

/// A directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name: 1 to 255 bytes without NUL and `/`.
    pub name: &'a [u8],
    /// The inode number.
    pub nid: u64,
    /// The file type recorded in the directory.
    pub kind: FileType,
}

/// A directory block.
pub struct DirBlock {
    bytes: Vec<u8>,
    entries: usize,
}

impl DirBlock {
    fn new<E>(bytes: Vec<u8>) -> Result<DirBlock, Error<E>> {
        let first =
            Dirent::parse(&bytes).ok_or(Error::Corrupt("a directory block without entries"))?;
        let names = usize::from(first.name_offset);
        if names < Dirent::SIZE || names > bytes.len() || names % Dirent::SIZE != 0 {
            return Err(Error::Corrupt("a directory's entries beyond their block"));
        }
        Ok(DirBlock {
            bytes,
            entries: names / Dirent::SIZE,
        })
    }

    /// Returns the number of entries, at least 1.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Returns the entry with this number, which is less than [`DirBlock::len`].
    pub fn entry<E>(&self, number: usize) -> Result<Entry<'_>, Error<E>> {
        let raw = self.raw(number);
        let start = usize::from(raw.name_offset);
        let end = match number + 1 < self.entries {
            true => usize::from(self.raw(number + 1).name_offset),
            false => self.bytes.len(),
        };
        let name = self
            .bytes
            .get(start..end)
            .filter(|_| start >= self.entries * Dirent::SIZE)
            .ok_or(Error::Corrupt("a name beyond its directory block"))?;
        let name = match number + 1 < self.entries {
            true => name,
            false => name.split(|byte| *byte == 0).next().unwrap_or_default(),
        };
        let bad = |byte: &u8| matches!(byte, 0 | b'/');
        if !(1..=NAME_MAX).contains(&name.len()) || name.iter().any(bad) {
            return Err(Error::Corrupt("an invalid name"));
        }
        Ok(Entry {
            name,
            nid: raw.nid,
            kind: FileType::from_number(raw.file_type),
        })
    }

    fn raw(&self, number: usize) -> Dirent {
        Dirent::parse(&self.bytes[number * Dirent::SIZE..]).expect("entries are within the block")
    }

    /// Returns the entry `name`, or on which side of this block it would be.
    fn find<E>(&self, name: &[u8]) -> Result<Result<(u64, FileType), Ordering>, Error<E>> {
        let (mut low, mut high) = (0, self.entries);
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.entry(middle)?;
            match name.cmp(entry.name) {
                Ordering::Equal => return Ok(Ok((entry.nid, entry.kind))),
                Ordering::Less => high = middle,
                Ordering::Greater => low = middle + 1,
            }
        }
        Ok(Err(match low {
            0 => Ordering::Less,
            low if low == self.entries => Ordering::Greater,
            _ => Ordering::Equal,
        }))
    }
}

/// Iterator over directory entries from a given position.
pub struct Entries<'a, S> {
    image: &'a Image,
    storage: &'a S,
    contents: &'a Contents,
    block: u64,
    number: usize,
    loaded: Option<DirBlock>,
}

impl Image {
    /// Returns a block of the directory with `contents`, counted from 0; nothing after the last.
    pub fn dir_block<S: Storage>(
        &self,
        storage: &S,
        contents: &Contents,
        number: u64,
    ) -> Result<Option<DirBlock>, Error<S::Error>> {
        let Some(start) = number.checked_mul(self.block_size()) else {
            return Ok(None);
        };
        let len = contents.size().saturating_sub(start).min(self.block_size());
        if len == 0 {
            return Ok(None);
        }
        let mut bytes = alloc::vec![0; len as usize];
        self.read(storage, contents, start, &mut bytes)?;
        DirBlock::new(bytes).map(Some)
    }

    /// Returns the inode number and file type of the entry `name` in the directory with `contents`.
    /// `..` is found too.
    pub fn lookup<S: Storage>(
        &self,
        storage: &S,
        contents: &Contents,
        name: &[u8],
    ) -> Result<Option<(u64, FileType)>, Error<S::Error>> {
        let (mut low, mut high) = (0, contents.size().div_ceil(self.block_size()));
        while low < high {
            let middle = low + (high - low) / 2;
            let Some(block) = self.dir_block(storage, contents, middle)? else {
                break;
            };
            match block.find(name)? {
                Ok(found) => return Ok(Some(found)),
                Err(Ordering::Equal) => break,
                Err(Ordering::Less) => high = middle,
                Err(Ordering::Greater) => low = middle + 1,
            }
        }
        Ok(None)
    }

    /// Returns the entries of the directory with `contents` after `cookie` (0: all), `.` and `..`
    /// included.
    pub fn entries<'a, S: Storage>(
        &'a self,
        storage: &'a S,
        contents: &'a Contents,
        cookie: u64,
    ) -> Entries<'a, S> {
        let within = cookie % self.block_size();
        Entries {
            image: self,
            storage,
            contents,
            block: cookie / self.block_size(),
            number: within as usize / Dirent::SIZE,
            loaded: None,
        }
    }
}

impl<S: Storage> Entries<'_, S> {
    /// Returns the next entry, and the cookie of the position after it: never 0, and stable.
    pub fn next_entry(&mut self) -> Result<Option<(Entry<'_>, u64)>, Error<S::Error>> {
        loop {
            match &self.loaded {
                Some(block) if self.number < block.len() => break,
                Some(_) => {
                    self.loaded = None;
                    self.block += 1;
                    self.number = 0;
                }
                None => match self
                    .image
                    .dir_block(self.storage, self.contents, self.block)?
                {
                    Some(block) => self.loaded = Some(block),
                    None => return Ok(None),
                },
            }
        }
        let number = self.number;
        self.number += 1;
        // Names follow the entries of a block, so the cookie stays within the block.
        let cookie = self.block * self.image.block_size() + (self.number * Dirent::SIZE) as u64;
        let block = self.loaded.as_ref().expect("loaded above");
        Ok(Some((block.entry(number)?, cookie)))
    }
}
