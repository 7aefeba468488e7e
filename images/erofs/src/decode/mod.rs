//! Decoders of a prefix of compressed data.
//!
//! LZ4 is implemented here, since no Rust decoder can stop at a given length. The others come from
//! libraries; their memory use is bounded here.

mod lz4;

use alloc::vec::Vec;

use lzma_rust2::{LzmaReader, Read};
use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::layout::{Algorithm, MAX_PCLUSTER_DECODED};
use crate::read::Error;

/// Decodes the first `len` bytes of `encoded`, skipping leading zeros.
pub fn decode<E>(algorithm: Algorithm, encoded: &[u8], len: usize) -> Result<Vec<u8>, Error<E>> {
    let start = encoded.iter().position(|byte| *byte != 0);
    let encoded = &encoded[start.unwrap_or(encoded.len())..];
    let decoded = match algorithm {
        Algorithm::Lz4 => lz4::decode(encoded, len),
        Algorithm::Lzma => lzma(encoded, len),
        Algorithm::Deflate => deflate(encoded, len),
        Algorithm::Zstd => zstd(encoded, len),
    };
    decoded.ok_or(Error::Corrupt("undecodable data"))
}

/// Decodes MicroLZMA: the first byte, which is zero in LZMA, holds the inverted properties.
fn lzma(encoded: &[u8], len: usize) -> Option<Vec<u8>> {
    let (properties, rest) = encoded.split_first()?;
    let stream = [&[0][..], rest].concat();
    // No match reaches back beyond the start.
    let dictionary = len as u32;
    let mut reader =
        LzmaReader::new_with_props(&stream[..], len as u64, !properties, dictionary, None).ok()?;
    let mut decoded = alloc::vec![0; len];
    reader.read_exact(&mut decoded).ok()?;
    Some(decoded)
}

fn deflate(encoded: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut decoded = alloc::vec![0; len];
    let flags = inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let mut state = DecompressorOxide::new();
    let (_, _, written) = decompress(&mut state, encoded, &mut decoded, 0, flags);
    (written == len).then_some(decoded)
}

/// Window sizes are powers of two.
const MAX_WINDOW: u64 = (MAX_PCLUSTER_DECODED as u64).next_power_of_two();

fn zstd(mut encoded: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(MAX_WINDOW);
    decoder.reset(&mut encoded).ok()?;
    while decoder.can_collect() < len {
        if decoder.is_finished() {
            return None;
        }
        decoder
            .decode_blocks(&mut encoded, BlockDecodingStrategy::UptoBlocks(1))
            .ok()?;
    }
    let mut decoded = decoder.collect()?;
    decoded.truncate(len);
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes 10,000 times the letter a, encoded by each reference encoder, with zeros before it;
    /// and only a part of it.
    #[test]
    fn the_first_bytes_are_enough() {
        for (algorithm, encoded) in [
            (
                Algorithm::Deflate,
                &b"\xed\xc1\x01\x0d\x00\x00\x00\xc2\xa0\xac\xef\x5f\xc2\x1c\x6e\x40\x01\x00\x00\x00\x00\x00\x00\x00\x00\xc0\xbf\x01"[..],
            ),
            (
                Algorithm::Zstd,
                b"\x28\xb5\x2f\xfd\x00\x68\x45\x00\x00\x08\x61\x01\x00\x0c\x87\x07\x42",
            ),
        ] {
            let padded = [&[0; 9][..], encoded].concat();
            for len in [1, 100, 10_000] {
                let decoded = decode::<()>(algorithm, &padded, len);
                assert_eq!(decoded, Ok(alloc::vec![b'a'; len]), "{algorithm:?} {len}");
            }
            assert!(decode::<()>(algorithm, &padded, 10_001).is_err());
            assert!(decode::<()>(algorithm, &padded[..12], 100).is_err());
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_decode_or_do_not(encoded: Vec<u8>, len in 0usize..70_000, algorithm in 0u8..4) {
            let algorithm = Algorithm::from_number(algorithm).expect("a number of one");
            if let Ok(decoded) = decode::<()>(algorithm, &encoded, len) {
                assert_eq!(decoded.len(), len);
            }
        }
    }
}
