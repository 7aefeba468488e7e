//! Sealed handles: a peer cannot forge one, alter one, or use it with another export.
//!
//! ```text
//! tag length u8 | body | tag
//! ```
//! The tag is the keyed BLAKE3 hash of all bytes before it, truncated to 16 bytes, or to as many as
//! fit, but no fewer than 8.

use std::fmt;

use crate::{Errno, Handle, Result, siphash};

/// A 256-bit secret that seals handles. `Debug` does not reveal it.
#[derive(Clone, PartialEq, Eq)]
pub struct HandleKey([u8; 32]);

/// The maximum tag length: 128 bits cannot be guessed.
const MAX_TAG: usize = 16;

/// The minimum tag length: no network carries the 2^64 requests that guessing takes.
const MIN_TAG: usize = 8;

/// The length of the header before the body.
const HEADER: usize = 1;

impl HandleKey {
    /// Returns the maximum length of a body that [`HandleKey::seal`] accepts for a handle of `most`
    /// bytes.
    pub const fn max_body(most: usize) -> usize {
        most - HEADER - MIN_TAG
    }

    /// Creates a key of these bytes, which must be random.
    pub const fn new(bytes: [u8; 32]) -> HandleKey {
        HandleKey(bytes)
    }

    /// Derives the key for `purpose` from this one and `parts`.
    pub fn derive(&self, purpose: &str, parts: &[&[u8]]) -> HandleKey {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in [purpose.as_bytes()].iter().chain(parts) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        HandleKey(*hasher.finalize().as_bytes())
    }

    /// Derives the key that hashes numbers ([`siphash`]) from this one.
    pub fn number_key(&self) -> siphash::Key {
        let HandleKey(bytes) = self.derive("numbers", &[]);
        *bytes.first_chunk().expect("32 bytes have 16")
    }

    /// Seals `body` in a handle of at most `most` bytes. Returns `EOPNOTSUPP` if that leaves no
    /// room for the shortest tag.
    pub fn seal(&self, body: &[u8], most: usize) -> Result<Handle> {
        let capacity = most.min(Handle::MAX).checked_sub(HEADER + body.len());
        let len = capacity
            .filter(|&capacity| capacity >= MIN_TAG)
            .ok_or(Errno::EOPNOTSUPP)?;
        let len = len.min(MAX_TAG);
        let mut bytes = Vec::with_capacity(HEADER + body.len() + len);
        bytes.push(len as u8);
        bytes.extend_from_slice(body);
        let tag = self.tag(&bytes);
        bytes.extend_from_slice(&tag[..len]);
        Handle::new(&bytes)
    }

    /// Returns the body of a handle that this key sealed, in time independent of where a tag is
    /// wrong. Returns `ESTALE` for any other handle.
    pub fn open<'h>(&self, handle: &'h Handle) -> Result<&'h [u8]> {
        let bytes = handle.bytes();
        let len = usize::from(*bytes.first().ok_or(Errno::ESTALE)?);
        let at = bytes.len().checked_sub(len).filter(|&at| at >= HEADER);
        let at = at
            .filter(|_| (MIN_TAG..=MAX_TAG).contains(&len))
            .ok_or(Errno::ESTALE)?;
        let (sealed, tag) = bytes.split_at(at);
        let right = self.tag(sealed);
        let differ = tag.iter().zip(&right).fold(0, |all, (a, b)| all | (a ^ b));
        match std::hint::black_box(differ) {
            0 => Ok(&sealed[HEADER..]),
            _ => Err(Errno::ESTALE),
        }
    }

    fn tag(&self, bytes: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(&self.0, bytes).as_bytes()
    }
}

impl fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandleKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 48;

    #[test]
    fn a_body_of_any_length_comes_back_until_no_tag_fits() {
        let key = HandleKey::new([7; 32]);
        for len in 0..=HandleKey::max_body(MOST) {
            let body: Vec<u8> = (0..len as u8).collect();
            let handle = key.seal(&body, MOST).expect("it fits");
            assert!(handle.bytes().len() <= MOST);
            assert_eq!(key.open(&handle), Ok(&body[..]));
        }
        let long = [0; HandleKey::max_body(MOST) + 1];
        assert_eq!(key.seal(&long, MOST), Err(Errno::EOPNOTSUPP));
    }

    #[test]
    fn every_bit_of_a_handle_counts_and_its_length() {
        let key = HandleKey::new([7; 32]);
        for len in [0, 20, 36, HandleKey::max_body(MOST)] {
            let body = vec![5; len];
            let handle = key.seal(&body, MOST).expect("it fits");
            let bytes = handle.bytes();
            for bit in 0..8 * bytes.len() {
                let mut forged = bytes.to_vec();
                forged[bit / 8] ^= 1 << (bit % 8);
                let forged = Handle::new(&forged).expect("short");
                assert_eq!(key.open(&forged), Err(Errno::ESTALE), "{len} {bit}");
            }
            for cut in 0..bytes.len() {
                let cut = Handle::new(&bytes[..cut]).expect("short");
                assert_eq!(key.open(&cut), Err(Errno::ESTALE));
            }
            let longer = Handle::new(&[bytes, &[0]].concat()).expect("short");
            assert_eq!(key.open(&longer), Err(Errno::ESTALE));
        }
    }

    #[test]
    fn another_key_opens_nothing_and_derived_keys_differ() {
        let key = HandleKey::new([7; 32]);
        let handle = key.seal(b"body", MOST).expect("it fits");
        let parts: [&[&[u8]]; 4] = [&[b"a", b"b"], &[b"ab"], &[b"a", b"", b"b"], &[]];
        let mut keys: Vec<HandleKey> = parts.iter().map(|p| key.derive("x", p)).collect();
        keys.push(key.derive("y", &[]));
        keys.push(HandleKey::new([8; 32]));
        for (at, other) in keys.iter().enumerate() {
            assert_eq!(other.open(&handle), Err(Errno::ESTALE));
            assert!(keys[..at].iter().all(|earlier| earlier != other));
        }
        assert_eq!(key.derive("x", &[b"ab"]), keys[1]);
        assert_eq!(format!("{key:?}"), "HandleKey(..)");
    }
}
