//! Compressed files with an index of logical clusters.

use super::extents::Extents;
use super::mapping::{compressed_cluster, plain_mapping};
use super::meta::MetadataReader;
use super::{Error, Inode, Location, Mapping, Storage};
use crate::layout::{
    Advise, CompactPack, D0_CBLKCNT, DataLayout, FRAGMENT_INODE, LclusterIndex, LclusterKind,
    MAX_PCLUSTER, MAX_PCLUSTER_DECODED, MapHeader,
};

/// The kind of map after the inode of a compressed file.
pub(super) enum MapKind {
    Index(Index),
    Extents(Extents),
    /// No map: the file is in the packed inode at this offset.
    Fragment(u64),
}

/// An index with its decoded header.
#[derive(Clone, Debug)]
pub(super) struct Index {
    layout: DataLayout,
    advise: Advise,
    /// The algorithms of both kinds of heads.
    algorithms: [u8; 2],
    /// Offset of the first logical cluster's entry, or of the first pack.
    first: u64,
    /// log2 of the size in bytes of a logical cluster.
    bits: u32,
    /// The file's size in bytes.
    size: u64,
    /// Number of logical clusters in the packs.
    clusters: u64,
    tail: Option<Tail>,
}

/// A file tail that is stored elsewhere: the extent whose head is in `head`.
#[derive(Clone, Copy, Debug)]
struct Tail {
    head: u64,
    location: TailLocation,
}

#[derive(Clone, Copy, Debug)]
enum TailLocation {
    /// Compressed, after the index.
    Inline { offset: u64, len: u32 },
    /// In the packed inode, at this offset.
    Fragment(u64),
}

/// A logical cluster.
#[derive(Clone, Copy, Debug)]
struct Lcluster {
    number: u64,
    kind: LclusterKind,
    /// In a head: the offset in the cluster at which the extent begins.
    offset: u64,
    /// In a head: its block.
    block: u64,
    /// In others: the distance back to the head.
    head_distance: u64,
    /// In the first cluster after a head: the number of blocks of the physical cluster.
    blocks: Option<u32>,
    /// Offset of the end of its entry or pack.
    end: u64,
}

impl Lcluster {
    fn is_head(&self) -> bool {
        self.kind != LclusterKind::Nonhead
    }
}

const INCONSISTENT: &str = "an inconsistent cluster index";

impl Index {
    /// Reads the header and locates the tail.
    pub(super) fn open<S: Storage>(
        meta: &mut MetadataReader<'_, S>,
        inode: &Inode,
    ) -> Result<MapKind, Error<S::Error>> {
        let at = inode.xattr_end().next_multiple_of(8);
        let bytes = meta.bytes(at, MapHeader::SIZE)?;
        let whole = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let header = MapHeader::parse(bytes).expect("8 bytes");
        if header.cluster_bits & FRAGMENT_INODE != 0 {
            return Ok(MapKind::Fragment(whole & !(1 << 63)));
        }
        let advise = Advise::from_bits_retain(header.advise);
        let bits = meta.image.block_bits + u32::from(header.cluster_bits & 0xf);
        let full = inode.layout == DataLayout::CompressedFull;
        let behind = at + MapHeader::SIZE as u64;
        if full && advise.contains(Advise::EXTENTS) {
            let extents = Extents::new(&header, advise, bits, behind, inode.size);
            return Ok(MapKind::Extents(extents));
        }
        let mut index = Index {
            layout: inode.layout,
            advise,
            algorithms: [header.algorithms & 0xf, header.algorithms >> 4],
            first: if full { behind + 8 } else { behind },
            bits,
            size: inode.size,
            clusters: inode.size.div_ceil(meta.image.block_size()),
            tail: None,
        };
        if !full && (bits > 14 || advise.contains(Advise::BIG_1) != advise.contains(Advise::BIG_2))
        {
            return Err(Error::Corrupt("an invalid compact cluster index"));
        }
        index.tail = index.find_tail(meta, header.place)?;
        Ok(MapKind::Index(index))
    }

