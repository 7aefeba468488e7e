//! Placement and output of metadata.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::superblock::{SuperblockValues, first_block};
use super::xattr::SharedXattrs;
use super::{BLOCK, Body, Extent, ImageParams, Inode, LimitExceeded, blocks, dir, index};
use crate::layout::{
    BLOCK_MAP_ENTRY, ChunkFormat, CompactInode, DataLayout, ExtendedInode, FRAGMENT_INODE, Format,
    INODE_SLOT, MapHeader, NULL_BLOCK, xattr_count_for,
};

/// The metadata of an image, with a position for each inode.
pub struct Metadata<'a> {
    inodes: &'a [Inode],
    params: ImageParams,
    shared: SharedXattrs,
    /// The most frequent mtime of inodes that could be compact.
    epoch: (i64, u32),
    layouts: Vec<InodeLayout>,
    directory_blocks: u64,
    /// Total size in bytes of inodes with the data after them.
    inode_bytes: u64,
}

/// The on-disk form of an inode.
struct InodeLayout {
    extended: bool,
    layout: DataLayout,
    size: u64,
    xattr_bytes: usize,
    /// Size in bytes of the data after the attributes, aligned to [`InodeLayout::align`]: an index,
    /// or an inline tail.
    trailing_size: u64,
    inline: bool,
    align: u64,
    /// The `data` field.
    data: u32,
    /// Its inode number: the offset in [`INODE_SLOT`]s.
    nid: u64,
}

impl InodeLayout {
    /// Returns the size in bytes of inode and attributes.
    fn head_size(&self) -> u64 {
        let inode = match self.extended {
            true => ExtendedInode::SIZE,
            false => CompactInode::SIZE,
        };
        (inode + self.xattr_bytes) as u64
    }

    fn total_size(&self) -> u64 {
        match self.trailing_size {
            0 => self.head_size(),
            behind => self.head_size().next_multiple_of(self.align) + behind,
        }
    }
}

