//! Servers with invalid replies: every waiting caller gets an error, and none waits forever.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use std::io::{Read, Write};

use p9::{Data, Dialect, Fid, Qid, QidType, Rmessage, Tag, Tmessage};
use proptest::prelude::*;
use remote::ninep::{Connection, Options, Remote9p};
use transports::StreamLink;
use vfs::{AttrMask, Call, Caller, Cx, Errno, FileSystem, Kind, OpenFlags, ReaddirMode};

/// A server scripted by the test.
struct Fake {
    stream: UnixStream,
    /// Whether to stay connected until the client disconnects, as sending to a closed socket might
    /// fail before the replies are read.
    stays: bool,
}

impl Fake {
    fn pair() -> (StreamLink, Fake) {
        let (ours, stream) = UnixStream::pair().expect("a socket pair");
        let link = StreamLink::new(ours.into(), "fake").expect("a link");
        (
            link,
            Fake {
                stream,
                stays: true,
            },
        )
    }

    /// Receives the next request: its tag and type, or `None` at the end.
    fn next(&mut self) -> Option<(Tag, u8)> {
        let mut size = [0; 4];
        self.stream.read_exact(&mut size).ok()?;
        let mut rest = vec![0; u32::from_le_bytes(size) as usize - 4];
        self.stream.read_exact(&mut rest).ok()?;
        Some((Tag(u16::from_le_bytes([rest[1], rest[2]])), rest[0]))
    }

    fn answer(&mut self, tag: Tag, reply: &Rmessage<'_>) {
        let mut bytes = Vec::new();
        reply.encode(Dialect::Linux, tag, &mut bytes);
        self.raw(&bytes);
    }

    fn raw(&mut self, bytes: &[u8]) {
        // The client may have disconnected.
        let _ = self.stream.write_all(bytes);
    }

    /// Answers Tversion.
    fn greet(&mut self) {
        let (tag, _) = self.next().expect("Tversion");
        let (msize, version) = (8192, &b"9P2000.L"[..]);
        self.answer(tag, &Rmessage::Version { msize, version });
    }
}

/// A pipe to a server that runs `serve` after the session set-up.
fn against(serve: impl FnOnce(&mut Fake) + Send + 'static) -> Arc<Connection> {
    let (link, mut fake) = Fake::pair();
    std::thread::spawn(move || {
        fake.greet();
        serve(&mut fake);
        while fake.stays && fake.next().is_some() {}
    });
    Connection::open(link, Dialect::Linux, 8192).expect("a session")
}

fn read(count: u32) -> Tmessage<'static> {
    let (fid, offset) = (Fid(1), 0);
    Tmessage::Read { fid, offset, count }
}

/// Sends three requests at once, two of them from other threads: all fail alike, and so do later
/// ones.
#[track_caller]
fn all_fail(serve: impl FnOnce(&mut Fake) + Send + 'static, expected: Errno, why: &str) {
    let pipe = against(serve);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(pipe.call(&read(4)).err(), Some(expected)));
        }
        assert_eq!(pipe.call(&read(4)).err(), Some(expected));
    });
    assert_eq!(pipe.call(&read(4)).err(), Some(expected));
    let failure = pipe.failure().expect("a reason");
    assert!(failure.contains(why), "{failure}");
}

const ECONNRESET: Errno = Errno::from_raw(104);

#[test]
fn a_reply_to_nobody_ends_the_connection() {
    all_fail(
        |fake| {
            fake.next();
            fake.answer(Tag(999), &Rmessage::Clunk {});
        },
        Errno::EIO,
        "no request has tag 999",
    );
}

#[test]
fn a_second_reply_ends_the_connection() {
    let pipe = against(|fake| {
        let (tag, _) = fake.next().expect("a request");
        // In one piece: a second reply that arrives later could be taken for the next request's.
        let mut twice = Vec::new();
        for _ in 0..2 {
            Rmessage::Read { data: Data(b"1") }.encode(Dialect::Linux, tag, &mut twice);
        }
        fake.raw(&twice);
        while fake.next().is_some() {}
    });
    // The first reply may be delivered or not.
    let _ = pipe.call(&read(4));
    assert_eq!(pipe.call(&read(4)).err(), Some(Errno::EIO));
}

