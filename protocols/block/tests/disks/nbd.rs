//! NBD: messages as a client sends them.

use std::sync::Arc;

use block::nbd::{Connection, Image, Server};
use parking_lot::Mutex;
use proptest::prelude::*;
use vfs::peer::Owner;
use vfs::{Call, Caller, Export, Groups, LocalUsers, Origin, Peer};
use vfs_testkit::Message;
use vfs_testkit::context::{RW, ok, pattern};
use vfs_testkit::session::serve_patiently;
use wire::{Malformed, MessageSender, Session};

use crate::{DATA, SIZE, content, export, root};

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
const BLOCK_STATUS: u16 = 7;

const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const DF: u16 = 4;
const REQ_ONE: u16 = 8;

/// Sends the messages in `bytes` one after the other, and returns all replies.
fn send(connection: &Connection, bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    send_by(&Call::detached(), connection, bytes)
}

/// [`send`] with the connection of `call`.
fn send_by(call: &Call, connection: &Connection, bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    let (mut rest, mut replies) = (bytes, Vec::new());
    while let Some(len) = connection.frame(rest)? {
        assert!(len <= rest.len(), "{len} bytes of {}", rest.len());
        let message = Message::new(rest[..len].to_vec());
        let (_, reply) = serve_patiently(connection, call, &message, 65 << 20)?;
        replies.extend(reply);
        rest = &rest[len..];
    }
    assert_eq!(rest, b"");
    Ok(replies)
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    [
        b"IHAVEOPT",
        &number.to_be_bytes()[..],
        &len.to_be_bytes(),
        data,
    ]
    .concat()
}

fn request(kind: u16, flags: u16, offset: u64, len: u32) -> Vec<u8> {
    [
        &0x2560_9513u32.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        b"a cookie",
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ]
    .concat()
}

/// Returns a name with its length in front and `rest` after it.
fn named(name: &str, rest: &[u8]) -> Vec<u8> {
    let len = name.len() as u32;
    [&len.to_be_bytes(), name.as_bytes(), rest].concat()
}

/// Returns a reply to an option.
fn reply_to(number: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u32).to_be_bytes();
    let head = [0x0003_e889_0455_65a9u64.to_be_bytes()].concat();
    [
        &head[..],
        &number.to_be_bytes(),
        &kind.to_be_bytes(),
        &len,
        data,
    ]
    .concat()
}

/// Returns a simple reply.
fn simple(error: u32) -> Vec<u8> {
    let head = 0x6744_6698u32.to_be_bytes();
    [&head[..], &error.to_be_bytes(), b"a cookie"].concat()
}

/// Returns a chunk of a structured reply.
fn chunk(kind: u16, done: bool, data: &[u8]) -> Vec<u8> {
    let (head, len) = (0x668e_33efu32.to_be_bytes(), data.len() as u32);
    let flags = u16::from(done).to_be_bytes();
    [
        &head[..],
        &flags,
        &kind.to_be_bytes(),
        b"a cookie",
        &len.to_be_bytes(),
        data,
    ]
    .concat()
}

/// Returns a connection to the disk of [`export`] with simple replies, or with structured ones and
/// extents.
fn connected(structured: bool) -> (Arc<Export>, Connection) {
    let export = export();
    let connection = connect(&export, structured);
    (export, connection)
}

/// Returns a connection to the disk of `export`.
fn connect(export: &Arc<Export>, structured: bool) -> Connection {
    let connection = Server::new(export.clone(), false, Vec::new()).session();
    let mut hello = 3u32.to_be_bytes().to_vec();
    if structured {
        hello.extend(option(8, b""));
        let query = [&1u32.to_be_bytes()[..], &named("base:allocation", b"")].concat();
        hello.extend(option(10, &named("dir/disk", &query)));
    }
    hello.extend(option(7, &named("dir/disk", &[0, 0])));
    send(&connection, &hello).expect("a handshake");
    connection
}

/// NBD has no users of its own; the peer's socket has one.
#[test]
fn a_local_user_gets_no_disk_that_it_may_not_read_and_root_gets_it() {
    let export = export();
    let disk = ok(ok(root(&export).lookup("dir")).lookup("disk"));
    ok(disk.chmod(0o600));
    let server = Server::new(export.clone(), false, Vec::new());
    let go = [
        &3u32.to_be_bytes()[..],
        &option(7, &named("dir/disk", &[0, 0])),
    ];
    let ack = reply_to(7, 1, b"");
    for (uid, gets) in [(0, true), (1000, false)] {
        let owner = Owner {
            uid,
            gid: None,
            groups: None,
        };
        let origin = Origin::Local { addr: None, owner };
        let peer = Peer::new(origin, &LocalUsers::Privileged, 0);
        peer.set_owner(Caller {
            groups: Groups::Known([].into()),
            ..Caller::new(uid, uid)
        });
        let call = Call::detached().with_peer(Arc::new(peer));
        let replies = send_by(&call, &server.session(), &go.concat()).expect("answers");
        assert_eq!(replies.ends_with(&ack), gets, "uid {uid}: {replies:?}");
    }
}

