//! The identities under which operations run.

use std::os::unix::fs::MetadataExt;

use hostdir::{HostDir, Identity, Options};
use vfs::{Access, Caller, Cx, Errno, Mode, NewNode, OpenFlags, SetAttr, XattrFlags};

use crate::fixture::{
    CALL, Fixture, chmod, create, failed, in_groups, is_root, name, root, user, write,
};

/// If clients' ids are translated, their root is another user here, with root's privileges.
#[test]
fn the_clients_super_user_has_powers_as_whoever_he_is_here() {
    const OTHER: u32 = 4000;
    if !is_root() {
        return eprintln!("skipped: switching users needs root");
    }
    let fixture = Fixture::new(Options {
        identity: Identity::Switch,
        super_user: OTHER,
        ..Options::default()
    });
    fixture.outside(|dir| {
        std::fs::write(dir.join("f"), "secret").expect("writes");
        chmod(&dir.join("f"), 0o600);
    });
    let file = fixture.lookup("f").expect("root sees it").node;
    let (powers, plain) = (user(OTHER, OTHER), user(OTHER + 1, OTHER));
    let (powers, plain) = (Cx::new(&powers, &CALL), Cx::new(&plain, &CALL));
    let read = |cx: &Cx<'_>| file.open(cx, OpenFlags::READ).map(drop);
    // One thread, from each identity to each.
    for cx in [&powers, &plain, &powers, &root(), &plain, &root(), &powers] {
        let may = match cx.caller.uid {
            uid if uid == OTHER + 1 => Err(Errno::EACCES),
            _ => Ok(()),
        };
        assert_eq!(read(cx), may, "user {}", cx.caller.uid);
    }
    // And a thread that starts with the identity of its parent.
    read(&powers).expect("permitted");
    std::thread::scope(|threads| {
        let other = threads.spawn(|| read(&plain));
        assert_eq!(other.join().expect("no panic"), Err(Errno::EACCES));
    });
    let (made, _) = create(&powers, &*fixture.root, "made", 0o600).expect("permitted");
    assert_eq!((made.attr.uid, made.attr.gid), (OTHER, OTHER));
    // With the privileges of this process: the same as for root.
    let label = |cx: &Cx<'_>| {
        made.node
            .set_xattr(cx, b"trusted.a", b"x", XattrFlags::empty())
    };
    assert_eq!(label(&powers), label(&root()));
    assert_eq!(label(&plain), Err(Errno::EPERM));
    let given = made.node.setattr(&powers, &give_to(OTHER + 1));
    assert_eq!(given.map(|attr| attr.uid), Ok(OTHER + 1));
    let given = made.node.setattr(&plain, &give_to(OTHER));
    assert_eq!(failed(given), Errno::EPERM);
    fixture.outside(|dir| {
        let seen = std::fs::metadata(dir.join("made")).expect("there");
        assert_eq!(seen.uid(), OTHER + 1);
    });
}

fn give_to(uid: u32) -> SetAttr {
    SetAttr {
        uid: Some(uid),
        ..SetAttr::default()
    }
}

#[test]
fn nobody_reads_what_is_not_his() {
    let Some(fixture) = Fixture::switching() else {
        return;
    };
    let nobody = user(65534, 65534);
    let as_nobody = Cx::new(&nobody, &CALL);
    fixture.outside(|dir| {
        std::fs::write(dir.join("f"), "secret").expect("writes");
        chmod(&dir.join("f"), 0o600);
        std::fs::create_dir(dir.join("d")).expect("makes");
        chmod(&dir.join("d"), 0o700);
        std::fs::write(dir.join("d/f"), "").expect("writes");
    });
    let file = fixture.lookup("f").expect("root sees it");
    assert_eq!(
        failed(file.node.open(&as_nobody, OpenFlags::READ)),
        Errno::EACCES
    );
    assert!(file.node.open(&root(), OpenFlags::READ).is_ok());
    assert_eq!(
        failed(file.node.open(&as_nobody, OpenFlags::READ)),
        Errno::EACCES
    );
    let all = Access::READ | Access::WRITE | Access::EXEC;
    assert_eq!(file.node.access(&as_nobody, all), Ok(Access::empty()));
    assert_eq!(
        file.node.access(&root(), all),
        Ok(Access::READ | Access::WRITE)
    );
    let dir = fixture.lookup("d").expect("root sees it");
    assert_eq!(
        failed(dir.node.lookup(&as_nobody, name("f"))),
        Errno::EACCES
    );
    assert_eq!(
        failed(create(&as_nobody, &*dir.node, "g", 0o600)),
        Errno::EACCES
    );
    let set = SetAttr {
        mode: Some(0o777),
        ..SetAttr::default()
    };
    assert_eq!(failed(file.node.setattr(&as_nobody, &set)), Errno::EPERM);
    let set = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    assert_eq!(failed(file.node.setattr(&as_nobody, &set)), Errno::EACCES);
    let device = NewNode::CharDevice(vfs::Device { major: 1, minor: 3 });
    assert_eq!(
        failed(
            fixture
                .root
                .make(&as_nobody, name("null"), device, Mode::without_umask(0o666))
        ),
        Errno::EPERM
    );
    assert!(
        fixture
            .root
            .make(&root(), name("null"), device, Mode::without_umask(0o666))
            .is_ok()
    );
}

