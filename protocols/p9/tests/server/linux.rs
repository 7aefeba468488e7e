//! What the Linux client needs, line by line: `docs` call this list "the field".

use std::collections::HashSet;

use p9::server::Options;
use p9::{Datasync, Dialect, Fid, Names, Qid, QidType, Rmessage, Tag, Tmessage as T, Uid};
use vfs::Errno;
use wire::{Role, Session};

use crate::net::{Came, FREE, Net, ROOT, errno, server};

const O_RDONLY: u32 = 0;
const O_WRONLY: u32 = 1;
const O_RDWR: u32 = 2;
const O_EXCL: u32 = 0o200;
const O_TRUNC: u32 = 0o1000;
const O_APPEND: u32 = 0o2000;
const O_DIRECTORY: u32 = 0o200000;

const STAT_BASIC: u64 = 0x7ff;

fn linux() -> Net {
    Net::attached(Dialect::Linux)
}

#[track_caller]
fn create(net: &Net, dir: Fid, fid: Fid, name: &str, flags: u32) -> Qid {
    net.walk(dir, fid, "");
    let create = T::Lcreate {
        fid,
        name: name.as_bytes(),
        flags,
        mode: 0o644,
        gid: 0,
    };
    match net.ok(&create) {
        Rmessage::Lcreate { qid, iounit: 0 } => qid,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn make_file(net: &Net, name: &str, contents: &[u8]) {
    create(net, ROOT, FREE, name, O_WRONLY);
    assert_eq!(net.write(FREE, 0, contents), contents.len() as u32);
    net.clunk(FREE);
}

#[track_caller]
fn mkdir(net: &Net, dfid: Fid, name: &str) -> Qid {
    let mkdir = T::Mkdir {
        dfid,
        name: name.as_bytes(),
        mode: 0o755,
        gid: 0,
    };
    match net.ok(&mkdir) {
        Rmessage::Mkdir { qid } => qid,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn open(net: &Net, fid: Fid, flags: u32) -> Qid {
    match net.ok(&T::Lopen { fid, flags }) {
        Rmessage::Lopen { qid, iounit: 0 } => qid,
        other => panic!("{other:?}"),
    }
}

/// The parts of Rgetattr that the tests look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    valid: u64,
    qid: Qid,
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u64,
    size: u64,
    blksize: u64,
    mtime: (u64, u64),
    generation: u64,
}

#[track_caller]
fn getattr(net: &Net, fid: Fid, mask: u64) -> Stat {
    match net.ok(&T::Getattr { fid, mask }) {
        Rmessage::Getattr {
            valid,
            qid,
            mode,
            uid,
            gid,
            nlink,
            size,
            blksize,
            mtime_sec,
            mtime_nsec,
            generation,
            ..
        } => Stat {
            valid,
            qid,
            mode,
            uid,
            gid,
            nlink,
            size,
            blksize,
            mtime: (mtime_sec, mtime_nsec),
            generation,
        },
        other => panic!("{other:?}"),
    }
}

/// A Tsetattr of a mode and a size, as `valid` says.
fn setattr(fid: Fid, valid: u32, mode: u32, size: u64) -> T<'static> {
    T::Setattr {
        fid,
        valid,
        mode,
        uid: 0,
        gid: 0,
        size,
        atime_sec: 0,
        atime_nsec: 0,
        mtime_sec: 5,
        mtime_nsec: 6,
    }
}

#[derive(Debug)]
struct DirEntry {
    qid: Qid,
    offset: u64,
    d_type: u8,
    name: String,
}

#[track_caller]
fn readdir(net: &Net, fid: Fid, offset: u64, count: u32) -> Vec<DirEntry> {
    let data = match net.ok(&T::Readdir { fid, offset, count }) {
        Rmessage::Readdir { data } => data.0,
        other => panic!("{other:?}"),
    };
    assert!(data.len() <= count as usize);
    let mut from = wire::Reader::new(data);
    let mut entries = Vec::new();
    while !from.rest().is_empty() {
        let mut entry = || -> Result<DirEntry, wire::Malformed> {
            Ok(DirEntry {
                qid: Qid {
                    kind: QidType::from_bits_retain(from.u8()?),
                    version: from.u32()?,
                    path: from.u64()?,
                },
                offset: from.u64()?,
                d_type: from.u8()?,
                name: {
                    let len = from.u16()?;
                    String::from_utf8_lossy(from.bytes(len.into())?).into_owned()
                },
            })
        };
        entries.push(entry().expect("whole entries"));
    }
    entries
}

#[test]
fn linux_01_version_is_matched_by_prefix_and_resets_every_fid() {
    let server = server(Options::default());
    for (asked, msize, answer, agreed) in [
        (&b"9P2000.L"[..], 8192, &b"9P2000.L"[..], 8192),
        (b"9P2000.L", 1 << 30, b"9P2000.L", 4 << 20),
        (b"9P2000.L", 4096, b"9P2000.L", 4096),
        (b"9P2000.L.more", 8192, b"9P2000.L", 8192),
        (b"9P2000.u", 8192, b"9P2000.u", 8192),
        (b"9P2000", 8192, b"9P2000", 8192),
        (b"9P1000", 8192, b"unknown", 8192),
    ] {
        let net = Net::silent(&server);
        let version = T::Version {
            msize,
            version: asked,
        };
        let reply = net.send(Tag::NONE, &version);
        let expected = Rmessage::Version {
            msize: agreed,
            version: answer,
        };
        assert_eq!(reply, expected);
    }
    let mut net = Net::on(&server, Dialect::Linux);
    getattr(&net, ROOT, STAT_BASIC);
    let version = T::Version {
        msize: 8192,
        version: b"9P2000.L",
    };
    net.send(Tag::NONE, &version);
    net.msize = 8192;
    let gone = T::Getattr {
        fid: ROOT,
        mask: STAT_BASIC,
    };
    assert_eq!(net.err(&gone), Errno::EBADF);
}

#[test]
fn linux_02_iounit_is_0() {
    let net = linux();
    create(&net, ROOT, Fid(1), "f", O_RDWR);
    net.walk(ROOT, Fid(2), "f");
    open(&net, Fid(2), O_RDONLY);
}

#[test]
fn linux_03_the_version_of_an_opened_file_is_not_0() {
    let net = linux();
    let created = create(&net, ROOT, Fid(1), "f", O_RDWR);
    net.walk(ROOT, Fid(2), "f");
    let opened = open(&net, Fid(2), O_RDONLY);
    assert_ne!(created.version, 0);
    assert_ne!(opened.version, 0);
    assert_ne!(p9::server::version_of(0), 0);
}

#[test]
fn linux_04_the_version_differs_after_each_change_and_only_then() {
    let net = linux();
    let mut versions = HashSet::new();
    versions.insert(create(&net, ROOT, Fid(1), "f", O_RDWR).version);
    let changes = [
        T::Write {
            fid: Fid(1),
            offset: 0,
            data: p9::Data(b"x"),
        },
        setattr(Fid(1), 1, 0o600, 0),
        setattr(Fid(1), 8, 0, 3),
        T::Link {
            dfid: ROOT,
            fid: Fid(1),
            name: b"g",
        },
    ];
    for change in changes {
        net.ok(&change);
        let after = getattr(&net, Fid(1), STAT_BASIC).qid;
        assert!(versions.insert(after.version), "{change:?}");
        assert_eq!(net.walk(ROOT, Fid(2), "f"), [after]);
        assert_eq!(open(&net, Fid(2), O_RDONLY), after);
        net.clunk(Fid(2));
        assert_eq!(getattr(&net, Fid(1), STAT_BASIC).qid, after);
    }
}

#[test]
fn linux_05_the_path_is_unique_and_stable() {
    let net = linux();
    let file = create(&net, ROOT, Fid(1), "f", O_RDWR);
    let dir = mkdir(&net, ROOT, "d");
    let paths = HashSet::from([file.path, dir.path, net.walk(ROOT, Fid(2), ".")[0].path]);
    assert_eq!(paths.len(), 3);
    net.walk(ROOT, Fid(3), "d");
    net.ok(&T::Renameat {
        olddirfid: ROOT,
        oldname: b"f",
        newdirfid: Fid(3),
        newname: b"g",
    });
    net.walk(ROOT, Fid(4), "d/g");
    for fid in [Fid(1), Fid(4)] {
        assert_eq!(getattr(&net, fid, STAT_BASIC).qid.path, file.path);
    }
}

#[test]
fn linux_06_walk_clones_goes_16_names_far_and_stops_short() {
    let net = linux();
    let mut path = String::new();
    net.walk(ROOT, Fid(1), "");
    for _ in 0..17 {
        mkdir(&net, Fid(1), "d");
        net.walk(Fid(1), Fid(1), "d");
    }
    for _ in 0..15 {
        path += "d/";
    }
    assert_eq!(net.walk(ROOT, Fid(2), &format!("{path}d")).len(), 16);
    let names = [&b"d"[..]; 17];
    // Encoding such a list is a bug of ours, so it goes out by hand.
    let mut long = vec![0; 4];
    long.extend([110, 1, 0, 0, 0, 0, 0, 9, 0, 0, 0, 17, 0]);
    names.iter().for_each(|_| long.extend([1, 0, b'd']));
    let size = (long.len() as u32).to_le_bytes();
    long[..4].copy_from_slice(&size);
    let reply = net.exchange(long);
    let reply = Rmessage::decode(Dialect::Linux, &reply).expect("a reply").1;
    assert_eq!(errno(&reply), Some(Errno::EINVAL));

    let walk = |names: &[&[u8]]| {
        net.rpc(&T::Walk {
            fid: ROOT,
            newfid: FREE,
            names: Names::new(names),
        })
    };
    assert_eq!(errno(&walk(&[b"x", b"d"])), Some(Errno::ENOENT));
    match walk(&[b"d", b"d", b"x", b"y"]) {
        Rmessage::Walk { qids } => assert_eq!(qids.len(), 2),
        other => panic!("{other:?}"),
    }
    let unborn = T::Clunk { fid: FREE };
    assert_eq!(net.err(&unborn), Errno::EBADF);

    make_file(&net, "f", b"");
    assert_eq!(errno(&walk(&[b"f", b"x"])), None);
    net.walk(ROOT, Fid(3), "f");
    let through = T::Walk {
        fid: Fid(3),
        newfid: FREE,
        names: Names::new(&[b"x"]),
    };
    assert_eq!(net.err(&through), Errno::ENOTDIR);
    for (name, refusal) in [
        (&b""[..], Errno::ENOENT),
        (b"a/b", Errno::EACCES),
        (b"a\0b", Errno::EINVAL),
        (&[b'a'; 256], Errno::ENAMETOOLONG),
    ] {
        assert_eq!(errno(&walk(&[name])), Some(refusal));
    }

    // newfid == fid, and a fid in use.
    net.walk(ROOT, Fid(4), "");
    let here = net.walk(Fid(4), Fid(4), "d")[0];
    assert_eq!(getattr(&net, Fid(4), STAT_BASIC).qid, here);
    net.walk(Fid(4), Fid(4), "");
    let taken = T::Walk {
        fid: ROOT,
        newfid: Fid(4),
        names: Names::new(&[]),
    };
    assert_eq!(net.err(&taken), Errno::EBADF);
    let unknown = T::Walk {
        fid: Fid(999),
        newfid: FREE,
        names: Names::new(&[]),
    };
    assert_eq!(net.err(&unknown), Errno::EBADF);

    // The dots; nothing is above the root.
    let root = net.walk(ROOT, Fid(5), "d/../d/./..").pop();
    assert_eq!(root, Some(getattr(&net, ROOT, STAT_BASIC).qid));
    let top = net.walk(ROOT, Fid(6), "../../..").pop();
    assert_eq!(top, root);
}

#[test]
fn linux_07_an_open_fid_is_walked_to_another() {
    let net = linux();
    create(&net, ROOT, Fid(1), "f", O_RDWR);
    net.walk(Fid(1), Fid(2), "");
    open(&net, Fid(2), O_RDONLY);
    mkdir(&net, ROOT, "d");
    net.walk(ROOT, Fid(3), "d");
    open(&net, Fid(3), O_RDONLY | O_DIRECTORY);
    mkdir(&net, Fid(3), "e");
    net.walk(Fid(3), Fid(4), "e");
    // Itself it cannot leave.
    let leave = T::Walk {
        fid: Fid(3),
        newfid: Fid(3),
        names: Names::new(&[b"e"]),
    };
    assert_eq!(net.err(&leave), Errno::EINVAL);
}

#[test]
fn linux_08_several_users_attach_on_one_connection() {
    let net = linux();
    net.ok(&setattr(ROOT, 1, 0o777, 0));
    let user = Fid(1000);
    assert_eq!(
        net.attach(user, 1000).path,
        net.walk(ROOT, Fid(1), ".")[0].path
    );
    create(&net, user, Fid(2), "mine", O_RDWR);
    let stat = getattr(&net, Fid(2), STAT_BASIC);
    assert_eq!((stat.uid, stat.mode), (1000, 0o100644));
    make_file(&net, "roots", b"");
    net.walk(user, Fid(3), "roots");
    let refused = T::Lopen {
        fid: Fid(3),
        flags: O_WRONLY,
    };
    assert_eq!(net.err(&refused), Errno::EACCES);

    let attach = |fid, afid, uname, n_uname| T::Attach {
        fid,
        afid,
        uname,
        aname: b"",
        n_uname,
    };
    // What Linux sends first of all: a name and no number.
    net.ok(&attach(Fid(4), Fid::NONE, b"nobody", Uid::NONE));
    create_denied(&net, Fid(4));
    assert_eq!(
        net.err(&attach(Fid(4), Fid::NONE, b"", Uid(0))),
        Errno::EBADF
    );
    assert_eq!(net.err(&attach(Fid(5), Fid(9), b"", Uid(0))), Errno::EBADF);
    let auth = T::Auth {
        afid: Fid(9),
        uname: b"",
        aname: b"",
        n_uname: Uid(0),
    };
    // What diod's clients take for: none needed.
    assert_eq!(net.err(&auth), Errno::ENOENT);

    let strict = Options {
        unknown_user: None,
        ..Options::default()
    };
    let net = Net::new(&server(strict), Dialect::Linux, 8192);
    let unknown = attach(Fid(4), Fid::NONE, b"nobody", Uid::NONE);
    assert_eq!(net.err(&unknown), Errno::EPERM);
}

fn create_denied(net: &Net, dir: Fid) {
    net.ok(&setattr(ROOT, 1, 0o755, 0));
    net.walk(dir, FREE, "");
    let create = T::Lcreate {
        fid: FREE,
        name: b"denied",
        flags: O_WRONLY,
        mode: 0o644,
        gid: 0,
    };
    assert_eq!(net.err(&create), Errno::EACCES);
    net.clunk(FREE);
}

#[test]
fn linux_09_tlcreate_turns_the_directorys_fid_into_the_file() {
    let net = linux();
    let qid = create(&net, ROOT, Fid(1), "f", O_RDWR | O_EXCL);
    assert_eq!(qid.kind, QidType::empty());
    assert_eq!(net.write(Fid(1), 0, b"hello"), 5);
    assert_eq!(net.read(Fid(1), 1, 3), b"ell");
    assert_eq!(getattr(&net, Fid(1), STAT_BASIC).qid.path, qid.path);
    // Again: it is there already, which only O_EXCL minds.
    assert_eq!(create(&net, ROOT, Fid(2), "f", O_RDWR).path, qid.path);
    net.walk(ROOT, Fid(3), "");
    let again = |name, flags| T::Lcreate {
        fid: Fid(3),
        name,
        flags,
        mode: 0o644,
        gid: 0,
    };
    assert_eq!(net.err(&again(b"f", O_RDWR | O_EXCL)), Errno::EEXIST);
    assert_eq!(net.err(&again(b"", O_RDWR)), Errno::ENOENT);
    assert_eq!(net.err(&again(b"a/b", O_RDWR)), Errno::EACCES);
    // A failed creation leaves the fid where it was.
    create(&net, Fid(3), Fid(4), "g", O_RDWR);
    let on_file = T::Lcreate {
        fid: Fid(4),
        name: b"h",
        flags: 0,
        mode: 0,
        gid: 0,
    };
    assert_eq!(net.err(&on_file), Errno::EINVAL);

    // Creation without opening.
    let mknod = |name, mode| T::Mknod {
        dfid: ROOT,
        name,
        mode,
        major: 1,
        minor: 3,
        gid: 7,
    };
    net.ok(&mknod(b"n", 0o100640));
    net.walk(ROOT, Fid(5), "n");
    let stat = getattr(&net, Fid(5), STAT_BASIC);
    assert_eq!((stat.mode, stat.gid, stat.size), (0o100640, 7, 0));
    open(&net, Fid(5), O_RDWR);
    for (name, mode) in [
        (&b"c"[..], 0o20600),
        (b"b", 0o60600),
        (b"p", 0o10600),
        (b"s", 0o140600),
    ] {
        net.ok(&mknod(name, mode));
        net.walk(ROOT, FREE, std::str::from_utf8(name).expect("ASCII"));
        assert_eq!(getattr(&net, FREE, STAT_BASIC).mode, mode);
        net.clunk(FREE);
    }
    assert_eq!(net.err(&mknod(b"d", 0o40755)), Errno::EPERM);
    assert_eq!(net.err(&mknod(b"l", 0o120777)), Errno::EINVAL);
}

#[test]
fn linux_10_an_open_file_outlives_its_name_and_mode() {
    let net = linux();
    net.ok(&setattr(ROOT, 1, 0o777, 0));
    let user = Fid(1000);
    net.attach(user, 1000);
    create(&net, user, Fid(1), "f", O_RDWR);
    net.write(Fid(1), 0, b"0123456789");
    // Truncation is a Tsetattr.
    net.ok(&setattr(Fid(1), 8, 0, 4));
    assert_eq!(net.read(Fid(1), 0, 100), b"0123");
    net.ok(&setattr(Fid(1), 1, 0, 0));
    net.ok(&setattr(Fid(1), 8, 0, 3));
    assert_eq!(getattr(&net, Fid(1), STAT_BASIC).size, 3);
    net.ok(&T::Renameat {
        olddirfid: user,
        oldname: b"f",
        newdirfid: user,
        newname: b"g",
    });
    net.ok(&setattr(Fid(1), 8, 0, 2));
    net.ok(&T::Unlinkat {
        dirfid: user,
        name: b"g",
        flags: 0,
    });
    net.ok(&setattr(Fid(1), 8 | 1, 0o600, 1));
    let stat = getattr(&net, Fid(1), STAT_BASIC);
    assert_eq!((stat.size, stat.nlink, stat.mode), (1, 0, 0o100600));
    assert_eq!(net.write(Fid(1), 1, b"xyz"), 3);
    assert_eq!(net.read(Fid(1), 0, 100), b"0xyz");

    // Times: MTIME alone is now, with MTIME_SET what was sent.
    net.ok(&setattr(Fid(1), 0x20 | 0x100, 0, 0));
    assert_eq!(getattr(&net, Fid(1), STAT_BASIC).mtime, (5, 6));
    net.ok(&setattr(Fid(1), 0x20, 0, 0));
    assert_eq!(getattr(&net, Fid(1), STAT_BASIC).mtime.0, 1_000_000_000);
    let wrong = T::Setattr {
        fid: Fid(1),
        valid: 0x20 | 0x100,
        mode: 0,
        uid: 0,
        gid: 0,
        size: 0,
        atime_sec: 0,
        atime_nsec: 0,
        mtime_sec: 0,
        mtime_nsec: 1_000_000_000,
    };
    assert_eq!(net.err(&wrong), Errno::EINVAL);
    assert_eq!(net.err(&setattr(Fid(1), 8, 0, u64::MAX)), Errno::EFBIG);

    // Cut through a fid that only reads: the node may be.
    make_file(&net, "h", b"abc");
    net.walk(ROOT, Fid(2), "h");
    open(&net, Fid(2), O_RDONLY);
    net.ok(&setattr(Fid(2), 8, 0, 1));
    assert_eq!(net.read(Fid(2), 0, 9), b"a");
    // O_TRUNC is honoured though it is not sent.
    net.walk(ROOT, Fid(3), "h");
    open(&net, Fid(3), O_WRONLY | O_TRUNC);
    assert_eq!(getattr(&net, Fid(3), STAT_BASIC).size, 0);
}

#[test]
fn linux_11_names_are_moved_and_removed_by_directory() {
    let net = linux();
    make_file(&net, "f", b"1");
    make_file(&net, "g", b"2");
    mkdir(&net, ROOT, "d");
    net.walk(ROOT, Fid(1), "d");
    net.walk(ROOT, Fid(2), "f");
    let renameat = |oldname, newname| T::Renameat {
        olddirfid: ROOT,
        oldname,
        newdirfid: Fid(1),
        newname,
    };
    net.ok(&renameat(&b"f"[..], &b"f2"[..]));
    net.assert_gone("f");
    net.walk(ROOT, Fid(3), "d/f2");
    assert_eq!(net.err(&renameat(b"nothing", b"x")), Errno::ENOENT);
    let unlinkat = |name, flags| T::Unlinkat {
        dirfid: ROOT,
        name,
        flags,
    };
    assert_eq!(net.err(&unlinkat(&b"d"[..], 0)), Errno::EISDIR);
    assert_eq!(net.err(&unlinkat(b"g", 0x200)), Errno::ENOTDIR);
    assert_eq!(net.err(&unlinkat(b"d", 0x200)), Errno::ENOTEMPTY);
    assert_eq!(net.err(&unlinkat(b"g", 0x400)), Errno::EINVAL);
    net.ok(&unlinkat(b"g", 0));
    net.assert_gone("g");

    // By fid, as clients of servers without the two do. Fid 2 still has the name that is gone.
    let rename = |fid, name| T::Rename {
        fid,
        dfid: ROOT,
        name,
    };
    assert_eq!(net.err(&rename(Fid(2), &b"x"[..])), Errno::ENOENT);
    net.ok(&rename(Fid(3), b"f3"));
    net.walk(ROOT, Fid(4), "f3");
    net.ok(&rename(Fid(3), b"f4"));
    net.assert_gone("f3");
    assert_eq!(net.err(&rename(ROOT, b"x")), Errno::EBUSY);
    // Another file has the name by now: it must not be the one to go.
    make_file(&net, "f3", b"other");
    assert_eq!(net.err(&T::Remove { fid: Fid(4) }), Errno::ENOENT);
    net.walk(ROOT, Fid(5), "f3");
    net.ok(&T::Remove { fid: Fid(3) });
    net.assert_gone("f4");
    net.ok(&T::Unlinkat {
        dirfid: ROOT,
        name: b"d",
        flags: 0x200,
    });

    // Links.
    let link = T::Link {
        dfid: ROOT,
        fid: Fid(5),
        name: b"l",
    };
    net.ok(&link);
    assert_eq!(net.err(&link), Errno::EEXIST);
    assert_eq!(getattr(&net, Fid(5), STAT_BASIC).nlink, 2);
    net.ok(&T::Symlink {
        fid: ROOT,
        name: b"s",
        target: b"../to",
        gid: 3,
    });
    net.walk(ROOT, Fid(6), "s");
    assert_eq!(getattr(&net, Fid(6), STAT_BASIC).qid.kind, QidType::SYMLINK);
    let target = net.ok(&T::Readlink { fid: Fid(6) });
    assert_eq!(target, Rmessage::Readlink { target: b"../to" });
    assert_eq!(net.err(&T::Readlink { fid: Fid(5) }), Errno::EINVAL);
    // Messages of other dialects are not taken for something else.
    let mut stat = Vec::new();
    T::Stat { fid: ROOT }.encode(Dialect::Unix, Tag(5), &mut stat);
    let reply = net.exchange(stat);
    let reply = Rmessage::decode(Dialect::Linux, &reply).expect("a reply").1;
    assert_eq!(errno(&reply), Some(Errno::EOPNOTSUPP));
}

#[test]
fn linux_12_getattr_has_all_of_stat_and_what_else_is_asked_for() {
    let net = linux();
    create(&net, ROOT, Fid(1), "f", O_RDWR);
    assert_eq!(getattr(&net, Fid(1), STAT_BASIC).valid, STAT_BASIC);
    let stat = getattr(&net, Fid(1), u64::MAX);
    assert_eq!(stat.valid & 0x17ff, 0x17ff, "basic and generation");
    assert_eq!(stat.valid & !0x3fff, 0);
    assert_ne!(stat.generation, 0);
    assert_eq!(getattr(&net, Fid(1), 0x200).valid, 0x200);
    // What one message of 64 KiB carries: 32 KiB, for its head takes from the other half.
    assert_eq!(stat.blksize, 1 << 15);
    let largest = Net::new(&server(Options::default()), Dialect::Linux, (1 << 20) + 24);
    largest.attach(ROOT, 0);
    create(&largest, ROOT, Fid(1), "f", O_RDWR);
    assert_eq!(getattr(&largest, Fid(1), STAT_BASIC).blksize, 1 << 20);
    assert!(getattr(&largest, ROOT, STAT_BASIC).blksize <= 1 << 16);
    match net.ok(&T::Statfs { fid: ROOT }) {
        Rmessage::Statfs { kind, namelen, .. } => {
            assert_eq!((kind, namelen), (0x0102_1997, 255));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn linux_13_readdir_goes_on_from_any_offset_and_ends_with_nothing() {
    let net = linux();
    for n in 0..100 {
        make_file(&net, &format!("file with a name {n}"), b"");
    }
    let dir = mkdir(&net, ROOT, "d");
    net.walk(ROOT, Fid(1), "");
    open(&net, Fid(1), O_RDONLY | O_DIRECTORY);
    let all = readdir(&net, Fid(1), 0, 60_000);
    assert_eq!(all.len(), 103);
    let root = getattr(&net, ROOT, STAT_BASIC).qid;
    for (dot, name) in all.iter().zip([".", ".."]) {
        assert_eq!((&*dot.name, dot.qid, dot.d_type), (name, root, 4));
    }
    let of_dir = all.iter().find(|entry| entry.name == "d").expect("d");
    assert_eq!((of_dir.d_type, of_dir.qid.path), (4, dir.path));
    assert_eq!(of_dir.qid.kind, QidType::DIR);
    assert!(all[2..].iter().all(|e| e.name == "d" || e.d_type == 8));
    let offsets: HashSet<u64> = all.iter().map(|entry| entry.offset).collect();
    assert_eq!(offsets.len(), all.len());
    assert!(!offsets.contains(&0));
    // Linux's offsets are signed.
    assert!(offsets.iter().all(|&offset| i64::try_from(offset).is_ok()));
    for (at, entry) in all.iter().enumerate() {
        let rest = readdir(&net, Fid(1), entry.offset, 60_000);
        let names = |entries: &[DirEntry]| -> Vec<String> {
            entries.iter().map(|entry| entry.name.clone()).collect()
        };
        assert_eq!(names(&rest), names(&all[at + 1..]));
    }
    // In small pieces, whole entries only.
    let (mut offset, mut pieced) = (0, Vec::new());
    loop {
        let piece = readdir(&net, Fid(1), offset, 100);
        let Some(last) = piece.last() else { break };
        offset = last.offset;
        pieced.extend(piece.into_iter().map(|entry| entry.name));
    }
    assert_eq!(pieced.len(), 103);
    let too_small = T::Readdir {
        fid: Fid(1),
        offset: 0,
        count: 24,
    };
    assert_eq!(net.err(&too_small), Errno::EINVAL);

    // `..` of what is not the root; and what is no open directory.
    net.walk(ROOT, Fid(2), "d");
    let walked = T::Readdir {
        fid: Fid(2),
        offset: 0,
        count: 4096,
    };
    assert_eq!(net.err(&walked), Errno::EBADF);
    open(&net, Fid(2), O_RDONLY);
    let dots = readdir(&net, Fid(2), 0, 4096);
    assert_eq!(dots.len(), 2);
    assert_eq!((dots[0].qid.path, dots[1].qid.path), (dir.path, root.path));
    let read = T::Read {
        fid: Fid(2),
        offset: 0,
        count: 100,
    };
    assert_eq!(net.err(&read), Errno::EISDIR);
    // Removed while open.
    net.ok(&T::Unlinkat {
        dirfid: ROOT,
        name: b"d",
        flags: 0x200,
    });
    assert!(readdir(&net, Fid(2), 0, 4096).len() <= 2);
    for flags in [O_WRONLY, O_RDWR, O_TRUNC] {
        net.walk(ROOT, FREE, "");
        assert_eq!(net.err(&T::Lopen { fid: FREE, flags }), Errno::EISDIR);
        net.clunk(FREE);
    }
}

#[test]
fn linux_14_no_reply_is_longer_than_asked_for_or_agreed_on() {
    let small = Net::new(&server(Options::default()), Dialect::Linux, 4096);
    small.attach(ROOT, 0);
    create(&small, ROOT, Fid(1), "f", O_RDWR);
    for chunk in 0..4 {
        small.write(Fid(1), chunk * 4000, &[chunk as u8; 4000]);
    }
    assert_eq!(small.read(Fid(1), 0, u32::MAX).len(), 4096 - 11);
    assert_eq!(small.read(Fid(1), 0, 4096 - 24).len(), 4096 - 24);
    assert_eq!(small.read(Fid(1), 0, 7).len(), 7);
    small.walk(ROOT, Fid(2), "");
    open(&small, Fid(2), O_RDONLY);
    for n in 0..100 {
        make_file(&small, &format!("{n:0200}"), b"");
    }
    assert!(readdir(&small, Fid(2), 0, u32::MAX).len() < 20);
    // A link whose target fits no reply: symlink(2) takes up to 4095 bytes.
    let large = Net::on(&server(Options::default()), Dialect::Linux);
    let target = [b'x'; 4095];
    large.ok(&T::Symlink {
        fid: ROOT,
        name: b"s",
        target: &target,
        gid: 0,
    });
    let mut large = large;
    let version = T::Version {
        msize: 4096,
        version: b"9P2000.L",
    };
    large.send(Tag::NONE, &version);
    large.msize = 4096;
    large.attach(ROOT, 0);
    large.walk(ROOT, Fid(1), "s");
    assert_eq!(large.err(&T::Readlink { fid: Fid(1) }), Errno::EMSGSIZE);
    // What is longer than agreed on is not even taken.
    assert!(large.session.frame(&4097u32.to_le_bytes()).is_err());
    assert_eq!(large.session.frame(&4096u32.to_le_bytes()), Ok(Some(4096)));
}

#[test]
fn linux_15_a_flush_is_told_apart_and_answered() {
    let net = linux();
    let mut bytes = Vec::new();
    T::Flush { oldtag: Tag(5) }.encode(Dialect::Linux, Tag(6), &mut bytes);
    let role = net.session.role(&bytes);
    assert_eq!(role, Ok(Role::Cancel { id: 6, target: 5 }));
    assert_eq!(net.rpc(&T::Flush { oldtag: Tag(5) }), Rmessage::Flush {});
    bytes.clear();
    T::Flush { oldtag: Tag(6) }.encode(Dialect::Linux, Tag(6), &mut bytes);
    assert_eq!(net.session.role(&bytes), Ok(Role::Request { id: 6 }));
    bytes.clear();
    let version = T::Version {
        msize: 4096,
        version: b"9P2000.L",
    };
    version.encode(Dialect::Linux, Tag::NONE, &mut bytes);
    assert_eq!(net.session.role(&bytes), Ok(Role::Reset { id: 0xffff }));
    bytes.clear();
    T::Clunk { fid: ROOT }.encode(Dialect::Linux, Tag(7), &mut bytes);
    assert_eq!(net.session.role(&bytes), Ok(Role::Request { id: 7 }));
}

const RDLCK: u8 = 0;
const WRLCK: u8 = 1;
const UNLCK: u8 = 2;
const BLOCK: u32 = 1;

fn lock(fid: Fid, kind: u8, flags: u32, range: (u64, u64), proc_id: u32) -> T<'static> {
    T::Lock {
        fid,
        kind,
        flags,
        start: range.0,
        length: range.1,
        proc_id,
        client_id: b"guest",
    }
}

#[track_caller]
fn status(reply: Rmessage<'_>) -> u8 {
    match reply {
        Rmessage::Lock { status } => status,
        other => panic!("{other:?}"),
    }
}

/// A connection with the file `f` open as fid 1.
fn locker(server: &p9::server::Server) -> Net {
    let net = Net::on(server, Dialect::Linux);
    create(&net, ROOT, Fid(1), "f", O_RDWR);
    net
}

#[test]
fn linux_16_locks_are_real_and_waiting_for_one_is_parked() {
    let server = server(Options::default());
    let (one, other) = (locker(&server), locker(&server));
    let f = Fid(1);
    let all = (0, 0);
    assert_eq!(status(one.ok(&lock(f, WRLCK, 0, all, 10))), 0);
    // The same owner again, another process, another connection.
    assert_eq!(status(one.ok(&lock(f, WRLCK, 0, all, 10))), 0);
    assert_eq!(status(one.ok(&lock(f, RDLCK, 0, all, 11))), 1);
    assert_eq!(status(other.ok(&lock(f, RDLCK, 0, all, 10))), 1);
    let parked = other.park(&lock(f, RDLCK, BLOCK, all, 10)).parked();
    assert!(!parked.is_woken());
    let parked = other.resume(parked).parked();
    assert_eq!(status(one.ok(&lock(f, UNLCK, 0, all, 10))), 0);
    assert!(parked.is_woken());
    assert_eq!(status(other.resume(parked).reply()), 0);
    // Ranges; to the end; beyond the end of numbers.
    assert_eq!(status(other.ok(&lock(f, UNLCK, 0, all, 10))), 0);
    assert_eq!(status(one.ok(&lock(f, WRLCK, 0, (0, 10), 10))), 0);
    assert_eq!(status(other.ok(&lock(f, WRLCK, 0, (10, 0), 10))), 0);
    assert_eq!(status(other.ok(&lock(f, WRLCK, 0, (9, 1), 10))), 1);
    assert_eq!(
        one.err(&lock(f, WRLCK, 0, (u64::MAX, 2), 10)),
        Errno::EOVERFLOW
    );
    assert_eq!(one.err(&lock(f, 7, 0, all, 10)), Errno::EINVAL);
    // A cancelled one is answered and waits no more.
    let parked = other.park(&lock(f, WRLCK, BLOCK, (0, 1), 10)).parked();
    parked.cancel();
    assert_eq!(errno(&other.resume(parked).reply()), Some(Errno::EINTR));
    // The clunk of the fid that took them, and the end of a session.
    one.clunk(f);
    assert_eq!(status(other.ok(&lock(f, WRLCK, 0, (9, 1), 10))), 0);
    let third = locker(&server);
    let parked = third.park(&lock(f, WRLCK, BLOCK, all, 1)).parked();
    drop(other);
    assert!(parked.is_woken());
    assert_eq!(status(third.resume(parked).reply()), 0);
    // A walked fid is none to lock by.
    third.walk(f, Fid(2), "");
    assert_eq!(third.err(&lock(Fid(2), RDLCK, 0, all, 1)), Errno::EBADF);

    let polite = Options {
        wait_for_locks: false,
        ..Options::default()
    };
    let server = crate::net::server(polite);
    let (one, other) = (locker(&server), locker(&server));
    assert_eq!(status(one.ok(&lock(f, WRLCK, BLOCK, all, 10))), 0);
    assert_eq!(
        status(other.park(&lock(f, WRLCK, BLOCK, all, 10)).reply()),
        1
    );
}

#[test]
fn linux_16_a_fid_that_goes_takes_its_waiting_along() {
    let server = server(Options::default());
    let (one, other) = (locker(&server), locker(&server));
    assert_eq!(status(one.ok(&lock(Fid(1), WRLCK, 0, (0, 0), 1))), 0);
    let parked = match other.park(&lock(Fid(1), WRLCK, BLOCK, (0, 0), 1)) {
        Came::Parked(parked) => parked,
        Came::Reply(reply) => panic!("{reply:?}"),
    };
    other.clunk(Fid(1));
    assert!(parked.is_woken());
    assert_eq!(errno(&other.resume(parked).reply()), Some(Errno::EBADF));
}

#[test]
fn linux_17_getlock_names_the_holder_and_takes_unlck() {
    let server = server(Options::default());
    let (one, other) = (locker(&server), locker(&server));
    let f = Fid(1);
    let getlock = |kind, start, length, proc_id| T::Getlock {
        fid: f,
        kind,
        start,
        length,
        proc_id,
        client_id: b"guest",
    };
    let answer = |kind, start, length, proc_id, client_id: &'static [u8]| Rmessage::Getlock {
        kind,
        start,
        length,
        proc_id,
        client_id,
    };
    one.ok(&lock(f, WRLCK, 0, (5, 10), 10));
    one.ok(&lock(f, RDLCK, 0, (100, 0), 10));
    let ask = |net: &Net, request| net.ok(&request);
    assert_eq!(
        ask(&one, getlock(WRLCK, 0, 0, 11)),
        answer(WRLCK, 5, 10, 10, b"guest")
    );
    assert_eq!(
        ask(&other, getlock(WRLCK, 50, 0, 10)),
        answer(RDLCK, 100, 0, 10, b"")
    );
    assert_eq!(
        ask(&other, getlock(RDLCK, 50, 0, 10)),
        answer(UNLCK, 50, 0, 10, b"guest")
    );
    assert_eq!(
        ask(&other, getlock(UNLCK, 0, 0, 10)),
        answer(UNLCK, 0, 0, 10, b"guest")
    );
    assert_eq!(other.err(&getlock(9, 0, 0, 10)), Errno::EINVAL);
}

#[test]
fn linux_18_extended_attributes_are_fids_and_set_at_clunk() {
    let net = linux();
    make_file(&net, "f", b"");
    net.walk(ROOT, Fid(1), "f");
    let create = |fid, name, size, flags| {
        net.walk(Fid(1), fid, "");
        T::Xattrcreate {
            fid,
            name,
            size,
            flags,
        }
    };
    let set = |name: &'static [u8], value: &[u8], flags| {
        net.ok(&create(Fid(2), name, value.len() as u64, flags));
        if !value.is_empty() {
            net.write(Fid(2), 0, value);
        }
        errno(&net.rpc(&T::Clunk { fid: Fid(2) }))
    };
    let get = |name: &[u8]| -> Result<&[u8], Errno> {
        let (fid, newfid) = (Fid(1), Fid(3));
        match net.rpc(&T::Xattrwalk { fid, newfid, name }) {
            Rmessage::Xattrwalk { size } => {
                let value = net.read(newfid, 0, 65536);
                assert_eq!(value.len() as u64, size);
                net.clunk(newfid);
                Ok(value)
            }
            other => Err(errno(&other).expect("an error")),
        }
    };
    const CREATE: u32 = 1;
    const REPLACE: u32 = 2;
    assert_eq!(set(b"user.a", b"value", 0), None);
    assert_eq!(set(b"user.b", b"", 0), None);
    assert_eq!(get(b"user.a"), Ok(&b"value"[..]));
    assert_eq!(get(b"user.b"), Ok(&b""[..]));
    assert_eq!(get(b"user.c"), Err(Errno::ENODATA));
    let mut names: Vec<&[u8]> = get(b"").expect("a list").split(|&b| b == 0).collect();
    names.sort_unstable();
    assert_eq!(names, [&b""[..], b"user.a", b"user.b"]);
    // Errors of setting surface at the clunk, and the fid is gone nevertheless.
    assert_eq!(set(b"user.a", b"x", CREATE), Some(Errno::EEXIST));
    assert_eq!(set(b"user.c", b"x", REPLACE), Some(Errno::ENODATA));
    assert_eq!(net.err(&T::Clunk { fid: Fid(2) }), Errno::EBADF);
    assert_eq!(get(b"user.a"), Ok(&b"value"[..]));
    // Removal.
    assert_eq!(set(b"user.a", b"", REPLACE), None);
    assert_eq!(get(b"user.a"), Err(Errno::ENODATA));
    // In pieces; too much, too little; out of bounds.
    net.ok(&create(Fid(4), b"user.d", 6, 0));
    net.write(Fid(4), 0, b"abc");
    net.write(Fid(4), 3, b"def");
    let beyond = T::Write {
        fid: Fid(4),
        offset: 6,
        data: p9::Data(b"g"),
    };
    assert_eq!(net.err(&beyond), Errno::ENOSPC);
    net.clunk(Fid(4));
    assert_eq!(get(b"user.d"), Ok(&b"abcdef"[..]));
    net.ok(&create(Fid(4), b"user.d", 6, 0));
    net.write(Fid(4), 0, b"abc");
    assert_eq!(net.err(&T::Clunk { fid: Fid(4) }), Errno::EINVAL);
    assert_eq!(net.err(&create(Fid(5), b"user.e", 65537, 0)), Errno::E2BIG);
    assert_eq!(net.err(&create(Fid(6), b"user.e", 1, 8)), Errno::EINVAL);
    assert_eq!(net.err(&create(Fid(7), b"", 1, 0)), Errno::EINVAL);
    // Such fids are files in no other way.
    net.ok(&T::Xattrwalk {
        fid: Fid(1),
        newfid: Fid(8),
        name: b"user.d",
    });
    let clone = T::Walk {
        fid: Fid(8),
        newfid: FREE,
        names: Names::new(&[]),
    };
    assert_eq!(net.err(&clone), Errno::EINVAL);
    let open = T::Lopen {
        fid: Fid(8),
        flags: 0,
    };
    assert_eq!(net.err(&open), Errno::EINVAL);
    assert_eq!(net.read(Fid(8), 4, 100), b"ef");
    assert_eq!(net.read(Fid(8), u64::MAX, 100), b"");
}

#[test]
fn linux_18_values_that_fids_hold_are_bounded_together() {
    let options = Options {
        max_xattr_bytes: 100,
        ..Options::default()
    };
    let net = Net::on(&server(options), Dialect::Linux);
    net.walk(ROOT, Fid(1), "");
    net.walk(ROOT, Fid(2), "");
    let create = |fid, size| T::Xattrcreate {
        fid,
        name: b"user.a",
        size,
        flags: 0,
    };
    net.ok(&create(Fid(1), 60));
    assert_eq!(net.err(&create(Fid(2), 60)), Errno::ENOBUFS);
    net.rpc(&T::Clunk { fid: Fid(1) });
    net.ok(&create(Fid(2), 60));
}

#[test]
fn linux_19_a_fid_is_gone_after_a_failed_clunk_or_remove() {
    let net = linux();
    mkdir(&net, ROOT, "d");
    net.walk(ROOT, Fid(1), "d");
    mkdir(&net, Fid(1), "e");
    assert_eq!(net.err(&T::Remove { fid: Fid(1) }), Errno::ENOTEMPTY);
    assert_eq!(net.err(&T::Clunk { fid: Fid(1) }), Errno::EBADF);
    net.walk(ROOT, Fid(1), "");
    assert_eq!(net.err(&T::Remove { fid: Fid(1) }), Errno::EBUSY);
    assert_eq!(net.err(&T::Remove { fid: Fid(1) }), Errno::EBADF);
}

#[test]
fn linux_20_errors_are_errnos_reads_end_with_nothing_and_fsync_has_a_word() {
    let net = linux();
    create(&net, ROOT, Fid(1), "f", O_RDWR | O_APPEND);
    net.write(Fid(1), 0, b"one");
    net.write(Fid(1), 0, b"two");
    assert_eq!(net.read(Fid(1), 0, 100), b"onetwo");
    assert_eq!(net.read(Fid(1), 6, 100), b"");
    assert_eq!(net.read(Fid(1), 0, 0), b"");
    assert_eq!(net.write(Fid(1), 0, b""), 0);
    for datasync in [0, 1] {
        net.ok(&T::Fsync {
            fid: Fid(1),
            datasync: Datasync(datasync),
        });
    }
    let old = net.exchange(vec![11, 0, 0, 0, 50, 9, 0, 1, 0, 0, 0]);
    assert_eq!(old, [7, 0, 0, 0, 51, 9, 0]);
    let far = T::Read {
        fid: Fid(1),
        offset: 1 << 63,
        count: 1,
    };
    assert_eq!(net.err(&far), Errno::EINVAL);
    // What is not open for it.
    net.walk(ROOT, Fid(2), "f");
    let read = T::Read {
        fid: Fid(2),
        offset: 0,
        count: 1,
    };
    assert_eq!(net.err(&read), Errno::EBADF);
    open(&net, Fid(2), O_WRONLY);
    assert_eq!(net.err(&read), Errno::EBADF);
    net.walk(ROOT, Fid(3), "f");
    open(&net, Fid(3), O_RDONLY);
    let write = T::Write {
        fid: Fid(3),
        offset: 0,
        data: p9::Data(b"x"),
    };
    assert_eq!(net.err(&write), Errno::EBADF);
    assert_eq!(
        net.err(&T::Lopen {
            fid: Fid(3),
            flags: 0
        }),
        Errno::EINVAL
    );
}
