//! The checksums of a copy: the file `KEY.sums`.
//!
//! Its layout: [`MAGIC`], a checksum of the rest, the key, the version, and for each [`CHUNK`] of
//! the contents a hash of key, version, chunk number and bytes. A file of sums that is torn, or of
//! another copy, is therefore invalid, and contents that are torn, outdated or of another file do
//! not match.

use std::sync::atomic::{AtomicBool, Ordering};

use super::version::Version;

/// The first bytes of a file of sums. Another layout gets another value.
const MAGIC: [u8; 8] = *b"bargecpy";

/// Bytes of contents that are verified at once: few enough that reading one page takes no
/// millisecond longer, enough to make the size of the sums negligible.
pub(super) const CHUNK: u64 = 1 << 20;

/// Bytes of a sum: enough to make a collision negligible.
const CHECKSUM_LEN: usize = 16;

/// Bytes before the sum of the first chunk.
const HEAD: usize = MAGIC.len() + CHECKSUM_LEN + Key::LEN + Version::LEN;

type Checksum = [u8; CHECKSUM_LEN];

/// A file of a source, as the prefix of names in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(pub(super) [u8; Key::LEN]);

impl Key {
    pub(super) const LEN: usize = 16;

    /// Returns the key of node `id` of the source identified by `source`.
    pub(super) fn of(source: &[u8; 32], id: vfs::NodeId) -> Key {
        Key(checksum(&[source, &id.to_le_bytes()]))
    }
}

/// The sums of a copy, and which of its chunks are verified.
pub(super) struct Checksums {
    key: Key,
    pub(super) version: Version,
    chunks: Vec<Checksum>,
    verified: Vec<AtomicBool>,
}

impl Checksums {
    /// Builds the sums of the contents from `chunk`, which is called with each chunk number in
    /// order.
    pub(super) fn make(
        key: Key,
        version: Version,
        chunk: impl FnMut(u64) -> vfs::Result<Checksum>,
    ) -> vfs::Result<Checksums> {
        let chunks: vfs::Result<Vec<_>> = (0..chunk_count(version.size)).map(chunk).collect();
        Ok(Checksums::with(key, version, chunks?))
    }

    fn with(key: Key, version: Version, chunks: Vec<Checksum>) -> Checksums {
        Checksums {
            key,
            version,
            verified: chunks.iter().map(|_| AtomicBool::new(false)).collect(),
            chunks,
        }
    }

    /// Returns the size in bytes of the file of sums for `size` bytes of contents.
    pub(super) fn len(size: u64) -> u64 {
        HEAD as u64 + chunk_count(size) * CHECKSUM_LEN as u64
    }

    /// Returns the contents of the file.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Checksums::len(self.version.size) as usize);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[0; CHECKSUM_LEN]);
        bytes.extend_from_slice(&self.key.0);
        bytes.extend_from_slice(&self.version.encode());
        bytes.extend_from_slice(self.chunks.as_flattened());
        let whole = checksum(&[&bytes[MAGIC.len() + CHECKSUM_LEN..]]);
        bytes[MAGIC.len()..][..CHECKSUM_LEN].copy_from_slice(&whole);
        bytes
    }

    /// Parses the sums of `version` of `key`. Returns `None` if they are of another copy, or torn.
    pub(super) fn parse(bytes: &[u8], key: Key, version: Version) -> Option<Checksums> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (whole, body) = rest.split_first_chunk::<CHECKSUM_LEN>()?;
        let chunks = body
            .strip_prefix(&key.0)?
            .strip_prefix(&version.encode()[..])?;
        let (chunks, torn) = chunks.as_chunks::<CHECKSUM_LEN>();
        let sound = torn.is_empty() && chunks.len() as u64 == chunk_count(version.size);
        (sound && *whole == checksum(&[body]))
            .then(|| Checksums::with(key, version, chunks.to_vec()))
    }

    /// Returns whether both are equal, so that verification of one holds for the other.
    pub(super) fn is_equal(&self, other: &Checksums) -> bool {
        (self.key, self.version) == (other.key, other.version) && self.chunks == other.chunks
    }

    /// Returns whether chunk `number` has been verified.
    pub(super) fn is_verified(&self, number: u64) -> bool {
        let good = self.verified.get(number as usize);
        good.is_some_and(|good| good.load(Ordering::Acquire))
    }

    /// Verifies `bytes` against the sum of chunk `number`.
    pub(super) fn verify(&self, number: u64, bytes: &[u8]) -> bool {
        let at = number as usize;
        let right =
            self.chunks.get(at) == Some(&chunk_checksum(self.key, &self.version, number, bytes));
        if let (true, Some(good)) = (right, self.verified.get(at)) {
            good.store(true, Ordering::Release);
        }
        right
    }
}

