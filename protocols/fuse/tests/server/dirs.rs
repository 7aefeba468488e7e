//! Listings.

use std::sync::Arc;

use fuse::Request as R;
use fuse::layout::{FlushIn, FsyncIn, GetattrIn, OpenIn, ReadIn};
use fuse::numbers::ROOT_ID;
use fuse::server::{Cache, Options, Server};
use layers::{Layer, Opened, OwnerOverride, PageCache, ReadOnly, stack};
use memory::Memory;
use parking_lot::Mutex;
use vfs::{Capabilities, Cx, DirSink, Errno, Export, FileSystem, ReaddirMode, Result};
use vfs_testkit::clock;

use crate::net::{Listed, Net, entry, lookup, server};

/// Lists a whole directory in replies of at most `size` bytes.
fn all(net: &Net, nodeid: u64, size: u32, plus: bool) -> Vec<Listed> {
    let fh = net.opendir(nodeid).fh;
    all_of(net, nodeid, fh, size, plus)
}

fn all_of(net: &Net, nodeid: u64, fh: u64, size: u32, plus: bool) -> Vec<Listed> {
    let (mut listed, mut offset) = (Vec::new(), 0);
    loop {
        let some = net.list(nodeid, fh, offset, size, plus).expect("entries");
        let Some(last) = some.last() else {
            return listed;
        };
        offset = last.off;
        assert!(i64::try_from(offset).is_ok_and(|offset| offset > 0));
        listed.extend(some);
    }
}

#[test]
fn a_listing_has_everything_once_however_it_is_cut() {
    let net = Net::new();
    let dir = net.mkdir(ROOT_ID, "d");
    let mut names: Vec<String> = (0..50).map(|n| format!("file-{n}")).collect();
    for name in &names {
        net.create(dir.nodeid, name);
    }
    names.extend([".".to_owned(), "..".to_owned()]);
    names.sort();
    for (size, plus) in [(64, false), (65536, false), (200, true), (65536, true)] {
        let listed = all(&net, dir.nodeid, size, plus);
        assert_eq!((&*listed[0].name, &*listed[1].name), (".", ".."));
        assert_eq!((listed[0].ino, listed[0].kind), (dir.attr.ino, 4));
        assert_eq!(listed[1].ino, net.getattr(ROOT_ID).ino);
        let mut seen: Vec<String> = listed.into_iter().map(|entry| entry.name).collect();
        seen.sort();
        assert_eq!(seen, names, "{size}");
    }
}

/// Records for how many entries with names of four bytes each listing has room.
struct Rooms(Arc<Mutex<Vec<usize>>>);

impl Layer for Rooms {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    layers::forward! { id above }

    layers::forward! { all but readdir }

    fn readdir(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        self.0.lock().push(sink.room(4));
        inner.readdir(cx, cookie, plus, sink)
    }
}

#[test]
fn a_source_learns_how_many_entries_a_reply_has_room_for() {
    let rooms = Arc::<Mutex<Vec<usize>>>::default();
    let fs = stack(Memory::new(clock()), Rooms(rooms.clone()));
    // The layers in between pass it on.
    let pages = PageCache::new(layers::pagecache::Options::default()).expect("threads");
    let fs = stack(stack(fs, Arc::new(pages)), OwnerOverride::default());
    let export = Arc::new(Export::new("", fs));
    let net = Net::on(&Server::new(export, Options::default()));
    for number in 0..50 {
        net.create(ROOT_ID, &format!("f-{number:02}"));
    }
    let fh = net.opendir(ROOT_ID).fh;
    for (size, plus) in [(1000, false), (4000, true)] {
        let listed = net.list(ROOT_ID, fh, 0, size, plus).expect("entries");
        let room = rooms.lock().pop();
        // Without `.` and `..`.
        assert_eq!(room, Some(listed.len() - 2), "{size}");
    }
}

#[test]
fn each_entry_taken_counts_as_a_look_up() {
    let net = Net::new();
    let dir = net.mkdir(ROOT_ID, "d");
    let ids = ["a", "b"].map(|name| {
        let id = net.mkdir(dir.nodeid, name).nodeid;
        net.forget(id, 1);
        id
    });
    let fh = net.opendir(dir.nodeid).fh;
    // `.`, `..` and one entry.
    let listed = net.list(dir.nodeid, fh, 0, 3 * 160, true).expect("entries");
    assert_eq!(listed.len(), 3);
    let entries: Vec<u64> = listed
        .iter()
        .map(|listed| listed.entry.expect("plus").nodeid)
        .collect();
    assert_eq!(entries, [0, 0, ids[0]]);
    assert_eq!(net.err(ids[0], &lookup("x")), Errno::ENOENT);
    assert_eq!(net.err(ids[1], &lookup("x")), Errno::ESTALE);
    net.forget(ids[0], 1);
    assert_eq!(net.err(ids[0], &lookup("x")), Errno::ESTALE);
    // READDIR does not count as a look-up.
    net.list(dir.nodeid, fh, 0, 4096, false).expect("entries");
    assert_eq!(net.err(ids[0], &lookup("x")), Errno::ESTALE);
}

