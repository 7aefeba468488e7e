//! What the first bytes of an image say.

use alloc::vec::Vec;
use core::ops::Range;

use crate::Broken;
use crate::keys::{PublicKey, SecretKey};
use crate::manifest::{Hot, MOST_HOT};
use crate::shape::{HASH, Hash, Shape};

/// Bytes of the header: what EROFS leaves to others.
pub const HEADER: usize = 1024;

/// What stands before the root in what is signed, so that no signature over anything else counts here.
pub const SIGNED: &[u8] = b"barge image root 1\n";

const MAGIC: [u8; 8] = *b"\x8abarge\r\n";
const VERSION: u32 = 1;

/// For what the hash is that the root is, as BLAKE3 wants to know.
const ROOT_CONTEXT: &str = "barge 2026-11-22 sidecar of an image: root of header and manifest";

/// Bytes that the root counts, from the start.
const COUNTED: usize = 24;
/// Bytes that are not zeros, from the start.
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
    /// Of an image of so many bytes, whose manifest is `manifest`; nobody has signed it.
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

    /// Reads it off the first bytes of an image that is in `len` bytes with all that belongs to it; nothing if there is none.
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
            return Err(Broken::Damaged("the image ends before its end"));
        }
        if hot > MOST_HOT {
            return Err(Broken::Damaged(
                "a hot list of more ranges than there may be",
            ));
        }
        let shape = Shape::of(image).ok_or(Broken::Damaged("an image of too many bytes"))?;
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

    /// As it lies at the start of an image.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let told = [&self.counted()[..], &self.root, &self.key, &self.signature].concat();
        bytes[..TOLD].copy_from_slice(&told);
        bytes[MAGIC_AGAIN..].copy_from_slice(&MAGIC);
        bytes
    }

    /// Bytes of the image: what is behind them is no part of it.
    pub fn image(&self) -> u64 {
        self.image
    }

    /// Where the hashes lie.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The root: two images that have the same one are the same.
    pub fn root(&self) -> &Hash {
        &self.root
    }

    /// Where the manifest is.
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

    /// Signs it.
    pub fn sign(&mut self, key: &SecretKey) {
        self.key = *key.public().bytes();
        self.signature = key.sign(&self.message());
    }

    /// Who has signed it, if anybody has; whether that is true [`Header::verify`] says.
    pub fn signer(&self) -> Option<PublicKey> {
        (self.key != [0; PublicKey::SIZE]).then(|| PublicKey::from_bytes(self.key))
    }

    /// Whether one of `keys` has signed it.
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

    /// Whether there is no signature, or it is of who it says.
    pub fn is_consistent(&self) -> bool {
        match self.signer() {
            Some(signer) => self.verify(&[signer]).is_ok(),
            None => self.signature == [0; SIGNATURE],
        }
    }

    fn message(&self) -> Vec<u8> {
        [SIGNED, &self.root].concat()
    }

    /// The root that header and manifest come to.
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

/// Fields that are read one after the other, of which there are enough.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_at(N);
        self.0 = rest;
        field.try_into().expect("split off above")
    }
}
