//! Payloads received directly into the reader's memory, over each version, and replies that must
//! not be, as in 9P's `landing`.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use remote::nfs::{Mount, Options, mount};
use transports::{Link, StreamLink};
use vfs::{Caller, Errno, File, FileSystem, OpenFlags, Result};
use vfs_testkit::context::{TestNode, ok, pattern, run};
use wire::payload::SliceSink;

use super::net::Served;
use crate::landing::with_cx;

const VERSIONS: [(u32, u32); 4] = [(3, 0), (4, 0), (4, 1), (4, 2)];

/// The content of memory that nothing has been written to.
const UNTOUCHED: u8 = 0xee;

/// The size from which payloads land.
const LARGE: usize = 32 << 10;

const SIZE: usize = 300_000;

/// The size of a READ, so that a long read takes several.
const IO: u32 = 64 << 10;

/// The receive timeout of the client.
const PATIENCE: Duration = Duration::from_millis(1);

/// Replaces the reply to a long read by pieces that are sent with pauses.
type Meddle = Arc<dyn Fn(&[u8]) -> Vec<Vec<u8>> + Send + Sync>;

/// A file of [`SIZE`] bytes on a server, behind a relay that alters the replies to reads.
struct Meddled {
    file: Arc<dyn File>,
    content: Vec<u8>,
    _tree: Arc<dyn FileSystem>,
}

impl Meddled {
    fn new(version: (u32, u32), meddle: Meddle) -> Meddled {
        let served = Served::new();
        let content = pattern(SIZE, 7);
        let options = Options {
            version: Some(version),
            sizes: (Some(IO), None),
            ..Options::default()
        };
        let direct = served.mount(options.clone());
        let who = Caller::ROOT;
        let node = ok(run(&who, |cx| direct.root(cx)));
        drop(ok(TestNode { node, caller: who }.file("file", &content)));
        let (tree, _) = mount(&Mount {
            dial: Arc::new(move |_| Ok(Box::new(between(&served, &meddle)))),
            path: "",
            require_full_path: true,
            options,
        })
        .expect("mounted");
        let file = ok(with_cx(|cx| {
            let found = tree.root(cx)?.lookup(cx, vfs::Name::new(b"file")?)?;
            found.node.open(cx, OpenFlags::READ)
        }));
        Meddled {
            file,
            content,
            _tree: tree,
        }
    }

    /// Reads into memory filled with [`UNTOUCHED`], and returns that memory, too.
    fn read(&self, offset: usize, len: usize) -> (Result<usize>, Vec<u8>) {
        let mut memory = vec![UNTOUCHED; len];
        let mut sink = SliceSink::new(&mut memory);
        let read = with_cx(|cx| self.file.read(cx, offset as u64, len, &mut sink));
        (read, memory)
    }
}

/// A connection to `served` through the relay.
fn between(served: &Arc<Served>, meddle: &Meddle) -> StreamLink {
    let (ours, client) = std::os::unix::net::UnixStream::pair().expect("a socket pair");
    ours.set_read_timeout(Some(PATIENCE)).expect("set");
    let (client, server) = (link(client), Arc::new(served.link()));
    let (to_server, from_client) = (server.clone(), client.clone());
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(got @ 1..) = from_client.recv(&mut buffer, true) {
            if to_server.send(&buffer[..got], true).is_err() {
                break;
            }
        }
        to_server.hang_up();
    });
    let meddle = meddle.clone();
    thread::spawn(move || {
        while let Some(record) = receive(&server) {
            let pieces = match record.len() {
                LARGE.. => meddle(&record),
                _ => vec![record],
            };
            for (at, piece) in pieces.iter().enumerate() {
                // Pauses for longer than the client's receive timeout.
                if at > 0 {
                    thread::sleep(2 * PATIENCE);
                }
                if !matches!(client.send(piece, true), Ok(sent) if sent == piece.len()) {
                    break;
                }
            }
        }
        client.hang_up();
    });
    StreamLink::new(ours.into(), "somebody").expect("a link")
}

fn link(stream: std::os::unix::net::UnixStream) -> Arc<StreamLink> {
    Arc::new(StreamLink::new(stream.into(), "client").expect("a link"))
}

