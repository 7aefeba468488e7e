//! Record marking (RFC 5531 section 11): on a stream each message is a record of fragments, each
//! preceded by 4 bytes with its length and whether it is the last.

use std::borrow::Cow;
use std::ops::Range;

use wire::Malformed;

/// The length of a record mark.
pub(crate) const MARK: usize = 4;

/// The bit that marks the last fragment.
pub(crate) const LAST: u32 = 1 << 31;

/// The maximum number of fragments of a record: enough for the largest record in fragments of 2
/// KiB, the smallest that clients send, and few enough to scan cheaply.
const MAX_FRAGMENTS: usize = 1024;

/// Returns the fragments of the record that `head` begins, as far as their marks are present, and
/// whether the last one is among them.
fn fragments(head: &[u8], most: usize) -> Result<(Vec<Range<usize>>, bool), Malformed> {
    let mut fragments = Vec::with_capacity(1);
    let mut at = 0;
    let mut total = 0;
    while let Some(mark) = head.get(at..).and_then(|rest| rest.first_chunk()) {
        let mark = u32::from_be_bytes(*mark);
        let len = (mark & !LAST) as usize;
        total += len;
        if total > most || fragments.len() == MAX_FRAGMENTS {
            return Err(Malformed::new(format!(
                "expected a record of at most {most} bytes in {MAX_FRAGMENTS} fragments"
            )));
        }
        fragments.push(at + MARK..at + MARK + len);
        if mark & LAST != 0 {
            return Ok((fragments, true));
        }
        at += MARK + len;
    }
    Ok((fragments, false))
}

/// Returns the length of the record that `head` begins, including marks; `None` if its last
/// fragment's mark is not present yet. Rejects a record of more than `most` bytes.
pub(crate) fn frame(head: &[u8], most: usize) -> Result<Option<usize>, Malformed> {
    // A record is nearly always a single fragment.
    let Some(mark) = head.first_chunk() else {
        return Ok(None);
    };
    let mark = u32::from_be_bytes(*mark);
    let len = (mark & !LAST) as usize;
    if mark & LAST != 0 && len <= most {
        return Ok(Some(MARK + len));
    }
    let (fragments, whole) = fragments(head, most)?;
    Ok(fragments.last().filter(|_| whole).map(|last| last.end))
}

/// A complete record with its fragments joined.
pub(crate) struct Record<'a> {
    bytes: Cow<'a, [u8]>,
    /// The ranges of the fragments in the message.
    fragments: Vec<Range<usize>>,
}

impl<'a> Record<'a> {
    /// Parses `message`, a complete record.
    pub(crate) fn new(message: &'a [u8]) -> Result<Record<'a>, Malformed> {
        let (fragments, whole) = fragments(message, usize::MAX)?;
        if !whole
            || fragments
                .last()
                .is_none_or(|last| last.end != message.len())
        {
            return Err(Malformed::new("expected a complete record"));
        }
        let bytes = match fragments.as_slice() {
            [one] => Cow::Borrowed(&message[one.clone()]),
            many => Cow::Owned(
                many.iter()
                    .flat_map(|f| &message[f.clone()])
                    .copied()
                    .collect(),
            ),
        };
        Ok(Record { bytes, fragments })
    }

    /// Wraps a datagram, which has no record marks.
    pub(crate) fn unmarked(datagram: &'a [u8]) -> Record<'a> {
        Record {
            bytes: Cow::Borrowed(datagram),
            fragments: std::iter::once(0..datagram.len()).collect(),
        }
    }

    /// Returns the contents.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Converts the record into its contents.
    pub(crate) fn into_bytes(self) -> Cow<'a, [u8]> {
        self.bytes
    }

    /// Returns the ranges of the message that contain `range` of the contents.
    pub(crate) fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        self.fragments.iter().filter_map(move |fragment| {
            let from = range.start.max(start);
            let to = range.end.min(start + fragment.len());
            let at = fragment.start;
            let piece = (from < to).then(|| at + (from - start)..at + (to - start));
            start += fragment.len();
            piece
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(last: bool, bytes: &[u8]) -> Vec<u8> {
        let mark = bytes.len() as u32 | if last { LAST } else { 0 };
        [&mark.to_be_bytes(), bytes].concat()
    }

    #[test]
    fn a_record_ends_with_its_last_fragment() {
        let message = [fragment(false, b"ab"), fragment(true, b"cde"), vec![0; 3]].concat();
        for len in 0..message.len() {
            // The last mark is complete with the tenth byte.
            let want = (len >= 10).then_some(13);
            assert_eq!(frame(&message[..len], 100), Ok(want), "{len}");
        }
        assert!(frame(&message, 4).is_err());
        assert!(frame(&[0xff; 4], 1 << 20).is_err());
        let many = [0; 4 * (MAX_FRAGMENTS + 1)];
        assert!(frame(&many, 100).is_err(), "too many fragments");
    }

    #[test]
    fn fragments_are_joined_and_found_again() {
        let message = [fragment(false, b"ab"), fragment(true, b"cde")].concat();
        let record = Record::new(&message).expect("a record");
        assert_eq!(record.bytes(), b"abcde");
        let pieces: Vec<_> = record.pieces(1..4).collect();
        assert_eq!(pieces, [5..6, 10..12]);
        assert!(Record::new(&message[..12]).is_err());
    }
}