    pub(super) fn has_fragment(&self) -> bool {
        matches!(
            self.tail,
            Some(Tail {
                location: TailLocation::Fragment(_),
                ..
            })
        )
    }

    fn find_tail<S: Storage>(
        &self,
        meta: &mut MetadataReader<'_, S>,
        header_field: u32,
    ) -> Result<Option<Tail>, Error<S::Error>> {
        let fragment = self.advise.contains(Advise::FRAGMENT);
        let inline = match self.advise.contains(Advise::INLINE) && !fragment {
            true => header_field >> 16,
            false => 0,
        };
        let Some(last) = self.size.checked_sub(1) else {
            return Ok(None);
        };
        if !fragment && inline == 0 {
            return Ok(None);
        }
        let at = self.load(meta, last >> self.bits)?;
        let head = self.head_of(meta, at, last)?;
        let location = if fragment {
            // Only entries of 8 bytes have space for the upper half.
            let high = match self.layout {
                DataLayout::CompressedFull => head.block << 32,
                _ => 0,
            };
            TailLocation::Fragment(u64::from(header_field) | high)
        } else {
            if at.end % meta.image.block_size() + u64::from(inline) > meta.image.block_size() {
                return Err(Error::Corrupt("a file tail across a block boundary"));
            }
            TailLocation::Inline {
                offset: at.end,
                len: inline,
            }
        };
        Ok(Some(Tail {
            head: head.number,
            location,
        }))
    }

    /// Returns the extent that contains the byte at `offset`.
    pub(super) fn map<S: Storage>(
        &self,
        meta: &mut MetadataReader<'_, S>,
        offset: u64,
    ) -> Result<Mapping, Error<S::Error>> {
        let at = self.load(meta, offset >> self.bits)?;
        let head = self.head_of(meta, at, offset)?;
        let start = self.start_of(&head);
        let end = match at.is_head() && offset < self.start_of(&at) {
            true => self.start_of(&at),
            false => self.end_of(meta, at.number, start)?,
        }
        .min(self.size);
        if end <= offset || end - start > MAX_PCLUSTER_DECODED.into() {
            return Err(Error::Corrupt(INCONSISTENT));
        }
        let what = match self.tail.filter(|tail| tail.head == head.number) {
            Some(Tail {
                location: TailLocation::Fragment(position),
                ..
            }) => Location::Fragment(position),
            Some(Tail {
                location:
                    TailLocation::Inline {
                        offset: position,
                        len,
                    },
                ..
            }) => {
                return self.extent(meta, &head, (start, end), offset, position, len, true);
            }
            None => {
                let position = meta.image.block_offset(head.block)?;
                let len = self.blocks_of(meta, &head)? << meta.image.block_bits;
                return self.extent(meta, &head, (start, end), offset, position, len, false);
            }
        };
        Ok(Mapping {
            start,
            len: end - start,
            location: what,
        })
    }

    /// Returns the extent of `head` at `position`; of an uncompressed one, the part that contains
    /// `offset`.
    #[allow(clippy::too_many_arguments)]
    fn extent<S: Storage>(
        &self,
        meta: &MetadataReader<'_, S>,
        head: &Lcluster,
        (start, end): (u64, u64),
        offset: u64,
        position: u64,
        encoded: u32,
        inline: bool,
    ) -> Result<Mapping, Error<S::Error>> {
        let (device, position) = match inline {
            false => {
                let (device, position) = meta.image.locate(0, position)?;
                (Some(device), position)
            }
            true => ((!meta.metabox).then_some(0), position),
        };
        let algorithm = match head.kind {
            LclusterKind::Plain => {
                let interlaced = self.advise.contains(Advise::INTERLACED);
                let block = interlaced.then(|| meta.image.block_size());
                return plain_mapping(device, position, encoded, (start, end), offset, block);
            }
            LclusterKind::Head2 => self.algorithms[1],
            _ => self.algorithms[0],
        };
        let cluster = compressed_cluster(meta, device, position, encoded, end - start, algorithm)?;
        Ok(Mapping {
            start,
            len: end - start,
            location: Location::Encoded(cluster),
        })
    }

