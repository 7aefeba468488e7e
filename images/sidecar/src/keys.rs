//! Ed25519 keys in OpenSSL's formats.

use alloc::string::ToString;
use core::fmt;

use ed25519_dalek::pkcs8::{DecodePrivateKey, DecodePublicKey};
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};

/// A public key that verifies signatures.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; PublicKey::SIZE]);

impl PublicKey {
    pub(crate) const SIZE: usize = 32;

    /// Parses a PEM file (SubjectPublicKeyInfo, the output of `openssl pkey -pubout`).
    pub fn from_pem(text: &str) -> Result<PublicKey, &'static str> {
        let key = VerifyingKey::from_public_key_pem(text);
        let key = key.map_err(|_| "expected a public Ed25519 key in PEM")?;
        Ok(PublicKey(key.to_bytes()))
    }

    pub(crate) fn from_bytes(bytes: [u8; PublicKey::SIZE]) -> PublicKey {
        PublicKey(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; PublicKey::SIZE] {
        &self.0
    }

    /// Verifies a signature strictly: weak keys and malleable signatures are rejected.
    pub fn verifies(&self, message: &[u8], signature: &[u8; 64]) -> bool {
        let signature = Signature::from_bytes(signature);
        VerifyingKey::from_bytes(&self.0)
            .is_ok_and(|key| key.verify_strict(message, &signature).is_ok())
    }
}

/// Formats the key in hexadecimal.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_string())
    }
}

/// A signing key. It is wiped from memory when dropped.
pub struct SecretKey(SigningKey);

impl SecretKey {
    /// Parses a PEM file (PKCS #8, the output of `openssl genpkey -algorithm ed25519`) without a
    /// passphrase.
    pub fn from_pem(text: &str) -> Result<SecretKey, &'static str> {
        let key = SigningKey::from_pkcs8_pem(text);
        let expected = "expected a private Ed25519 key in PEM, without a passphrase";
        Ok(SecretKey(key.map_err(|_| expected)?))
    }

    /// Returns the public key that verifies its signatures.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// Signs a message; signatures are deterministic (RFC 8032). The caller must exclude that a
    /// message of one purpose is valid for another: those of images begin with
    /// [`SIGNATURE_CONTEXT`](crate::SIGNATURE_CONTEXT).
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.0.sign(message).to_bytes()
    }
}
