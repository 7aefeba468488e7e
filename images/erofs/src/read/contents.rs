//! Location of an inode's contents.

use super::extents::Extents;
use super::index::{Index, MapKind};
use super::meta::MetadataReader;
use super::{Cluster, Error, Image, Inode, Storage};
use crate::layout::{
    BLOCK_MAP_ENTRY, ChunkFormat, ChunkIndex, DataLayout, FileType, Incompat, NULL_BLOCK,
    NULL_BLOCK_48,
};

/// The location of an inode's contents, as far as the inode gives it.
#[derive(Clone, Debug)]
pub struct Contents {
    size: u64,
    metabox: bool,
    layout: ContentsLayout,
}

/// Contents of a special inode.
pub(super) type SpecialContents = Contents;

#[derive(Clone, Debug)]
enum ContentsLayout {
    /// Contiguous from an offset, except for the tail, which is among the metadata.
    Flat {
        start: Option<u64>,
        tail: Option<(u64, u64)>,
    },
    Chunks {
        entries: u64,
        bits: u32,
        format: ChunkFormat,
    },
    Clusters(Index),
    Extents(Extents),
    /// In the packed inode, at this offset.
    Fragment(u64),
}

/// A contiguous part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its offset in the file.
    pub start: u64,
    /// Its length in bytes, never 0; it ends at the file's end at the latest.
    pub len: u64,
    /// Its location.
    pub location: Location,
}

/// The location of a [`Mapping`]'s bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// A hole.
    Hole,
    /// Uncompressed on a device.
    Plain {
        /// The device's number.
        device: u16,
        /// The offset in bytes.
        offset: u64,
    },
    /// In the metabox, at this offset.
    Metabox(u64),
    /// In the packed inode, at this offset.
    Fragment(u64),
    /// The first decoded bytes of this cluster.
    Encoded(Cluster),
}

impl Image {
    /// Returns the location of the contents of a file, directory or symbolic link.
    pub fn contents<S: Storage>(
        &self,
        storage: &S,
        inode: &Inode,
    ) -> Result<Contents, Error<S::Error>> {
        if !matches!(
            inode.kind,
            FileType::File | FileType::Directory | FileType::Symlink
        ) {
            return Err(Error::Corrupt("contents of an inode without any"));
        }
        let block = self.block_size();
        let how = match inode.layout {
            DataLayout::FlatPlain | DataLayout::FlatInline => {
                let inline = inode.layout == DataLayout::FlatInline;
                let tail = match (inline, inode.size.checked_sub(1)) {
                    (true, Some(last)) => Some((last / block * block, inode.xattr_end())),
                    _ => None,
                };
                ContentsLayout::Flat {
                    start: self.start_of(inode)?,
                    tail,
                }
            }
            DataLayout::Chunks => {
                let format =
                    ChunkFormat::parse(inode.data).ok_or(Error::Unsupported("chunk format"))?;
                let entry = match format.indexes {
                    true => ChunkIndex::SIZE,
                    false => BLOCK_MAP_ENTRY,
                };
                ContentsLayout::Chunks {
                    entries: inode.xattr_end().next_multiple_of(entry as u64),
                    bits: self.block_bits + u32::from(format.block_bits),
                    format,
                }
            }
            DataLayout::CompressedFull | DataLayout::CompressedCompact => {
                let mut meta = MetadataReader::new(self, storage, inode.in_metabox());
                match Index::open(&mut meta, inode)? {
                    MapKind::Index(index) => ContentsLayout::Clusters(index),
                    MapKind::Extents(extents) => ContentsLayout::Extents(extents),
                    MapKind::Fragment(position) => ContentsLayout::Fragment(position),
                }
            }
        };
        Ok(Contents {
            size: inode.size,
            metabox: inode.in_metabox(),
            layout: how,
        })
    }

    /// Returns the offset of the first block, nothing if the file is a hole.
    fn start_of<E>(&self, inode: &Inode) -> Result<Option<u64>, Error<E>> {
        let wide = inode
            .high
            .filter(|_| self.incompat.contains(Incompat::BIT48));
        let (high, null) = match wide {
            Some(high) => (u64::from(high) << 32, NULL_BLOCK_48),
            None => (0, NULL_BLOCK),
        };
        match u64::from(inode.data) | high {
            block if block == null => Ok(None),
            block => self.block_offset(block).map(Some),
        }
    }

    /// Returns the run that contains the byte at `offset`, which is before the end. It may begin
    /// before `offset`, and extends as far as the location is contiguous.
    pub fn map<S: Storage>(
        &self,
        storage: &S,
        contents: &Contents,
        offset: u64,
    ) -> Result<Mapping, Error<S::Error>> {
        assert!(offset < contents.size, "there is nothing behind the end");
        match &contents.layout {
            ContentsLayout::Flat { start, tail } => self.map_flat(contents, *start, *tail, offset),
            ContentsLayout::Chunks {
                entries,
                bits,
                format,
            } => {
                let meta = MetadataReader::new(self, storage, contents.metabox);
                self.map_chunk(meta, contents.size, (*entries, *bits, *format), offset)
            }
            ContentsLayout::Clusters(index) => index.map(
                &mut MetadataReader::new(self, storage, contents.metabox),
                offset,
            ),
            ContentsLayout::Extents(extents) => extents.map(
                &mut MetadataReader::new(self, storage, contents.metabox),
                offset,
            ),
            ContentsLayout::Fragment(position) => Ok(Mapping {
                start: 0,
                len: contents.size,
                location: Location::Fragment(*position),
            }),
        }
    }

