//! SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed hash with a stable result.
//!
//! It authenticates handles, and maps identifiers wider than 64 bits to numbers. The standard
//! library's hasher guarantees no stable result, so it is unsuitable for values that outlive the
//! process.

use siphasher::sip::SipHasher24;

/// A 128-bit key.
pub type Key = [u8; 16];

/// Returns the hash of `data` under `key`.
pub fn hash(key: &Key, data: &[u8]) -> u64 {
    SipHasher24::new_with_key(key).hash(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_paper_s() {
        let key: Key = std::array::from_fn(|i| i as u8);
        let data: Vec<u8> = (0..15).collect();
        // The paper's appendix A, and the first of the authors' vectors.
        assert_eq!(hash(&key, &data), 0xa129_ca61_49be_45e5);
        assert_eq!(hash(&key, &[]), 0x726f_db47_dd0e_0e31);
    }
}
