//! File descriptors passed by a server on this host, and by misbehaving servers.

use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::Tuning;
use hostdir::HostDir;
use p9::{Dialect, Qid, QidType, Qids, Rmessage, Tag, Tmessage};
use remote::ninep::{Connection, Options, Remote9p};
use rustix::fs::{Mode, OFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tempfile::TempDir;
use transports::StreamLink;
use vfs::{Attr, AttrMask, Backing, Call, Caller, Cx, Export, FileSystem, Kind, Name, OpenFlags};
use vfs_testkit::ReplyBuffer;

use crate::net::Served;

const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn taking() -> Options {
    Options {
        fd_passing: true,
        ..Options::default()
    }
}

fn with<T>(what: impl FnOnce(&Cx<'_>) -> T) -> T {
    let (caller, call) = (Caller::ROOT, Call::detached());
    what(&Cx::new(&caller, &call))
}

/// A served directory on a file system whose files have backings on every machine.
struct Bed {
    dir: TempDir,
    served: Served,
}

impl Bed {
    fn new(export: bool, server: bool) -> Bed {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let fs = HostDir::open(dir.path(), hostdir::Options::default()).expect("exports");
        let export = Export::new("", fs).with_fd_passing(export);
        let served = Served::handing(export, server, Tuning::default());
        Bed { dir, served }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// The backing of the file of this name, opened with `flags`.
fn backing(fs: &Remote9p, name: &str, flags: OpenFlags) -> Option<Arc<dyn Backing>> {
    with(|cx| {
        let root = fs.root(cx).expect("a root");
        let name = Name::new(name.as_bytes()).expect("a name");
        let entry = root.lookup(cx, name).expect("there");
        entry.node.open(cx, flags).expect("opens").backing(cx)
    })
}

#[test]
fn what_is_written_by_it_is_the_servers_file() {
    let bed = Bed::new(true, true);
    let fs = bed.served.connect(taking());
    assert!(fs.connection().fd_passing());
    with(|cx| {
        let root = fs.root(cx).expect("a root");
        let name = |name: &'static str| Name::new(name.as_bytes()).expect("a name");
        let mode = vfs::Mode::without_umask(0o600);
        let (_, made) = root.create(cx, name("a"), BOTH, mode).expect("made");
        let made = made.backing(cx).expect("handed over");
        rustix::io::pwrite(&made, b"text", 0).expect("written");
        assert_eq!(std::fs::read(bed.path("a")).expect("read"), b"text");
        let entry = root.lookup(cx, name("a")).expect("there");
        let file = entry.node.open(cx, OpenFlags::READ).expect("opened");
        assert_eq!(file.attr(cx, AttrMask::SIZE).expect("told").size, 4);
        let read = file.backing(cx).expect("handed over");
        // The descriptor is returned once: the caller keeps it.
        assert!(file.backing(cx).is_none());
        let mut room = ReplyBuffer::new(8);
        file.read(cx, 0, 8, &mut room).expect("read");
        assert_eq!(room.data(), b"text");
        let (made, read) = (made.restrictions(), read.restrictions());
        let (made, read) = (made.expect("another's"), read.expect("another's"));
        assert_eq!((made.access, read.access), (BOTH, OpenFlags::READ));
        assert_eq!(made.file, read.file);
        let dir = root.open(cx, OpenFlags::READ).expect("opened");
        assert!(dir.backing(cx).is_none());
    });
}

/// Replies to others surround each descriptor's reply, and one of each kind is long.
#[test]
fn each_has_his_own_file_among_many_who_ask_at_once() {
    let bed = Bed::new(true, true);
    let fs = bed.served.connect(taking());
    std::fs::write(bed.path("long"), vec![1; 1 << 20]).expect("written");
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (bed, fs) = (&bed, &fs);
            scope.spawn(move || {
                for turn in 0..100 {
                    let name = format!("{thread}.{turn}");
                    std::fs::write(bed.path(&name), &name).expect("written");
                    let file = backing(fs, &name, OpenFlags::READ).expect("handed over");
                    let file = file.as_fd().try_clone_to_owned().expect("cloned");
                    let mut text = String::new();
                    File::from(file).read_to_string(&mut text).expect("read");
                    assert_eq!(text, name);
                }
            });
        }
        scope.spawn(|| {
            with(|cx| {
                let root = fs.root(cx).expect("a root");
                let long = root.lookup(cx, Name::new(b"long").expect("a name"));
                let long = long.expect("there").node.open(cx, OpenFlags::READ);
                let long = long.expect("opened");
                for _ in 0..50 {
                    let mut room = ReplyBuffer::new(1 << 20);
                    assert_eq!(long.read(cx, 0, 1 << 20, &mut room), Ok(1 << 20));
                    assert!(room.data().iter().all(|&byte| byte == 1));
                }
            })
        });
    });
}

#[test]
fn nothing_is_handed_over_that_was_not_offered_and_asked_for() {
    for (export, server, options) in [
        (false, true, taking()),
        (true, false, taking()),
        (true, true, Options::default()),
    ] {
        let bed = Bed::new(export, server);
        std::fs::write(bed.path("a"), "text").expect("written");
        let fs = bed.served.connect(options.clone());
        assert_eq!(fs.connection().fd_passing(), server && options.fd_passing);
        // More requests than consecutive refusals after which the client stops asking.
        for _ in 0..70 {
            assert!(backing(&fs, "a", BOTH).is_none());
        }
    }
}

#[test]
fn a_request_that_was_not_agreed_on_is_as_unknown_as_any() {
    let bed = Bed::new(true, true);
    let pipe = Connection::open(bed.served.link(), Dialect::Linux, 8192).expect("a session");
    let hand = Tmessage::Hand { fid: p9::Fid(1) };
    assert_eq!(pipe.call(&hand).err(), Some(vfs::Errno::EOPNOTSUPP));
    drop(pipe);
    let (mut ours, theirs) = UnixStream::pair().expect("a socket pair");
    bed.served
        .serve(StreamLink::new(theirs.into(), "raw").expect("a link"));
    let mut ask = |dialect: &'static [u8], message: &[u8]| {
        use std::io::Write as _;
        let mut hello = Vec::new();
        let (msize, version) = (8192, dialect);
        Tmessage::Version { msize, version }.encode(Dialect::Linux, Tag::NONE, &mut hello);
        ours.write_all(&hello).expect("sent");
        reply(&mut ours);
        ours.write_all(message).expect("sent");
        reply(&mut ours)[4..].to_vec()
    };
    // Also a truncated one, which is malformed where the request is known.
    let cut = [8, 0, 0, 0, 200, 1, 0, 9];
    assert_eq!(ask(b"9P2000.L", &cut), [7, 1, 0, 95, 0, 0, 0]);
    assert_eq!(ask(b"9P2000.L.hand", &cut), [7, 1, 0, 71, 0, 0, 0]);
}

