//! Whole images in memory: properties checked by these tests and the fuzz target.

use sidecar::{HashLayout, Header, Manifest, PublicKey, VerifyError, hash};

/// Verifies everything in `file`, and its signature if `keys` are given; returns `None` for an
/// image without hashes.
pub(crate) fn verify(file: &[u8], keys: Option<&[PublicKey]>) -> Result<Option<()>, VerifyError> {
    let Some(head) = file.first_chunk() else {
        return Ok(None);
    };
    let Some(header) = Header::parse(head, file.len() as u64)? else {
        return Ok(None);
    };
    assert_eq!(header.encode(), *head);
    let _ = header.is_consistent();
    if let Some(keys) = keys {
        header.verify(keys)?;
    }
    let at = |range: core::ops::Range<u64>| &file[range.start as usize..range.end as usize];
    let manifest = Manifest::parse(&header, at(header.manifest_range()))?;
    let shape = header.layout();
    for level in 0..shape.levels().len() {
        for number in 0..shape.chunks(level) {
            let expected = match level + 1 < shape.levels().len() {
                true => {
                    let (chunk, place) = HashLayout::hash_location(number);
                    at(shape.chunk(level + 1, chunk))[place].to_vec()
                }
                false => manifest.hash(number).expect("as many as chunks").to_vec(),
            };
            if hash(at(shape.chunk(level, number)), (level, number) == (0, 0))[..] != expected {
                return Err(VerifyError::Corrupt("a chunk"));
            }
        }
    }
    Ok(Some(()))
}
