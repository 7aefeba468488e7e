//! The header in the first bytes of an image.

use alloc::vec::Vec;
use core::ops::Range;

use crate::VerifyError;
use crate::keys::{PublicKey, SecretKey};
use crate::layout::{HASH_SIZE, Hash, HashLayout};
use crate::manifest::{MAX_READAHEAD_RANGES, ReadaheadRange};

/// Size in bytes of the header: the part of an image that EROFS leaves unused.
pub const HEADER_SIZE: usize = 1024;

/// Prefix of the root in signed messages, so that signatures of other data are not valid here.
pub const SIGNATURE_CONTEXT: &[u8] = b"barge image root 1\n";

const MAGIC: [u8; 8] = *b"\x8abarge\r\n";
const VERSION: u32 = 1;

/// Key derivation context of BLAKE3 for the root.
const ROOT_CONTEXT: &str = "barge 2026-11-22 sidecar of an image: root of header and manifest";

/// Number of bytes at the start that the root covers.
const HASHED_SIZE: usize = 24;
/// Number of bytes at the start that are used.
const USED_SIZE: usize = HASHED_SIZE + HASH_SIZE + PublicKey::SIZE + SIGNATURE_SIZE;
const SIGNATURE_SIZE: usize = 64;
const SECOND_MAGIC: usize = HEADER_SIZE - MAGIC.len();

/// A header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    readahead_count: u32,
    image_size: u64,
    layout: HashLayout,
    root: Hash,
    key: [u8; PublicKey::SIZE],
    signature: [u8; SIGNATURE_SIZE],
}

impl Header {
    /// Returns the unsigned header of an image with this shape and manifest.
    pub(crate) fn new(shape: HashLayout, readahead_count: u32, manifest: &[u8]) -> Header {
        let mut header = Header {
            readahead_count,
            image_size: shape.levels()[0].end,
            layout: shape,
            root: [0; HASH_SIZE],
            key: [0; PublicKey::SIZE],
            signature: [0; SIGNATURE_SIZE],
        };
        header.root = header.compute_root(manifest);
        header
    }

    /// Parses the header from the first bytes of a file of `len` bytes, sidecar included. Returns
    /// nothing if there is no header.
    pub fn parse(bytes: &[u8; HEADER_SIZE], len: u64) -> Result<Option<Header>, VerifyError> {
        let magics = (
            bytes[..MAGIC.len()] == MAGIC,
            bytes[SECOND_MAGIC..] == MAGIC,
        );
        match magics {
            (true, true) => {}
            (false, false) => return Ok(None),
            _ => {
                return Err(VerifyError::Corrupt(
                    "expected its magic at both ends of the header",
                ));
            }
        }
        let mut rest = Fields(&bytes[MAGIC.len()..]);
        let version = u32::from_le_bytes(rest.take());
        if version != VERSION {
            return Err(VerifyError::UnsupportedVersion(version));
        }
        let readahead_count = u32::from_le_bytes(rest.take());
        let image = u64::from_le_bytes(rest.take());
        let (root, key, signature) = (rest.take(), rest.take(), rest.take());
        if bytes[USED_SIZE..SECOND_MAGIC].iter().any(|byte| *byte != 0) {
            return Err(VerifyError::Corrupt(
                "expected zeros in the rest of the header",
            ));
        }
        if image <= HEADER_SIZE as u64 || image > len {
            return Err(VerifyError::Corrupt("the image is truncated"));
        }
        if readahead_count > MAX_READAHEAD_RANGES {
            return Err(VerifyError::Corrupt(
                "a read-ahead list with too many ranges",
            ));
        }
        let shape =
            HashLayout::of(image).ok_or(VerifyError::Corrupt("an image larger than the limit"))?;
        let header = Header {
            readahead_count,
            image_size: image,
            layout: shape,
            root,
            key,
            signature,
        };
        match header.checked_manifest_range() {
            Some(range) if range.end <= len => Ok(Some(header)),
            _ => Err(VerifyError::Corrupt("the image ends before its hashes do")),
        }
    }

    /// Returns the on-disk form.
    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        let fields = [
            &self.hashed_fields()[..],
            &self.root,
            &self.key,
            &self.signature,
        ]
        .concat();
        bytes[..USED_SIZE].copy_from_slice(&fields);
        bytes[SECOND_MAGIC..].copy_from_slice(&MAGIC);
        bytes
    }

    /// Returns the size in bytes of the image, without the data after it.
    pub fn image_size(&self) -> u64 {
        self.image_size
    }

    /// Returns the layout of the hashes.
    pub fn layout(&self) -> &HashLayout {
        &self.layout
    }

    /// Returns the root, which identifies the image by its contents.
    pub fn root(&self) -> &Hash {
        &self.root
    }

    /// Returns the range of the manifest.
    pub fn manifest_range(&self) -> Range<u64> {
        self.checked_manifest_range()
            .expect("it was looked at when the header was made")
    }

    fn checked_manifest_range(&self) -> Option<Range<u64>> {
        let start = self.layout.manifest_offset();
        let len = self.layout.top_hashes() * HASH_SIZE as u64
            + u64::from(self.readahead_count) * ReadaheadRange::SIZE as u64;
        Some(start..start.checked_add(len)?)
    }

    pub(crate) fn readahead_count(&self) -> usize {
        self.readahead_count as usize
    }

    /// Signs the header.
    pub fn sign(&mut self, key: &SecretKey) {
        self.key = *key.public().bytes();
        self.signature = key.sign(&self.signed_message());
    }

    /// Returns the key of its signature, if there is one; [`Header::verify`] checks the signature.
    pub fn signer(&self) -> Option<PublicKey> {
        (self.key != [0; PublicKey::SIZE]).then(|| PublicKey::from_bytes(self.key))
    }

    /// Returns an error unless one of `keys` has signed the header.
    pub fn verify(&self, keys: &[PublicKey]) -> Result<(), VerifyError> {
        let signer = self.signer().ok_or(VerifyError::NotSigned)?;
        if !keys.contains(&signer) {
            return Err(VerifyError::UntrustedKey);
        }
        match signer.verifies(&self.signed_message(), &self.signature) {
            true => Ok(()),
            false => Err(VerifyError::BadSignature),
        }
    }

    /// Returns whether there is no signature, or a valid one of the key in the header.
    pub fn is_consistent(&self) -> bool {
        match self.signer() {
            Some(signer) => self.verify(&[signer]).is_ok(),
            None => self.signature == [0; SIGNATURE_SIZE],
        }
    }

    fn signed_message(&self) -> Vec<u8> {
        [SIGNATURE_CONTEXT, &self.root].concat()
    }

    /// Returns the root of the header and `manifest`.
    pub(crate) fn compute_root(&self, manifest: &[u8]) -> Hash {
        let mut hasher = blake3::Hasher::new_derive_key(ROOT_CONTEXT);
        hasher.update(&self.hashed_fields());
        hasher.update(manifest);
        *hasher.finalize().as_bytes()
    }

    fn hashed_fields(&self) -> [u8; HASHED_SIZE] {
        let mut bytes = [0; HASHED_SIZE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.readahead_count.to_le_bytes());
        bytes[16..].copy_from_slice(&self.image_size.to_le_bytes());
        bytes
    }
}

/// A reader of consecutive fields; the caller ensures that enough bytes are left.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_at(N);
        self.0 = rest;
        field.try_into().expect("split off above")
    }
}
