//! READ, READ_PLUS, WRITE, COMMIT.

use wire::{Malformed, Xdr, XdrReader};

use super::attr::PUTFH;
use super::compound::{Operations, Ops, Results, Sequence};
use crate::client::{Failure, SeparatePayload, Stable, Written};
use crate::v4::op::{self, Op};
use crate::v4::reply::Written as WrittenReply;
use crate::v4::types::{Content, Stable as Committed};
use crate::v4::{StateId, Verifier};

/// A READ or READ_PLUS.
#[derive(Clone, Copy)]
pub struct Read<'a> {
    /// The file's handle.
    pub handle: &'a [u8],
    /// The stateid of the open.
    pub state: StateId,
    /// The offset of the first byte.
    pub offset: u64,
    /// The maximum number of bytes.
    pub count: u32,
    /// Whether to use READ_PLUS (v4.2), whose replies contain no data for holes.
    pub plus: bool,
}

/// The results of a read.
pub struct ReadPieces<'r> {
    /// The first piece, if there is any.
    pub first: Option<Piece<'r>>,
    /// The other pieces: each begins where the previous one ends.
    pub rest: Vec<Piece<'r>>,
    /// Whether there was a piece of zero length, which makes the results doubtful: Ganesha 4.3
    /// returns one both where there are no data and where there are.
    pub empty: bool,
    /// Whether the pieces reach the end of the file.
    pub eof: bool,
}

impl<'r> ReadPieces<'r> {
    /// Returns all pieces in order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'r>> {
        self.first.iter().chain(&self.rest).copied()
    }

    /// Returns their total length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        let len = |piece| match piece {
            Piece::Data(data) => data.len(),
            Piece::Hole(len) => len,
        };
        self.pieces().map(len).sum()
    }
}

/// A piece of the results of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'r> {
    /// Data.
    Data(&'r [u8]),
    /// A hole of this many bytes.
    Hole(usize),
}

const READ: u32 = 25;
const READ_PLUS: u32 = 68;

impl Read<'_> {
    /// Returns the same read without the file's handle.
    pub(in crate::client) fn without_handle(&self) -> Read<'static> {
        Read {
            handle: &[],
            ..*self
        }
    }

    /// Parses results up to the data, and returns the length of the data. The results must contain
    /// exactly one piece of data.
    pub(super) fn payload_len(&self, from: &mut Results<'_>) -> Result<usize, Failure> {
        let from = self.open(from)?;
        bool::get(from)?;
        if self.plus {
            let (pieces, content, offset) = (from.u32()?, Content::get(from)?, u64::get(from)?);
            if (pieces, content, offset) != (1, Content::Data, self.offset) {
                return Err(Malformed::new("expected one piece of data").into());
            }
        }
        match from.u32()? {
            len if len > self.count => Err(self.too_much(len.into())),
            len => Ok(len as usize),
        }
    }

    /// Parses results up to those of READ or READ_PLUS.
    fn open<'f, 'r>(&self, from: &'f mut Results<'r>) -> Result<&'f mut XdrReader<'r>, Failure> {
        from.take::<()>(PUTFH)?;
        from.open(if self.plus { READ_PLUS } else { READ })
    }

    fn too_much(&self, got: u64) -> Failure {
        let most = self.count;
        Malformed::new(format!("expected at most {most} bytes, got {got}")).into()
    }

    /// Parses the next piece of a READ_PLUS, `behind` bytes from the read's offset; returns it with
    /// its length.
    fn piece<'r>(
        &self,
        from: &mut XdrReader<'r>,
        behind: u64,
    ) -> Result<(Piece<'r>, u64), Failure> {
        let expected = self.offset.saturating_add(behind);
        let content = Content::get(from)?;
        let offset = u64::get(from)?;
        // A hole may begin before the requested range and end after it.
        let misplaced = match content {
            Content::Data => offset != expected,
            Content::Hole if behind == 0 => offset > expected,
            Content::Hole => offset != expected,
        };
        if misplaced {
            let what = format!("expected a piece at {expected}, got one at {offset}");
            return Err(Malformed::new(what).into());
        }
        match content {
            Content::Data => {
                let data = <&[u8]>::get(from)?;
                Ok((Piece::Data(data), data.len() as u64))
            }
            Content::Hole => {
                let len = u64::get(from)?.saturating_sub(expected - offset);
                let len = len.min(u64::from(self.count) - behind);
                Ok((Piece::Hole(len as usize), len))
            }
        }
    }
}