    fn start_of(&self, head: &Lcluster) -> u64 {
        head.number << self.bits | head.offset
    }

    /// Returns the head of the extent that contains `offset`, which is in `at`.
    fn head_of<S: Storage>(
        &self,
        meta: &mut MetadataReader<'_, S>,
        at: Lcluster,
        offset: u64,
    ) -> Result<Lcluster, Error<S::Error>> {
        let lowest = at.number.saturating_sub(self.max_extent_lclusters());
        let mut at = at;
        if at.is_head() {
            if self.start_of(&at) <= offset {
                return Ok(at);
            }
            at.head_distance = 1;
            at.kind = LclusterKind::Nonhead;
        }
        while !at.is_head() {
            let number = at.number.checked_sub(at.head_distance.max(1));
            let number = number.filter(|number| *number >= lowest);
            at = self.load(meta, number.ok_or(Error::Corrupt(INCONSISTENT))?)?;
        }
        Ok(at)
    }

    /// Returns the end of the extent that began at `start` and contains the cluster `number`.
    fn end_of<S: Storage>(
        &self,
        meta: &mut MetadataReader<'_, S>,
        number: u64,
        start: u64,
    ) -> Result<u64, Error<S::Error>> {
        let highest = (start >> self.bits) + self.max_extent_lclusters();
        for next in number + 1..=highest {
            if next << self.bits >= self.size {
                return Ok(self.size);
            }
            let at = self.load(meta, next)?;
            if at.is_head() {
                return Ok(self.start_of(&at));
            }
        }
        Err(Error::Corrupt(INCONSISTENT))
    }

    /// Returns the maximum number of logical clusters that an extent can touch.
    fn max_extent_lclusters(&self) -> u64 {
        (u64::from(MAX_PCLUSTER_DECODED) >> self.bits) + 1
    }

    /// Returns the number of blocks of the physical cluster of `head`.
    fn blocks_of<S: Storage>(
        &self,
        meta: &mut MetadataReader<'_, S>,
        head: &Lcluster,
    ) -> Result<u32, Error<S::Error>> {
        let big = match head.kind {
            LclusterKind::Head1 => self.advise.contains(Advise::BIG_1),
            _ => self.advise.contains(Advise::BIG_2),
        };
        let next = head.number + 1;
        if !big || next << self.bits >= self.size {
            return Ok(1);
        }
        let next = self.load(meta, next)?;
        match next.blocks {
            _ if next.is_head() => Ok(1),
            Some(blocks) if blocks > 0 && blocks <= MAX_PCLUSTER >> meta.image.block_bits => {
                Ok(blocks)
            }
            _ => Err(Error::Corrupt(INCONSISTENT)),
        }
    }

    fn load<S: Storage>(
        &self,
        meta: &mut MetadataReader<'_, S>,
        number: u64,
    ) -> Result<Lcluster, Error<S::Error>> {
        let cluster = match self.layout {
            DataLayout::CompressedFull => self.load_full(meta, number)?,
            _ => self.load_compact(meta, number)?,
        };
        match cluster.offset < 1 << self.bits {
            true => Ok(cluster),
            false => Err(Error::Corrupt(INCONSISTENT)),
        }
    }

