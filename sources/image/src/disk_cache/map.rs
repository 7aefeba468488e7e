//! The map of an image's segments on disk.
//!
//! A head of [`HEAD`] bytes identifies the image: [`MAGIC`], a checksum of the rest of the head,
//! the image's length, the length of its identity, and the identity; then a text for people, which
//! ends at a zero byte. All numbers are little-endian.
//! After the head follows a tag for each segment: zeros for a missing one, otherwise a hash of the
//! image's length and identity, the segment's number and its bytes. So a torn tag, or one of
//! another image or segment, matches no bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// The magic number of a map. Another layout gets another one.
const MAGIC: [u8; 8] = *b"bargeimg";

/// Offset in bytes of the first tag: a page, so that no page holds both head and tags.
pub(super) const HEAD: u64 = 4096;

/// Size in bytes of a checksum: large enough to exclude accidental collisions.
const SUM: usize = 16;

/// Size in bytes of the head before the identity.
const FIXED_HEAD: usize = MAGIC.len() + SUM + 8 + 4;

/// The checksum of a segment; zeros if the segment is missing.
pub(super) type Tag = [u8; SUM];

/// The tag of a missing segment.
pub(super) const MISSING: Tag = [0; SUM];

/// The identity of the image whose segments are on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageIdentity {
    identity: Vec<u8>,
    len: u64,
}

impl ImageIdentity {
    /// Returns an image of `len` bytes, or nothing if the identity is too long.
    pub(super) fn new(identity: &[u8], len: u64) -> Option<ImageIdentity> {
        (identity.len() <= HEAD as usize - FIXED_HEAD).then(|| ImageIdentity {
            identity: identity.to_vec(),
            len,
        })
    }

    /// Returns the value that tells the image from others of the same name.
    pub fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the head of a map of the image that `label` names for people. A long text is cut.
    pub(super) fn encode(&self, label: &str) -> [u8; HEAD as usize] {
        let mut head = [0; HEAD as usize];
        let len = self.identity.len();
        head[..8].copy_from_slice(&MAGIC);
        head[24..32].copy_from_slice(&self.len.to_le_bytes());
        head[32..36].copy_from_slice(&(len as u32).to_le_bytes());
        head[FIXED_HEAD..FIXED_HEAD + len].copy_from_slice(&self.identity);
        let rest = &mut head[FIXED_HEAD + len..];
        let text = label.len().min(rest.len());
        rest[..text].copy_from_slice(&label.as_bytes()[..text]);
        let sum = sum(&[&head[24..]]);
        head[8..24].copy_from_slice(&sum);
        head
    }

    /// Parses the head of a map; returns nothing if it is invalid or torn.
    pub fn parse(head: &[u8; HEAD as usize]) -> Option<ImageIdentity> {
        let good = head.starts_with(&MAGIC) && head[8..24] == sum(&[&head[24..]]);
        let len = u32::from_le_bytes(head[32..36].try_into().ok()?) as usize;
        Some(ImageIdentity {
            identity: head[FIXED_HEAD..].get(..len).filter(|_| good)?.to_vec(),
            len: u64::from_le_bytes(head[24..32].try_into().ok()?),
        })
    }

    /// Returns the text for people in the head of this image's map.
    pub(super) fn label(&self, head: &[u8; HEAD as usize]) -> String {
        let rest = &head[FIXED_HEAD + self.identity.len()..];
        let end = rest.iter().position(|&byte| byte == 0);
        String::from_utf8_lossy(&rest[..end.unwrap_or(rest.len())]).into_owned()
    }

    /// Returns the tag of segment `number` with the contents `bytes`.
    pub(super) fn tag(&self, number: u64, bytes: &[u8]) -> Tag {
        let head = sum(&[&self.len.to_le_bytes(), &self.identity]);
        let tag = sum(&[&head, &number.to_le_bytes(), bytes]);
        match tag {
            MISSING => [1; SUM],
            tag => tag,
        }
    }
}