#[test]
fn a_full_table_of_nodes_lists_all_the_same() {
    let net = Net::on(&server(Options {
        max_nodes: 2,
        ..Options::default()
    }));
    for name in ["a", "b"] {
        let id = net.mkdir(ROOT_ID, name).nodeid;
        net.forget(id, 1);
    }
    let listed = all(&net, ROOT_ID, 4096, true);
    let known = |listed: &&Listed| listed.entry.is_some_and(|entry| entry.nodeid != 0);
    assert_eq!(listed.len(), 4);
    assert_eq!(listed.iter().filter(known).count(), 1);
}

#[test]
fn what_is_no_directory_or_has_no_room_is_refused() {
    let net = Net::new();
    let (_, open) = net.create(ROOT_ID, "a");
    assert_eq!(
        net.list(ROOT_ID, open.fh, 0, 99, false),
        Err(Errno::ENOTDIR)
    );
    let fh = net.opendir(ROOT_ID).fh;
    assert_eq!(net.list(ROOT_ID, fh, 0, 31, false), Err(Errno::EINVAL));
    assert_eq!(net.list(ROOT_ID, 999, 0, 99, false), Err(Errno::EBADF));
    let args = FsyncIn { fh, fsync_flags: 0 };
    net.ok(ROOT_ID, &R::Fsyncdir { args });
    let args = fuse::layout::ReleaseIn {
        fh,
        ..Default::default()
    };
    net.ok(ROOT_ID, &R::Releasedir { args });
    assert_eq!(net.list(ROOT_ID, fh, 0, 99, false), Err(Errno::EBADF));
}

/// The directory cannot change: the client may list it without OPENDIR and cache the listing.
#[test]
fn a_directory_that_cannot_change_need_not_be_opened() {
    let tree = Memory::new(clock());
    let on = |fs: Arc<dyn FileSystem>, cache| {
        let options = Options {
            cache,
            ..Options::default()
        };
        Net::on(&Server::new(Arc::new(Export::new("", fs)), options))
    };
    let writable = on(tree.clone(), Cache::Always);
    let dir = writable.mkdir(ROOT_ID, "d").nodeid;
    for n in 0..50 {
        writable.create(dir, &format!("file-{n}"));
    }
    let opened = all(&writable, dir, 200, true);
    let still = stack(tree, ReadOnly);
    on(still.clone(), Cache::Metadata).opendir(ROOT_ID);

    let net = on(still, Cache::Always);
    let args = OpenIn::default();
    assert_eq!(net.err(ROOT_ID, &R::Opendir { args }), Errno::ENOSYS);
    let dir = net.lookup(ROOT_ID, "d").nodeid;
    let names = |listed: Vec<Listed>| -> Vec<String> {
        listed.into_iter().map(|entry| entry.name).collect()
    };
    assert_eq!(names(all_of(&net, dir, 0, 200, true)), names(opened));
    let args = FsyncIn::default();
    net.ok(dir, &R::Fsyncdir { args });
    let file = net.lookup(dir, "file-0").nodeid;
    assert_eq!(net.list(file, 0, 0, 400, false), Err(Errno::ENOTDIR));
}

/// The same for a file, if the client checks permissions; and a negative entry may be cached.
#[test]
fn a_file_that_cannot_change_need_not_be_opened() {
    let tree = Memory::new(clock());
    let on = |fs: Arc<dyn FileSystem>, without_open| {
        let options = Options {
            cache: Cache::Always,
            without_open,
            ..Options::default()
        };
        Net::on(&Server::new(Arc::new(Export::new("", fs)), options))
    };
    let writable = on(tree.clone(), true);
    let (_, open) = writable.create(ROOT_ID, "a");
    writable.write(open.fh, 0, b"hello").expect("room");
    let missing = lookup("b");
    assert_eq!(writable.err(ROOT_ID, &missing), Errno::ENOENT);

    let still = stack(tree, ReadOnly);
    let net = on(still.clone(), false);
    net.open(net.lookup(ROOT_ID, "a").nodeid, 0);
    let mut net = on(still, true);
    let file = net.lookup(ROOT_ID, "a").nodeid;
    let args = OpenIn::default();
    assert_eq!(net.err(file, &R::Open { args }), Errno::ENOSYS);
    let args = FlushIn::default();
    assert_eq!(net.err(file, &R::Flush { args }), Errno::ENOSYS);
    let args = FsyncIn::default();
    net.ok(file, &R::Fsync { args });
    let nothing = entry(&net.ok(ROOT_ID, &missing));
    assert_eq!((nothing.nodeid, nothing.entry_valid), (0, 86400));
    // The client has checked this user's permission to open it.
    net.uid = 1000;
    let args = ReadIn {
        size: 100,
        ..ReadIn::default()
    };
    assert_eq!(net.ok(file, &R::Read { args }), b"hello");
    assert_eq!(net.err(ROOT_ID, &R::Read { args }), Errno::EISDIR);
    assert_eq!(net.err(999, &R::Read { args }), Errno::ESTALE);
    let args = GetattrIn {
        getattr_flags: 1,
        ..GetattrIn::default()
    };
    net.ok(file, &R::Getattr { args });
}