    fn map_flat<E>(
        &self,
        contents: &Contents,
        start: Option<u64>,
        tail: Option<(u64, u64)>,
        offset: u64,
    ) -> Result<Mapping, Error<E>> {
        let end = tail.map_or(contents.size, |(tail, _)| tail);
        if offset < end {
            let what = match start {
                Some(position) => {
                    let (device, position) = self.locate(0, position)?;
                    Location::Plain {
                        device,
                        offset: position,
                    }
                }
                None => Location::Hole,
            };
            return Ok(Mapping {
                start: 0,
                len: end,
                location: what,
            });
        }
        let (start, position) = tail.expect("else the end would be the size");
        let len = contents.size - start;
        if position % self.block_size() + len > self.block_size() {
            return Err(Error::Corrupt("a file tail across a block boundary"));
        }
        let what = match contents.metabox {
            true => Location::Metabox(position),
            false => Location::Plain {
                device: 0,
                offset: position,
            },
        };
        Ok(Mapping {
            start,
            len,
            location: what,
        })
    }

    fn map_chunk<S: Storage>(
        &self,
        mut meta: MetadataReader<'_, S>,
        size: u64,
        (entries, bits, format): (u64, u32, ChunkFormat),
        offset: u64,
    ) -> Result<Mapping, Error<S::Error>> {
        let number = offset >> bits;
        let start = number << bits;
        let len = (1 << bits).min(size - start);
        let unit = if format.indexes {
            ChunkIndex::SIZE
        } else {
            BLOCK_MAP_ENTRY
        };
        let at = number
            .checked_mul(unit as u64)
            .and_then(|at| at.checked_add(entries))
            .ok_or(Error::Corrupt("a chunk beyond the address space"))?;
        let bytes = meta.bytes(at, unit)?;
        let (block, device) = match ChunkIndex::parse(bytes) {
            Some(entry) if format.indexes => {
                let high = if format.bit48 { entry.block_high } else { 0 };
                let block = u64::from(entry.block) | u64::from(high) << 32;
                (block, entry.device)
            }
            _ => {
                let block = u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
                (block.into(), 0)
            }
        };
        let null = match format.bit48 && format.indexes {
            true => NULL_BLOCK_48,
            false => NULL_BLOCK,
        };
        let what = match block == null {
            true => Location::Hole,
            false => {
                let (device, position) =
                    self.locate(device & self.device_mask(), self.block_offset(block)?)?;
                Location::Plain {
                    device,
                    offset: position,
                }
            }
        };
        Ok(Mapping {
            start,
            len,
            location: what,
        })
    }

    /// Fills `into` with contents from `offset`. Returns an error if the range ends beyond the end.
    pub fn read<S: Storage>(
        &self,
        storage: &S,
        contents: &Contents,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Error<S::Error>> {
        let end = offset.checked_add(into.len() as u64);
        if end.is_none_or(|end| end > contents.size) {
            return Err(Error::Corrupt("contents beyond the end"));
        }
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let run = self.map(storage, contents, at)?;
            let skip = at - run.start;
            let len = (run.len - skip).min((into.len() - done) as u64) as usize;
            let piece = &mut into[done..done + len];
            match run.location {
                Location::Hole => piece.fill(0),
                Location::Plain {
                    device,
                    offset: position,
                } => storage
                    .read_at(device, position.saturating_add(skip), piece)
                    .map_err(Error::Storage)?,
                Location::Metabox(position) => {
                    self.metadata(storage, true, position + skip, piece)?
                }
                Location::Fragment(position) => {
                    let packed = self
                        .packed()
                        .ok_or(Error::Corrupt("a fragment without a packed inode"))?;
                    self.read(storage, packed, position.saturating_add(skip), piece)?;
                }
                Location::Encoded(cluster) => {
                    let decoded = storage.decoded(self, &cluster)?;
                    let skip = skip as usize;
                    let part = decoded
                        .get(skip..skip + len)
                        .ok_or(Error::Corrupt("a cluster that decodes to too few bytes"))?;
                    piece.copy_from_slice(part);
                }
            }
            done += len;
        }
        Ok(())
    }

    /// Returns the contents that [`Location::Fragment`] refers to.
    pub fn packed(&self) -> Option<&Contents> {
        self.packed.as_deref()
    }

    /// Returns the contents that [`Location::Metabox`] refers to.
    pub fn metabox(&self) -> Option<&Contents> {
        self.metabox.as_deref()
    }
}

impl Contents {
    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns whether the contents are known to have no [`Location::Hole`] without reading their
    /// map.
    pub fn has_no_holes(&self) -> bool {
        match &self.layout {
            ContentsLayout::Flat { start, .. } => start.is_some(),
            ContentsLayout::Clusters(_) | ContentsLayout::Fragment(_) => true,
            ContentsLayout::Chunks { .. } | ContentsLayout::Extents(_) => false,
        }
    }

    /// Returns whether a part is in the packed inode.
    pub(super) fn has_fragments(&self) -> bool {
        match &self.layout {
            ContentsLayout::Fragment(_) => true,
            ContentsLayout::Clusters(index) => index.has_fragment(),
            ContentsLayout::Extents(extents) => extents.has_fragment(),
            ContentsLayout::Flat { .. } | ContentsLayout::Chunks { .. } => false,
        }
    }
}