#[test]
fn what_a_caller_makes_is_his() {
    let Some(fixture) = Fixture::switching() else {
        return;
    };
    let caller = user(1234, 5678);
    let cx = Cx::new(&caller, &CALL);
    let (entry, _file) = create(&cx, &*fixture.root, "f", 0o644).expect("creates");
    assert_eq!((entry.attr.uid, entry.attr.gid), (1234, 5678));
    for (what, file) in [
        (NewNode::Directory, "d"),
        (NewNode::Symlink(b"t"), "l"),
        (NewNode::Fifo, "p"),
    ] {
        let made = fixture
            .root
            .make(&cx, name(file), what, Mode::without_umask(0o755))
            .expect("makes");
        assert_eq!((made.attr.uid, made.attr.gid), (1234, 5678));
    }
    fixture.outside(|dir| {
        let made = std::fs::metadata(dir.join("d")).expect("there");
        assert_eq!((made.uid(), made.gid()), (1234, 5678));
    });
    let give = SetAttr {
        uid: Some(0),
        ..SetAttr::default()
    };
    assert_eq!(failed(entry.node.setattr(&cx, &give)), Errno::EPERM);
    assert_eq!(
        entry.node.setattr(&root(), &give).map(|attr| attr.uid),
        Ok(0)
    );
}

#[test]
fn supplementary_groups_count_and_a_writer_loses_the_set_id_bits() {
    let Some(fixture) = Fixture::switching() else {
        return;
    };
    fixture.outside(|dir| {
        let path = dir.join("f");
        std::fs::write(&path, "x").expect("writes");
        std::os::unix::fs::chown(&path, Some(0), Some(4321)).expect("chown");
        chmod(&path, 0o4660);
    });
    let file = fixture.lookup("f").expect("there");
    let outside = user(1234, 1234);
    let member = in_groups(1234, 1234, &[7, 4321]);
    let flags = OpenFlags::WRITE;
    assert_eq!(
        failed(file.node.open(&Cx::new(&outside, &CALL), flags)),
        Errno::EACCES
    );
    let cx = Cx::new(&member, &CALL);
    let open = file.node.open(&cx, flags).expect("a member may");
    assert_eq!(
        failed(file.node.open(&Cx::new(&outside, &CALL), flags)),
        Errno::EACCES
    );
    write(&root(), &*open, 0, b"y").expect("writes");
    assert_eq!(
        fixture.lookup("f").map(|e| e.attr.mode),
        Ok(0o4660),
        "root keeps them"
    );
    write(&cx, &*open, 0, b"y").expect("writes");
    assert_eq!(fixture.lookup("f").map(|e| e.attr.mode), Ok(0o660));
}

#[test]
fn unknown_groups_are_the_host_s() {
    let Some(fixture) = Fixture::switching() else {
        return;
    };
    let found = ["daemon", "bin", "sys", "games", "man", "mail", "www-data"]
        .iter()
        .find_map(|user| {
            let user = std::ffi::CString::new(*user).ok()?;
            sys::users::by_name(&user)
                .ok()?
                .filter(|user| user.uid != 0 && user.gid != 0)
        });
    let Some(known) = found else {
        return eprintln!("skipped: no ordinary user on this host");
    };
    fixture.outside(|dir| {
        std::fs::write(dir.join("f"), "x").expect("writes");
        std::os::unix::fs::chown(dir.join("f"), Some(0), Some(known.gid)).expect("chown");
        chmod(&dir.join("f"), 0o640);
    });
    let file = fixture.lookup("f").expect("there");
    let caller = Caller::new(known.uid, 65533);
    let mut cx = Cx::new(&caller, &CALL);
    cx.patience = vfs::Patience::Brief;
    assert_eq!(
        failed(file.node.open(&cx, OpenFlags::READ)),
        Errno::WOULD_BLOCK
    );
    cx.patience = vfs::Patience::Full;
    assert!(file.node.open(&cx, OpenFlags::READ).is_ok());
    cx.patience = vfs::Patience::Brief;
    assert!(
        file.node.open(&cx, OpenFlags::READ).is_ok(),
        "they are remembered"
    );
}

