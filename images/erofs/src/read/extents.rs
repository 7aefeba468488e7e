//! Compressed files with a list of extents.

use super::mapping::{compressed_cluster, plain_mapping};
use super::meta::MetadataReader;
use super::{Error, Location, MAX_OFFSET, Mapping, Storage};
use crate::layout::{
    Advise, EXTENT_LENGTH_MASK, EXTENT_PARTIAL, Extent, ExtentCount, MAX_PCLUSTER_DECODED,
    MapHeader,
};

/// A list of extents.
#[derive(Clone, Debug)]
pub(super) struct Extents {
    advise: Advise,
    /// Offset of the list.
    first: u64,
    count: u64,
    /// log2 of the size in bytes of a logical cluster.
    bits: u32,
    /// The file's size in bytes.
    size: u64,
}

/// The maximum number of extents whose lengths are summed to find a later one: bounds the cost in
/// large files.
const MAX_SUMMED: u64 = 1 << 20;

const INCONSISTENT: &str = "an inconsistent list of extents";

impl Extents {
    pub(super) fn new(
        header: &MapHeader,
        advise: Advise,
        bits: u32,
        behind: u64,
        size: u64,
    ) -> Extents {
        Extents {
            advise,
            first: behind.next_multiple_of(advise.extent_size() as u64),
            count: ExtentCount::of(header).0,
            bits,
            size,
        }
    }

    pub(super) fn has_fragment(&self) -> bool {
        self.advise.contains(Advise::FRAGMENT)
    }

    /// Returns the extent that contains the byte at `offset`.
    pub(super) fn map<S: Storage>(
        &self,
        meta: &mut MetadataReader<'_, S>,
        offset: u64,
    ) -> Result<Mapping, Error<S::Error>> {
        let (extent, start, end, last) = match self.advise.extent_size() {
            // The location of a 4-byte extent follows from the lengths of all before it.
            4 => self.find_by_sum(meta, offset)?,
            8 => {
                let number = offset >> self.bits;
                let extent = self.load(meta, number, 0)?;
                self.lcluster_extent(extent, number)
            }
            _ => self.find_by_search(meta, offset)?,
        };
        if start > offset || end <= offset {
            return Err(Error::Corrupt(INCONSISTENT));
        }
        let len = end - start;
        let position = u64::from(extent.place) | u64::from(extent.place_high) << 32;
        if last && self.has_fragment() {
            // Only extents with a location have space for the upper half.
            let high = match self.advise.extent_size() {
                4 => 0,
                _ => position << 32,
            };
            let what = Location::Fragment(u64::from(extent.encoded) | high);
            return Ok(Mapping {
                start,
                len,
                location: what,
            });
        }
        let encoded = extent.encoded & EXTENT_LENGTH_MASK;
        if encoded == 0 {
            return Ok(Mapping {
                start,
                len,
                location: Location::Hole,
            });
        }
        if len > MAX_PCLUSTER_DECODED.into() || position > MAX_OFFSET {
            return Err(Error::Corrupt(INCONSISTENT));
        }
        let (device, on_device) = meta.image.locate(0, position)?;
        match (extent.encoded / EXTENT_PARTIAL) >> 1 {
            0 => {
                let block = meta.image.block_size();
                let aligned = (position | u64::from(encoded)) % block == 0;
                let rotated = self.advise.contains(Advise::INTERLACED) && aligned;
                plain_mapping(
                    Some(device),
                    on_device,
                    encoded,
                    (start, end),
                    offset,
                    rotated.then_some(block),
                )
            }
            algorithm => {
                let number = (algorithm - 1) as u8;
                let cluster =
                    compressed_cluster(meta, Some(device), on_device, encoded, len, number)?;
                Ok(Mapping {
                    start,
                    len,
                    location: Location::Encoded(cluster),
                })
            }
        }
    }

    /// Returns an extent of one logical cluster with its start and end, and whether it is the last.
    fn lcluster_extent(&self, extent: Extent, number: u64) -> (Extent, u64, u64, bool) {
        let start = number << self.bits;
        let end = (start + (1 << self.bits)).min(self.size);
        (extent, start, end, end == self.size)
    }

    fn find_by_sum<S: Storage>(
        &self,
        meta: &mut MetadataReader<'_, S>,
        offset: u64,
    ) -> Result<(Extent, u64, u64, bool), Error<S::Error>> {
        let bytes = meta.bytes(self.first, 8)?;
        let mut position = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let wanted = offset >> self.bits;
        if wanted > MAX_SUMMED {
            return Err(Error::Unsupported("too many extents of 4 bytes"));
        }
        for number in 0..wanted {
            let encoded = self.load(meta, number, 8)?.encoded & EXTENT_LENGTH_MASK;
            position = position
                .checked_add(encoded.into())
                .ok_or(Error::Corrupt(INCONSISTENT))?;
        }
        let mut extent = self.load(meta, wanted, 8)?;
        extent.place = position as u32;
        extent.place_high = (position >> 32) as u32;
        Ok(self.lcluster_extent(extent, wanted))
    }

    fn find_by_search<S: Storage>(
        &self,
        meta: &mut MetadataReader<'_, S>,
        offset: u64,
    ) -> Result<(Extent, u64, u64, bool), Error<S::Error>> {
        let start =
            |extent: &Extent| u64::from(extent.offset) | u64::from(extent.offset_high) << 32;
        let (mut low, mut high) = (0, self.count);
        let (mut found, mut end) = (None, self.size);
        while low < high {
            let middle = low + (high - low) / 2;
            let extent = self.load(meta, middle, 0)?;
            match start(&extent) > offset {
                true => {
                    high = middle;
                    end = start(&extent);
                }
                false => {
                    low = middle + 1;
                    found = Some(extent);
                }
            }
        }
        let extent = found.ok_or(Error::Corrupt(INCONSISTENT))?;
        Ok((
            extent,
            start(&extent),
            end.min(self.size),
            low == self.count,
        ))
    }

    /// Returns the extent with this number in the list, which begins `skip` bytes after `first`.
    fn load<S: Storage>(
        &self,
        meta: &mut MetadataReader<'_, S>,
        number: u64,
        skip: u64,
    ) -> Result<Extent, Error<S::Error>> {
        let size = self.advise.extent_size();
        let at = number
            .checked_mul(size as u64)
            .and_then(|at| at.checked_add(self.first + skip))
            .ok_or(Error::Corrupt(INCONSISTENT))?;
        let mut whole = [0; Extent::SIZE];
        whole[..size].copy_from_slice(meta.bytes(at, size)?);
        Ok(Extent::parse(&whole).expect("as long as it is"))
    }
}