    fn load_full<S: Storage>(
        &self,
        meta: &mut MetadataReader<'_, S>,
        number: u64,
    ) -> Result<Lcluster, Error<S::Error>> {
        let size = LclusterIndex::SIZE as u64;
        let at = number
            .checked_mul(size)
            .and_then(|at| at.checked_add(self.first))
            .ok_or(Error::Corrupt(INCONSISTENT))?;
        let raw = LclusterIndex::parse(meta.bytes(at, LclusterIndex::SIZE)?).expect("8 bytes");
        let kind = LclusterKind::from_number(raw.advise);
        let head = kind != LclusterKind::Nonhead;
        Ok(Lcluster {
            number,
            kind,
            offset: if head { raw.offset.into() } else { 0 },
            block: if head { raw.data.into() } else { 0 },
            head_distance: head_distance(raw.data as u16),
            blocks: pcluster_blocks(raw.data as u16),
            end: at + size,
        })
    }

    fn load_compact<S: Storage>(
        &self,
        meta: &mut MetadataReader<'_, S>,
        number: u64,
    ) -> Result<Lcluster, Error<S::Error>> {
        if number >= self.clusters {
            return Err(Error::Corrupt(INCONSISTENT));
        }
        let (at, size, within) = self.pack_of(number);
        let bytes = meta.bytes(at, size)?;
        let pack = CompactPack::parse(bytes, self.bits).ok_or(Error::Corrupt(INCONSISTENT))?;
        let (kind, value) = pack.get(within);
        let mut cluster = Lcluster {
            number,
            kind,
            offset: 0,
            block: 0,
            head_distance: head_distance(value),
            blocks: pcluster_blocks(value),
            end: at + size as u64,
        };
        if cluster.is_head() {
            cluster.offset = value.into();
            cluster.block = self.block_in(&pack, within);
        } else if cluster.blocks.is_none() && within + 1 == pack.clusters() {
            // The last cluster holds the distance to the next head; the distance back follows from
            // the previous cluster.
            cluster.head_distance = match pack.get(within - 1) {
                (LclusterKind::Nonhead, value) => head_distance(value) + 1,
                _ => 1,
            };
        }
        Ok(cluster)
    }

    /// Returns the offset and size of the pack that contains a cluster, and the cluster's index in
    /// it.
    fn pack_of(&self, number: u64) -> (u64, usize, usize) {
        let to_align = (32 - self.first % 32) / 4 % 8;
        let in_large = match self.advise.contains(Advise::COMPACT_2B) && to_align < self.clusters {
            true => (self.clusters - to_align) / 16 * 16,
            false => 0,
        };
        if number < to_align {
            return (self.first + number / 2 * 8, 8, (number % 2) as usize);
        }
        let (large, number) = (self.first + to_align * 4, number - to_align);
        if number < in_large {
            return (large + number / 16 * 32, 32, (number % 16) as usize);
        }
        let (small, number) = (large + in_large * 2, number - in_large);
        (small + number / 2 * 8, 8, (number % 2) as usize)
    }

    /// Returns the block of the head with index `within` in a pack.
    fn block_in(&self, pack: &CompactPack, within: usize) -> u64 {
        let before = (0..within).map(|at| pack.get(at));
        let blocks: u64 = match self.advise.contains(Advise::BIG_1) {
            false => {
                1 + before
                    .filter(|(kind, _)| *kind != LclusterKind::Nonhead)
                    .count() as u64
            }
            true => {
                let next_tells = |at: usize| {
                    at + 1 < within && matches!(pack.get(at + 1), (LclusterKind::Nonhead, _))
                };
                before
                    .enumerate()
                    .map(|(at, (kind, value))| match kind {
                        LclusterKind::Nonhead => pcluster_blocks(value).unwrap_or(0).into(),
                        _ => u64::from(!next_tells(at)),
                    })
                    .sum()
            }
        };
        u64::from(pack.block()) + blocks
    }
}

/// Returns the distance back to the head from the number of a cluster that is not a head.
fn head_distance(value: u16) -> u64 {
    match value & D0_CBLKCNT {
        0 => value.into(),
        _ => 1,
    }
}

/// Returns the number of blocks encoded in such a number.
fn pcluster_blocks(value: u16) -> Option<u32> {
    (value & D0_CBLKCNT != 0).then_some((value & !D0_CBLKCNT).into())
}
