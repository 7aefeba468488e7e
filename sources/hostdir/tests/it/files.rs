//! Files: contents, attributes, holes, copies.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use vfs::{
    AllocateMode, AttrMask, CopyMode, Errno, Extent, Mode, NewNode, Node, OpenFlags, SetAttr,
    SetTime, Time, Whence, XattrFlags,
};
use vfs_testkit::wait_until;

use crate::fixture::{Fixture, create, failed, name, read, root, write};

#[test]
fn what_is_written_is_on_the_host_and_back() {
    let fixture = Fixture::fixed();
    let (entry, file) = create(&root(), &*fixture.root, "f", 0o640).expect("creates");
    assert_eq!(write(&root(), &*file, 3, b"hello"), Ok(5));
    let inside = file.attr(&root(), AttrMask::STAT).expect("attr");
    fixture.outside(|dir| {
        let outside = std::fs::metadata(dir.join("f")).expect("there");
        assert_eq!(std::fs::read(dir.join("f")).expect("reads"), b"\0\0\0hello");
        assert_eq!((inside.id, inside.size), (outside.ino(), 8));
        assert_eq!(inside.mode, 0o640);
        assert_eq!(inside.ctime.sec, outside.ctime());
        assert_eq!(inside.st_mode(), outside.mode());
        assert_eq!(inside.device, outside.dev());
        assert_eq!(inside.blocks, outside.blocks());
    });
    assert_eq!(read(&root(), &*file, 2, 100), Ok(b"\0hello".to_vec()));
    assert_eq!(read(&root(), &*file, 8, 100), Ok(vec![]));
    let again = fixture.lookup("f").expect("there");
    assert_eq!(again.node.id(), entry.node.id());
    assert!(std::ptr::addr_eq(
        std::sync::Arc::as_ptr(&again.node),
        std::sync::Arc::as_ptr(&entry.node)
    ));
}

#[test]
fn a_file_is_backed_by_itself_and_a_directory_by_nothing() {
    let options = hostdir::Options::default();
    let fixture = Fixture::at("/dev/shm".into(), options.clone());
    let (_, file) = create(&root(), &*fixture.root, "f", 0o600).expect("creates");
    let backing = file.backing(&root()).expect("tmpfs");
    rustix::io::pwrite(&*backing, b"data", 0).expect("writes");
    assert_eq!(read(&root(), &*file, 0, 100), Ok(b"data".to_vec()));
    let dir = fixture.root.open(&root(), OpenFlags::READ).expect("opens");
    assert!(dir.backing(&root()).is_none());
    // A file whose contents depend on the reading process.
    let proc = hostdir::HostDir::open("/proc/self/status", options).expect("exports");
    let status = vfs::FileSystem::root(&*proc, &root()).expect("a root");
    let status = status.open(&root(), OpenFlags::READ).expect("opens");
    assert!(status.backing(&root()).is_none());
}

#[test]
fn an_open_file_survives_unlink_rename_and_mode_0() {
    let fixture = Fixture::fixed();
    let (entry, file) = create(&root(), &*fixture.root, "f", 0o600).expect("creates");
    write(&root(), &*file, 0, b"data").expect("writes");
    fixture.outside(|dir| std::fs::rename(dir.join("f"), dir.join("g")).expect("renames"));
    let mode = |mode| SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    assert_eq!(file.setattr(&root(), &mode(0)).map(|attr| attr.mode), Ok(0));
    fixture
        .root
        .unlink(&root(), name("g"), false)
        .expect("unlinks");
    let attr = entry.node.attr(&root(), AttrMask::STAT).expect("lives on");
    assert_eq!((attr.nlink, attr.size), (0, 4));
    let cut = SetAttr {
        size: Some(2),
        ..mode(0o644)
    };
    assert_eq!(
        entry
            .node
            .setattr(&root(), &cut)
            .map(|attr| (attr.size, attr.mode)),
        Ok((2, 0o644))
    );
    assert_eq!(read(&root(), &*file, 0, 9), Ok(b"da".to_vec()));
    drop(file);
    let file = entry.node.open(&root(), OpenFlags::READ).expect("opens");
    assert_eq!(read(&root(), &*file, 0, 9), Ok(b"da".to_vec()));
    assert_eq!(
        failed(fixture.root.link(&root(), name("h"), &*entry.node)),
        Errno::ENOENT
    );
}

