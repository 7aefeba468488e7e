//! Operations that complete at once, and those that have to wait.

use std::os::fd::AsFd;

use hostdir::{Identity, Options};
use vfs::{AttrMask, CopyMode, Errno, Mode, NewNode, OpenFlags, Patience, ReaddirMode, SetAttr};

use crate::fixture::{Fixture, List, create, failed, name, read, root, with, write};

#[test]
fn without_patience_only_what_is_in_memory() {
    let fixture = Fixture::fixed();
    let none = with(Patience::None);
    let (entry, file) = create(&root(), &*fixture.root, "f", 0o600).expect("creates");
    write(&root(), &*file, 0, b"cached").expect("writes");
    assert!(
        fixture.root.lookup(&none, name("f")).is_ok(),
        "its name is cached"
    );
    assert!(entry.node.attr(&none, AttrMask::STAT).is_ok());
    if tells_waiting(&fixture) {
        assert_eq!(read(&none, &*file, 0, 6), Ok(b"cached".to_vec()));
    } else {
        assert_eq!(read(&none, &*file, 0, 6), Err(Errno::WOULD_BLOCK));
    }
    let would_block = [
        failed(write(&none, &*file, 0, b"x")),
        failed(entry.node.open(&none, OpenFlags::READ)),
        failed(entry.node.setattr(&none, &SetAttr::default())),
        failed(create(&none, &*fixture.root, "g", 0o600)),
        failed(fixture.root.unlink(&none, name("f"), false)),
        failed(
            fixture
                .root
                .make(&none, name("g"), NewNode::Fifo, Mode::without_umask(0)),
        ),
        failed(file.fsync(&with(Patience::Brief), true)),
        failed(file.allocate(&with(Patience::Brief), vfs::AllocateMode::Extend, 0, 9)),
        failed(file.copy(
            &with(Patience::Brief),
            0,
            &*file,
            9 << 20,
            2 << 20,
            CopyMode::Any,
        )),
    ];
    assert_eq!(would_block, [Errno::WOULD_BLOCK; 9]);
    assert!(
        fixture.lookup("g").is_err() && fixture.lookup("f").is_ok(),
        "nothing happened"
    );
}

#[test]
fn a_name_that_is_not_cached_would_block() {
    let fixture = Fixture::fixed();
    // A name without a look-up so far is not cached, not even as missing.
    let looked = fixture
        .root
        .lookup(&with(Patience::None), name("never seen"));
    assert_eq!(failed(looked), Errno::WOULD_BLOCK);
    let looked = fixture
        .root
        .lookup(&with(Patience::Brief), name("never seen"));
    assert_eq!(failed(looked), Errno::ENOENT);
    let looked = fixture
        .root
        .lookup(&with(Patience::None), name("never seen"));
    assert_eq!(failed(looked), Errno::ENOENT);
}

#[test]
fn briefly_names_are_made_and_data_is_written() {
    let fixture = Fixture::fixed();
    let brief = with(Patience::Brief);
    let (entry, file) = create(&brief, &*fixture.root, "f", 0o600).expect("creates");
    write(&brief, &*file, 0, b"x").expect("writes");
    let cut = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    entry.node.setattr(&brief, &cut).expect("cuts");
    let dir = fixture.root.open(&brief, OpenFlags::READ).expect("opens");
    let mut all = List(Vec::new(), 9);
    dir.readdir(&brief, 0, ReaddirMode::Entries, &mut all)
        .expect("reads");
    fixture
        .root
        .unlink(&brief, name("f"), false)
        .expect("unlinks");
}

#[test]
fn in_memory_nothing_has_to_wait() {
    let options = Options {
        identity: Identity::Fixed,
        ..Options::default()
    };
    let fixture = Fixture::at("/dev/shm".into(), options);
    let none = with(Patience::None);
    let (entry, file) = create(&none, &*fixture.root, "f", 0o600).expect("creates");
    write(&none, &*file, 0, b"x").expect("writes");
    assert_eq!(read(&none, &*file, 0, 9), Ok(b"x".to_vec()));
    file.fsync(&none, false).expect("syncs");
    fixture
        .root
        .unlink(&none, name("f"), false)
        .expect("unlinks");
    drop(entry);
}

#[test]
fn what_is_not_cached_is_read_with_full_patience_only() {
    let fixture = Fixture::fixed();
    let size = 4 << 20;
    let (_entry, file) = create(&root(), &*fixture.root, "f", 0o600).expect("creates");
    write(&root(), &*file, 0, &vec![7; size]).expect("writes");
    file.fsync(&root(), false).expect("syncs");
    fixture.outside(|dir| {
        let file = std::fs::File::open(dir.join("f")).expect("opens");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("drops");
    });
    match read(&with(Patience::Brief), &*file, 0, size) {
        Ok(_) => eprintln!("skipped: this file system keeps its pages"),
        Err(errno) => assert_eq!(errno, Errno::WOULD_BLOCK),
    }
    assert_eq!(
        read(&root(), &*file, 0, size).map(|data| data.len()),
        Ok(size)
    );
    if tells_waiting(&fixture) {
        let cached = read(&with(Patience::None), &*file, 0, size);
        assert_eq!(cached.map(|data| data.len()), Ok(size));
    }
}

/// Returns whether the host's file system supports `RWF_NOWAIT` (overlayfs does not).
fn tells_waiting(fixture: &Fixture) -> bool {
    fixture.outside(|dir| {
        let file = std::fs::File::open(dir.join("f")).expect("opens");
        sys::file_io::supports_nowait(file.as_fd())
    })
}