fn reply(from: &mut UnixStream) -> Vec<u8> {
    let mut message = vec![0; 4];
    from.read_exact(&mut message).expect("a reply");
    let size = u32::from_le_bytes([message[0], message[1], message[2], message[3]]);
    message.resize(size as usize, 0);
    from.read_exact(&mut message[4..]).expect("a reply");
    message
}

/// TCP cannot carry descriptors, so none is passed even if requested.
#[test]
fn no_file_goes_by_tcp() {
    let bed = Bed::new(true, true);
    std::fs::write(bed.path("a"), "text").expect("written");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let ours = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    let (theirs, _) = listener.accept().expect("one");
    let link = |stream: TcpStream| StreamLink::new(stream.into(), "tcp").expect("a link");
    bed.served.serve(link(theirs));
    let fs = Remote9p::connect(link(ours), taking()).expect("attached");
    assert!(backing(&fs, "a", OpenFlags::READ).is_none());
}

/// The descriptors that the test's server passes with its reply.
type Hands = fn(&Path) -> Vec<OwnedFd>;

/// A server of one file, which passes the descriptors of `hands`, with every reply if `always`.
fn server(mut stream: UnixStream, dir: &Path, hands: Hands, always: bool) {
    loop {
        let mut size = [0; 4];
        if stream.read_exact(&mut size).is_err() {
            return;
        }
        let mut message = size.to_vec();
        message.resize(u32::from_le_bytes(size) as usize, 0);
        stream.read_exact(&mut message[4..]).expect("a request");
        let (tag, request) = Tmessage::decode(Dialect::Linux, &message).expect("a request");
        let qid = |kind, path| Qid {
            kind,
            version: 1,
            path,
        };
        let (root, file) = (qid(QidType::DIR, 1), qid(QidType::empty(), 2));
        let found = [file];
        let attr = |fid: p9::Fid| {
            let kind = if fid.0 == 0 {
                Kind::Directory
            } else {
                Kind::File
            };
            let attr = vfs_testkit::script::default_attr(u64::from(fid.0 > 0) + 1, kind);
            getattr(&attr, if fid.0 == 0 { root } else { file })
        };
        let iounit = 0;
        let reply = match request {
            Tmessage::Version { msize, .. } => Rmessage::Version {
                msize,
                version: Dialect::FD_PASSING.as_bytes(),
            },
            Tmessage::Attach { .. } => Rmessage::Attach { qid: root },
            Tmessage::Walk { names, .. } => Rmessage::Walk {
                qids: Qids::new(&found[..names.len()]),
            },
            Tmessage::Getattr { fid, .. } => attr(fid),
            Tmessage::Lopen { .. } => Rmessage::Lopen { qid: file, iounit },
            Tmessage::Hand { .. } => Rmessage::Hand {},
            Tmessage::Clunk { .. } => Rmessage::Clunk {},
            other => panic!("nobody asks {other:?}"),
        };
        let is_hand = matches!(reply, Rmessage::Hand {});
        let files = if is_hand || always {
            hands(dir)
        } else {
            Vec::new()
        };
        let mut bytes = Vec::new();
        reply.encode(Dialect::Linux, tag, &mut bytes);
        let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(rights.push(SendAncillaryMessage::ScmRights(&files)));
        }
        // The client disconnects once it has its reply.
        let _ = sendmsg(
            &stream,
            &[IoSlice::new(&bytes)],
            &mut rights,
            SendFlags::NOSIGNAL,
        );
    }
}

