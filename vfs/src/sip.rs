//! SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed hash with a stable result.
//!
//! It authenticates handles, and maps identifiers wider than 64 bits to numbers. The standard
//! library's hasher guarantees no stable result, so it is unsuitable for values that outlive the
//! process.

/// A 128-bit key.
pub type Key = [u8; 16];

/// Returns the hash of `data` under `key`.
pub fn hash(key: &Key, data: &[u8]) -> u64 {
    let word = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0u64, |word, &byte| word << 8 | u64::from(byte))
    };
    let (k0, k1) = (word(&key[..8]), word(&key[8..]));
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let mut take = |m: u64| {
        v[3] ^= m;
        round(&mut v);
        round(&mut v);
        v[0] ^= m;
    };
    let mut chunks = data.chunks_exact(8);
    for chunk in &mut chunks {
        take(word(chunk));
    }
    take((data.len() as u64) << 56 | word(chunks.remainder()));
    v[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
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
