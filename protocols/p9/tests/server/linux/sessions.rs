//! Lines 1 to 8: versions, qids, walking, attaching.

use super::*;

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
    // Encoding such a list is a bug in the caller, so it is encoded by hand.
    let mut long = vec![0; 4];
    long.extend([110, 1, 0, 0, 0, 0, 0, 9, 0, 0, 0, 17, 0]);
    names.iter().for_each(|_| long.extend([1, 0, b'd']));
    let size = (long.len() as u32).to_le_bytes();
    long[..4].copy_from_slice(&size);
    assert_eq!(errno(&net.exchange(&long)), Some(Errno::EINVAL));

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

    // `.` and `..`; the root is its own parent.
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
    // The directory itself cannot be left.
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
    // Linux's first attach: a name and no number.
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
    // diod's clients take this to mean that none is needed.
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
