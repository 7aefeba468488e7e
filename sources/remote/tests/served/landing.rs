//! Payloads received directly into the reader's memory, and replies that must not be.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use p9::message::DATA_HEAD;
use p9::{Data, Dialect, DotuErrno, Kind, Rmessage, Tag};
use proptest::prelude::*;
use remote::ninep::{Options, Remote9p};
use transports::{Link, StreamLink};
use vfs::{Call, Caller, Cx, Errno, File, FileSystem, Name, OpenFlags, Result};
use vfs_testkit::context::{TestNode, ok, pattern};
use wire::payload::SliceSink;

use crate::net::Served;

/// The content of memory that nothing has been written to.
const UNTOUCHED: u8 = 0xee;

const MSIZE: u32 = (64 << 10) + 24;

/// More than the largest payload that does not land.
const LARGE: usize = 32 << 10;

const SIZE: usize = 300_000;

/// The receive timeout of the client.
const PATIENCE: Duration = Duration::from_millis(1);

/// Replaces the reply to a read, given its index, dialect, tag and payload. `None` ends the
/// connection.
type Meddle = Box<dyn FnMut(usize, Dialect, Tag, &[u8]) -> Option<Vec<Vec<u8>>> + Send>;

/// A file of [`SIZE`] bytes on a server, behind a relay that alters the replies to reads.
struct Meddled {
    file: Arc<dyn File>,
    tree: Arc<Remote9p>,
    content: Vec<u8>,
    _served: Served,
}

impl Meddled {
    fn new(dialect: Dialect, meddle: Meddle) -> Meddled {
        let served = Served::new();
        let content = pattern(SIZE, 7);
        let who = Caller::ROOT;
        let direct = served.speaking(dialect, MSIZE);
        let node = ok(with_cx(|cx| direct.root(cx)));
        drop(ok(TestNode { node, caller: who }.file("file", &content)));
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        ours.set_read_timeout(Some(PATIENCE)).expect("set");
        between(theirs, served.link(), dialect, meddle);
        let link = StreamLink::new(OwnedFd::from(ours), "somebody").expect("a link");
        let options = Options {
            version: dialect,
            msize: MSIZE,
            uname: "root".into(),
            ..Options::default()
        };
        let tree = Remote9p::connect(link, options).expect("attached");
        let open = |cx: &Cx<'_>| {
            let found = tree.root(cx)?.lookup(cx, Name::new(b"file")?)?;
            found.node.open(cx, OpenFlags::READ)
        };
        Meddled {
            file: ok(with_cx(open)),
            tree,
            content,
            _served: served,
        }
    }

    /// Reads into memory filled with [`UNTOUCHED`], and returns that memory, too.
    fn read(&self, offset: usize, len: usize) -> (Result<usize>, Vec<u8>) {
        let mut memory = vec![UNTOUCHED; len];
        let mut sink = SliceSink::new(&mut memory);
        let read = with_cx(|cx| self.file.read(cx, offset as u64, len, &mut sink));
        (read, memory)
    }

    fn is_good(&self) -> bool {
        let (read, memory) = self.read(5, LARGE);
        read == Ok(LARGE) && memory == self.content[5..][..LARGE]
    }
}