#[test]
fn another_kind_of_reply_ends_the_connection() {
    all_fail(
        |fake| {
            let (tag, _) = fake.next().expect("a request");
            fake.answer(tag, &Rmessage::Clunk {});
        },
        Errno::EIO,
        "expected Rread, got Rclunk",
    );
}

#[test]
fn more_than_asked_for_ends_the_connection() {
    all_fail(
        |fake| {
            let (tag, _) = fake.next().expect("a request");
            let data = Data(b"12345");
            fake.answer(tag, &Rmessage::Read { data });
        },
        Errno::EIO,
        "expected at most 4",
    );
}

#[test]
fn a_message_beyond_msize_ends_the_connection() {
    all_fail(
        |fake| {
            fake.next();
            fake.raw(&u32::MAX.to_le_bytes());
        },
        Errno::EIO,
        "got one of 4294967295",
    );
}

#[test]
fn a_message_that_is_none_ends_the_connection() {
    all_fail(
        |fake| {
            fake.next();
            fake.raw(&[0; 64]);
        },
        Errno::EIO,
        "got one of 0",
    );
}

#[test]
fn the_end_of_the_server_is_told_to_all() {
    let once = |fake: &mut Fake| {
        fake.next();
        fake.stays = false;
    };
    all_fail(once, ECONNRESET, "");
}

#[test]
fn a_truncated_reply_is_the_end_too() {
    all_fail(
        |fake| {
            let (tag, _) = fake.next().expect("a request");
            let mut bytes = Vec::new();
            let data = Data(b"1234");
            Rmessage::Read { data }.encode(Dialect::Linux, tag, &mut bytes);
            fake.raw(&bytes[..bytes.len() - 1]);
            fake.stays = false;
        },
        ECONNRESET,
        "",
    );
}

#[test]
fn a_server_of_something_else_is_refused_with_a_reason() {
    for (bytes, why) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            "expected a message of",
        ),
        (b"", "closed the connection instead of replying"),
        (&[0xff; 4096], "expected a message of"),
    ] {
        let (link, mut fake) = Fake::pair();
        fake.raw(bytes);
        drop(fake);
        let error = Connection::open(link, Dialect::Linux, 8192)
            .err()
            .expect("refused");
        let text = error.to_string();
        // The reset may arrive before the bytes.
        assert!(
            text.contains(why) || text.contains("reset") || text.contains("ipe"),
            "{text}"
        );
    }
}

/// Answers each request by its type until the end.
fn serving(answer: impl Fn(&mut Fake, Tag, u8) + Send + 'static) -> Arc<Remote9p> {
    let (link, mut fake) = Fake::pair();
    std::thread::spawn(move || {
        fake.greet();
        while let Some((tag, number)) = fake.next() {
            answer(&mut fake, tag, number);
        }
    });
    Remote9p::connect(link, Options::default()).expect("attached")
}

const DIR: Qid = Qid {
    kind: QidType::DIR,
    version: 1,
    path: 1,
};

/// Rgetattr of a node with this mode and qid path.
fn getattr(mode: u32, path: u64) -> Rmessage<'static> {
    Rmessage::Getattr {
        valid: 0x7ff,
        qid: Qid { path, ..DIR },
        mode,
        uid: 0,
        gid: 0,
        nlink: u64::MAX,
        rdev: u64::MAX,
        size: u64::MAX,
        blksize: u64::MAX,
        blocks: u64::MAX,
        atime_sec: u64::MAX,
        atime_nsec: u64::MAX,
        mtime_sec: 0,
        mtime_nsec: 0,
        ctime_sec: 0,
        ctime_nsec: 0,
        btime_sec: 0,
        btime_nsec: 0,
        generation: 0,
        data_version: 0,
    }
}

fn sensible(fake: &mut Fake, tag: Tag, number: u8) {
    let qid = DIR;
    match number {
        104 => fake.answer(tag, &Rmessage::Attach { qid }),
        24 => fake.answer(tag, &getattr(0o040755, 1)),
        110 => fake.answer(
            tag,
            &Rmessage::Walk {
                qids: p9::Qids::new(&[]),
            },
        ),
        12 => fake.answer(tag, &Rmessage::Lopen { qid, iounit: 1 }),
        120 => fake.answer(tag, &Rmessage::Clunk {}),
        _ => fake.answer(tag, &Rmessage::Lerror { errno: 0xffff_ffff }),
    }
}

struct Count(usize);

impl vfs::DirSink for Count {
    fn entry(&mut self, _: vfs::DirEntry<'_>) -> bool {
        self.0 += 1;
        true
    }
}

