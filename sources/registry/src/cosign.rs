//! Verification of signatures that cosign has put into the registry next to an image.
//!
//! A signature is verified before its payload is parsed. One signature by one of the keys is
//! enough; others may be by anyone, damaged, or of another digest.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::PublicKey;
use objects::RequestError;
use pack::oci::Digest;
use pack::oci::cosign::{Signature, parse_payload, parse_signatures, signature_tag};
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject;
use vfs::Errno;

use crate::blob::small_blob;
use crate::client::{Repository, Target, invalid};
use objects::read_bounded;

/// Maximum size in bytes of a file with a key.
const MAX_KEY: u64 = 64 << 10;

/// The beginning of a key of ECDSA on P-256 in DER (RFC 5480, section 2): the algorithm and the
/// curve. An uncompressed point follows.
const P256: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Size in bytes of a point of P-256 that is not compressed.
const POINT: usize = 65;

/// A public key of a type that cosign makes (ECDSA on P-256) or that it accepts (Ed25519).
#[derive(Clone, Debug)]
pub enum CosignKey {
    /// ECDSA on P-256 with SHA-256: the point.
    P256(Vec<u8>),
    /// Ed25519.
    Ed25519(PublicKey),
}

impl CosignKey {
    /// Reads a PEM file.
    pub fn read(path: &Path) -> io::Result<CosignKey> {
        let text = read_bounded(path, MAX_KEY)?;
        CosignKey::from_pem(&text)
            .map_err(|what| invalid(format_args!("{}: {what}", path.display())))
    }

    /// Parses a PEM file (SubjectPublicKeyInfo, as `cosign generate-key-pair` and `openssl pkey
    /// -pubout` write it). The error says what was expected.
    pub fn from_pem(text: &[u8]) -> Result<CosignKey, &'static str> {
        let expected = "expected a public key of Ed25519 or of ECDSA on P-256 in PEM";
        let key = SubjectPublicKeyInfoDer::from_pem_slice(text).map_err(|_| expected)?;
        if let Some(point) = key.strip_prefix(P256)
            && point.len() == POINT
        {
            return Ok(CosignKey::P256(point.to_vec()));
        }
        let text = str::from_utf8(text).map_err(|_| expected)?;
        let key = PublicKey::from_pem(text).map_err(|_| expected)?;
        Ok(CosignKey::Ed25519(key))
    }

    /// Returns whether a signature of `message` is by this key.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            CosignKey::P256(point) => UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point)
                .verify(message, signature)
                .is_ok(),
            CosignKey::Ed25519(key) => {
                (signature.try_into()).is_ok_and(|signature| key.verifies(message, signature))
            }
        }
    }
}

/// Returns an error unless one of the keys in the PEM files `keys` has signed the manifest or index
/// `digest`.
pub(crate) fn verify(
    repository: &Arc<Repository>,
    digest: &Digest,
    keys: &[PathBuf],
) -> io::Result<()> {
    let keys = keys.iter().map(|path| CosignKey::read(path));
    let keys = keys.collect::<io::Result<Vec<_>>>()?;
    let tag = signature_tag(digest);
    let target = Target::Tag(tag.clone());
    let found = repository.document(&target, None, parse_signatures);
    let (_, signatures) = found.map_err(|error| match error.errno {
        Errno::ENOENT => {
            let message = format!("expected a signature of cosign, got none: no tag {tag}");
            RequestError::permanent(Errno::EACCES, message).into_io()
        }
        _ => {
            let error = error.into_io();
            io::Error::new(error.kind(), format!("signature {tag}: {error}"))
        }
    })?;
    let mut last = "none".to_owned();
    let mut unread = None;
    for signature in &signatures {
        match verify_one(repository, digest, &keys, signature) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => last = error.to_string(),
            Err(error) => unread = Some(error),
        }
    }
    // It may be the one.
    if let Some(error) = unread {
        return Err(io::Error::new(
            error.kind(),
            format!("signature {tag}: {error}"),
        ));
    }
    let count = signatures.len();
    let line = format!(
        "expected a signature of cosign by one of the keys, got {count} others in {tag}; the last \
         one: {last}"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, line))
}

fn verify_one(
    repository: &Arc<Repository>,
    digest: &Digest,
    keys: &[CosignKey],
    Signature { payload, signature }: &Signature,
) -> io::Result<()> {
    let text = small_blob(repository, payload, "a payload")?;
    if !keys.iter().any(|key| key.verifies(&text, signature)) {
        return Err(invalid("signed with another key, or damaged"));
    }
    let signed = parse_payload(&text)?;
    match signed == *digest {
        true => Ok(()),
        false => Err(invalid(format_args!("it is of {signed}"))),
    }
}
