//! Coalescing of pieces into range requests.

use std::mem::take;
use std::ops::Range;

use image::Piece;

/// The maximum gap in bytes between two pieces fetched by one request: as many bytes as a
/// connection transfers in the time that a separate request takes. Measurements are in
/// `docs/notes/images.md`.
pub(crate) const MAX_GAP: u64 = 128 << 10;

/// The maximum number of bytes in one request: longer requests only reduce concurrency.
pub(crate) const MAX_REQUEST: u64 = 2 << 20;

/// A range request.
#[derive(Debug)]
pub(crate) struct RangeRequest<'a> {
    /// The requested range.
    pub(crate) range: Range<u64>,
    /// The wanted pieces within the range, sorted.
    pub(crate) pieces: Vec<Piece<'a>>,
}

/// Distributes `pieces`, which are sorted and do not overlap, over requests.
pub(crate) fn coalesce<'a>(
    pieces: &'a mut [Piece<'_>],
    gap: u64,
    most: u64,
) -> Vec<RangeRequest<'a>> {
    let mut spans: Vec<RangeRequest<'a>> = Vec::new();
    for piece in pieces {
        let (mut at, mut into) = (piece.offset, &mut *piece.buffer);
        while !into.is_empty() {
            let last = spans
                .last_mut()
                .filter(|span| at - span.range.end <= gap && at - span.range.start < most);
            let limit = match &last {
                Some(span) => most - (at - span.range.start),
                None => most,
            };
            let len = into.len().min(usize::try_from(limit).unwrap_or(usize::MAX));
            let (now, later) = take(&mut into).split_at_mut(len);
            let end = at + len as u64;
            let part = Piece {
                offset: at,
                buffer: now,
            };
            match last {
                Some(span) => {
                    span.range.end = end;
                    span.pieces.push(part);
                }
                None => spans.push(RangeRequest {
                    range: at..end,
                    pieces: vec![part],
                }),
            }
            (at, into) = (end, later);
        }
    }
    spans
}

impl RangeRequest<'_> {
    /// Copies the wanted part of `bytes`, which begin at offset `at` of the object, into the
    /// pieces.
    pub(crate) fn take(&mut self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        let first = self
            .pieces
            .partition_point(|piece| piece.offset + piece.buffer.len() as u64 <= at);
        for piece in &mut self.pieces[first..] {
            if piece.offset >= end {
                break;
            }
            let (from, to) = (
                at.max(piece.offset),
                end.min(piece.offset + piece.buffer.len() as u64),
            );
            let into =
                &mut piece.buffer[(from - piece.offset) as usize..(to - piece.offset) as usize];
            into.copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranges(pieces: &[(u64, usize)], gap: u64, most: u64) -> Vec<(u64, u64)> {
        let mut bytes: Vec<_> = pieces.iter().map(|&(_, len)| vec![0; len]).collect();
        let mut pieces: Vec<_> = pieces
            .iter()
            .zip(&mut bytes)
            .map(|(&(at, _), into)| Piece {
                offset: at,
                buffer: into,
            })
            .collect();
        let spans = coalesce(&mut pieces, gap, most);
        let ranges = spans.into_iter().map(|span| span.range);
        ranges.map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn what_is_close_is_one_request_and_what_is_long_several() {
        for (pieces, spans) in [
            (&[(0, 10), (10, 5)][..], &[(0, 15)][..]),
            (&[(0, 10), (20, 5)], &[(0, 25)]),
            (&[(0, 10), (21, 5)], &[(0, 10), (21, 26)]),
            (&[(0, 250)], &[(0, 100), (100, 200), (200, 250)]),
            (&[(0, 90), (95, 20)], &[(0, 100), (100, 115)]),
            (&[(5, 0), (9, 1)], &[(9, 10)]),
            (&[(u64::MAX - 5, 5)], &[(u64::MAX - 5, u64::MAX)]),
        ] {
            assert_eq!(ranges(pieces, 10, 100), spans, "{pieces:?}");
        }
    }

    proptest! {
        #[test]
        fn each_piece_gets_its_bytes_in_whatever_parts_they_come(
            steps in prop::collection::vec((0u64..40, 0usize..60), 1..20),
            gap in 0u64..30,
            most in 1u64..50,
            part in 1usize..20,
        ) {
            let object: Vec<u8> = (0..2100u32).map(|at| (at * 7 + at / 256) as u8).collect();
            let mut at = 0;
            let mut wanted: Vec<(u64, Vec<u8>)> = Vec::new();
            for (skip, len) in steps {
                at += skip;
                wanted.push((at, vec![0; len]));
                at += len as u64;
            }
            let mut pieces: Vec<_> =
                wanted.iter_mut().map(|(at, into)| Piece { offset: *at, buffer: into }).collect();
            for mut span in coalesce(&mut pieces, gap, most) {
                let Range { start, end } = span.range;
                prop_assert!(end - start <= most && start < end);
                let bytes = &object[start as usize..end as usize];
                for (number, bytes) in bytes.chunks(part).enumerate() {
                    span.take(start + (number * part) as u64, bytes);
                }
            }
            for (at, into) in wanted {
                prop_assert_eq!(&into[..], &object[at as usize..at as usize + into.len()]);
            }
        }
    }
}