impl<'a> Metadata<'a> {
    /// Assigns a position to each inode; the first is the root.
    pub fn plan(inodes: &'a [Inode], common: ImageParams) -> Result<Metadata<'a>, LimitExceeded> {
        let shared = SharedXattrs::of(inodes.iter().map(|inode| &inode.xattrs[..]));
        let mut metadata = Metadata {
            epoch: epoch(inodes),
            inodes,
            params: common,
            shared,
            layouts: Vec::with_capacity(inodes.len()),
            directory_blocks: 0,
            inode_bytes: 0,
        };
        for at in 0..inodes.len() {
            let form = metadata.inode_layout(at)?;
            metadata.layouts.push(form);
        }
        metadata.assign_nids();
        if metadata.end() > u64::from(u32::MAX) {
            return Err(LimitExceeded::TooLarge);
        }
        Ok(metadata)
    }

    fn inode_layout(&mut self, at: usize) -> Result<InodeLayout, LimitExceeded> {
        let inode = &self.inodes[at];
        let too_many = LimitExceeded::TooManyXattrs(at);
        let xattr_bytes = self
            .shared
            .encode_ibody(&inode.xattrs)
            .ok_or(too_many)?
            .len();
        xattr_count_for(xattr_bytes).ok_or(too_many)?;
        let mut form = InodeLayout {
            extended: false,
            layout: DataLayout::FlatPlain,
            size: 0,
            xattr_bytes,
            trailing_size: 0,
            inline: false,
            align: 1,
            data: 0,
            nid: 0,
        };
        match &inode.body {
            Body::Directory { parent, children } => {
                let (counts, used) = dir::split_blocks(&dir::entries(at, *parent, children));
                let whole = counts.len() as u64 - 1;
                form.size = whole * BLOCK + used as u64;
                form.extended = !is_compact(inode, form.size, self.epoch);
                form.inline = form.head_size() + (used as u64) <= BLOCK && used as u64 != BLOCK;
                // Relative to the first directory block, which is known when all inodes have been
                // counted.
                form.data =
                    u32::try_from(self.directory_blocks).map_err(|_| LimitExceeded::TooLarge)?;
                if form.inline {
                    form.trailing_size = used as u64;
                    form.layout = DataLayout::FlatInline;
                }
                self.directory_blocks += whole + u64::from(!form.inline);
            }
            Body::Flat {
                size,
                block,
                inline,
            } => {
                (form.size, form.data) = (*size, *block);
                form.inline = *inline && !size.is_multiple_of(BLOCK);
                if form.inline {
                    form.trailing_size = size % BLOCK;
                    form.layout = DataLayout::FlatInline;
                }
            }
            Body::Chunks {
                size,
                block_bits,
                blocks,
            } => {
                form.size = *size;
                form.layout = DataLayout::Chunks;
                form.align = BLOCK_MAP_ENTRY as u64;
                form.trailing_size = (blocks.len() * BLOCK_MAP_ENTRY) as u64;
                form.data = ChunkFormat {
                    block_bits: *block_bits,
                    indexes: false,
                    bit48: false,
                }
                .encode();
            }
            Body::Compressed { size, extents, .. } => {
                form.size = *size;
                form.layout = DataLayout::CompressedFull;
                form.align = 8;
                form.trailing_size = index::index_size(*size);
                let taken = extents.iter().map(stored_blocks).sum::<u64>();
                form.data = u32::try_from(taken).map_err(|_| LimitExceeded::TooLarge)?;
            }
            Body::Fragment { size, .. } => {
                form.size = *size;
                form.layout = DataLayout::CompressedFull;
                form.align = 8;
                form.trailing_size = MapHeader::SIZE as u64;
            }
            Body::Device(number) => form.data = *number,
            Body::Empty => {}
        }
        form.extended = !is_compact(inode, form.size, self.epoch);
        Ok(form)
    }

    /// Puts each inode into the fullest block with enough space (best fit). No inode crosses a
    /// block boundary unless it is larger than a block.
    fn assign_nids(&mut self) {
        // The first slot stays empty, since 0 is not a valid inode number.
        let mut free = BTreeSet::from([(BLOCK - INODE_SLOT, 0)]);
        let mut next = 1;
        // Opening the image reads the root and the packed inode, with one read if they are close.
        let packed = self.params.packed;
        let others = (1..self.layouts.len()).filter(|at| Some(*at) != packed);
        for at in core::iter::once(0).chain(packed).chain(others) {
            let form = &mut self.layouts[at];
            let bytes = form.total_size().next_multiple_of(INODE_SLOT);
            let fits = free.range((bytes, 0)..).next().copied();
            let at = match fits {
                Some((space, block)) => {
                    free.remove(&(space, block));
                    if space > bytes {
                        free.insert((space - bytes, block));
                    }
                    (block + 1) * BLOCK - space
                }
                None => {
                    let (at, taken) = (next * BLOCK, blocks(bytes));
                    next += taken;
                    if taken * BLOCK > bytes {
                        free.insert((taken * BLOCK - bytes, next - 1));
                    }
                    at
                }
            };
            form.nid = at / INODE_SLOT;
        }
        self.inode_bytes = next * BLOCK;
    }

    /// Returns the first block after the image.
    pub fn end(&self) -> u64 {
        self.meta_block() + self.inode_bytes / BLOCK
    }

    fn xattr_block(&self) -> u64 {
        self.params.next_block + self.directory_blocks
    }

    fn meta_block(&self) -> u64 {
        self.xattr_block() + blocks(self.shared.bytes.len() as u64)
    }

    /// Returns block 0 of the image.
    pub fn first_block(&self) -> Vec<u8> {
        first_block(&SuperblockValues {
            // It is placed first, in one of the first two blocks.
            root: self.layouts[0].nid as u16,
            inodes: self.inodes.len() as u64,
            epoch: self.epoch,
            blocks: self.end() as u32,
            meta_block: self.meta_block() as u32,
            xattr_block: match self.shared.bytes.is_empty() {
                true => 0,
                false => self.xattr_block() as u32,
            },
            chunks: (self.inodes.iter()).any(|inode| matches!(inode.body, Body::Chunks { .. })),
            compression: self.params.compression,
            packed: self.params.packed.map(|at| self.layouts[at].nid),
        })
    }

    /// Writes everything after the contents, in order. `tail` appends the inline tail of the file
    /// with that index.
    pub fn write<E>(
        &self,
        mut tail: impl FnMut(usize, &mut Vec<u8>) -> Result<(), E>,
        mut put: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for at in 0..self.inodes.len() {
            self.directory(at, |block, inline| match inline {
                true => Ok(()),
                false => {
                    block.resize(BLOCK as usize, 0);
                    put(block)
                }
            })?;
        }
        let mut shared = self.shared.bytes.clone();
        shared.resize(shared.len().next_multiple_of(BLOCK as usize), 0);
        put(&shared)?;
        let mut order: Vec<usize> = (0..self.inodes.len()).collect();
        order.sort_by_key(|&at| self.layouts[at].nid);
        let (mut done, mut bytes) = (0, Vec::new());
        for at in order {
            let form = &self.layouts[at];
            let begins = form.nid * INODE_SLOT;
            bytes.clear();
            // Space between inodes is filled with zeros.
            bytes.resize((begins - done) as usize, 0);
            self.inode(at, &mut bytes);
            if form.inline {
                match self.inodes[at].body {
                    Body::Directory { .. } => self.directory(at, |block, inline| {
                        if inline {
                            bytes.extend(&block[..]);
                        }
                        Ok(())
                    })?,
                    _ => tail(at, &mut bytes)?,
                }
            }
            put(&bytes)?;
            done += bytes.len() as u64;
            debug_assert_eq!(
                done,
                begins + form.total_size(),
                "inode {at} is as long as planned"
            );
        }
        bytes.clear();
        bytes.resize((self.inode_bytes - done) as usize, 0);
        put(&bytes)
    }

    /// Calls `each` with the blocks of a directory, and whether the block is the inline one.
    fn directory<E>(
        &self,
        at: usize,
        mut each: impl FnMut(&mut Vec<u8>, bool) -> Result<(), E>,
    ) -> Result<(), E> {
        let Body::Directory { parent, children } = &self.inodes[at].body else {
            return Ok(());
        };
        let entries = dir::entries(at, *parent, children);
        let (counts, _) = dir::split_blocks(&entries);
        let mut rest = &entries[..];
        for (number, &count) in counts.iter().enumerate() {
            let (these, behind) = rest.split_at(count);
            rest = behind;
            let nid_and_type = |at: usize| (self.layouts[at].nid, self.inodes[at].file_type());
            let inline = self.layouts[at].inline && number + 1 == counts.len();
            each(&mut dir::encode_block(these, nid_and_type), inline)?;
        }
        Ok(())
    }

    /// Appends an inode, its attributes and its index.
    fn inode(&self, at: usize, bytes: &mut Vec<u8>) {
        let (inode, form) = (&self.inodes[at], &self.layouts[at]);
        let xattrs = self.shared.encode_ibody(&inode.xattrs).unwrap_or_default();
        let format = Format {
            extended: form.extended,
            layout: form.layout,
            one_link: false,
        };
        let data = match inode.body {
            Body::Directory { .. } => form.data + self.params.next_block as u32,
            _ => form.data,
        };
        let xattr_count = xattr_count_for(xattrs.len()).unwrap_or_default();
        let ino = at as u32 + 1;
        let begins = bytes.len();
        if form.extended {
            let extended = ExtendedInode {
                format: format.encode(),
                xattr_count,
                mode: inode.mode,
                high: 0,
                size: form.size,
                data,
                ino,
                uid: inode.uid,
                gid: inode.gid,
                mtime: inode.mtime.0 as u64,
                mtime_nsec: inode.mtime.1,
                links: inode.links,
                reserved: [0; 16],
            };
            bytes.extend(extended.encode());
        } else {
            let compact = CompactInode {
                format: format.encode(),
                xattr_count,
                mode: inode.mode,
                links_or_high: inode.links as u16,
                size: form.size as u32,
                mtime: 0,
                data,
                ino,
                uid: inode.uid as u16,
                gid: inode.gid as u16,
                reserved: 0,
            };
            bytes.extend(compact.encode());
        }
        bytes.extend(xattrs);
        let aligned = (bytes.len() - begins).next_multiple_of(form.align as usize);
        match &inode.body {
            Body::Chunks { blocks, .. } => {
                bytes.resize(begins + aligned, 0);
                let number = |block: &Option<u32>| block.unwrap_or(NULL_BLOCK as u32);
                bytes.extend(blocks.iter().flat_map(|block| number(block).to_le_bytes()));
            }
            Body::Compressed {
                size,
                algorithm,
                extents,
                fragment: end,
            } => {
                bytes.resize(begins + aligned, 0);
                let big = (self.params.compression).is_some_and(|(_, blocks)| blocks > 1);
                bytes.extend(index::encode(*size, *algorithm, big, extents, *end));
            }
            Body::Fragment { offset: at, .. } => {
                bytes.resize(begins + aligned, 0);
                let whole = u64::from(FRAGMENT_INODE) << 56;
                bytes.extend((whole | at).to_le_bytes());
            }
            _ => {}
        }
    }
}

/// Returns the number of blocks of an extent in the image.
fn stored_blocks(extent: &Extent) -> u64 {
    match extent.compressed_blocks {
        Some(blocks) => blocks.into(),
        None => blocks(extent.len),
    }
}

/// Returns the most frequent mtime of inodes that are compact if they have the epoch's mtime; the
/// earliest of several.
fn epoch(inodes: &[Inode]) -> (i64, u32) {
    let mut counts = BTreeMap::<(i64, u32), u64>::new();
    for inode in inodes
        .iter()
        .filter(|inode| is_compact(inode, 0, inode.mtime))
    {
        *counts.entry(inode.mtime).or_default() += 1;
    }
    let most = counts.values().max();
    let first = counts.iter().find(|(_, count)| Some(*count) == most);
    first.map_or((0, 0), |(mtime, _)| *mtime)
}

/// Returns whether an inode fits into 32 bytes.
fn is_compact(inode: &Inode, size: u64, epoch: (i64, u32)) -> bool {
    let small = |number: u32| number <= u32::from(u16::MAX);
    inode.mtime == epoch
        && u32::try_from(size).is_ok()
        && small(inode.uid)
        && small(inode.gid)
        && small(inode.links)
}
