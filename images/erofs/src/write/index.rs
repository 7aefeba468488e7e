//! Index of a compressed file in the full form: 8 bytes for each logical cluster (a block), which
//! allows extents at any offset.

use alloc::vec::Vec;

use super::{BLOCK, Extent, blocks};
use crate::layout::{Advise, Algorithm, D0_CBLKCNT, LclusterIndex, LclusterKind, MapHeader};

/// Size in bytes of the part before the clusters, aligned to 8 bytes: the header and as many zeros.
const HEADER_SIZE: usize = 2 * MapHeader::SIZE;

/// Returns the size in bytes of the index of a file of `size` bytes.
pub(super) fn index_size(size: u64) -> u64 {
    HEADER_SIZE as u64 + blocks(size) * LclusterIndex::SIZE as u64
}

/// Encodes the index. `big` allows physical clusters of more than a block; `packed` is the offset
/// of the file's tail in the packed inode.
pub(super) fn encode(
    size: u64,
    algorithm: Algorithm,
    big: bool,
    extents: &[Extent],
    packed: Option<u64>,
) -> Vec<u8> {
    let mut advise = Advise::empty();
    advise.set(Advise::BIG_1 | Advise::BIG_2, big);
    advise.set(Advise::FRAGMENT, packed.is_some());
    let header = MapHeader {
        place: packed.unwrap_or_default() as u32,
        advise: advise.bits(),
        algorithms: algorithm as u8,
        cluster_bits: 0,
    };
    let mut bytes = header.encode().to_vec();
    bytes.resize(HEADER_SIZE, 0);
    let mut heads: Vec<Extent> = extents
        .iter()
        .flat_map(|&extent| head_extents(extent))
        .collect();
    if let Some(at) = packed {
        let start = heads.last().map_or(0, |last| last.start + last.len);
        heads.push(Extent {
            start,
            len: size - start,
            // The upper half of the offset, which does not fit into the header.
            block: (at >> 32) as u32,
            compressed_blocks: Some(0),
        });
    }
    for (at, head) in heads.iter().enumerate() {
        let end = match heads.get(at + 1) {
            Some(next) => next.start / BLOCK,
            None => size / BLOCK,
        };
        encode_extent(*head, end, big, &mut bytes);
    }
    // The last cluster, if the file ends within it and no extent begins there.
    if let Some(last) = heads.last()
        && !size.is_multiple_of(BLOCK)
        && last.start / BLOCK != size / BLOCK
    {
        let end = LclusterIndex {
            advise: LclusterKind::Plain as u16,
            offset: (size % BLOCK) as u16,
            data: 0,
        };
        bytes.extend(end.encode());
    }
    debug_assert_eq!(bytes.len() as u64, index_size(size));
    bytes
}

/// Returns the extent itself, or one extent per block if it is not compressed.
fn head_extents(extent: Extent) -> impl Iterator<Item = Extent> {
    let step = match extent.compressed_blocks {
        Some(_) => extent.len,
        None => BLOCK,
    };
    (0..extent.len.div_ceil(step)).map(move |at| Extent {
        start: extent.start + at * step,
        len: step.min(extent.len - at * step),
        block: extent.block + at as u32,
        compressed_blocks: extent.compressed_blocks,
    })
}

/// Encodes the clusters of one extent: the one in which it begins, and those up to `end` that lie
/// entirely within it.
fn encode_extent(head: Extent, end: u64, big: bool, bytes: &mut Vec<u8>) {
    let first = head.start / BLOCK;
    let kind = match head.compressed_blocks {
        Some(_) => LclusterKind::Head1,
        None => LclusterKind::Plain,
    };
    let begins = LclusterIndex {
        advise: kind as u16,
        offset: (head.start % BLOCK) as u16,
        data: head.block,
    };
    bytes.extend(begins.encode());
    for cluster in first + 1..end {
        let (back, forth) = (cluster - first, end - cluster);
        let back = match head.compressed_blocks {
            Some(blocks) if big && back == 1 => D0_CBLKCNT | blocks,
            _ => back as u16,
        };
        let inside = LclusterIndex {
            advise: LclusterKind::Nonhead as u16,
            offset: 0,
            data: u32::from(back) | (forth as u32) << 16,
        };
        bytes.extend(inside.encode());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clusters(size: u64, extents: &[Extent]) -> Vec<(LclusterKind, u16, u16, u16)> {
        let bytes = encode(size, Algorithm::Lz4, true, extents, None);
        assert_eq!(bytes.len() as u64, index_size(size));
        let records = bytes[HEADER_SIZE..]
            .chunks(LclusterIndex::SIZE)
            .map(|bytes| {
                let index = LclusterIndex::parse(bytes).expect("whole");
                let kind = LclusterKind::from_number(index.advise);
                (
                    kind,
                    index.offset,
                    index.data as u16,
                    (index.data >> 16) as u16,
                )
            });
        records.collect()
    }

    fn extent(start: u64, len: u64, block: u32, packed: Option<u16>) -> Extent {
        Extent {
            start,
            len,
            block,
            compressed_blocks: packed,
        }
    }

    #[test]
    fn clusters_tell_heads_and_the_way_to_them() {
        use LclusterKind::{Head1, Nonhead, Plain};
        let extents = [
            extent(0, 13_000, 5, Some(2)),
            extent(13_000, 4096, 7, None),
            extent(17_096, 3904, 9, Some(1)),
        ];
        let want = [
            (Head1, 0, 5, 0),
            (Nonhead, 0, D0_CBLKCNT | 2, 2),
            (Nonhead, 0, 2, 1),
            (Plain, 712, 7, 0),
            (Head1, 712, 9, 0),
            // The end of the file.
            (Plain, 520, 0, 0),
        ];
        assert_eq!(clusters(21_000, &extents), want);
        // The last block of an uncompressed extent begins in the last cluster.
        let plain = [extents[0], extent(13_000, 5000, 7, None)];
        let end = [(Plain, 712, 7, 0), (Plain, 712, 8, 0)];
        assert_eq!(clusters(18_000, &plain)[3..], end);
    }

    #[test]
    fn an_end_in_the_packed_inode_is_an_extent_without_blocks() {
        let extents = [extent(0, 13_000, 5, Some(2))];
        let bytes = encode(21_000, Algorithm::Lz4, true, &extents, Some(7 << 32 | 9));
        let header = MapHeader::parse(&bytes).expect("a header");
        let advise = Advise::BIG_1 | Advise::BIG_2 | Advise::FRAGMENT;
        assert_eq!((header.place, header.advise), (9, advise.bits()));
        let records = bytes[HEADER_SIZE..].chunks(LclusterIndex::SIZE);
        let records: Vec<_> = records.flat_map(LclusterIndex::parse).collect();
        assert_eq!(records.len(), 6);
        let (head, next) = (records[3], records[4]);
        let fields = (head.advise, head.offset, head.data);
        assert_eq!(fields, (LclusterKind::Head1 as u16, 712, 7));
        assert_eq!(next.data, u32::from(D0_CBLKCNT) | 1 << 16);
    }

    #[test]
    fn a_file_that_ends_with_its_cluster_has_no_end_mark() {
        use LclusterKind::{Head1, Nonhead};
        let want = [(Head1, 0, 1, 0), (Nonhead, 0, D0_CBLKCNT | 1, 1)];
        assert_eq!(clusters(8192, &[extent(0, 8192, 1, Some(1))]), want);
    }
}
