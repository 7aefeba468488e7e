//! The header in the first bytes of an image.

use alloc::vec::Vec;
use core::ops::Range;

use crate::Broken;
use crate::keys::{PublicKey, SecretKey};
use crate::manifest::{Hot, MOST_HOT};
use crate::shape::{HASH, Hash, Shape};

/// Size in bytes of the header: the part of an image that EROFS leaves unused.
pub const HEADER: usize = 1024;

/// Prefix of the root in signed messages, so that signatures of other data are not valid here.
pub const SIGNED: &[u8] = b"barge image root 1\n";

const MAGIC: [u8; 8] = *b"\x8abarge\r\n";
const VERSION: u32 = 1;

/// Key derivation context of BLAKE3 for the root.
const ROOT_CONTEXT: &str = "barge 2026-11-22 sidecar of an image: root of header and manifest";

/// Number of bytes at the start that the root covers.
const COUNTED: usize = 24;
/// Number of bytes at the start that are used.
const TOLD: usize = COUNTED + HASH + PublicKey::SIZE + SIGNATURE;
const SIGNATURE: usize = 64;
const MAGIC_AGAIN: usize = HEADER - MAGIC.len();

/// A header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    hot: u32,
    image: u64,
    shape: Shape,
    root: Hash,
    key: [u8; PublicKey::SIZE],
    signature: [u8; SIGNATURE],
}

impl Header {
    /// Returns the unsigned header of an image with this shape and manifest.
    pub(crate) fn new(shape: Shape, hot: u32, manifest: &[u8]) -> Header {
        let mut header = Header {
            hot,
            image: shape.levels()[0].end,
            shape,
            root: [0; HASH],
            key: [0; PublicKey::SIZE],
            signature: [0; SIGNATURE],
        };
        header.root = header.root_with(manifest);
        header
    }

    /// Parses the header from the first bytes of a file of `len` bytes, sidecar included. Returns
    /// nothing if there is no header.
    pub fn parse(bytes: &[u8; HEADER], len: u64) -> Result<Option<Header>, Broken> {
        let magics = (bytes[..MAGIC.len()] == MAGIC, bytes[MAGIC_AGAIN..] == MAGIC);
        match magics {
            (true, true) => {}
            (false, false) => return Ok(None),
            _ => {
                return Err(Broken::Damaged(
                    "expected its magic at both ends of the header",
                ));
            }
        }
        let mut rest = Fields(&bytes[MAGIC.len()..]);
        let version = u32::from_le_bytes(rest.take());
        if version != VERSION {
            return Err(Broken::Version(version));
        }
        let hot = u32::from_le_bytes(rest.take());
        let image = u64::from_le_bytes(rest.take());
        let (root, key, signature) = (rest.take(), rest.take(), rest.take());
        if bytes[TOLD..MAGIC_AGAIN].iter().any(|byte| *byte != 0) {
            return Err(Broken::Damaged("expected zeros in the rest of the header"));
        }
        if image <= HEADER as u64 || image > len {
            return Err(Broken::Damaged("the image is truncated"));
        }
        if hot > MOST_HOT {
            return Err(Broken::Damaged("a hot list with too many ranges"));
        }
        let shape = Shape::of(image).ok_or(Broken::Damaged("an image larger than the limit"))?;
        let header = Header {
            hot,
            image,
            shape,
            root,
            key,
            signature,
        };
        match header.manifest_range() {
            Some(range) if range.end <= len => Ok(Some(header)),
            _ => Err(Broken::Damaged("the image ends before its hashes do")),
        }
    }

    /// Returns the on-disk form.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let told = [&self.counted()[..], &self.root, &self.key, &self.signature].concat();
        bytes[..TOLD].copy_from_slice(&told);
        bytes[MAGIC_AGAIN..].copy_from_slice(&MAGIC);
        bytes
    }

    /// Returns the size in bytes of the image, without the data after it.
    pub fn image(&self) -> u64 {
        self.image
    }

    /// Returns the layout of the hashes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the root, which identifies the image by its contents.
    pub fn root(&self) -> &Hash {
        &self.root
    }

    /// Returns the range of the manifest.
    pub fn manifest(&self) -> Range<u64> {
        self.manifest_range()
            .expect("it was looked at when the header was made")
    }

    fn manifest_range(&self) -> Option<Range<u64>> {
        let start = self.shape.manifest();
        let len = self.shape.top() * HASH as u64 + u64::from(self.hot) * Hot::SIZE as u64;
        Some(start..start.checked_add(len)?)
    }

    pub(crate) fn hot(&self) -> usize {
        self.hot as usize
    }

    /// Signs the header.
    pub fn sign(&mut self, key: &SecretKey) {
        self.key = *key.public().bytes();
        self.signature = key.sign(&self.message());
    }

    /// Returns the key of its signature, if there is one; [`Header::verify`] checks the signature.
    pub fn signer(&self) -> Option<PublicKey> {
        (self.key != [0; PublicKey::SIZE]).then(|| PublicKey::from_bytes(self.key))
    }

    /// Returns an error unless one of `keys` has signed the header.
    pub fn verify(&self, keys: &[PublicKey]) -> Result<(), Broken> {
        let signer = self.signer().ok_or(Broken::NotSigned)?;
        if !keys.contains(&signer) {
            return Err(Broken::OtherKey);
        }
        match signer.has_signed(&self.message(), &self.signature) {
            true => Ok(()),
            false => Err(Broken::Signature),
        }
    }

    /// Returns whether there is no signature, or a valid one of the key in the header.
    pub fn is_consistent(&self) -> bool {
        match self.signer() {
            Some(signer) => self.verify(&[signer]).is_ok(),
            None => self.signature == [0; SIGNATURE],
        }
    }

    fn message(&self) -> Vec<u8> {
        [SIGNED, &self.root].concat()
    }

    /// Returns the root of the header and `manifest`.
    pub(crate) fn root_with(&self, manifest: &[u8]) -> Hash {
        let mut hasher = blake3::Hasher::new_derive_key(ROOT_CONTEXT);
        hasher.update(&self.counted());
        hasher.update(manifest);
        *hasher.finalize().as_bytes()
    }

    fn counted(&self) -> [u8; COUNTED] {
        let mut bytes = [0; COUNTED];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.hot.to_le_bytes());
        bytes[16..].copy_from_slice(&self.image.to_le_bytes());
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