fn getattr(attr: &Attr, qid: Qid) -> Rmessage<'static> {
    let zero = 0;
    Rmessage::Getattr {
        valid: 0x7ff,
        qid,
        mode: attr.st_mode(),
        uid: zero,
        gid: zero,
        nlink: 1,
        rdev: 0,
        size: attr.size,
        blksize: 4096,
        blocks: 0,
        atime_sec: 0,
        atime_nsec: 0,
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

fn open(path: &Path, flags: OFlags) -> OwnedFd {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).expect("opened")
}

fn good(dir: &Path) -> Vec<OwnedFd> {
    vec![open(&dir.join("a"), OFlags::RDWR)]
}

/// The number of descriptors of files below `dir` in this process.
fn held(dir: &Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").expect("there");
    let leads = |entry: std::fs::DirEntry| std::fs::read_link(entry.path()).ok();
    let leads = all.flatten().filter_map(leads);
    leads.filter(|path| path.starts_with(dir)).count()
}

#[test]
fn what_is_not_what_was_asked_for_is_closed() {
    let cases: [(&str, Hands, bool); 11] = [
        ("what was asked for", good, true),
        ("nothing", |_| Vec::new(), false),
        ("two", |dir| (0..2).flat_map(|_| good(dir)).collect(), false),
        (
            "eight",
            |dir| (0..8).flat_map(|_| good(dir)).collect(),
            false,
        ),
        (
            "to read alone",
            |dir| vec![open(&dir.join("a"), OFlags::RDONLY)],
            false,
        ),
        (
            "to write alone",
            |dir| vec![open(&dir.join("a"), OFlags::WRONLY)],
            false,
        ),
        (
            "no file that is open",
            |dir| vec![open(&dir.join("a"), OFlags::PATH)],
            false,
        ),
        ("a directory", |dir| vec![open(dir, OFlags::RDONLY)], false),
        (
            "a device",
            |_| vec![open("/dev/zero".as_ref(), OFlags::RDWR)],
            false,
        ),
        (
            "a pipe",
            |dir| vec![open(&dir.join("p"), OFlags::RDWR)],
            false,
        ),
        (
            "what depends on who writes",
            |_| vec![open("/proc/self/oom_score_adj".as_ref(), OFlags::RDWR)],
            false,
        ),
    ];
    for (what, hands, taken) in cases {
        for always in [false, true] {
            let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
            std::fs::write(dir.path().join("a"), "").expect("written");
            let pipe = dir.path().join("p");
            rustix::fs::mknodat(
                rustix::fs::CWD,
                &pipe,
                rustix::fs::FileType::Fifo,
                Mode::RWXU,
                0,
            )
            .expect("made");
            let (ours, theirs) = UnixStream::pair().expect("a socket pair");
            std::thread::scope(|scope| {
                let path = dir.path();
                scope.spawn(move || server(theirs, path, hands, always));
                let link = StreamLink::new(ours.into(), "hostile").expect("a link");
                let fs = Remote9p::connect(link, taking()).expect("attached");
                let got = backing(&fs, "a", BOTH);
                assert_eq!(got.is_some(), taken, "{what}, {always}");
                drop(got);
                drop(fs);
            });
            assert_eq!(held(dir.path()), 0, "{what}, {always}");
        }
    }
}
