//! Golden bytes and truncations.

use std::cell::Cell;

use vfs::lock::LockKind;
use vfs::{Errno, OpenFlags};

use super::*;
use crate::client::{CallArguments, ClientCall, Failure, Tree};

const TREE: Tree = Tree {
    fsid: 7,
    blksize: 4096,
};

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn plain<S: Operations>(operations: &S) -> Compound<'_, S> {
    Compound {
        minor: 0,
        sequence: None,
        operations,
    }
}

fn put(operations: &impl Operations) -> Vec<u8> {
    let mut bytes = Vec::new();
    plain(operations).put(&mut bytes);
    bytes
}

/// Decodes the results of `operations`, and checks that every truncation is malformed.
fn answer<'r, S: Operations>(operations: &S, bytes: &'r [u8]) -> Result<S::Answer<'r>, Failure> {
    for len in 0..bytes.len() {
        assert!(plain(operations).answer(&bytes[..len]).is_err(), "{len}");
    }
    plain(operations).answer(bytes)?.result
}

#[test]
fn a_sequence_goes_first_and_says_what_became_of_its_slot() {
    let sequence = Sequence {
        session: *b"0123456789abcdef",
        slot: 2,
        sequence_id: 5,
        highest: 9,
    };
    let compound = Compound {
        minor: 1,
        sequence: Some(sequence),
        operations: &SequenceOnly,
    };
    let mut bytes = Vec::new();
    compound.put(&mut bytes);
    let want = [
        &words(&[0, 1, 1, 53])[..],
        b"0123456789abcdef",
        &words(&[5, 2, 9, 0]),
    ]
    .concat();
    assert_eq!(bytes, want);

    let reply = |sequence| {
        let tail = words(&[sequence, 2, 9, 31, 0]);
        [&words(&[0, 0, 1, 53, 0])[..], b"0123456789abcdef", &tail].concat()
    };
    let done = compound.answer(&reply(5)).map_err(drop).expect("answered");
    assert_eq!((done.advanced, done.highest), (true, Some(31)));
    assert_eq!(done.result, Ok(()));
    // Another call's sequence id.
    assert!(compound.answer(&reply(6)).is_err());
    // An error of SEQUENCE: the slot's sequence id has not advanced.
    let refused = words(&[10052, 0, 1, 53, 10052]);
    let done = compound.answer(&refused).map_err(drop).expect("answered");
    assert!(!done.advanced);
    assert_eq!(done.result, Err(Failure::State(Status::Badsession)));
}

#[test]
fn an_operation_that_fails_ends_a_compound() {
    let lookup = Lookup {
        dir: b"dir!",
        name: Some(b"name"),
        tree: TREE,
    };
    let want = [
        &words(&[0, 0, 4, 22])[..],
        b"\0\0\0\x04dir!",
        &words(&[15]),
        b"\0\0\0\x04name",
        &words(&[10, 9]),
    ]
    .concat();
    assert!(put(&lookup).starts_with(&want));
    for (status, failure) in [
        (2, Failure::Error(Errno::ENOENT)),
        (10008, Failure::Delay),
        (10013, Failure::Delay),
        (10022, Failure::State(Status::StaleClientid)),
        (10029, Failure::Error(Errno::ELOOP)),
    ] {
        let bytes = words(&[status, 0, 2, 22, 0, 15, status]);
        assert_eq!(answer(&lookup, &bytes).map(drop), Err(failure));
    }
    // MINORVERSMISMATCH before the first operation.
    let early = answer(&lookup, &words(&[10021, 0, 0])).map(drop);
    assert_eq!(early, Err(Failure::Error(Errno::from_raw(93))));
    // Another operation's result.
    let other = answer(&lookup, &words(&[0, 0, 2, 22, 0, 16, 0])).map(drop);
    assert!(matches!(other, Err(Failure::Malformed(_))), "{other:?}");
}

#[test]
fn removing_says_what_it_removes() {
    let remove = |directory| Remove {
        dir: b"dir!",
        name: b"name",
        directory,
    };
    let tail = |condition: u32| {
        [
            &words(&[condition, 1, 2, 4, 2, 22])[..],
            b"\0\0\0\x04dir!",
            &words(&[28]),
            b"\0\0\0\x04name",
        ]
        .concat()
    };
    assert!(put(&remove(true)).ends_with(&tail(37)));
    assert!(put(&remove(false)).ends_with(&tail(17)));
    let bytes = words(&[10027, 0, 3, 22, 0, 15, 0, 37, 10027]);
    let not = answer(&remove(true), &bytes);
    assert_eq!(not, Err(Failure::Error(Errno::ENOTDIR)));
    let bytes = words(&[10009, 0, 3, 22, 0, 15, 0, 17, 10009]);
    let is = answer(&remove(false), &bytes);
    assert_eq!(is, Err(Failure::Error(Errno::EISDIR)));
}