impl Operations for Read<'_> {
    type Answer<'r> = ReadPieces<'r>;

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        let read = op::Read {
            state: self.state,
            offset: self.offset,
            count: self.count,
        };
        to.op(&Op::Putfh(self.handle)).op(&match self.plus {
            true => Op::ReadPlus(read),
            false => Op::Read(read),
        });
    }

    /// Adds up operation number, status, end-of-file flag, the length of the data or the header of
    /// a READ_PLUS segment, and the data.
    fn max_reply(&self) -> usize {
        let head = if self.plus { 32 } else { 16 };
        head + self.count as usize
    }

    fn separate_payload(&self, sequence: Option<Sequence>) -> Option<SeparatePayload> {
        Some(SeparatePayload::for_v4(sequence, self))
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<ReadPieces<'r>, Failure> {
        let from = self.open(from)?;
        let mut pieces = ReadPieces {
            first: None,
            rest: Vec::new(),
            empty: false,
            eof: bool::get(from)?,
        };
        if !self.plus {
            let data = <&[u8]>::get(from)?;
            if data.len() > self.count as usize {
                return Err(self.too_much(data.len() as u64));
            }
            pieces.first = Some(Piece::Data(data)).filter(|_| !data.is_empty());
            return Ok(pieces);
        }
        let mut total = 0;
        for _ in 0..from.u32()? {
            let (piece, len) = self.piece(from, total)?;
            total += len;
            if total > self.count.into() {
                return Err(self.too_much(total));
            }
            match pieces.first {
                _ if len == 0 => pieces.empty = true,
                None => pieces.first = Some(piece),
                Some(_) => pieces.rest.push(piece),
            }
        }
        Ok(pieces)
    }
}

/// A WRITE.
pub struct Write<'a> {
    /// The file's handle.
    pub handle: &'a [u8],
    /// The stateid of the open.
    pub state: StateId,
    /// The offset of the first byte.
    pub offset: u64,
    /// The requested stability.
    pub stable: Stable,
    /// The data.
    pub data: &'a [u8],
}

impl Operations for Write<'_> {
    type Answer<'r> = Written;

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.handle));
        // Encoded by hand, because the data follow.
        let to = to.number(WRITE);
        self.state.put(to);
        self.offset.put(to);
        self.stable.put(to);
        (self.data.len() as u32).put(to);
    }

    fn payload(&self) -> &[u8] {
        self.data
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Written, Failure> {
        from.take::<()>(PUTFH)?;
        let ok: WrittenReply = from.take(WRITE)?;
        let committed = ok.committed as u32;
        Ok(Written {
            count: ok.count.min(self.data.len() as u32),
            durable: committed >= self.stable as u32 && committed != Committed::Unstable as u32,
            verifier: ok.verifier,
        })
    }
}

const WRITE: u32 = 38;

/// A COMMIT of a whole file.
pub struct Commit<'a> {
    /// The file's handle.
    pub handle: &'a [u8],
}

