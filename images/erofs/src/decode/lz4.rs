//! LZ4 block decoder.
//!
//! A sequence is a token (number of literals, and match length minus 4, in 4 bits each; 15 is
//! extended by bytes up to the first that is not 255), the literals, and two bytes of match offset.
//! Source: `lz4_Block_format.md`.

use alloc::vec::Vec;

/// Number of bytes copied at once where excess bytes do no harm.
const WILD_COPY_LENGTH: usize = 16;

/// Decodes the first `len` bytes, if there are as many.
pub(super) fn decode(encoded: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut decoded = alloc::vec![0; len + WILD_COPY_LENGTH];
    let (mut from, mut to) = (0, 0);
    while to < len {
        let token = *encoded.get(from)?;
        from += 1;
        let literals = length(encoded, &mut from, token >> 4)?;
        let take = literals.min(len - to);
        match encoded.get(from..from + WILD_COPY_LENGTH) {
            Some(wild) if take <= WILD_COPY_LENGTH => {
                decoded[to..to + WILD_COPY_LENGTH].copy_from_slice(wild)
            }
            _ => decoded[to..to + take].copy_from_slice(encoded.get(from..from + take)?),
        }
        from += literals;
        to += take;
        if to == len {
            break;
        }
        let back = encoded.get(from..from + 2)?;
        let back = usize::from(u16::from_le_bytes([back[0], back[1]]));
        from += 2;
        let start = to.checked_sub(back).filter(|_| back > 0)?;
        let matched = length(encoded, &mut from, token & 15)? + 4;
        let take = matched.min(len - to);
        if take <= WILD_COPY_LENGTH && back >= WILD_COPY_LENGTH {
            decoded.copy_within(start..start + WILD_COPY_LENGTH, to);
        } else {
            let mut done = 0;
            while done < take {
                // The copied bytes continue the period of the match.
                let piece = (back + done).min(take - done);
                decoded.copy_within(start..start + piece, to + done);
                done += piece;
            }
        }
        to += take;
    }
    decoded.truncate(len);
    Some(decoded)
}

/// Decodes a length that begins with 4 bits of a token. It cannot overflow, being limited by the
/// length of `encoded`.
fn length(encoded: &[u8], from: &mut usize, nibble: u8) -> Option<usize> {
    let mut length = usize::from(nibble);
    if nibble == 15 {
        loop {
            let more = *encoded.get(*from)?;
            *from += 1;
            length += usize::from(more);
            if more != 255 {
                break;
            }
        }
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_of_each_kind() {
        for (encoded, decoded) in [
            (&b"\x50hello"[..], &b"hello"[..]),
            (b"\x10a\x01\x00\x10b", b"aaaaab"),
            (b"\x1fa\x01\x00\x05\x10b", b"aaaaaaaaaaaaaaaaaaaaaaaaab"),
            (b"\x24ab\x02\x00\x10c", b"ababababab\x63"),
        ] {
            assert_eq!(decode(encoded, decoded.len()).as_deref(), Some(decoded));
            for len in 0..decoded.len() {
                assert_eq!(decode(encoded, len).as_deref(), Some(&decoded[..len]));
            }
            assert_eq!(decode(encoded, decoded.len() + 1), None);
        }
    }

    #[test]
    fn what_reaches_beyond_the_start_is_refused() {
        assert_eq!(decode(b"\x10a\x02\x00\x10b", 6), None);
        assert_eq!(decode(b"\x10a\x00\x00\x10b", 6), None);
        assert_eq!(decode(b"\xf0\xff\xff", 600), None);
        assert_eq!(decode(b"", 1), None);
        assert_eq!(decode(b"", 0), Some(Vec::new()));
    }
}