/// Receives a whole record. Returns `None` at the end.
fn receive(link: &StreamLink) -> Option<Vec<u8>> {
    let mut mark = [0; 4];
    link.recv_exact(&mut mark).ok()?;
    let mut record = mark.to_vec();
    record.resize(4 + (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize, 0);
    link.recv_exact(&mut record[4..]).ok()?;
    Some(record)
}

/// The offsets of the data in a READ reply of `version`, and of the operation number and status
/// before it.
fn places(version: (u32, u32), record: &[u8]) -> (usize, usize) {
    const RPC: usize = 4 + 24;
    match version {
        // With attributes.
        (3, _) => (RPC + 4 + 88 + 12, RPC - 4),
        (4, minor) => {
            let read = RPC + 12 + if minor > 0 { 44 } else { 0 } + 8;
            let plus = record[read + 3] == 68;
            (read + if plus { 32 } else { 16 }, read)
        }
        _ => unreachable!("no such version"),
    }
}

fn marked(mut record: Vec<u8>) -> Vec<u8> {
    let mark = (record.len() - 4) as u32 | 1 << 31;
    record[..4].copy_from_slice(&mark.to_be_bytes());
    record
}

/// Shortens the reply to at most `len` bytes of data.
fn shorter(version: (u32, u32), record: &[u8], len: usize) -> Vec<u8> {
    let (data, _) = places(version, record);
    let mut short = record[..data + len].to_vec();
    let count = (len as u32).to_be_bytes();
    short[data - 4..data].copy_from_slice(&count);
    if version.0 == 3 {
        short[data - 12..data - 8].copy_from_slice(&count);
    }
    short.resize(data + len + wire::padding(len), 0);
    marked(short)
}

/// Replaces the reply by an I/O error.
fn error(version: (u32, u32), record: &[u8]) -> Vec<u8> {
    let (_, read) = places(version, record);
    let mut error = [&record[..read + 4], &[0, 0, 0, 5]].concat();
    match version.0 {
        // No attributes.
        3 => error.extend([0; 4]),
        _ => error[28..32].copy_from_slice(&[0, 0, 0, 5]),
    }
    marked(error)
}

fn cut(record: &[u8], lens: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
    let (mut rest, mut pieces) = (record, Vec::new());
    for len in lens {
        let (piece, behind) = rest.split_at(rest.len().min(len));
        pieces.push(piece.to_vec());
        rest = behind;
        if rest.is_empty() {
            return pieces;
        }
    }
    pieces.push(rest.to_vec());
    pieces
}

#[test]
fn payloads_that_pause_on_their_way_come_whole() {
    for version in VERSIONS {
        // In the mark, in the head, before, at and after the start of the data, in the middle, in
        // the padding.
        let meddle = move |record: &[u8]| {
            let (data, _) = places(version, record);
            cut(
                record,
                [
                    2,
                    data - 7,
                    4,
                    1,
                    1,
                    1,
                    30_000,
                    record.len() - data - 30_004,
                ],
            )
        };
        let meddled = Meddled::new(version, Arc::new(meddle));
        for (offset, len) in [(0, LARGE), (1, LARGE + 1), (5, 60_002), (0, SIZE)] {
            let (read, memory) = meddled.read(offset, len);
            let expected = &meddled.content[offset..SIZE.min(offset + len)];
            assert_eq!(read, Ok(expected.len()), "{version:?}");
            assert!(memory[..expected.len()] == *expected, "{version:?}");
        }
    }
}

#[test]
fn errors_and_what_is_short_leave_memory_alone() {
    for version in VERSIONS {
        let meddled = Meddled::new(
            version,
            Arc::new(move |record| vec![error(version, record)]),
        );
        let (read, memory) = meddled.read(0, LARGE);
        assert_eq!(read, Err(Errno::EIO), "{version:?}");
        assert!(memory.iter().all(|&byte| byte == UNTOUCHED), "{version:?}");
        for len in [1, 4095, LARGE - 1] {
            let meddle = move |record: &[u8]| vec![shorter(version, record, len)];
            let meddled = Meddled::new(version, Arc::new(meddle));
            let (read, memory) = meddled.read(0, LARGE);
            assert_eq!(read, Ok(len), "{version:?}");
            assert!(memory[..len] == meddled.content[..len], "{version:?}");
            assert!(
                memory[len..].iter().all(|&byte| byte == UNTOUCHED),
                "{version:?}"
            );
        }
    }
}

#[test]
fn what_is_more_than_asked_for_comes_nowhere() {
    for version in VERSIONS {
        let meddle = move |record: &[u8]| {
            let (data, _) = places(version, record);
            let more = record.len() - data + 4;
            let longer = [record, &[1; 4]].concat();
            vec![shorter(version, &longer, more)]
        };
        let meddled = Meddled::new(version, Arc::new(meddle));
        let (read, memory) = meddled.read(0, LARGE);
        assert_eq!(read, Err(Errno::EIO), "{version:?}");
        assert!(memory.iter().all(|&byte| byte == UNTOUCHED), "{version:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    /// With the bytes cut anywhere, and other requests in flight.
    #[test]
    fn pieces_of_any_length_make_what_was_read(
        lens in prop::collection::vec(1usize..20_000, 1..12),
        which in 0usize..VERSIONS.len(),
        offset in 0usize..SIZE,
        len in 1usize..SIZE,
    ) {
        let meddle = move |record: &[u8]| cut(record, lens.iter().copied().cycle());
        let meddled = Meddled::new(VERSIONS[which], Arc::new(meddle));
        thread::scope(|scope| {
            let reader = scope.spawn(|| meddled.read(offset, len));
            for _ in 0..20 {
                ok(with_cx(|cx| meddled.file.attr(cx, vfs::AttrMask::STAT)));
            }
            let (read, memory) = reader.join().expect("no panic");
            let expected = &meddled.content[offset..SIZE.min(offset + len)];
            assert_eq!(read, Ok(expected.len()));
            assert!(memory[..expected.len()] == *expected);
        });
    }
}