pub(crate) fn with_cx<T>(act: impl FnOnce(&Cx<'_>) -> T) -> T {
    let call = Call::detached();
    act(&Cx::new(&Caller::ROOT, &call))
}

/// Relays between `client` and `server`.
fn between(client: UnixStream, server: StreamLink, dialect: Dialect, mut meddle: Meddle) {
    let server = Arc::new(server);
    let (mut requests, to) = (client.try_clone().expect("a descriptor"), server.clone());
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(got @ 1..) = requests.read(&mut buffer) {
            if to.send(&buffer[..got], true).is_err() {
                break;
            }
        }
        to.hang_up();
    });
    thread::spawn(move || {
        let mut client = client;
        let (mut message, mut reads) = (Vec::new(), 0);
        'all: while receive(&server, &mut message) {
            let mut sent = vec![std::mem::take(&mut message)];
            if sent[0][4] == Kind::Read.reply() {
                let tag = Tag(u16::from_le_bytes([sent[0][5], sent[0][6]]));
                match meddle(reads, dialect, tag, &sent[0][DATA_HEAD..]) {
                    Some(instead) => sent = instead,
                    None => break,
                }
                reads += 1;
            }
            for (at, piece) in sent.iter().enumerate() {
                // Pauses for longer than the client's receive timeout.
                if at > 0 {
                    thread::sleep(2 * PATIENCE);
                }
                if client.write_all(piece).is_err() {
                    break 'all;
                }
            }
        }
        let _ = client.shutdown(std::net::Shutdown::Both);
        server.hang_up();
    });
}

/// Receives a whole message. Returns `false` at the end.
pub(crate) fn receive(link: &StreamLink, message: &mut Vec<u8>) -> bool {
    let mut size = [0; 4];
    let received = link.recv_exact(&mut size).and_then(|()| {
        message.extend(size);
        message.resize(u32::from_le_bytes(size) as usize, 0);
        link.recv_exact(&mut message[size.len()..])
    });
    received.is_ok()
}

fn encoded(dialect: Dialect, tag: Tag, reply: &Rmessage<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.encode(dialect, tag, &mut bytes);
    bytes
}

fn rread(tag: Tag, data: &[u8]) -> Vec<u8> {
    let data = Data(data);
    encoded(Dialect::Linux, tag, &Rmessage::Read { data })
}

#[test]
fn payloads_that_pause_on_their_way_come_whole() {
    let cuts = [
        1,
        DATA_HEAD - 1,
        DATA_HEAD,
        DATA_HEAD + 1,
        5000,
        LARGE,
        60_000,
    ];
    let played = Meddled::new(
        Dialect::Linux,
        Box::new(move |_, _, tag, data| {
            let mut rest = rread(tag, data);
            let mut pieces = Vec::new();
            for cut in cuts.into_iter().rev().filter(|&cut| cut < data.len()) {
                pieces.push(rest.split_off(cut));
            }
            pieces.push(rest);
            pieces.reverse();
            Some(pieces)
        }),
    );
    for len in [LARGE, 60_000, SIZE] {
        let (read, memory) = played.read(0, len);
        assert!(read == Ok(len) && memory == played.content[..len], "{len}");
    }
}

#[test]
fn no_error_of_any_dialect_comes_to_the_readers_memory() {
    for dialect in Dialect::ALL {
        let error = move |tag| match dialect {
            Dialect::Linux => encoded(dialect, tag, &Rmessage::Lerror { errno: 5 }),
            // Longer than the memory that a part of it might be written to.
            _ => {
                let (text, errno) = (&[b'E'; 250][..], DotuErrno(5));
                encoded(dialect, tag, &Rmessage::Error { text, errno })
            }
        };
        let played = Meddled::new(
            dialect,
            Box::new(move |nth, _, tag, data| {
                Some(vec![match nth {
                    0..4 => error(tag),
                    _ => rread(tag, data),
                }])
            }),
        );
        for len in [1, 200, LARGE, 60_000] {
            let (read, memory) = played.read(0, len);
            assert_eq!(read, Err(Errno::EIO), "{dialect}, {len}");
            assert!(memory.iter().all(|&byte| byte == UNTOUCHED), "{dialect}");
        }
        assert!(played.is_good(), "{dialect}");
    }
}

#[test]
fn what_is_short_leaves_the_rest_of_the_memory_alone() {
    for len in [0, 1, 4096, LARGE - 1] {
        let played = Meddled::new(
            Dialect::Linux,
            Box::new(move |nth, _, tag, data| {
                let data = if nth == 0 { &data[..len] } else { data };
                Some(vec![rread(tag, data)])
            }),
        );
        let (read, memory) = played.read(0, LARGE);
        assert_eq!(read, Ok(len));
        assert_eq!(memory[..len], played.content[..len]);
        assert!(memory[len..].iter().all(|&byte| byte == UNTOUCHED));
        assert!(played.is_good());
    }
}