impl Operations for Commit<'_> {
    type Answer<'r> = Verifier;

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        // The whole file.
        let (offset, count) = (0, 0);
        to.op(&Op::Putfh(self.handle))
            .op(&Op::Commit(op::Commit { offset, count }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Verifier, Failure> {
        const COMMIT: u32 = 5;
        from.take::<()>(PUTFH)?;
        from.take(COMMIT)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::client::v4::Compound;
    use crate::client::{CallArguments, ClientCall};

    fn read(plus: bool) -> Read<'static> {
        Read {
            handle: b"file",
            state: StateId::ANONYMOUS,
            offset: 100,
            count: 50,
            plus,
        }
    }

    /// Returns the results of a compound of PUTFH and READ or READ_PLUS.
    fn reply(number: u32, rest: &[u8]) -> Vec<u8> {
        let words = [0, 0, 2, 22, 0, number, 0];
        let head = words.iter().flat_map(|word| u32::to_be_bytes(*word));
        head.chain(rest.iter().copied()).collect()
    }

    fn hole(offset: u64, len: u64) -> Vec<u8> {
        let offset = offset.to_be_bytes();
        [&[0, 0, 0, 1][..], &offset, &len.to_be_bytes()].concat()
    }

    fn data(offset: u64, bytes: &[u8]) -> Vec<u8> {
        let mut piece = [&[0; 4][..], &offset.to_be_bytes()].concat();
        bytes.put(&mut piece);
        piece
    }

    fn read_plus(pieces: &[Vec<u8>]) -> Result<(Vec<Piece<'static>>, bool), Failure> {
        let head = [&[0, 0, 0, 1][..], &(pieces.len() as u32).to_be_bytes()].concat();
        let bytes = reply(68, &[head, pieces.concat()].concat()).leak();
        let operations = &read(true);
        let compound = Compound {
            minor: 2,
            sequence: None,
            operations,
        };
        for len in 0..bytes.len() {
            assert!(compound.answer(&bytes[..len]).is_err(), "{len}");
        }
        let found = compound.answer(bytes)?.result?;
        let all = found.first.into_iter().chain(found.rest).collect();
        Ok((all, found.eof))
    }

    #[test]
    fn pieces_follow_each_other() {
        let got = read_plus(&[data(100, b"abcde"), hole(105, 40), data(145, b"fghij")]);
        let want = vec![
            Piece::Data(b"abcde"),
            Piece::Hole(40),
            Piece::Data(b"fghij"),
        ];
        assert_eq!(got, Ok((want, true)));
        assert_eq!(read_plus(&[]), Ok((vec![], true)));
        assert_eq!(read_plus(&[data(100, b"")]), Ok((vec![], true)));
    }

    #[test]
    fn a_hole_is_cut_to_what_was_asked_for() {
        let all = Ok((vec![Piece::Hole(50)], true));
        assert_eq!(read_plus(&[hole(0, u64::MAX)]), all);
        assert_eq!(read_plus(&[hole(100, 50)]), all);
        let got = read_plus(&[hole(90, 20), data(110, b"abcd"), hole(114, 1000)]);
        let want = vec![Piece::Hole(10), Piece::Data(b"abcd"), Piece::Hole(36)];
        assert_eq!(got, Ok((want, true)));
    }

    #[test]
    fn pieces_that_do_not_fit_are_refused() {
        for pieces in [
            vec![data(99, b"abcd")],
            vec![data(101, b"abcd")],
            vec![hole(101, 4)],
            vec![data(100, b"abcd"), hole(103, 4)],
            vec![data(100, b"abcd"), data(105, b"abcd")],
            vec![data(100, &[0; 51])],
            vec![hole(100, 50), data(150, b"abcd")],
        ] {
            let got = read_plus(&pieces);
            assert!(matches!(got, Err(Failure::Malformed(_))), "{got:?}");
        }
    }

    /// Generates a segment that begins `off` bytes from the end of the previous one.
    fn segment() -> impl Strategy<Value = (i8, bool, u64)> {
        let off = prop_oneof![9 => Just(0), 1 => -3..3i8];
        let len = prop_oneof![9 => 0..30u64, 1 => any::<u64>()];
        (off, any::<bool>(), len)
    }

    proptest! {
        #[test]
        fn any_segments_are_read_as_told_or_refused(segments in vec(segment(), 0..6)) {
            let (mut at, mut expected, mut pieces) = (100, Some(Vec::new()), Vec::new());
            for (number, (off, is_hole, len)) in segments.into_iter().enumerate() {
                let offset = at + u64::from(off.unsigned_abs());
                let offset = if off < 0 { at - u64::from(off.unsigned_abs()) } else { offset };
                let is_empty = expected.as_ref().is_some_and(Vec::is_empty);
                let covers = is_hole && at == 100 && off < 0 && is_empty;
                expected = expected.filter(|_| off == 0 || covers);
                let (bytes, next) = if is_hole {
                    pieces.push(hole(offset, len));
                    let next = offset.saturating_add(len).clamp(at, at.max(150));
                    (vec![0; (next - at) as usize], next)
                } else {
                    let bytes = vec![number as u8 + 1; len.min(60) as usize];
                    pieces.push(data(offset, &bytes));
                    let next = at + bytes.len() as u64;
                    (bytes, next)
                };
                at = next;
                expected.iter_mut().for_each(|expected| expected.extend_from_slice(&bytes));
            }
            match (read_plus(&pieces), expected.filter(|expected| expected.len() <= 50)) {
                (Err(Failure::Malformed(_)), None) => {}
                (Ok((got, true)), Some(expected)) => {
                    let bytes = |piece: Piece<'_>| match piece {
                        Piece::Data(data) => data.to_vec(),
                        Piece::Hole(len) => vec![0; len],
                    };
                    let got: Vec<u8> = got.into_iter().flat_map(bytes).collect();
                    prop_assert_eq!(got, expected);
                }
                (got, expected) => prop_assert!(false, "{:?} of {:?}", got, expected),
            }
        }
    }

    #[test]
    fn a_read_has_its_bytes_and_no_more() {
        let bytes = reply(25, b"\0\0\0\0\0\0\0\x05abcde\0\0\0");
        let operations = &read(false);
        let compound = Compound {
            minor: 0,
            sequence: None,
            operations,
        };
        let found = compound.answer(&bytes).and_then(|done| done.result);
        let found = found.expect("bytes");
        assert_eq!(
            (found.first, found.eof),
            (Some(Piece::Data(b"abcde")), false)
        );
        let mut encoded = Vec::new();
        compound.put(&mut encoded);
        let want: &[u8] = b"\0\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\x16\0\0\0\x04file\
            \0\0\0\x19\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x64\0\0\0\x32";
        assert_eq!(encoded, want);
    }
}
