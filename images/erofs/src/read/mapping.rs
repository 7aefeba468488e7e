//! The parts of a compressed file's map: clusters, and extents stored uncompressed.

use super::meta::MetadataReader;
use super::{Cluster, Error, Location, Mapping, Storage};
use crate::layout::{Algorithm, MAX_PCLUSTER, MAX_PCLUSTER_DECODED};

/// Returns a cluster that decodes to `decoded` bytes with the algorithm of this number.
pub(super) fn compressed_cluster<S: Storage>(
    meta: &MetadataReader<'_, S>,
    device: Option<u16>,
    position: u64,
    encoded: u32,
    decoded: u64,
    algorithm: u8,
) -> Result<Cluster, Error<S::Error>> {
    let algorithm =
        Algorithm::from_number(algorithm).ok_or(Error::Unsupported("compression algorithm"))?;
    if meta.image.algorithms & 1 << algorithm as u16 == 0 {
        return Err(Error::Corrupt(
            "a compression algorithm that the superblock does not list",
        ));
    }
    if encoded > MAX_PCLUSTER || decoded > MAX_PCLUSTER_DECODED.into() {
        return Err(Error::Corrupt("a cluster larger than the maximum"));
    }
    Ok(Cluster {
        device,
        offset: position,
        encoded,
        decoded: decoded as u32,
        algorithm,
    })
}

/// Returns the part of an uncompressed extent that contains `offset`; with `block`, it is rotated
/// within blocks of that size.
pub(super) fn plain_mapping<E>(
    device: Option<u16>,
    position: u64,
    encoded: u32,
    (start, end): (u64, u64),
    offset: u64,
    block: Option<u64>,
) -> Result<Mapping, Error<E>> {
    let len = end - start;
    if len > encoded.into() {
        return Err(Error::Corrupt("uncompressed data in too few blocks"));
    }
    // The first bytes in the file are the last on disk.
    let first = block.map_or(0, |block| block - start % block);
    let (start, len, position) = match offset - start < first {
        true => {
            let end = position + u64::from(encoded);
            let position = end.checked_sub(first).ok_or(Error::Corrupt(
                "uncompressed data before the start of the device",
            ))?;
            (start, first.min(len), position)
        }
        false => (start + first, len - first, position),
    };
    let what = match device {
        Some(device) => Location::Plain {
            device,
            offset: position,
        },
        None => Location::Metabox(position),
    };
    Ok(Mapping {
        start,
        len,
        location: what,
    })
}
