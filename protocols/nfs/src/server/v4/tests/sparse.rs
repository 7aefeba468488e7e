//! Holes: READ_PLUS and SEEK (RFC 7862 sections 15.10, 15.11).

use memory::Memory;
use vfs_testkit::clock;
use wire::{xdr_struct, xdr_union};

use super::*;
use crate::v4::op::{Read, Seek, Setattr, Write};
use crate::v4::reply::Sought;
use crate::v4::types::{Data, Stable};

xdr_struct! {
    #[derive(Debug, PartialEq)]
    struct Bytes<'a> {
        offset: u64,
        bytes: &'a [u8],
    }

    #[derive(Debug, PartialEq)]
    struct Range {
        offset: u64,
        len: u64,
    }

    #[derive(Debug, PartialEq)]
    struct Pieces<'a> {
        eof: bool,
        pieces: Vec<Piece<'a>>,
    }
}

xdr_union! {
    #[derive(Debug, PartialEq)]
    enum Piece<'a> {
        Data(Bytes<'a>) = 0,
        Hole(Range) = 1,
    }
}

const BLOCK: u64 = 4096;
const SIZE: u64 = 64 * BLOCK;

/// Returns a client and its file of [`SIZE`] with blocks of data at `blocks` and holes elsewhere.
fn sparse(blocks: &[u64]) -> (Client41, Vec<u8>) {
    let large = Channel {
        max_response: 1 << 20,
        ..CHANNEL
    };
    let mut client = Client41::on(&World::new(), b"client", large);
    client.net.minor = 2;
    let size = Attributes {
        size: Some(SIZE),
        ..Attributes::default()
    };
    let how = OpenHow::Create(CreateHow::Guarded(Attributes {
        mode: Some(0o600),
        ..Attributes::default()
    }));
    let made = client
        .send(&[
            Op::Putrootfh,
            client.open(BOTH, how, Claim::Null(b"file")),
            Op::Setattr(Setattr {
                state: StateId::CURRENT,
                attributes: size,
            }),
            Op::Getfh,
        ])
        .done();
    let () = made.ok();
    let _: Opened<'_> = made.ok();
    let _: crate::v4::attr::Bitmap = made.ok();
    let handle = made.ok::<&[u8]>().to_vec();
    for &block in blocks {
        let write = Op::Write(Write {
            state: StateId::ANONYMOUS,
            offset: block * BLOCK,
            stable: Stable::Unstable,
            data: Data(&[block as u8 + 1; BLOCK as usize]),
        });
        client.send(&[Op::Putfh(&handle), write]).done();
    }
    (client, handle)
}

fn asked(client: &Client41, handle: &[u8], offset: u64, count: u64) -> Reply {
    let read = Op::ReadPlus(Read {
        state: StateId::ANONYMOUS,
        offset,
        count: count as u32,
    });
    let reply = client.send(&[Op::Putfh(handle), read]).done();
    let () = reply.ok();
    reply
}

fn hole(offset: u64, len: u64) -> Piece<'static> {
    Piece::Hole(Range { offset, len })
}

fn data(offset: u64, bytes: &[u8]) -> Piece<'_> {
    Piece::Data(Bytes { offset, bytes })
}

#[test]
fn rfc7862_15_10_holes_are_told_and_clipped() {
    let (client, handle) = sparse(&[0, 32]);
    let (first, second) = ([1; BLOCK as usize], [33; BLOCK as usize]);
    let reply = asked(&client, &handle, 0, 1 << 20);
    let Pieces { eof, pieces } = reply.ok();
    assert!(eof);
    let want = [
        data(0, &first),
        hole(BLOCK, 31 * BLOCK),
        data(32 * BLOCK, &second),
        hole(33 * BLOCK, 31 * BLOCK),
    ];
    assert_eq!(pieces, want);
    // The requested part of a hole that is longer at both ends.
    let reply = asked(&client, &handle, 2 * BLOCK + 1, 9 * BLOCK);
    let Pieces { eof, pieces } = reply.ok();
    assert_eq!((eof, pieces), (false, vec![hole(2 * BLOCK + 1, 9 * BLOCK)]));
    // The rest of the last hole.
    let reply = asked(&client, &handle, 40 * BLOCK, 1 << 20);
    let Pieces { eof, pieces } = reply.ok();
    assert_eq!((eof, pieces), (true, vec![hole(40 * BLOCK, 24 * BLOCK)]));
}

#[test]
fn rfc7862_15_10_short_holes_are_zeros_and_pieces_are_few() {
    let (client, handle) = sparse(&[10, 12, 14]);
    let reply = asked(&client, &handle, 10 * BLOCK, 5 * BLOCK);
    let Pieces { eof, pieces } = reply.ok();
    assert!(!eof);
    let mut bytes = vec![0; 5 * BLOCK as usize];
    for block in [10, 12, 14] {
        let at = (block - 10) * BLOCK as usize;
        bytes[at..at + BLOCK as usize].fill(block as u8 + 1);
    }
    assert_eq!(pieces, [data(10 * BLOCK, &bytes)]);
}

#[test]
fn rfc7862_15_10_nothing_is_behind_the_end() {
    let (client, handle) = sparse(&[]);
    for (offset, count, want) in [(SIZE, 10, true), (u64::MAX, 10, true), (0, 0, false)] {
        let reply = asked(&client, &handle, offset, count);
        let Pieces { eof, pieces } = reply.ok();
        assert_eq!((eof, pieces), (want, vec![]), "{offset} {count}");
    }
}

#[test]
fn rfc7862_15_10_read_plus_may_be_refused() {
    let world = World::with(Memory::new(clock()), |options| options.read_plus = false);
    let mut client = Client41::on(&world, b"client", CHANNEL);
    client.net.minor = 2;
    let read = Op::ReadPlus(Read {
        state: StateId::ANONYMOUS,
        offset: 0,
        count: 10,
    });
    let reply = client.send(&[Op::Putrootfh, read]);
    assert_eq!(reply.status, Status::Notsupp);
}

#[test]
fn rfc7862_15_11_seek_finds_what_read_plus_tells() {
    let (client, handle) = sparse(&[0, 32]);
    for (offset, what, want) in [
        (0, 0, (false, 0)),
        (0, 1, (false, BLOCK)),
        (BLOCK, 0, (false, 32 * BLOCK)),
        (32 * BLOCK, 1, (false, 33 * BLOCK)),
        (33 * BLOCK, 0, (true, SIZE)),
    ] {
        let seek = Op::Seek(Seek {
            state: StateId::ANONYMOUS,
            offset,
            what,
        });
        let reply = client.send(&[Op::Putfh(&handle), seek]).done();
        let () = reply.ok();
        let Sought { eof, offset: found } = reply.ok();
        assert_eq!((eof, found), want, "{what} from {offset}");
    }
}
