//! Golden bytes and truncations.

use vfs::{Errno, Kind, NewNode as What};

use super::*;
use crate::client::{CallArguments, ClientCall, Stable};

const TREE: Tree = Tree {
    fsid: 7,
    blksize: 4096,
};

/// Returns the attributes of a file: 13 bytes long, file system 7, file id 99.
fn attributes() -> Vec<u8> {
    let words = [
        1, 0o100644, 2, 1000, 100, 0, 13, 0, 4096, 0, 0, 0, 7, 0, 99, 11, 1, 12, 2, 13, 3,
    ];
    words
        .iter()
        .flat_map(|word| u32::to_be_bytes(*word))
        .collect()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Decodes the results of `arguments`, and checks that every truncation is malformed.
fn answer<'r, A: ClientCall>(arguments: &A, bytes: &'r [u8]) -> Result<A::Answer<'r>, Failure> {
    for len in 0..bytes.len() {
        let cut = arguments.answer(&bytes[..len]);
        assert!(matches!(cut, Err(Failure::Malformed(_))), "{len}");
    }
    arguments.answer(bytes)
}

fn put(arguments: &impl ClientCall) -> Vec<u8> {
    let mut bytes = Vec::new();
    arguments.put(&mut bytes);
    bytes
}

#[test]
fn attributes_become_ours() {
    let get = GetAttr {
        handle: b"file",
        tree: TREE,
    };
    assert_eq!(put(&get), b"\0\0\0\x04file");
    let bytes = [words(&[0]), attributes()].concat();
    let attr = answer(&get, &bytes).expect("attributes");
    assert_eq!((attr.id, attr.kind, attr.mode), (99, Kind::File, 0o644));
    assert_eq!((attr.nlink, attr.uid, attr.gid), (2, 1000, 100));
    assert_eq!((attr.size, attr.blocks, attr.blksize), (13, 8, 4096));
    assert_eq!((attr.atime.sec, attr.mtime.nsec), (11, 2));
    assert_eq!((attr.change, attr.device), (13_000_000_003, 7));
    let elsewhere = GetAttr {
        tree: Tree { fsid: 8, ..TREE },
        ..get
    };
    let elsewhere = answer(&elsewhere, &bytes).expect("attributes");
    assert_ne!(elsewhere.id, 99, "a number of another file system");
}

#[test]
fn a_look_up_finds_with_or_without_attributes() {
    let lookup = Lookup {
        dir: b"d",
        name: b"name!",
        tree: TREE,
    };
    let want = b"\0\0\0\x01d\0\0\0\0\0\0\x05name!\0\0\0";
    assert_eq!(put(&lookup), want);
    let handle = b"\0\0\0\x03abc\0";
    let with = [
        &words(&[0])[..],
        handle,
        &words(&[1]),
        &attributes(),
        &words(&[0]),
    ]
    .concat();
    let made = answer(&lookup, &with).expect("found");
    assert_eq!(made.handle.as_deref(), Some(&b"abc"[..]));
    assert_eq!(made.attr.map(|attr| attr.id), Some(99));
    let without = [&words(&[0])[..], handle, &words(&[0, 0])].concat();
    assert!(answer(&lookup, &without).expect("found").attr.is_none());
}

#[test]
fn a_refusal_is_an_errno_or_to_be_asked_again() {
    let read = ReadLink { handle: b"l" };
    for (status, failure) in [
        (2, Failure::Error(Errno::ENOENT)),
        (13, Failure::Error(Errno::EACCES)),
        (70, Failure::Error(Errno::ESTALE)),
        (10004, Failure::Error(Errno::EOPNOTSUPP)),
        (10008, Failure::Delay),
    ] {
        assert_eq!(read.answer(&words(&[status, 0])), Err(failure));
    }
    let unknown = read.answer(&[0, 0, 1, 0]);
    assert!(matches!(unknown, Err(Failure::Malformed(_))));
}