#[test]
fn a_file_that_was_created_can_be_executed_once_it_is_closed() {
    let fixture = Fixture::fixed();
    let (entry, file) = create(&root(), &*fixture.root, "run", 0o755).expect("creates");
    write(&root(), &*file, 0, b"#!/bin/true\n").expect("writes");
    drop(file);
    fixture.outside(|dir| {
        // A child of another thread may have it open until that executes its program.
        wait_until("the node does not keep it open for writing", || {
            match std::process::Command::new(dir.join("run")).status() {
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => false,
                ran => ran.expect("runs").success(),
            }
        });
    });
    assert!(entry.node.attr(&root(), AttrMask::STAT).is_ok());
}

#[test]
fn create_opens_what_is_there_unless_it_must_not() {
    let fixture = Fixture::fixed();
    fixture.outside(|dir| {
        std::fs::write(dir.join("f"), "old").expect("writes");
        std::fs::create_dir(dir.join("d")).expect("makes");
        std::os::unix::fs::symlink("f", dir.join("l")).expect("links");
    });
    let rw = OpenFlags::READ | OpenFlags::WRITE;
    let open = |file: &str, flags| {
        fixture
            .root
            .create(&root(), name(file), flags, Mode::without_umask(0o600))
    };
    let (entry, file) = open("f", rw).expect("opens");
    assert_eq!(
        (entry.attr.size, read(&root(), &*file, 0, 9)),
        (3, Ok(b"old".to_vec()))
    );
    let (entry, _) = open("f", rw | OpenFlags::TRUNC).expect("opens");
    assert_eq!(entry.attr.size, 0);
    assert_eq!(failed(open("f", rw | OpenFlags::EXCL)), Errno::EEXIST);
    assert_eq!(failed(open("d", rw)), Errno::EISDIR);
    assert_eq!(failed(open("l", rw)), Errno::ELOOP);
    assert_eq!(failed(open("new", OpenFlags::TRUNC)), Errno::EINVAL);
}

#[test]
fn only_files_and_directories_open() {
    let fixture = Fixture::fixed();
    let make = |file: &str, what| {
        fixture
            .root
            .make(&root(), name(file), what, Mode::without_umask(0o666))
    };
    let fifo = make("fifo", NewNode::Fifo).expect("makes");
    let socket = make("socket", NewNode::Socket).expect("makes");
    let link = make("link", NewNode::Symlink(b"/etc/passwd")).expect("makes");
    assert_eq!(
        failed(fifo.node.open(&root(), OpenFlags::READ)),
        Errno::ENXIO
    );
    assert_eq!(
        failed(socket.node.open(&root(), OpenFlags::READ)),
        Errno::ENXIO
    );
    assert_eq!(
        failed(link.node.open(&root(), OpenFlags::READ)),
        Errno::ELOOP
    );
    assert_eq!(link.node.readlink(&root()), Ok(b"/etc/passwd".to_vec()));
    assert_eq!(fifo.node.readlink(&root()), Err(Errno::EINVAL));
    assert_eq!(
        failed(fixture.root.create(
            &root(),
            name("fifo"),
            OpenFlags::WRITE,
            Mode::without_umask(0)
        )),
        Errno::ENXIO
    );
}

#[test]
fn times_are_set_and_an_explicit_one_outlives_a_new_size() {
    let fixture = Fixture::fixed();
    let (entry, _file) = create(&root(), &*fixture.root, "f", 0o600).expect("creates");
    let then = Time {
        sec: 1_000_000,
        nsec: 5,
    };
    let set = SetAttr {
        size: Some(10),
        mtime: Some(SetTime::At(then)),
        ..SetAttr::default()
    };
    let attr = entry.node.setattr(&root(), &set).expect("sets");
    assert_eq!((attr.size, attr.mtime), (10, then));
    assert!(attr.atime.sec > then.sec);
    let before = attr.change;
    let touch = SetAttr {
        ctime: true,
        ..SetAttr::default()
    };
    let mut attr = entry.node.setattr(&root(), &touch).expect("touches");
    // Before Linux 6.13 changes within a tick of the clock, a few milliseconds, have one time.
    let deadline = Instant::now() + Duration::from_secs(10);
    while attr.change == before && Instant::now() < deadline {
        attr = entry.node.setattr(&root(), &touch).expect("touches");
    }
    assert_eq!(attr.mtime, then);
    assert_ne!(attr.change, before);
    let bad = SetAttr {
        atime: Some(SetTime::At(Time {
            sec: 0,
            nsec: 1_000_000_000,
        })),
        ..SetAttr::default()
    };
    assert_eq!(failed(entry.node.setattr(&root(), &bad)), Errno::EINVAL);
}

#[test]
fn set_id_bits_go_when_asked_to() {
    let fixture = Fixture::fixed();
    let (entry, file) = create(&root(), &*fixture.root, "f", 0o6755).expect("creates");
    let cut = SetAttr {
        size: Some(0),
        kill_priv: true,
        ..SetAttr::default()
    };
    assert_eq!(file.setattr(&root(), &cut).map(|attr| attr.mode), Ok(0o755));
    drop(entry);
}