#[test]
fn what_an_owner_does_counts_unless_the_server_says_that_it_never_came() {
    let effect = Cell::new(SeqidEffect::Advanced);
    let open = Open {
        client: 3,
        owner: b"own!",
        seqid: 4,
        seqid_effect: &effect,
        flags: OpenFlags::READ,
        refuse_delegation: false,
        claim: Claim::Name(b"dir!", b"name"),
        tree: TREE,
    };
    let want = [
        &words(&[0, 0, 4, 22])[..],
        b"\0\0\0\x04dir!",
        &words(&[18, 4, 1, 0, 0, 3]),
        b"\0\0\0\x04own!",
        &words(&[0, 0]),
        b"\0\0\0\x04name",
    ]
    .concat();
    assert!(put(&open).starts_with(&want));
    assert_eq!(effect.get(), SeqidEffect::Unknown);
    let (advanced, none) = (SeqidEffect::Advanced, SeqidEffect::None);
    for (status, has) in [
        (2, advanced),
        (10013, advanced),
        (10026, none),
        (10022, none),
    ] {
        let bytes = words(&[status, 0, 2, 22, 0, 18, status]);
        assert!(plain(&open).answer(&bytes).expect("read").result.is_err());
        assert_eq!(effect.get(), has, "{status}");
    }
    // PUTFH failed, so OPEN was not executed.
    let early = words(&[70, 0, 1, 22, 70]);
    assert!(plain(&open).answer(&early).expect("read").result.is_err());
    assert_eq!(effect.get(), none);
}

#[test]
fn a_lock_in_the_way_is_no_failure() {
    let effect = Cell::new(SeqidEffect::None);
    let lock = Lock {
        handle: b"file",
        kind: LockKind::Exclusive,
        range: LockRange {
            start: 10,
            end: u64::MAX,
        },
        reclaim: false,
        owner: (3, b"own!"),
        open: (StateId::ANONYMOUS, 8),
        state: None,
        seqid: 0,
        seqid_effect: &effect,
    };
    let encoded = put(&lock);
    let range = words(&[12, 2, 0, 0, 10, u32::MAX, u32::MAX, 1, 8]);
    assert!(encoded.windows(range.len()).any(|at| at == range));
    let bytes = [
        &words(&[10010, 0, 2, 22, 0, 12, 10010])[..],
        &words(&[0, 10, 0, 5, 1, 0, 3]),
        b"\0\0\0\x04own!",
    ]
    .concat();
    assert_eq!(answer(&lock, &bytes), Ok(None));
    assert_eq!(effect.get(), SeqidEffect::Advanced);
    let test = TestLock {
        handle: b"file",
        kind: LockKind::Shared,
        range: LockRange { start: 0, end: 99 },
        owner: (3, b"me"),
    };
    let bytes = [
        &words(&[10010, 0, 2, 22, 0, 13, 10010])[..],
        &words(&[0, 10, 0, 5, 2, 0, 3]),
        b"\0\0\0\x04own!",
    ]
    .concat();
    let holder = answer(&test, &bytes).expect("told").expect("somebody");
    assert_eq!((holder.start, holder.end), (10, 14));
    assert_eq!(holder.kind, LockKind::Exclusive);
}

#[test]
fn seeking_data_behind_the_last_finds_none() {
    let seek = |what| Seek {
        handle: b"file",
        state: StateId::ANONYMOUS,
        offset: 5,
        what,
    };
    let found = |eof| words(&[0, 0, 2, 22, 0, 69, 0, eof, 0, 9]);
    assert_eq!(answer(&seek(vfs::Whence::Data), &found(0)), Ok(Some(9)));
    assert_eq!(answer(&seek(vfs::Whence::Data), &found(1)), Ok(None));
    assert_eq!(answer(&seek(vfs::Whence::Hole), &found(1)), Ok(Some(9)));
    let none = words(&[6, 0, 2, 22, 0, 69, 6]);
    assert_eq!(answer(&seek(vfs::Whence::Data), &none), Ok(None));
}

proptest::proptest! {
    #[test]
    fn no_bytes_are_too_much(bytes: Vec<u8>) {
        let handle = b"h";
        let head = words(&[0, 0, 2, 22, 0]);
        let bytes = |number| [&head[..], &words(&[number, 0]), &bytes].concat();
        let _ = plain(&GetAttr { handle, tree: TREE }).answer(&bytes(9));
        let read = |plus| Read { handle, state: StateId::ANONYMOUS, offset: 0, count: 100, plus };
        let _ = plain(&read(true)).answer(&bytes(68)).map(drop);
        let _ = plain(&read(false)).answer(&bytes(25)).map(drop);
        let _ = plain(&ReadDir {
            handle, cookie: 0, verifier: [0; 8], count: 100, plus: true, tree: TREE,
        }).answer(&bytes(26)).map(drop);
        let _ = plain(&ListXattrs { handle, cookie: 0, count: 100 }).answer(&bytes(74)).map(drop);
    }
}