#[test]
fn ordinary_users_get_no_hold_of_guarded_attributes() {
    let Some(fixture) = Fixture::switching() else {
        return;
    };
    let caller = user(1234, 1234);
    let cx = Cx::new(&caller, &CALL);
    let (entry, _file) = create(&cx, &*fixture.root, "f", 0o644).expect("creates");
    let node = &*entry.node;
    match node.set_xattr(&root(), b"trusted.t", b"1", XattrFlags::empty()) {
        Err(Errno::EOPNOTSUPP | Errno::EPERM) => return eprintln!("skipped: no trusted. here"),
        set => set.expect("root may"),
    }
    assert_eq!(node.xattr(&cx, b"trusted.t"), Err(Errno::ENODATA));
    assert_eq!(node.xattr(&root(), b"trusted.t"), Ok(b"1".to_vec()));
    assert!(!node.xattrs(&cx).expect("lists").starts_with(b"trusted"));
    for guarded in [&b"trusted.t"[..], b"security.capability", b"security.x"] {
        assert_eq!(
            node.set_xattr(&cx, guarded, b"1", XattrFlags::empty()),
            Err(Errno::EPERM)
        );
        assert_eq!(node.remove_xattr(&cx, guarded), Err(Errno::EPERM));
    }
    node.set_xattr(&cx, b"user.u", b"1", XattrFlags::empty())
        .expect("his own");
}

#[test]
fn who_may_execute_may_have_it_read_for_that() {
    let Some(fixture) = Fixture::switching() else {
        return;
    };
    fixture.outside(|dir| {
        std::fs::write(dir.join("f"), "x").expect("writes");
        chmod(&dir.join("f"), 0o711);
    });
    let caller = user(1234, 1234);
    let cx = Cx::new(&caller, &CALL);
    let file = fixture.lookup("f").expect("there").node;
    assert_eq!(failed(file.open(&cx, OpenFlags::READ)), Errno::EACCES);
    assert!(file.open(&cx, OpenFlags::EXEC).is_ok());
    fixture.outside(|dir| chmod(&dir.join("f"), 0o744));
    assert_eq!(failed(file.open(&cx, OpenFlags::EXEC)), Errno::EACCES);
}

#[test]
fn a_fixed_export_is_the_process_whoever_was_served_before() {
    let Some(fixture) = Fixture::switching() else {
        return;
    };
    let caller = user(1234, 1234);
    create(&Cx::new(&caller, &CALL), &*fixture.root, "f", 0o644).expect("creates");
    // This thread is user 1234 now, for all files.
    let _ = std::thread::spawn(|| ()).join();
    let fixed = Fixture::fixed();
    create(&Cx::new(&caller, &CALL), &*fixture.root, "g", 0o644).expect("creates");
    let (entry, _) = create(&Cx::new(&caller, &CALL), &*fixed.root, "h", 0o644).expect("creates");
    assert_eq!(entry.attr.uid, 0);
}

#[test]
fn limits_are_told() {
    let fixture = Fixture::new(Options {
        identity: Identity::Fixed,
        no_kernel_handles: true,
        ..Options::default()
    });
    assert!(
        fixture
            .fs
            .limitations()
            .iter()
            .any(|line| line.contains("user of this process"))
    );
    assert!(
        fixture
            .fs
            .limitations()
            .iter()
            .any(|line| line.contains("no kernel file handles"))
    );
    if let Some(fixture) = Fixture::switching() {
        let by_handle = vfs::FileSystem::capabilities(&*fixture.fs).handles == vfs::Support::Native;
        assert!(fixture.fs.limitations().is_empty() || !by_handle);
    }
    if !is_root() {
        let switch = Options {
            identity: Identity::Switch,
            ..Options::default()
        };
        let refused = HostDir::open("/", switch).map(drop);
        assert!(refused.is_err_and(|e| e.to_string().contains("CAP_SETUID")));
    }
    assert!(HostDir::open("/no/such/directory", Options::default()).is_err());
}