#[test]
fn changes_change_the_counter() {
    let fixture = Fixture::fixed();
    let (entry, file) = create(&root(), &*fixture.root, "f", 0o600).expect("creates");
    if fixture.fs_change_is_emulated() {
        return eprintln!("skipped: this kernel's time stamps are coarse");
    }
    let mut seen = std::collections::HashSet::new();
    for n in 0..100u8 {
        write(&root(), &*file, 0, &[n]).expect("writes");
        let attr = entry.node.attr(&root(), AttrMask::STAT).expect("attr");
        assert!(
            seen.insert(attr.change),
            "each state that was seen has its own"
        );
    }
}

impl Fixture {
    fn fs_change_is_emulated(&self) -> bool {
        use vfs::FileSystem;
        self.fs.capabilities().change != vfs::Support::Native
    }
}

#[test]
fn holes_are_found_punched_and_told() {
    let fixture = Fixture::at("/dev/shm".into(), Default::default());
    holes(&fixture);
    holes(&Fixture::fixed());
}

fn holes(fixture: &Fixture) {
    let (_entry, file) = create(&root(), &*fixture.root, "f", 0o600).expect("creates");
    let (k64, size) = (64 << 10, 256 << 10);
    for at in [0, 2 * k64] {
        write(&root(), &*file, at, &vec![1; k64 as usize]).expect("writes");
    }
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    file.setattr(&root(), &set).expect("extends");
    let told = || {
        let mut all = Vec::new();
        file.extents(&root(), 0, u64::MAX, &mut |extent| {
            all.push(extent);
            true
        })
        .expect("tells");
        all
    };
    let extent = |from: u64, to: u64, hole| Extent {
        offset: from,
        len: to - from,
        hole,
    };
    assert_eq!(
        told(),
        [
            extent(0, k64, false),
            extent(k64, 2 * k64, true),
            extent(2 * k64, 3 * k64, false),
            extent(3 * k64, 4 * k64, true),
        ]
    );
    assert_eq!(file.seek(&root(), 10, Whence::Hole), Ok(k64));
    assert_eq!(file.seek(&root(), k64, Whence::Data), Ok(2 * k64));
    assert_eq!(file.seek(&root(), size, Whence::Data), Err(Errno::ENXIO));
    file.allocate(&root(), AllocateMode::Punch, 0, k64)
        .expect("punches");
    assert_eq!(told()[0], extent(0, 2 * k64, true));
    // Reserved but unwritten space reads as zeros; it must not be reported as data that was
    // written.
    file.allocate(&root(), AllocateMode::KeepSize, 0, k64)
        .expect("reserves");
    write(&root(), &*file, 4096, &[7; 4096]).expect("writes into what is reserved");
    assert!(
        told()
            .iter()
            .any(|e| !e.hole && e.offset <= 4096 && e.offset + e.len >= 8192)
    );
    let mut some = 0;
    file.extents(&root(), 0, size, &mut |_| {
        some += 1;
        false
    })
    .expect("stops");
    assert_eq!(some, 1);
    let mut part = Vec::new();
    file.extents(&root(), 3 * k64 + 5, 10, &mut |e| {
        part.push(e);
        true
    })
    .expect("tells");
    assert_eq!(part, [extent(3 * k64 + 5, 3 * k64 + 15, true)]);
}

#[test]
fn a_copy_copies_and_a_clone_shares_or_refuses() {
    let fixture = Fixture::fixed();
    let (_a, from) = create(&root(), &*fixture.root, "a", 0o600).expect("creates");
    let (_b, to) = create(&root(), &*fixture.root, "b", 0o600).expect("creates");
    let data: Vec<u8> = (0..3 << 20).map(|n: u32| (n >> 4) as u8).collect();
    write(&root(), &*from, 0, &data).expect("writes");
    let copy = |len, how| from.copy(&root(), 0, &*to, 0, len, how);
    assert_eq!(copy(4 << 20, CopyMode::Any), Ok(3 << 20));
    assert_eq!(read(&root(), &*to, 0, 4 << 20), Ok(data));
    match copy(1 << 20, CopyMode::Clone) {
        Ok(len) => assert_eq!(len, 1 << 20),
        Err(errno) => assert_eq!(errno, Errno::EOPNOTSUPP),
    }
    let other = Fixture::fixed();
    let (_c, foreign) = create(&root(), &*other.root, "c", 0o600).expect("creates");
    assert_eq!(
        failed(from.copy(&root(), 0, &*foreign, 0, 1, CopyMode::Any)),
        Errno::EXDEV
    );
}

