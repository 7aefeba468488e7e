//! Ed25519 keys, as OpenSSL writes them.

use alloc::string::ToString;
use core::fmt;

use ed25519_dalek::pkcs8::{DecodePrivateKey, DecodePublicKey};
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};

/// What signatures are held against.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; PublicKey::SIZE]);

impl PublicKey {
    pub(crate) const SIZE: usize = 32;

    /// Reads it off a PEM file (SubjectPublicKeyInfo, as `openssl pkey -pubout` makes one).
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

    /// Strictly: neither key nor signature may be one that others than the signer could have made up.
    pub(crate) fn has_signed(&self, message: &[u8], signature: &[u8; 64]) -> bool {
        let signature = Signature::from_bytes(signature);
        VerifyingKey::from_bytes(&self.0)
            .is_ok_and(|key| key.verify_strict(message, &signature).is_ok())
    }
}

/// The key in hexadecimal.
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

/// What signs. It is wiped from memory when it goes.
pub struct SecretKey(SigningKey);

impl SecretKey {
    /// Reads it off a PEM file (PKCS #8, as `openssl genpkey -algorithm ed25519` makes one), which has no passphrase.
    pub fn from_pem(text: &str) -> Result<SecretKey, &'static str> {
        let key = SigningKey::from_pkcs8_pem(text);
        let expected = "expected a private Ed25519 key in PEM, without a passphrase";
        Ok(SecretKey(key.map_err(|_| expected)?))
    }

    /// What its signatures are held against.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// The same message has the same signature, always (RFC 8032).
    pub(crate) fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.0.sign(message).to_bytes()
    }
}