#[test]
fn a_read_has_its_bytes_and_no_more_than_asked_for() {
    let read = Read {
        handle: b"file",
        offset: 1 << 32,
        count: 5,
    };
    assert_eq!(put(&read), b"\0\0\0\x04file\0\0\0\x01\0\0\0\0\0\0\0\x05");
    let reply = |data: &[u8]| {
        let mut bytes = words(&[0, 0, data.len() as u32, 1]);
        data.put(&mut bytes);
        bytes
    };
    let good = reply(b"abcde");
    let read_data = answer(&read, &good).expect("bytes");
    assert_eq!((read_data.data, read_data.eof), (&b"abcde"[..], true));
    let long = read.answer(&reply(b"abcdef")).map(|read| read.eof);
    assert!(matches!(long, Err(Failure::Malformed(_))));
}

#[test]
fn a_write_ends_in_its_payload() {
    let write = Write {
        handle: b"file",
        offset: 3,
        stable: Stable::Unstable,
        data: b"abcde",
    };
    let want = b"\0\0\0\x04file\0\0\0\0\0\0\0\x03\0\0\0\x05\0\0\0\0\0\0\0\x05";
    assert_eq!(put(&write), want);
    assert_eq!(write.payload(), b"abcde");
    let bytes = [&words(&[0, 0, 0, 9, 2])[..], b"verifier"].concat();
    let written = answer(&write, &bytes).expect("written");
    assert_eq!(
        (written.count, written.durable),
        (5, true),
        "no more than sent"
    );
    assert_eq!(&written.verifier, b"verifier");
}

#[test]
fn what_is_made_is_told_by_its_kind() {
    const MKNOD: u32 = v3::Procedure::MkNod as u32;
    let make = |what| Make::<MKNOD> {
        dir: b"d",
        name: b"n",
        what,
        mode: 0o600,
        tree: TREE,
    };
    let device = vfs::Device { major: 1, minor: 3 };
    let location = b"\0\0\0\x01d\0\0\0\0\0\0\x01n\0\0\0";
    let mode = words(&[1, 0o600, 0, 0, 0, 0, 0]);
    let fifo = [&location[..], &words(&[7]), &mode].concat();
    assert_eq!(put(&make(What::Fifo)), fifo);
    let null = [&location[..], &words(&[4]), &mode, &words(&[1, 3])].concat();
    assert_eq!(put(&make(What::CharDevice(device))), null);
}

#[test]
fn a_page_of_a_listing_has_its_entries_in_order() {
    let list = ReadDir::<true> {
        handle: b"d",
        cookie: 5,
        verifier: *b"verifier",
        count: 512,
        tree: TREE,
    };
    let want = b"\0\0\0\x01d\0\0\0\0\0\0\0\0\0\0\x05verifier\0\0\x02\0\0\0\x02\0";
    assert_eq!(put(&list), want);
    let entry = |id, name: &[u8], cookie, rest: &[u8]| {
        let mut bytes = words(&[1, 0, id]);
        name.put(&mut bytes);
        [bytes, words(&[0, cookie]), rest.to_vec()].concat()
    };
    let whole = [
        &words(&[1])[..],
        &attributes(),
        &words(&[1]),
        b"\0\0\0\x01h\0\0\0",
    ]
    .concat();
    let bytes = [
        &words(&[0, 0])[..],
        b"verified",
        &entry(99, b"a", 6, &whole),
        &entry(0, b"..", 7, &words(&[0, 0])),
        &words(&[0, 1]),
    ]
    .concat();
    let page = answer(&list, &bytes).expect("entries");
    assert_eq!((&page.verifier, page.eof), (b"verified", true));
    let [a, dots] = page.entries.as_slice() else {
        panic!("expected two entries");
    };
    assert_eq!((a.name, a.id, a.cookie), (&b"a"[..], 99, 6));
    assert_eq!(a.handle.as_deref(), Some(&b"h"[..]));
    assert_eq!((dots.name, dots.id, dots.cookie), (&b".."[..], 1, 7));
    assert!(dots.attr.is_none() && dots.handle.is_none());
}

proptest::proptest! {
    #[test]
    fn no_bytes_are_too_much(bytes: Vec<u8>) {
        let (handle, tree) = (b"h", TREE);
        let _ = GetAttr { handle, tree }.answer(&bytes);
        let _ = ReadLink { handle }.answer(&bytes);
        let _ = Read { handle, offset: 0, count: 100 }.answer(&bytes);
        let _ = ReadDir::<true> { handle, cookie: 0, verifier: [0; 8], count: 100, tree }
            .answer(&bytes);
        let _ = Mount { path: b"/" }.answer(&bytes);
    }
}