#[test]
fn the_server_speaks_first() {
    #[derive(Default)]
    struct Heard(Mutex<Vec<u8>>);
    impl MessageSender for Heard {
        fn send(&self, message: &[u8]) -> bool {
            self.0.lock().extend(message);
            true
        }
    }
    let heard = Arc::new(Heard::default());
    Server::new(export(), false, Vec::new())
        .session()
        .set_message_sender(heard.clone());
    assert_eq!(*heard.0.lock(), b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn an_export_is_chosen_by_go_or_by_its_name_alone() {
    let (size, flags) = (SIZE.to_be_bytes(), 0x96du16.to_be_bytes());
    let connection = Server::new(export(), false, Vec::new()).session();
    let hello = [
        &3u32.to_be_bytes()[..],
        &option(7, &named("dir/disk", &[0, 0])),
    ]
    .concat();
    let blocks = [1u32, 4096, 64 << 20].map(u32::to_be_bytes).concat();
    let expected = [
        reply_to(7, 3, &[&[0, 0], &size[..], &flags].concat()),
        reply_to(7, 3, &[&[0, 3], &blocks[..]].concat()),
        reply_to(7, 1, b""),
    ];
    assert_eq!(send(&connection, &hello), Ok(expected.concat()));
    assert_eq!(send(&connection, &request(FLUSH, 0, 0, 0)), Ok(simple(0)));

    for (handshake, zeros) in [(3u32, 0), (1, 124)] {
        let connection = Server::new(export(), false, Vec::new()).session();
        let hello = [&handshake.to_be_bytes()[..], &option(1, b"dir/disk")].concat();
        let expected = [&size[..], &flags, &vec![0; zeros]].concat();
        assert_eq!(send(&connection, &hello), Ok(expected));
    }
}

#[test]
fn what_cannot_be_had_is_refused_and_the_handshake_goes_on() {
    let connection = Server::new(export(), false, Vec::new()).session();
    let say = |bytes: &[u8]| send(&connection, bytes).expect("an answer");
    say(&3u32.to_be_bytes());
    let kind = |reply: &[u8]| reply[12..16].to_vec();
    let unknown = say(&option(7, &named("none", &[0, 0])));
    assert_eq!(kind(&unknown), (1u32 << 31 | 6).to_be_bytes());
    assert_eq!(kind(&say(&option(5, b""))), (1u32 << 31 | 1).to_be_bytes());
    for bad in [
        option(7, b""),
        option(7, &[0xff; 4]),
        option(3, b"x"),
        option(8, b"x"),
    ] {
        assert_eq!(kind(&say(&bad)), (1u32 << 31 | 3).to_be_bytes());
    }
    // Metadata contexts require structured replies.
    let query = option(10, &named("dir/disk", &[0; 4]));
    assert_eq!(kind(&say(&query)), (1u32 << 31 | 3).to_be_bytes());
    assert_eq!(kind(&say(&option(2, b""))), 1u32.to_be_bytes());
    assert_eq!(send(&connection, &option(1, b"none")).ok(), None);
}

#[test]
fn exports_are_listed_files_of_the_root() {
    let export = export();
    drop(crate::root(&export).file("one", b"1"));
    let connection = Server::new(export, false, Vec::new()).session();
    let hello = [&3u32.to_be_bytes()[..], &option(3, b"")].concat();
    let expected = [reply_to(3, 2, &named("one", b"")), reply_to(3, 1, b"")].concat();
    assert_eq!(send(&connection, &hello), Ok(expected));
}

#[test]
fn an_image_has_a_name_of_its_own_and_is_only_read() {
    let image = Image {
        name: Vec::new(),
        export: export(),
        path: b"dir/disk".into(),
    };
    let connection = Server::new(export(), false, vec![image]).session();
    let hello = [&3u32.to_be_bytes()[..], &option(3, b"")].concat();
    let expected = [reply_to(3, 2, &named("", b"")), reply_to(3, 1, b"")].concat();
    assert_eq!(send(&connection, &hello), Ok(expected));
    send(&connection, &option(7, &named("", &[0, 0]))).expect("an export");
    assert_eq!(
        send(&connection, &request(TRIM, 0, 0, 1)),
        Ok(simple(1)),
        "it can be written"
    );
}

#[test]
fn messages_in_the_wrong_phase_end_the_connection() {
    let connection = || Server::new(export(), false, Vec::new()).session();
    let flags = 3u32.to_be_bytes().to_vec();
    for bad in [
        request(READ, 0, 0, 1),
        option(2, b""),
        [flags.clone(), flags.clone()].concat(),
        [flags.clone(), request(READ, 0, 0, 1)].concat(),
        0u32.to_be_bytes().to_vec(),
        b"GET / HTTP/1.1".to_vec(),
        request(WRITE, 0, 0, (64 << 20) + 1),
        option(7, &[0; 70_000]),
    ] {
        assert!(send(&connection(), &bad).is_err(), "{}", bad.escape_ascii());
    }
    let (_export, connection) = connected(false);
    assert!(send(&connection, &option(2, b"")).is_err());
}

#[test]
fn what_is_written_is_read_and_what_is_not_of_the_disk_is_not() {
    let (export, connection) = connected(false);
    let say = |bytes: &[u8]| send(&connection, bytes).expect("an answer");
    let data = pattern(5000, 1);
    let write = [request(WRITE, FUA, 1000, 5000), data.clone()].concat();
    assert_eq!(say(&write), simple(0));
    assert_eq!(
        say(&request(READ, 0, 1000, 5000)),
        [simple(0), data.clone()].concat()
    );
    assert_eq!(content(&export)[1000..6000], data);

    let (invalid, full) = (22, 28);
    for (kind, flags, offset, len, error) in [
        (READ, 0, SIZE, 1, invalid),
        (READ, 0, u64::MAX, 2, invalid),
        (READ, REQ_ONE, 0, 1, invalid),
        (READ, 1 << 15, 0, 1, invalid),
        (TRIM, 0, SIZE, 1, invalid),
        (WRITE_ZEROES, 0, SIZE, 1, full),
        (BLOCK_STATUS, 0, 0, 1, invalid),
        (99, 0, 0, 0, invalid),
    ] {
        assert_eq!(
            say(&request(kind, flags, offset, len)),
            simple(error),
            "{kind}"
        );
    }
    let behind = [request(WRITE, 0, SIZE - 1, 2), vec![1; 2]].concat();
    assert_eq!(say(&behind), simple(full));
    assert_eq!(say(&request(DISC, 0, 0, 0)), b"");
}

#[test]
fn ranges_are_made_zeros() {
    let (export, connection) = connected(false);
    let say = |bytes: &[u8]| send(&connection, bytes).expect("an answer");
    assert_eq!(
        say(&request(WRITE_ZEROES, NO_HOLE, DATA.start, 4096)),
        simple(0)
    );
    assert_eq!(say(&request(TRIM, FUA, DATA.start + 8192, 4096)), simple(0));
    let data = &content(&export)[DATA.start as usize..];
    for (at, expected) in [(0, 0), (4096, 7), (8192, 0), (12288, 7)] {
        assert_eq!(data[at..][..4096], [expected; 4096]);
    }
}

/// The negotiated size constraints apply to payloads: commands without one may have any length.
#[test]
fn only_payloads_have_a_largest_size() {
    const LONG: u32 = u32::MAX - 4095;
    let (export, connection) = connected(true);
    let file = ok(ok(root(&export).lookup("dir")).lookup("disk"));
    ok(file.truncate(2 * u64::from(LONG)));
    // A disk has the size that its file had when it was chosen.
    drop(connection);
    let connection = connect(&export, true);
    let say = |bytes: &[u8]| send(&connection, bytes).expect("an answer");
    let read = |len| request(READ, DF, 0, len);
    let invalid = [&22u32.to_be_bytes()[..], &[0; 2]].concat();
    assert_eq!(
        say(&read((64 << 20) + 1)),
        chunk((1 << 15) + 1, true, &invalid)
    );
    assert_eq!(say(&read(64 << 20)).len(), 20 + 8 + (64 << 20));
    let data = pattern(64 << 20, 1);
    let write = [request(WRITE, 0, 4096, 64 << 20), data.clone()].concat();
    assert_eq!(say(&write), simple(0));
    let written = [&4096u64.to_be_bytes()[..], &data].concat();
    assert!(say(&request(READ, DF, 4096, 64 << 20)) == chunk(1, true, &written));
    assert_eq!(say(&request(WRITE_ZEROES, 0, 4096, 64 << 20)), simple(0));
    let status = say(&request(BLOCK_STATUS, 0, u64::from(LONG), LONG));
    let hole = [1, LONG, 3].map(u32::to_be_bytes).concat();
    assert_eq!(status, chunk(5, true, &hole));
    for kind in [TRIM, WRITE_ZEROES] {
        assert_eq!(say(&request(kind, 0, 0, LONG)), simple(0), "{kind}");
    }
    assert_eq!(
        ok(ok(file.open(RW)).read_exact(DATA.start, 4096)),
        [0; 4096]
    );
}

#[test]
fn holes_are_told_and_not_sent() {
    let (_export, connection) = connected(true);
    let say = |bytes: &[u8]| send(&connection, bytes).expect("an answer");
    let (at, len) = (
        |at: u64| at.to_be_bytes(),
        |len: u64| (len as u32).to_be_bytes(),
    );
    let hole = |from: u64, bytes: u64, done| chunk(2, done, &[&at(from)[..], &len(bytes)].concat());
    let data = [&at(DATA.start)[..], &[7; (DATA.end - DATA.start) as usize]].concat();
    let expected = [
        hole(0, DATA.start, false),
        chunk(1, false, &data),
        hole(DATA.end, SIZE - DATA.end, true),
    ];
    assert!(say(&request(READ, 0, 0, SIZE as u32)) == expected.concat());
    // Small holes, and ones in a read that must not be fragmented, are data.
    let zeros = [&at(0)[..], &[0; 4096]].concat();
    assert_eq!(say(&request(READ, 0, 0, 4096)), chunk(1, true, &zeros));
    let whole = [&at(0)[..], &[0; 65536]].concat();
    assert!(say(&request(READ, DF, 0, 65536)) == chunk(1, true, &whole));
    assert_eq!(say(&request(READ, 0, 0, 0)), chunk(0, true, b""));

    let extents = |all: &[(u64, u32)]| {
        let each = all
            .iter()
            .flat_map(|&(bytes, what)| [len(bytes), what.to_be_bytes()].concat());
        chunk(
            5,
            true,
            &[1u32.to_be_bytes().to_vec(), each.collect()].concat(),
        )
    };
    let (first, rest) = (DATA.start, SIZE - DATA.end);
    assert_eq!(
        say(&request(BLOCK_STATUS, 0, 0, SIZE as u32)),
        extents(&[(first, 3), (DATA.end - DATA.start, 0), (rest, 3)])
    );
    assert_eq!(
        say(&request(BLOCK_STATUS, REQ_ONE, 4096, SIZE as u32 - 4096)),
        extents(&[(first - 4096, 3)])
    );
    let error = [&22u32.to_be_bytes()[..], &[0; 2]].concat();
    assert_eq!(say(&request(READ, 0, SIZE, 1)), chunk(0x8001, true, &error));
    assert_eq!(
        say(&request(BLOCK_STATUS, 0, 0, 0)),
        chunk(0x8001, true, &error)
    );
    assert_eq!(say(&request(TRIM, 0, SIZE, 1)), simple(22));
}

#[test]
fn every_beginning_of_a_message_waits_for_the_rest() {
    let connection = Server::new(export(), false, Vec::new()).session();
    let write = [request(WRITE, 0, 0, 5), vec![1; 5]].concat();
    for whole in [3u32.to_be_bytes().to_vec(), option(7, b"12345"), write] {
        for cut in 0..whole.len() {
            let framed = connection.frame(&whole[..cut]).expect("a beginning");
            assert!(framed.is_none_or(|len| len == whole.len()), "{cut}");
        }
        assert_eq!(connection.frame(&whole), Ok(Some(whole.len())));
    }
}

proptest! {
    #[test]
    fn whatever_is_asked_is_answered_or_ends_the_connection(
        structured: bool,
        requests in proptest::collection::vec(
            (0u16..10, 0u16..40, 0u64..SIZE + 5000, prop_oneof![0u32..9000, any::<u32>()]),
            1..8,
        ),
        options in proptest::collection::vec((0u32..14, proptest::collection::vec(any::<u8>(), 0..40)), 0..6),
    ) {
        let fresh = Server::new(export(), false, Vec::new()).session();
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(options.iter().flat_map(|(number, data)| option(*number, data)));
        let _ = send(&fresh, &hello);
        let (_export, connection) = connected(structured);
        for (kind, flags, offset, len) in requests {
            let mut bytes = request(kind, flags, offset, len);
            if kind == WRITE {
                let len = len.min(8192);
                bytes = request(kind, flags, offset, len);
                bytes.resize(bytes.len() + len as usize, 5);
            }
            let reply = send(&connection, &bytes).expect("an answer");
            prop_assert!(kind == DISC || reply.len() >= 16);
        }
    }
}