#[test]
fn a_payload_that_was_not_asked_for_ends_the_connection_and_comes_nowhere() {
    type Bad = fn(Tag, &[u8]) -> Vec<u8>;
    let bad: [Bad; 5] = [
        // More than requested.
        |tag, data| rread(tag, &[data, b"!"].concat()),
        // For no request in flight.
        |tag, data| rread(Tag(tag.0 + 1), data),
        // A count below the message's size, and above.
        |tag, data| [&rread(tag, data)[..7], &[1, 0, 0, 0], data].concat(),
        |tag, data| [&rread(tag, data)[..7], &[0xff, 0xff, 0, 0], data].concat(),
        // A reply of another type.
        |tag, data| {
            let data = Data(data);
            encoded(Dialect::Linux, tag, &Rmessage::Readdir { data })
        },
    ];
    for (which, bad) in bad.into_iter().enumerate() {
        let meddle: Meddle = Box::new(move |_, _, tag, data| Some(vec![bad(tag, data)]));
        let played = Meddled::new(Dialect::Linux, meddle);
        let (read, memory) = played.read(0, LARGE);
        assert_eq!(read, Err(Errno::EIO), "{which}");
        assert!(memory.iter().all(|&byte| byte == UNTOUCHED), "{which}");
        assert!(played.tree.connection().failure().is_some(), "{which}");
    }
}

#[test]
fn a_server_that_goes_in_the_middle_of_a_payload_is_an_error() {
    let mut tags = Vec::new();
    let played = Meddled::new(
        Dialect::Linux,
        Box::new(move |nth, _, tag, data| {
            tags.push(tag);
            match nth {
                0 => Some(vec![rread(tag, data)[..LARGE / 2].to_vec()]),
                _ => None,
            }
        }),
    );
    // Two messages: the second ends the connection.
    assert!(played.read(0, LARGE + MSIZE as usize).0.is_err());
    assert!(played.tree.connection().failure().is_some());
}

#[test]
fn replies_in_another_order_come_to_their_places() {
    let mut kept: Option<Vec<u8>> = None;
    let played = Meddled::new(
        Dialect::Linux,
        Box::new(move |_, _, tag, data| {
            let this = rread(tag, data);
            Some(match kept.take() {
                Some(before) => vec![this, before],
                None => {
                    kept = Some(this);
                    Vec::new()
                }
            })
        }),
    );
    let len = 4 * (MSIZE as usize - 24);
    let (read, memory) = played.read(0, len);
    assert_eq!(read, Ok(len));
    assert!(memory == played.content[..len]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// With the bytes cut anywhere, and other requests in flight.
    #[test]
    fn pieces_of_any_length_make_what_was_read(
        cuts in prop::collection::vec(1usize..20_000, 1..12),
        offset in 0usize..SIZE,
        len in 1usize..SIZE,
    ) {
        let played = Meddled::new(
            Dialect::Linux,
            Box::new(move |_, _, tag, data| {
                let mut rest = &rread(tag, data)[..];
                let mut pieces = Vec::new();
                for cut in cuts.iter().cycle() {
                    let (piece, behind) = rest.split_at(rest.len().min(*cut));
                    pieces.push(piece.to_vec());
                    rest = behind;
                    if rest.is_empty() {
                        break;
                    }
                }
                Some(pieces)
            }),
        );
        thread::scope(|scope| {
            let reader = scope.spawn(|| played.read(offset, len));
            for _ in 0..20 {
                ok(with_cx(|cx| played.file.attr(cx, vfs::AttrMask::STAT)));
            }
            let (read, memory) = reader.join().expect("no panic");
            let expected = &played.content[offset..SIZE.min(offset + len)];
            assert_eq!(read, Ok(expected.len()));
            assert!(memory[..expected.len()] == *expected);
        });
    }
}