/// Returns the sum of chunk `number` with the contents `bytes`.
pub(super) fn chunk_checksum(key: Key, version: &Version, number: u64, bytes: &[u8]) -> Checksum {
    checksum(&[&key.0, &version.encode(), &number.to_le_bytes(), bytes])
}

/// Returns the number of chunks in `size` bytes.
pub(super) fn chunk_count(size: u64) -> u64 {
    size.div_ceil(CHUNK)
}

fn checksum(parts: &[&[u8]]) -> Checksum {
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
    use vfs::{Attr, Kind};
    use vfs_testkit::script::default_attr;

    use super::*;

    fn version(size: u64, change: u64) -> Version {
        Version::of(&Attr {
            size,
            change,
            ..default_attr(7, Kind::File)
        })
    }

    fn made(key: Key, version: Version, contents: &[u8]) -> Checksums {
        let mut chunks = contents.chunks(CHUNK as usize);
        Checksums::make(key, version, |number| {
            let chunk = chunks.next().expect("as many");
            Ok(chunk_checksum(key, &version, number, chunk))
        })
        .expect("no error")
    }

    #[test]
    fn sums_are_of_one_version_of_one_file_and_torn_ones_of_none() {
        let contents = vec![7; 2 * CHUNK as usize + 5];
        let (key, other) = (Key::of(&[1; 32], 5), Key::of(&[2; 32], 5));
        let version = version(contents.len() as u64, 1);
        let sums = made(key, version, &contents);
        let bytes = sums.encode();
        assert_eq!(bytes.len() as u64, Checksums::len(version.size));
        let read = Checksums::parse(&bytes, key, version).expect("whole");
        assert!(read.is_equal(&sums) && !read.is_verified(0));
        assert!(read.verify(0, &contents[..CHUNK as usize]) && read.is_verified(0));
        assert!(
            !read.verify(2, &contents[..CHUNK as usize]),
            "its number counts"
        );
        assert!(read.verify(2, &contents[..5]) && !read.is_verified(1));
        assert!(!read.verify(3, &[]), "there are three");
        assert!(Checksums::parse(&bytes, other, version).is_none());
        let later = self::version(version.size, 2);
        assert!(Checksums::parse(&bytes, key, later).is_none());
        for at in 0..bytes.len() {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            assert!(Checksums::parse(&torn, key, version).is_none(), "{at}");
            assert!(
                Checksums::parse(&bytes[..at], key, version).is_none(),
                "{at}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_sums_or_none(bytes in prop::collection::vec(any::<u8>(), 0..300), size: u64) {
            let (key, version) = (Key([0; Key::LEN]), version(size, 0));
            prop_assert!(Checksums::parse(&bytes, key, version).is_none());
            let mut head = MAGIC.to_vec();
            head.extend_from_slice(&bytes);
            prop_assert!(Checksums::parse(&head, key, version).is_none());
        }

        /// The checksum alone is easy to produce: key, version and length must match, too.
        #[test]
        fn sums_that_are_sealed_are_of_what_they_say(
            key: [u8; Key::LEN], other: [u8; Key::LEN],
            size in 0..5 * CHUNK, change in 0..2u64, requested in 0..5 * CHUNK, now in 0..2u64,
            chunks in prop::collection::vec(any::<Checksum>(), 0..6), torn in 0..CHECKSUM_LEN,
            same: [bool; 2],
        ) {
            let body = [&key[..], &version(size, change).encode(), chunks.as_flattened(), &vec![0; torn]].concat();
            let bytes = [&MAGIC[..], &checksum(&[&body]), &body].concat();
            let requested_key = Key(if same[0] { key } else { other });
            let requested = if same[1] { version(size, change) } else { version(requested, now) };
            let fits = requested_key.0 == key && requested == version(size, change);
            let whole = torn == 0 && chunks.len() as u64 == chunk_count(size);
            let read = Checksums::parse(&bytes, requested_key, requested);
            prop_assert_eq!(read.is_some(), fits && whole);
            if let Some(read) = read {
                prop_assert!(read.encode() == bytes);
            }
        }
    }
}
