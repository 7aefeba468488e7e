//! Lines 9 to 13: creation, attributes, names, directories.

use super::*;

#[test]
fn linux_09_tlcreate_turns_the_directorys_fid_into_the_file() {
    let net = linux();
    let qid = create(&net, ROOT, Fid(1), "f", O_RDWR | O_EXCL);
    assert_eq!(qid.kind, QidType::empty());
    assert_eq!(net.write(Fid(1), 0, b"hello"), 5);
    assert_eq!(net.read(Fid(1), 1, 3), b"ell");
    assert_eq!(getattr(&net, Fid(1), STAT_BASIC).qid.path, qid.path);
    // It exists already, which fails only with O_EXCL.
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
    // A failed creation leaves the fid unchanged.
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
    // Truncation uses Tsetattr.
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

    // Times: MTIME alone means now, with MTIME_SET the time in the message.
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

    // Truncated through a fid open for reading: the node permits it.
    make_file(&net, "h", b"abc");
    net.walk(ROOT, Fid(2), "h");
    open(&net, Fid(2), O_RDONLY);
    net.ok(&setattr(Fid(2), 8, 0, 1));
    assert_eq!(net.read(Fid(2), 0, 9), b"a");
    // O_TRUNC is honoured although Linux does not send it.
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

    // By fid, as clients of servers without the two do. Fid 2 still has the removed name.
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
    // Another file has the name now: it must not be removed.
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
    // Messages of other dialects are not misinterpreted.
    let mut stat = Vec::new();
    T::Stat { fid: ROOT }.encode(Dialect::Unix, Tag(5), &mut stat);
    assert_eq!(errno(&net.exchange(&stat)), Some(Errno::EOPNOTSUPP));
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
    // The payload of one message of 64 KiB is 32 KiB, because the head takes some of the other
    // half.
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

    // `..` of a directory that is not the root; and a fid that is not an open directory.
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