#[test]
fn direct_io_needs_no_aligned_memory() {
    let fixture = Fixture::fixed();
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::DIRECT;
    let (_e, file) = fixture
        .root
        .create(&root(), name("f"), flags, Mode::without_umask(0o600))
        .expect("creates");
    let data: Vec<u8> = (0..8192u32).map(|n| n as u8).collect();
    assert_eq!(write(&root(), &*file, 0, &data), Ok(8192));
    assert_eq!(
        read(&root(), &*file, 100, 5000),
        Ok(data[100..5100].to_vec())
    );
    assert_eq!(read(&root(), &*file, 8190, 5000), Ok(data[8190..].to_vec()));
    assert_eq!(read(&root(), &*file, 8192, 5000), Ok(vec![]));
}

#[test]
fn appending_ignores_the_offset() {
    let fixture = Fixture::fixed();
    let flags = OpenFlags::WRITE | OpenFlags::APPEND;
    let (_e, file) = fixture
        .root
        .create(&root(), name("f"), flags, Mode::without_umask(0o600))
        .expect("creates");
    for piece in [b"ab", b"cd"] {
        write(&root(), &*file, 0, piece).expect("writes");
    }
    assert_eq!(
        fixture.outside(|dir| std::fs::read(dir.join("f")).expect("reads")),
        b"abcd"
    );
}

#[test]
fn a_file_without_a_name_gets_one_or_never() {
    let fixture = Fixture::fixed();
    let rw = OpenFlags::READ | OpenFlags::WRITE;
    let (entry, file) = fixture
        .root
        .tmpfile(&root(), rw, Mode::without_umask(0o600))
        .expect("makes");
    assert_eq!(entry.attr.nlink, 0);
    write(&root(), &*file, 0, b"x").expect("writes");
    let linked = fixture
        .root
        .link(&root(), name("f"), &*entry.node)
        .expect("links");
    assert_eq!((linked.node.id(), linked.attr.nlink), (entry.node.id(), 1));
    assert_eq!(
        fixture.outside(|dir| std::fs::read(dir.join("f")).expect("reads")),
        b"x"
    );
    let (entry, _file) = fixture
        .root
        .tmpfile(&root(), rw | OpenFlags::EXCL, Mode::without_umask(0o600))
        .expect("makes");
    assert_eq!(
        failed(fixture.root.link(&root(), name("g"), &*entry.node)),
        Errno::ENOENT
    );
}

#[test]
fn extended_attributes_come_and_go() {
    let fixture = Fixture::fixed();
    let (entry, file) = create(&root(), &*fixture.root, "f", 0o600).expect("creates");
    let node: &dyn Node = &*entry.node;
    let large = vec![b'v'; 3000];
    let set = |name: &[u8], value: &[u8], flags| node.set_xattr(&root(), name, value, flags);
    assert_eq!(node.xattr(&root(), b"user.a"), Err(Errno::ENODATA));
    set(b"user.a", b"1", XattrFlags::CREATE).expect("sets");
    set(b"user.b", &large, XattrFlags::empty()).expect("sets");
    assert_eq!(set(b"user.a", b"2", XattrFlags::CREATE), Err(Errno::EEXIST));
    assert_eq!(
        set(b"user.c", b"2", XattrFlags::REPLACE),
        Err(Errno::ENODATA)
    );
    assert_eq!(node.xattr(&root(), b"user.a"), Ok(b"1".to_vec()));
    assert_eq!(node.xattr(&root(), b"user.b"), Ok(large));
    let names = node.xattrs(&root()).expect("lists");
    assert!(names.split(|&b| b == 0).any(|n| n == b"user.b") && names.ends_with(&[0]));
    fixture
        .root
        .unlink(&root(), name("f"), false)
        .expect("unlinks");
    node.remove_xattr(&root(), b"user.b").expect("removes");
    assert_eq!(node.remove_xattr(&root(), b"user.b"), Err(Errno::ENODATA));
    drop(file);
}

#[test]
fn a_single_file_can_be_exported() {
    let _ = hostdir::identity::release_thread();
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    std::fs::write(&path, "image").expect("writes");
    let fs = hostdir::HostDir::open(&path, Default::default()).expect("exports");
    let node = vfs::FileSystem::root(&*fs, &root()).expect("a root");
    assert_eq!(node.kind(), vfs::Kind::File);
    let file = node.open(&root(), OpenFlags::READ).expect("opens");
    assert_eq!(read(&root(), &*file, 0, 9), Ok(b"image".to_vec()));
    assert_eq!(failed(node.lookup(&root(), name("x"))), Errno::ENOTDIR);
    assert_eq!(failed(node.parent(&root())), Errno::ENOTDIR);
    let _ = hostdir::identity::release_thread();
}
