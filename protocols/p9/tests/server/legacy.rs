//! 9P2000 and 9P2000.u: the requests of Plan 9 and of `version=9p2000.u` mounts.

use p9::stat::UnixStat;
use p9::{Dialect, Extension, Fid, Names, Qid, QidType, Rmessage, Stat, Tmessage as T};
use vfs::Errno;

use crate::net::{FREE, Net, ROOT, errno};

const OREAD: u8 = 0;
const OWRITE: u8 = 1;
const ORDWR: u8 = 2;
const OEXEC: u8 = 3;
const OTRUNC: u8 = 0x10;
const ORCLOSE: u8 = 0x40;

const DMDIR: u32 = 0x8000_0000;
const DMAPPEND: u32 = 0x4000_0000;
const DMEXCL: u32 = 0x2000_0000;
const DMTMP: u32 = 0x0400_0000;
const DMSYMLINK: u32 = 0x0200_0000;
const DMLINK: u32 = 0x0100_0000;
const DMDEVICE: u32 = 0x0080_0000;
const DMNAMEDPIPE: u32 = 0x0020_0000;
const DMSOCKET: u32 = 0x0010_0000;
const DMSETUID: u32 = 0x0008_0000;

const OLD: [Dialect; 2] = [Dialect::Plan9, Dialect::Unix];

fn creation<'a>(fid: Fid, name: &'a str, perm: u32, mode: u8, extension: &'a str) -> T<'a> {
    T::Create {
        fid,
        name: name.as_bytes(),
        perm,
        mode,
        extension: Extension(extension.as_bytes()),
    }
}

