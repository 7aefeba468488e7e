//! The index of a compressed file: the full one, of 8 bytes for each logical cluster (a block), which can tell of extents anywhere.

use alloc::vec::Vec;

use super::{BLOCK, Extent, blocks};
use crate::layout::{Advise, Algorithm, CLUSTER_BLOCKS, LclusterIndex, LclusterKind, MapHeader};

/// What stands in front of the clusters, from a multiple of 8 bytes: the header and as many zeros.
const FRONT: usize = 2 * MapHeader::SIZE;

/// Bytes of the index of a file of `size` bytes.
pub(super) fn index_size(size: u64) -> u64 {
    FRONT as u64 + blocks(size) * LclusterIndex::SIZE as u64
}

/// The index. `big` if physical clusters may have more than a block.
pub(super) fn index(size: u64, algorithm: Algorithm, big: bool, extents: &[Extent]) -> Vec<u8> {
    let advise = if big {
        Advise::BIG_1 | Advise::BIG_2
    } else {
        Advise::empty()
    };
    let header = MapHeader {
        place: 0,
        advise: advise.bits(),
        algorithms: algorithm as u8,
        cluster_bits: 0,
    };
    let mut bytes = header.encode().to_vec();
    bytes.resize(FRONT, 0);
    let heads: Vec<Extent> = extents.iter().flat_map(|&extent| heads(extent)).collect();
    for (at, head) in heads.iter().enumerate() {
        let end = match heads.get(at + 1) {
            Some(next) => next.start / BLOCK,
            None => size / BLOCK,
        };
        one(*head, end, big, &mut bytes);
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

/// An extent as it is, or block by block if it is not compressed.
fn heads(extent: Extent) -> impl Iterator<Item = Extent> {
    let step = match extent.packed {
        Some(_) => extent.len,
        None => BLOCK,
    };
    (0..extent.len.div_ceil(step)).map(move |at| Extent {
        start: extent.start + at * step,
        len: step.min(extent.len - at * step),
        block: extent.block + at as u32,
        packed: extent.packed,
    })
}

/// The clusters of one extent: that of its beginning, and those up to `end` that are all its own.
fn one(head: Extent, end: u64, big: bool, bytes: &mut Vec<u8>) {
    let first = head.start / BLOCK;
    let kind = match head.packed {
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
        let back = match head.packed {
            Some(blocks) if big && back == 1 => CLUSTER_BLOCKS | blocks,
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