/// Reads the tag of segment `number` from `map`.
pub(super) fn read(map: &File, number: u64) -> io::Result<Tag> {
    let mut tag = MISSING;
    map.read_exact_at(&mut tag, tag_offset(number))?;
    Ok(tag)
}

/// Writes the tags of the segments from `number` on to `map`.
pub(super) fn write(map: &File, number: u64, tags: &[Tag]) -> io::Result<()> {
    map.write_all_at(tags.as_flattened(), tag_offset(number))
}

/// Calls `each` with the numbers below `end` of the segments that `map` lists as present, in order.
pub(super) fn for_each_present(map: &File, end: u64, each: &mut dyn FnMut(u64)) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    let mut at = HEAD;
    loop {
        // Maps of large images are mostly holes.
        match rustix::fs::seek(map, SeekFrom::Data(at)) {
            Ok(data) => at = HEAD + (data.max(HEAD) - HEAD) / SUM as u64 * SUM as u64,
            Err(Errno::NXIO) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        let read = map.read_at(&mut buffer, at)?;
        let (tags, _) = buffer[..read].as_chunks::<SUM>();
        let first = (at - HEAD) / SUM as u64;
        for (number, tag) in (first..end).zip(tags) {
            if *tag != MISSING {
                each(number);
            }
        }
        if tags.is_empty() || first + tags.len() as u64 >= end {
            return Ok(());
        }
        at += (tags.len() * SUM) as u64;
    }
}

fn tag_offset(number: u64) -> u64 {
    HEAD + number * SUM as u64
}

fn sum(parts: &[&[u8]]) -> [u8; SUM] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    *hasher
        .finalize()
        .as_bytes()
        .first_chunk()
        .expect("32 bytes")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_head_says_which_image_it_is_and_a_torn_one_nothing() {
        let known = ImageIdentity::new(b"etag \"x\"", 5 << 30).expect("short");
        let head = known.encode("an image");
        assert_eq!(known.label(&head), "an image");
        assert_eq!(ImageIdentity::parse(&head).as_ref(), Some(&known));
        for at in 0..HEAD as usize {
            let mut torn = head;
            torn[at] ^= 1;
            assert_eq!(ImageIdentity::parse(&torn), None, "{at}");
        }
        let long = known.encode(&"long ".repeat(1000));
        assert_eq!(ImageIdentity::parse(&long), Some(known));
        assert_eq!(ImageIdentity::new(&[0; HEAD as usize], 1), None);
    }

    #[test]
    fn a_tag_is_of_one_place_in_one_image() {
        let one = ImageIdentity::new(b"one", 100_000).expect("short");
        let two = ImageIdentity::new(b"two", 100_000).expect("short");
        let tag = one.tag(3, b"bytes");
        assert_eq!(tag, one.tag(3, b"bytes"));
        for other in [
            one.tag(4, b"bytes"),
            one.tag(3, b"bytez"),
            two.tag(3, b"bytes"),
        ] {
            assert_ne!(tag, other);
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_found(numbers in prop::collection::btree_set(0u64..100_000, 0..40)) {
            let map = tempfile::tempfile().expect("a file");
            for number in &numbers {
                write(&map, *number, &[[7; SUM]]).expect("written");
            }
            let mut found = Vec::new();
            for_each_present(&map, 90_000, &mut |number| found.push(number)).expect("read");
            prop_assert!(found.iter().eq(numbers.range(..90_000)));
        }

        #[test]
        fn any_bytes_are_a_head_or_none(bytes in prop::collection::vec(any::<u8>(), HEAD as usize)) {
            let mut head: [u8; HEAD as usize] = bytes.try_into().expect("as long");
            prop_assert_eq!(ImageIdentity::parse(&head), None);
            // Even a valid head has a bounded identity.
            head[..8].copy_from_slice(&MAGIC);
            let sum = sum(&[&head[24..]]);
            head[8..24].copy_from_slice(&sum);
            if let Some(known) = ImageIdentity::parse(&head) {
                prop_assert!(known.identity().len() <= HEAD as usize - FIXED_HEAD);
            }
        }
    }
}
