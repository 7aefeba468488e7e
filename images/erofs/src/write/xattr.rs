//! Extended attributes: those of several inodes are written once as shared attributes, the others
//! after their inode.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::layout::{XattrEntry, XattrHeader, prefix_name};

/// Supported name prefixes, besides the two ACL names, which are whole names.
const PREFIXES: [u8; 3] = [1, 4, 6];
const WHOLE_NAMES: [u8; 2] = [2, 3];

/// Returns whether an image can hold an attribute of this name.
pub fn is_supported_name(name: &[u8]) -> bool {
    split(name).is_some()
}

/// Splits a name into its prefix's index and the rest.
fn split(name: &[u8]) -> Option<(u8, &[u8])> {
    let text = |index: u8| prefix_name(index).expect("a prefix").as_bytes();
    if let Some(index) = WHOLE_NAMES.into_iter().find(|&index| text(index) == name) {
        return Some((index, b""));
    }
    PREFIXES.into_iter().find_map(|index| {
        let rest = name.strip_prefix(text(index))?;
        (1..=usize::from(u8::MAX))
            .contains(&rest.len())
            .then_some((index, rest))
    })
}

/// Returns the maximum size in bytes of these attributes after their inode.
pub fn ibody_size(xattrs: &[(Vec<u8>, Vec<u8>)]) -> usize {
    if xattrs.is_empty() {
        return 0;
    }
    let bytes = |(name, value): &(Vec<u8>, Vec<u8>)| {
        let rest = split(name).map_or(0, |(_, rest)| rest.len());
        (XattrEntry::SIZE + rest + value.len()).next_multiple_of(4)
    };
    XattrHeader::SIZE + xattrs.iter().map(bytes).sum::<usize>()
}

/// Encodes an attribute; returns nothing if its name or value is not supported.
fn encode(name: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    let (prefix, rest) = split(name)?;
    let entry = XattrEntry {
        name_len: rest.len() as u8,
        prefix,
        value_len: value.len().try_into().ok()?,
    };
    let mut bytes = entry.encode().to_vec();
    bytes.extend(rest);
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    Some(bytes)
}

/// Attributes of more than one inode.
#[derive(Default)]
pub(super) struct SharedXattrs {
    /// The offset of each in `bytes`, in units of 4 bytes.
    offsets: BTreeMap<Vec<u8>, u32>,
    pub(super) bytes: Vec<u8>,
}

impl SharedXattrs {
    pub(super) fn of<'a>(inodes: impl Iterator<Item = &'a [(Vec<u8>, Vec<u8>)]>) -> SharedXattrs {
        let mut counts = BTreeMap::<Vec<u8>, u32>::new();
        for (name, value) in inodes.flatten() {
            if let Some(bytes) = encode(name, value) {
                *counts.entry(bytes).or_default() += 1;
            }
        }
        let mut shared = SharedXattrs::default();
        for (bytes, _) in counts.into_iter().filter(|&(_, count)| count > 1) {
            let offset = (shared.bytes.len() / 4) as u32;
            shared.bytes.extend(&bytes);
            shared.offsets.insert(bytes, offset);
        }
        shared
    }

    /// Encodes the attributes after an inode; returns nothing if one of them is too large.
    pub(super) fn encode_ibody(&self, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Option<Vec<u8>> {
        if xattrs.is_empty() {
            return Some(Vec::new());
        }
        let (mut offsets, mut own) = (Vec::new(), Vec::new());
        for (name, value) in xattrs {
            let bytes = encode(name, value)?;
            match self.offsets.get(&bytes) {
                // The header's count is limited to 8 bits.
                Some(offset) if offsets.len() < usize::from(u8::MAX) => offsets.push(*offset),
                _ => own.extend(bytes),
            }
        }
        let header = XattrHeader {
            filter: 0,
            shared: offsets.len() as u8,
            reserved: [0; 7],
        };
        let mut body = header.encode().to_vec();
        body.extend(offsets.iter().flat_map(|offset| offset.to_le_bytes()));
        body.extend(own);
        Some(body)
    }
}