#[track_caller]
fn create(net: &Net, fid: Fid, name: &str, perm: u32, mode: u8) -> Qid {
    net.walk(ROOT, fid, "");
    match net.ok(&creation(fid, name, perm, mode, "")) {
        Rmessage::Create { qid, iounit: 0 } => qid,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn make_file(net: &Net, name: &str, contents: &[u8]) {
    create(net, FREE, name, 0o644, OWRITE);
    net.write(FREE, 0, contents);
    net.clunk(FREE);
}

#[track_caller]
fn stat(net: &Net, fid: Fid) -> Stat<'static> {
    match net.ok(&T::Stat { fid }) {
        Rmessage::Stat { stat } => stat,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn open(net: &Net, fid: Fid, mode: u8) {
    match net.ok(&T::Open { fid, mode }) {
        Rmessage::Open { iounit: 0, .. } => {}
        other => panic!("{other:?}"),
    }
}

/// Returns the names in a directory's records.
fn names(dialect: Dialect, records: &[u8]) -> Vec<String> {
    let mut from = wire::Reader::new(records);
    let mut names = Vec::new();
    while !from.rest().is_empty() {
        let stat = Stat::decode(&mut from, dialect).expect("whole records");
        names.push(String::from_utf8_lossy(stat.name).into_owned());
    }
    names
}

#[test]
fn a_file_is_created_written_read_and_removed() {
    for dialect in OLD {
        let net = Net::attached(dialect);
        let qid = create(&net, Fid(1), "f", 0o644, ORDWR);
        assert_eq!(qid.kind, QidType::empty());
        assert_eq!(net.write(Fid(1), 0, b"hello"), 5);
        assert_eq!(net.read(Fid(1), 1, 100), b"ello");
        net.walk(ROOT, Fid(2), "f");
        open(&net, Fid(2), OWRITE | OTRUNC);
        assert_eq!(net.read(Fid(1), 0, 100), b"");
        net.walk(ROOT, Fid(3), "");
        let again = creation(Fid(3), "f", 0o644, OREAD, "");
        assert_eq!(net.err(&again), Errno::EEXIST);
        for name in [".", ".."] {
            let dots = creation(Fid(3), name, 0o644, OREAD, "");
            assert_eq!(net.err(&dots), Errno::EEXIST);
        }
        net.walk(ROOT, Fid(4), "f");
        net.ok(&T::Remove { fid: Fid(4) });
        net.assert_gone("f");
    }
}

#[test]
fn errors_are_texts_and_in_u_numbers_too() {
    for (dialect, number) in [(Dialect::Plan9, 0), (Dialect::Unix, 2)] {
        let net = Net::attached(dialect);
        let walk = T::Walk {
            fid: ROOT,
            newfid: FREE,
            names: Names::new(&[b"none"]),
        };
        let expected = Rmessage::Error {
            text: b"No such file or directory",
            errno: p9::DotuErrno(number),
        };
        assert_eq!(net.rpc(&walk), expected);
        let auth = T::Auth {
            afid: FREE,
            uname: b"glenda",
            aname: b"",
            n_uname: p9::Uid::NONE,
        };
        assert_eq!(net.err(&auth), Errno::ENOENT);
    }
}

#[test]
fn open_modes_say_what_may_be_done() {
    let net = Net::attached(Dialect::Plan9);
    make_file(&net, "f", b"#!");
    let read = |fid| T::Read {
        fid,
        offset: 0,
        count: 9,
    };
    net.walk(ROOT, Fid(1), "f");
    open(&net, Fid(1), OWRITE);
    assert_eq!(net.err(&read(Fid(1))), Errno::EBADF);
    net.walk(ROOT, Fid(2), "f");
    let exec = T::Open {
        fid: Fid(2),
        mode: OEXEC,
    };
    assert_eq!(net.err(&exec), Errno::EACCES);
    let mut executable = Stat::UNTOUCHED;
    executable.mode = 0o755;
    net.ok(&T::Wstat {
        fid: Fid(2),
        stat: executable,
    });
    net.ok(&exec);
    assert_eq!(net.read(Fid(2), 0, 9), b"#!");
    for mode in [OWRITE, ORDWR, OEXEC, OREAD | OTRUNC] {
        net.walk(ROOT, FREE, "");
        assert_eq!(net.err(&T::Open { fid: FREE, mode }), Errno::EISDIR);
        net.clunk(FREE);
    }
}

#[test]
fn orclose_removes_at_clunk_and_at_the_end() {
    for dialect in OLD {
        let server = crate::net::server(Default::default());
        let net = Net::on(&server, dialect);
        create(&net, Fid(1), "f", 0o644, ORDWR | ORCLOSE);
        net.walk(ROOT, FREE, "f");
        net.clunk(FREE);
        net.clunk(Fid(1));
        net.assert_gone("f");
        make_file(&net, "g", b"");
        net.walk(ROOT, Fid(2), "g");
        open(&net, Fid(2), OREAD | ORCLOSE);
        drop(net);
        Net::on(&server, dialect).assert_gone("g");
    }
}

#[test]
fn directories_are_made_and_cap_permissions_in_9p2000() {
    for (dialect, dir, file) in [
        (Dialect::Plan9, 0o700, 0o600),
        (Dialect::Unix, 0o777, 0o666),
    ] {
        let net = Net::attached(dialect);
        let mut private = Stat::UNTOUCHED;
        private.mode = DMDIR | 0o700;
        net.ok(&T::Wstat {
            fid: ROOT,
            stat: private,
        });
        let qid = create(&net, Fid(1), "d", DMDIR | 0o777, OREAD);
        assert_eq!(qid.kind, QidType::DIR);
        assert_eq!(net.read(Fid(1), 0, 100), b"");
        assert_eq!(stat(&net, Fid(1)).mode, DMDIR | dir);
        create(&net, Fid(2), "f", 0o666 | DMTMP, OREAD);
        assert_eq!(stat(&net, Fid(2)).mode, file);
        net.walk(ROOT, Fid(3), "");
        let written = creation(Fid(3), "e", DMDIR | 0o777, OWRITE, "");
        assert_eq!(net.err(&written), Errno::EISDIR);
        net.assert_gone("e");
    }
}

#[test]
fn append_only_and_exclusive_use_files_are_refused() {
    for dialect in OLD {
        let net = Net::attached(dialect);
        make_file(&net, "f", b"");
        net.walk(ROOT, Fid(1), "f");
        net.walk(ROOT, Fid(2), "");
        for bit in [DMAPPEND, DMEXCL] {
            for perm in [0o644 | bit, DMDIR | 0o755 | bit] {
                let refused = creation(Fid(2), "made", perm, OREAD, "");
                assert_eq!(net.err(&refused), Errno::EOPNOTSUPP);
                net.assert_gone("made");
            }
            let mut stat = Stat::UNTOUCHED;
            stat.mode = 0o600 | bit;
            let fid = Fid(1);
            assert_eq!(net.err(&T::Wstat { fid, stat }), Errno::EOPNOTSUPP);
        }
        assert_eq!(stat(&net, Fid(1)).mode & 0o777, 0o644);
    }
}

#[test]
fn a_directory_reads_as_whole_records_from_front_to_back() {
    for dialect in OLD {
        let net = Net::attached(dialect);
        for n in 0..250 {
            make_file(&net, &format!("file {n}"), b"");
        }
        net.walk(ROOT, Fid(1), "");
        open(&net, Fid(1), OREAD);
        let mut read = Vec::new();
        loop {
            let piece = net.read(Fid(1), read.len() as u64, 1000);
            if piece.is_empty() {
                break;
            }
            assert!(piece.len() <= 1000);
            names(dialect, piece);
            read.extend_from_slice(piece);
        }
        let mut all = names(dialect, &read);
        assert_eq!(all.len(), 250);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 250);
        // Reading may continue only there, or start over.
        let at = |offset, count| T::Read {
            fid: Fid(1),
            offset,
            count,
        };
        assert_eq!(net.err(&at(1, 1000)), Errno::EINVAL);
        assert_eq!(net.err(&at(0, 10)), Errno::EINVAL);
        assert_eq!(net.read(Fid(1), 0, 60_000)[..], read[..]);
        let all = net.read(Fid(1), 0, 60_000).len() as u64;
        assert_eq!(net.read(Fid(1), all, 60_000), b"");
    }
}

#[test]
fn stat_tells_names_owners_and_kinds() {
    let net = Net::attached(Dialect::Unix);
    create(&net, Fid(1), "f", 0o755 | DMSETUID, ORDWR);
    net.write(Fid(1), 0, b"12345");
    let file = stat(&net, Fid(1));
    assert_eq!(
        (file.name, file.uid, file.gid),
        (&b"f"[..], &b"root"[..], &b"root"[..])
    );
    assert_eq!(file.length, 5);
    assert_eq!(file.mode, 0o755 | DMSETUID);
    assert_eq!((file.unix.n_uid, file.unix.n_gid), (0, 0));
    let root = stat(&net, ROOT);
    assert_eq!((root.name, root.length), (&b"/"[..], 0));
    assert_eq!(root.mode, DMDIR | 0o755);
    assert_ne!(file.mtime, 0);
}

#[test]
fn links_devices_and_pipes_are_created_in_u() {
    let net = Net::attached(Dialect::Unix);
    make_file(&net, "f", b"");
    net.walk(ROOT, Fid(9), "f");
    for (name, perm, extension, told) in [
        ("l", DMSYMLINK | 0o777, "../to", "../to"),
        ("b", DMDEVICE | 0o600, "b 8 1", "b 8 1"),
        ("c", DMDEVICE | 0o600, "c 1 3", "c 1 3"),
        ("p", DMNAMEDPIPE | 0o600, "", ""),
        ("s", DMSOCKET | 0o600, "", ""),
    ] {
        net.walk(ROOT, Fid(1), "");
        let reply = net.ok(&creation(Fid(1), name, perm, OREAD, extension));
        assert!(matches!(reply, Rmessage::Create { .. }));
        let made = stat(&net, Fid(1));
        assert_eq!((made.mode, made.name), (perm, name.as_bytes()));
        assert_eq!(made.unix.extension, told.as_bytes());
        net.clunk(Fid(1));
        net.walk(ROOT, Fid(1), name);
        net.clunk(Fid(1));
    }
    net.walk(ROOT, Fid(1), "");
    net.ok(&creation(Fid(1), "h", DMLINK | 0o644, OREAD, "9\n"));
    assert_eq!(stat(&net, Fid(1)).qid.path, stat(&net, Fid(9)).qid.path);
    net.walk(ROOT, Fid(2), "");
    for (perm, extension, refusal) in [
        (DMLINK, "99", Errno::EBADF),
        (DMLINK, "x", Errno::EINVAL),
        (DMDEVICE, "q 1 1", Errno::EINVAL),
        (DMSYMLINK, "", Errno::ENOENT),
    ] {
        let wrong = creation(Fid(2), "x", perm, OREAD, extension);
        assert_eq!(net.err(&wrong), refusal);
    }
    let plain = Net::attached(Dialect::Plan9);
    let link = creation(ROOT, "l", DMSYMLINK, OREAD, "");
    assert_eq!(plain.err(&link), Errno::EINVAL);
}

#[test]
fn wstat_changes_what_is_not_all_ones() {
    for dialect in OLD {
        let net = Net::attached(dialect);
        make_file(&net, "f", b"12345");
        make_file(&net, "taken", b"");
        let f = Fid(1);
        net.walk(ROOT, f, "f");
        let wstat = |change: &dyn Fn(&mut Stat<'static>)| {
            let mut stat = Stat::UNTOUCHED;
            change(&mut stat);
            T::Wstat { fid: f, stat }
        };
        // Without changes: makes the file durable, open or not.
        let before = stat(&net, f);
        net.ok(&wstat(&|_| {}));
        open(&net, f, ORDWR);
        net.ok(&wstat(&|_| {}));
        assert_eq!(stat(&net, f), before);
        net.ok(&wstat(&|stat| stat.mode = 0o600));
        net.ok(&wstat(&|stat| stat.length = 2));
        net.ok(&wstat(&|stat| {
            stat.mtime = 7;
            stat.atime = 8;
        }));
        let after = stat(&net, f);
        assert_eq!((after.mode, after.length), (0o600, 2));
        assert_eq!((after.mtime, after.atime), (7, 8));
        net.ok(&wstat(&|stat| stat.gid = b"5"));
        assert_eq!(stat(&net, f).gid, b"5");
        assert_eq!(net.err(&wstat(&|stat| stat.gid = b"nobody")), Errno::EINVAL);
        assert_eq!(net.err(&wstat(&|stat| stat.mode = DMDIR)), Errno::EINVAL);
        // A change of the name.
        net.ok(&wstat(&|stat| stat.name = b"g"));
        net.assert_gone("f");
        net.walk(ROOT, Fid(2), "g");
        assert_eq!(stat(&net, f).name, b"g");
        net.ok(&wstat(&|stat| stat.name = b"g"));
        assert_eq!(net.err(&wstat(&|stat| stat.name = b"a/b")), Errno::EACCES);
        assert_eq!(net.err(&wstat(&|stat| stat.name = b"..")), Errno::EINVAL);
        match dialect {
            Dialect::Plan9 => {
                let taken = wstat(&|stat| stat.name = b"taken");
                assert_eq!(net.err(&taken), Errno::EEXIST);
            }
            _ => drop(net.ok(&wstat(&|stat| stat.name = b"taken"))),
        }
        // All changes or none.
        let half = wstat(&|stat| {
            stat.name = b"half";
            stat.length = u64::MAX - 1;
        });
        assert_eq!(net.err(&half), Errno::EFBIG);
        net.assert_gone("half");
        let root = |change: &dyn Fn(&mut Stat<'static>)| {
            let mut stat = Stat::UNTOUCHED;
            change(&mut stat);
            T::Wstat { fid: ROOT, stat }
        };
        assert_eq!(net.err(&root(&|stat| stat.name = b"r")), Errno::EBUSY);
        assert_eq!(net.err(&root(&|stat| stat.length = 1)), Errno::EISDIR);
    }
}

#[test]
fn a_failed_change_takes_the_name_back() {
    let net = Net::attached(Dialect::Unix);
    let mut open_to_all = Stat::UNTOUCHED;
    open_to_all.mode = DMDIR | 0o777;
    net.ok(&T::Wstat {
        fid: ROOT,
        stat: open_to_all,
    });
    make_file(&net, "roots", b"");
    let user = Fid(1);
    net.attach(user, 1000);
    net.walk(user, Fid(2), "roots");
    let mut change = Stat::UNTOUCHED;
    change.name = b"mine";
    change.mode = 0o666;
    let wstat = T::Wstat {
        fid: Fid(2),
        stat: change,
    };
    assert_eq!(net.err(&wstat), Errno::EPERM);
    net.assert_gone("mine");
    assert_eq!(stat(&net, Fid(2)).name, b"roots");
}

#[test]
fn u_changes_owners_by_number() {
    let net = Net::attached(Dialect::Unix);
    make_file(&net, "f", b"");
    net.walk(ROOT, Fid(1), "f");
    let change = Stat {
        unix: UnixStat {
            n_uid: 1000,
            n_gid: 100,
            ..UnixStat::NONE
        },
        ..Stat::UNTOUCHED
    };
    net.ok(&T::Wstat {
        fid: Fid(1),
        stat: change,
    });
    let after = stat(&net, Fid(1));
    assert_eq!((after.unix.n_uid, after.unix.n_gid), (1000, 100));
    assert_eq!((after.uid, after.gid), (&b"1000"[..], &b"100"[..]));
}

#[test]
fn messages_of_9p2000_l_are_unknown() {
    for dialect in OLD {
        let net = Net::attached(dialect);
        let mut message = Vec::new();
        let getattr = T::Getattr { fid: ROOT, mask: 0 };
        getattr.encode(Dialect::Linux, p9::Tag(3), &mut message);
        let refusal = errno(&net.exchange(&message));
        assert_eq!(refusal, Some(Errno::EOPNOTSUPP));
    }
}
