//! Numbers and handles of a bundle's nodes. They are derived from names alone, so that they are the
//! same after a restart, and with other members.
//!
//! - A place (a directory of the bundle's own, or that of a member) has a number of 48 bits, a hash
//!   of its path. Paths with the same hash are refused when the bundle is created.
//! - A member's nodes are numbered as a source numbers those of several devices: numbers below 2^48
//!   stay in the low bits, below a tag of 15 bits derived from the place (the next free value, in
//!   the order of names, if two members would have the same one; only then does another member
//!   matter). Larger numbers become a hash of 63 bits with the highest bit set: among a million of
//!   them two collide with a probability of 1 in 18 million. The hash is not secret, but it is
//!   one-way: a user who chooses numbers at one member needs about 2^63 attempts to match one of
//!   another member.
//! - A member's devices become hashes of place and device; 0 is the bundle's own.
//! - A handle is the place's number in 8 bytes, followed by the member's handle.

use std::collections::HashSet;

use vfs::siphash::{self, Key};
use vfs::{Attr, Errno, Handle, NodeId, Result};

/// The hash key of bundles, used for nothing else.
const KEY: Key = *b"barge bundle    ";

/// The low bits of a number, which hold a member's number.
const BITS: u32 = 48;

/// Returns the number of the place at `path`. Never 0.
pub(super) fn of_path(path: &[u8]) -> NodeId {
    (siphash::hash(&KEY, path) >> (64 - BITS)).max(1)
}

/// Splits a handle into the number of the place and the handle there.
pub(super) fn parse(handle: &Handle) -> Option<(NodeId, Handle)> {
    let (number, rest) = handle.bytes().split_first_chunk()?;
    let rest = Handle::new(rest).expect("shorter than a handle");
    Some((NodeId::from_le_bytes(*number), rest))
}

/// Returns the handle of `rest` at the place `number`. Returns `EOPNOTSUPP` if it would be too
/// long.
pub(super) fn handle(number: NodeId, rest: &[u8]) -> Result<Handle> {
    let bytes = [&number.to_le_bytes(), rest].concat();
    Handle::new(&bytes).map_err(|_| Errno::EOPNOTSUPP)
}

/// The translation of a member's numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    /// The number of its place.
    pub(super) position: NodeId,
    tag: u16,
}

impl Numbers {
    /// The maximum number of members: tags of 15 bits, without 0, which places have.
    pub(super) const MAX_MEMBERS: u64 = 0x7fff;

    /// Creates that of the member at `position`, with a tag not in `tags`; `None` if all are taken.
    pub(super) fn new(position: NodeId, tags: &mut HashSet<u16>) -> Option<Numbers> {
        let mut tags_from = (0..Numbers::MAX_MEMBERS)
            .map(|probe| ((position + probe) % Numbers::MAX_MEMBERS) as u16 + 1);
        let tag = tags_from.find(|&tag| tags.insert(tag))?;
        Some(Numbers { position, tag })
    }

    /// Returns the tag.
    pub(super) fn tag(&self) -> u16 {
        self.tag
    }

    /// Returns the number of the node that the member numbers `below`.
    pub(super) fn id(&self, below: NodeId) -> NodeId {
        match below >> BITS {
            0 => u64::from(self.tag) << BITS | below,
            _ => 1 << 63 | self.hash(b'n', below),
        }
    }

    /// Translates the attributes of one of the member's nodes.
    pub(super) fn attr(&self, attr: Attr) -> Attr {
        Attr {
            id: self.id(attr.id),
            device: self.hash(b'd', attr.device).max(1),
            ..attr
        }
    }

    fn hash(&self, what: u8, number: u64) -> u64 {
        let mut data = [what; 17];
        data[1..9].copy_from_slice(&self.position.to_le_bytes());
        data[9..].copy_from_slice(&number.to_le_bytes());
        siphash::hash(&KEY, &data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_all_members_differ_and_stay() {
        let make = || {
            let mut tags = HashSet::new();
            ["a", "b", "srv/a"].map(|path| {
                let position = of_path(path.as_bytes());
                Numbers::new(position, &mut tags).expect("a tag is free")
            })
        };
        let members = make();
        let mut seen: HashSet<NodeId> = members.iter().map(|member| member.position).collect();
        assert!(seen.insert(of_path(b"")));
        for (member, again) in members.iter().zip(make()) {
            for below in [1, 2, (1 << 48) - 1, 1 << 48, 1 << 63, u64::MAX] {
                let id = member.id(below);
                assert!(id != 0 && seen.insert(id), "{member:?} {below}");
                assert_eq!(id, again.id(below));
            }
        }
        // Numbers must remain the same in later versions, since clients may store them.
        let one = [of_path(b"a"), members[0].id(7), members[0].id(1 << 48)];
        let expected = [
            0x5f12_fed4_924f,
            0x0c48_0000_0000_0007,
            0x8845_5d16_3071_cc5c,
        ];
        assert_eq!(one, expected);
    }

    #[test]
    fn a_tag_that_is_taken_is_probed() {
        let mut tags = HashSet::new();
        let mut tag = |position| Numbers::new(position, &mut tags).map(|numbers| numbers.tag);
        assert_eq!([tag(5), tag(5), tag(6)], [Some(6), Some(7), Some(8)]);
        assert_eq!(tag(0x7ffe), Some(0x7fff));
        assert_eq!(tag(0x7ffe), Some(1));
        let rest = (0..Numbers::MAX_MEMBERS).filter_map(&mut tag).count();
        assert_eq!(rest as u64, Numbers::MAX_MEMBERS - 5);
        assert_eq!(tag(9), None);
    }
}
