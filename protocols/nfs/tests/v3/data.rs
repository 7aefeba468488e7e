//! READ, WRITE, COMMIT.

use nfs::v3::*;
use wire::Xdr;

use crate::net::{NFS, Net, fragments, whole};

#[test]
fn what_is_written_is_read_and_the_end_is_told() {
    let net = Net::new();
    let file = net.file(b"f", 0o644);
    let written = net
        .write(file, 3, b"hello", Stable::Unstable)
        .expect("written");
    assert_eq!((written.count, written.committed), (5, Stable::Unstable));
    assert_eq!(written.file.before.expect("before").size, 0);
    assert_eq!(written.file.after.expect("after").size, 8);
    for (offset, count, data, eof) in [
        (0, 8, &b"\0\0\0hello"[..], true),
        (0, 7, b"\0\0\0hell", false),
        (3, 2, b"he", false),
        (3, 100, b"hello", true),
        (8, 1, b"", true),
        (u64::MAX, 1, b"", true),
        (2, 0, b"", false),
    ] {
        let read = net.read(file, offset, count).expect("read");
        assert_eq!((read.data, read.eof), (data, eof), "{offset} {count}");
        assert_eq!(read.count as usize, data.len());
        assert_eq!(read.attributes.expect("attributes").size, 8);
    }
}

#[test]
fn a_write_in_fragments_arrives_whole() {
    let net = Net::new();
    let file = net.file(b"f", 0o644);
    let data: Vec<u8> = (0..1003u32).map(|n| n as u8).collect();
    let args = WriteArgs {
        file,
        offset: 1,
        count: data.len() as u32,
        stable: Stable::Unstable,
        data: &data,
    };
    let call = net.bytes((NFS, 3, Procedure::Write as u32), &args);
    for most in [101, 402, 1000] {
        let reply = net.exchange(&fragments(&call[4..], most)).expect("results");
        let Outcome::Done(done): Outcome<WriteOk, Wcc> = whole(reply) else {
            panic!("not written")
        };
        assert_eq!(done.count, 1003, "{most}");
        assert_eq!(net.read(file, 1, 2000).expect("read").data, data);
    }
}

#[test]
fn durable_writes_and_commits_have_one_verifier() {
    let net = Net::new();
    let file = net.file(b"f", 0o644);
    let mut verifiers = Vec::new();
    for stable in [Stable::Unstable, Stable::DataSync, Stable::FileSync] {
        let written = net.write(file, 0, b"x", stable).expect("written");
        assert_eq!(written.committed, stable);
        verifiers.push(written.verifier);
    }
    let args = CommitArgs {
        file,
        offset: 0,
        count: 0,
    };
    let done: Result<CommitOk, (Status, Wcc)> = net.v3(Procedure::Commit, &args);
    let done = done.expect("committed");
    assert!(done.file.before.is_some() && done.file.after.is_some());
    assert_eq!(verifiers, [done.verifier; 3]);
}

#[test]
fn only_files_are_read_and_written() {
    let net = Net::new();
    let read = |file| net.read(file, 0, 1).expect_err("no file").0;
    let root = net.root();
    assert_eq!(read(root), Status::Isdir);
    let written = net.write(root, 0, b"x", Stable::Unstable);
    assert_eq!(written.expect_err("no file").0, Status::Isdir);
    let file = net.file(b"f", 0o644);
    let far = net.write(file, i64::MAX as u64, b"xy", Stable::Unstable);
    assert_eq!(far.expect_err("too far").0, Status::Fbig);
    let strange = Handle::new(b"who").expect("short");
    assert_eq!(read(strange), Status::Badhandle);
    let forged = [&[1], &[9; 20][..]].concat();
    assert_eq!(read(Handle::new(&forged).expect("short")), Status::Stale);
}

#[test]
fn a_write_takes_no_more_than_it_says() {
    let net = Net::new();
    let file = net.file(b"f", 0o644);
    let args = WriteArgs {
        file,
        offset: 0,
        count: 2,
        stable: Stable::Unstable,
        data: b"abcd",
    };
    let done: Result<WriteOk, (Status, Wcc)> = net.v3(Procedure::Write, &args);
    assert_eq!(done.expect("written").count, 2);
    assert_eq!(net.read(file, 0, 9).expect("read").data, b"ab");
}

/// Encoded arguments.
struct Raw(Vec<u8>);

impl Xdr<'_> for Raw {
    fn get(_: &mut wire::XdrReader<'_>) -> Result<Raw, wire::Malformed> {
        Err(wire::Malformed::new("it is only sent"))
    }

    fn put(&self, to: &mut impl wire::Put) {
        to.put(&self.0);
    }
}

#[test]
fn no_beginning_of_a_write_is_one() {
    let net = Net::new();
    let args = WriteArgs {
        file: net.file(b"f", 0o644),
        offset: 0,
        count: 4,
        stable: Stable::Unstable,
        data: b"abcd",
    };
    let mut whole = Vec::new();
    args.put(&mut whole);
    for len in 0..whole.len() {
        let cut = Raw(whole[..len].to_vec());
        assert_eq!(net.call((NFS, 3, 7), &cut), Err(4), "{len}");
    }
    whole.extend([0; 4]);
    assert_eq!(net.call((NFS, 3, 7), &Raw(whole)), Err(4), "and more");
}