#[test]
fn entries_that_lead_elsewhere_or_never_end_are_errors() {
    for (name, offset) in [(&b"../x"[..], 7u64), (b"", 7), (b"same", 0)] {
        let fs = serving(move |fake, tag, number| {
            if number != 40 {
                return sensible(fake, tag, number);
            }
            let mut entry = vec![0; 13];
            entry.extend(offset.to_le_bytes());
            entry.push(8);
            entry.extend((name.len() as u16).to_le_bytes());
            entry.extend(name);
            let data = Data(&entry);
            fake.answer(tag, &Rmessage::Readdir { data });
        });
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        let root = fs.root(&cx).expect("a root");
        let dir = root.open(&cx, OpenFlags::READ).expect("open");
        let mut count = Count(0);
        let done = dir.readdir(&cx, 0, ReaddirMode::Names, &mut count);
        // The client honours the `iounit` of 1, so the reply is longer than requested.
        assert_eq!((done, count.0), (Err(Errno::EIO), 0));
    }
}

#[test]
fn attributes_that_make_no_sense_are_bounded_or_refused() {
    let fs = serving(sensible);
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let root = fs.root(&cx).expect("a root");
    let attr = root.attr(&cx, AttrMask::STAT).expect("attributes");
    assert_eq!((attr.kind, attr.nlink), (Kind::Directory, u32::MAX));
    assert!(attr.blksize <= 16 << 20 && attr.atime.nsec < 1_000_000_000);
    assert_eq!(root.statfs(&cx).err(), Some(Errno::EIO));

    let changing = std::sync::atomic::AtomicU64::new(0);
    let fs = serving(move |fake, tag, number| {
        if number != 24 {
            return sensible(fake, tag, number);
        }
        let times = changing.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mode = if times == 1 { 0o100644 } else { 0o040755 };
        fake.answer(tag, &getattr(mode, 1 + times / 2));
    });
    let root = fs.root(&cx).expect("a root");
    for _ in 0..2 {
        assert_eq!(root.attr(&cx, AttrMask::STAT), Err(Errno::ESTALE));
    }
}

/// A multi-threaded server may process a Tgetattr sent with a Twalk early, while the fid is still
/// at the walk's start.
#[test]
fn attributes_are_of_what_was_walked_to() {
    const FOUND: Qid = Qid { path: 7, ..DIR };
    let asked = std::sync::atomic::AtomicU64::new(0);
    let fs = serving(move |fake, tag, number| match number {
        // Requests for the root's attributes, at first.
        24 => match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 | 1 => fake.answer(tag, &getattr(0o040755, DIR.path)),
            _ => fake.answer(tag, &getattr(0o040700, FOUND.path)),
        },
        110 => {
            let qids = p9::Qids::new(&[FOUND]);
            fake.answer(tag, &Rmessage::Walk { qids });
        }
        72 => fake.answer(tag, &Rmessage::Mkdir { qid: FOUND }),
        _ => sensible(fake, tag, number),
    });
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let root = fs.root(&cx).expect("a root");
    let name = vfs::Name::new(b"dir").expect("a name");
    let mode = vfs::Mode::without_umask(0o700);
    let made = root.make(&cx, name, vfs::NewNode::Directory, mode);
    let attr = made.expect("made").attr;
    assert_eq!((attr.id, attr.mode & 0o777), (FOUND.path, 0o700));
    let found = root.lookup(&cx, name).expect("found").attr;
    assert_eq!(found.id, FOUND.path);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With any bytes in any pieces instead of replies, each request ends.
    #[test]
    fn garbage_ends_every_request(
        garbage in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 1..8),
        sized: bool,
    ) {
        let pipe = against(move |fake| {
            fake.next();
            fake.stays = false;
            for mut piece in garbage {
                if sized && piece.len() >= 7 {
                    let size = piece.len() as u32;
                    piece[..4].copy_from_slice(&size.to_le_bytes());
                    piece[5] &= 1;
                    piece[6] = 0;
                }
                fake.raw(&piece);
            }
        });
        let one = pipe.submit(&read(4));
        let other = pipe.submit(&read(4));
        for ticket in [one, other] {
            let _ = ticket.and_then(|ticket| pipe.wait(ticket));
        }
        prop_assert!(pipe.call(&read(4)).is_err());
    }
}
