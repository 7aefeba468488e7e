//! Receiving the payload of a READ separately: checks the beginning of the reply.

use wire::XdrReader;

use super::Failure;
use super::v3;
use super::v4::{Compound, Read, Sequence};

/// The form that the reply to a read must have for its payload to be received separately: the read
/// succeeded, the results match the arguments, and they end in a single piece of data.
#[derive(Clone, Copy)]
pub struct SeparatePayload(ReadArguments);

#[derive(Clone, Copy)]
enum ReadArguments {
    V3(v3::Read<'static>),
    V4(Option<Sequence>, Read<'static>),
}

impl SeparatePayload {
    pub(super) fn for_v3(read: &v3::Read<'_>) -> SeparatePayload {
        SeparatePayload(ReadArguments::V3(v3::Read {
            handle: &[],
            ..*read
        }))
    }

    pub(super) fn for_v4(sequence: Option<Sequence>, read: &Read<'_>) -> SeparatePayload {
        SeparatePayload(ReadArguments::V4(sequence, read.without_handle()))
    }

    /// Parses results up to their payload, and returns its length.
    pub(super) fn payload_len(&self, from: &mut XdrReader<'_>) -> Result<usize, Failure> {
        match &self.0 {
            ReadArguments::V3(read) => read.payload_len(from),
            ReadArguments::V4(sequence, operations) => {
                let compound = Compound {
                    minor: 0,
                    sequence: *sequence,
                    operations,
                };
                compound.payload_len(from)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use vfs::Caller;

    use super::*;
    use crate::client::v4::{Piece, StateId};
    use crate::client::{Body, Calls, ClientCall, Credentials, Received, SplitReply};

    const MOST: usize = 1000;
    const OFFSET: u64 = 4096;
    const COUNT: u32 = 50;
    const SEQUENCE: Sequence = Sequence {
        session: [7; 16],
        slot: 3,
        sequence_id: 9,
        highest: 3,
    };

    fn three() -> v3::Read<'static> {
        v3::Read {
            handle: b"file",
            offset: OFFSET,
            count: COUNT,
        }
    }

    fn four(plus: bool) -> Read<'static> {
        Read {
            handle: b"file",
            state: StateId::ANONYMOUS,
            offset: OFFSET,
            count: COUNT,
            plus,
        }
    }

    fn compound<'a>(operations: &'a Read<'static>, sequence: bool) -> Compound<'a, Read<'static>> {
        Compound {
            minor: 0,
            sequence: sequence.then_some(SEQUENCE),
            operations,
        }
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    fn message(results: &[u8], data: &[u8]) -> Vec<u8> {
        let padding = &[0; 3][..wire::padding(data.len())];
        let record = [&words(&[5, 1, 0, 0, 0, 0])[..], results, data, padding].concat();
        [&words(&[record.len() as u32 | 1 << 31])[..], &record].concat()
    }

    /// Returns v3 results up to the data.
    fn results_of_three(attributes: bool, len: u32) -> Vec<u8> {
        let attributes = match attributes {
            true => [words(&[1, 1]), vec![0; 80]].concat(),
            false => words(&[0]),
        };
        [words(&[0]), attributes, words(&[len, 0, len])].concat()
    }

    /// Returns v4 results up to the data.
    fn results_of_four(sequence: bool, plus: bool, len: u32) -> Vec<u8> {
        let mut results = words(&[0, 0, 2 + u32::from(sequence)]);
        if sequence {
            results.extend(words(&[53, 0]));
            results.extend([7; 16]);
            results.extend(words(&[9, 3, 3, 3, 0]));
        }
        results.extend(words(&[22, 0]));
        results.extend(match plus {
            true => words(&[68, 0, 1, 1, 0, 0, OFFSET as u32, len]),
            false => words(&[25, 0, 1, len]),
        });
        results
    }

    fn calls<A: ClientCall>(arguments: &A) -> Calls {
        let mut calls = Calls::new(Credentials::new("m"), MOST);
        let number = calls.call(5, &Caller::ROOT, arguments, &mut Vec::new());
        assert_eq!(number, Ok(0));
        calls
    }

    /// Checks that the payload is found as soon as all before it has arrived, and that the results
    /// equal those of the complete message.
    fn lands<A: ClientCall>(
        arguments: &A,
        results: &[u8],
        data: &[u8],
        same: impl Fn(A::Answer<'_>, A::Answer<'_>),
    ) {
        let message = message(results, data);
        let mut calls = calls(arguments);
        let head = 28 + results.len();
        let apart = SplitReply {
            number: 0,
            head,
            len: data.len(),
        };
        for come in 0..=message.len() {
            let found = calls.split_reply(&message[..come]);
            assert_eq!(found, (come >= head).then_some(apart), "{come}");
        }
        let before = Body::before_payload(&message[..head]).expect("results");
        let landed = arguments
            .answer_with_payload(before.bytes(), data)
            .expect("an answer");
        let body = Body::of(&message).expect("results");
        same(arguments.answer(body.bytes()).expect("an answer"), landed);
        calls.complete_read(&message[..head]);
        assert_eq!(calls.split_reply(&message), None, "answered");
        assert_eq!(calls.receive(&message), Ok(Received::Unexpected));
    }

    proptest! {
        #[test]
        fn what_lands_is_what_comes_whole(
            data in prop::collection::vec(any::<u8>(), 0..=50),
            attributes: bool,
            sequence: bool,
            plus: bool,
        ) {
            let len = data.len() as u32;
            lands(&three(), &results_of_three(attributes, len), &data, |one, other| {
                assert_eq!((one.data, one.eof), (other.data, other.eof));
            });
            let read = four(plus);
            let results = results_of_four(sequence, plus, len);
            lands(&compound(&read, sequence), &results, &data, |one, other| {
                assert_eq!((one.advanced, one.status_flags, one.highest), (other.advanced, other.status_flags, other.highest));
                let (one, other) = (one.result.expect("read"), other.result.expect("read"));
                assert_eq!((one.eof, one.empty), (other.eof, other.empty));
                let pieces: Vec<Piece<'_>> = one.pieces().collect();
                assert_eq!(pieces, other.pieces().collect::<Vec<_>>());
            });
        }

        /// Checks that a message whose payload may be received separately would also be accepted
        /// whole, whichever byte is changed.
        #[test]
        fn what_is_taken_apart_would_be_taken_whole(
            at in 0usize..200,
            with: u8,
            which in 0usize..4,
        ) {
            let data = [1; COUNT as usize];
            let (sequence, plus) = (which & 1 != 0, which & 2 != 0);
            let read = four(plus);
            let compound = compound(&read, sequence);
            let mut changed = message(&results_of_four(sequence, plus, COUNT), &data);
            let at = at % changed.len();
            changed[at] ^= with;
            let mut calls = calls(&compound);
            if let Some(apart) = calls.split_reply(&changed) {
                let received = calls.receive(&changed);
                let answer = Received::Answer { number: apart.number, result: Ok(()) };
                prop_assert_eq!(received, Ok(answer));
                let body = Body::of(&changed).expect("results");
                let done = compound.answer(body.bytes()).expect("an answer");
                prop_assert!(done.result.is_ok());
            }
        }
    }

    #[test]
    fn errors_and_what_was_not_asked_for_do_not_land() {
        let data = [1; COUNT as usize + 1];
        let data = &data[..COUNT as usize];
        let read = four(true);
        let (plain, compound) = (three(), compound(&read, true));
        let refused = |arguments: &Compound<'_, Read<'static>>, results: &[u8], data: &[u8]| {
            assert_eq!(calls(arguments).split_reply(&message(results, data)), None);
        };
        let good = results_of_four(true, true, COUNT);
        assert!(
            calls(&compound)
                .split_reply(&message(&good, data))
                .is_some()
        );
        // In COMPOUND, SEQUENCE, PUTFH and READ_PLUS: a status; another slot; a hole instead of
        // data; two pieces; another offset.
        for (at, word) in [
            (0, 5),
            (4 * 4, 5),
            (10 * 4, 2),
            (15 * 4, 5),
            (17 * 4, 5),
            (19 * 4, 2),
            (20 * 4, 1),
            (22 * 4, 1),
        ] {
            let mut bad = good.clone();
            bad[at..at + 4].copy_from_slice(&words(&[word]));
            refused(&compound, &bad, data);
        }
        // More than requested, and more or less than the message contains.
        let more = [1; COUNT as usize + 4];
        refused(&compound, &results_of_four(true, true, COUNT + 4), &more);
        refused(&compound, &good, &more);
        refused(&compound, &good, &data[..40]);
        let bad = [words(&[5]), results_of_three(true, COUNT)[4..].to_vec()].concat();
        assert_eq!(calls(&plain).split_reply(&message(&bad, data)), None);
        // Other calls have no payload in their replies.
        let other = v3::Commit { handle: b"file" };
        let good = results_of_three(false, COUNT);
        assert_eq!(calls(&other).split_reply(&message(&good, data)), None);
        assert!(other.answer_with_payload(&good, data).is_err());
        // In two fragments.
        let mut fragment = message(&good, data);
        fragment[0] &= 0x7f;
        assert_eq!(calls(&plain).split_reply(&fragment), None);
    }
}
