//! Few descriptors, many nodes.

use std::sync::Arc;

use hostdir::{Identity, Options};
use vfs::memory::MemoryBudget;
use vfs::{
    Account, AttrMask, Call, Caller, Cx, Errno, File, Mode, NewNode, Node, OpenFlags, Peer,
    PeerKey, ReaddirMode, RenameFlags,
};

use crate::fixture::{Fixture, List, create, failed, is_root, name, read, root, walk, write};

fn tight(no_kernel_handles: bool) -> Fixture {
    Fixture::new(Options {
        identity: Identity::Fixed,
        descriptors: Some(32),
        no_kernel_handles,
        ..Options::default()
    })
}

/// Creates ten directories of a thousand files each.
fn populate(fixture: &Fixture) {
    fixture.outside(|dir| {
        for d in 0..10 {
            std::fs::create_dir(dir.join(format!("d{d}"))).expect("makes");
            for f in 0..1000 {
                std::fs::write(dir.join(format!("d{d}/f{f}")), format!("{d} {f}")).expect("writes");
            }
        }
    });
}

fn many(no_kernel_handles: bool) {
    let fixture = tight(no_kernel_handles);
    populate(&fixture);
    let mut nodes: Vec<Arc<dyn Node>> = Vec::new();
    for d in 0..10 {
        let dir = fixture.lookup(&format!("d{d}")).expect("there").node;
        for f in 0..1000 {
            let entry = dir.lookup(&root(), name(&format!("f{f}"))).expect("there");
            nodes.push(entry.node);
        }
    }
    assert!(
        fixture.fs.open_descriptors() <= 32,
        "{}",
        fixture.fs.open_descriptors()
    );
    for (n, node) in nodes.iter().enumerate().step_by(7) {
        assert_eq!(
            node.attr(&root(), AttrMask::STAT).expect("found again").id,
            node.id()
        );
        let file = node.open(&root(), OpenFlags::READ).expect("opens");
        let expected = format!("{} {}", n / 1000, n % 1000).into_bytes();
        assert_eq!(read(&root(), &*file, 0, 99), Ok(expected));
        let again = fixture
            .lookup(&format!("d{}/f{}", n / 1000, n % 1000))
            .expect("there")
            .node;
        assert!(Arc::ptr_eq(&again, node), "one object, one node");
    }
    assert!(fixture.fs.open_descriptors() <= 32);
    drop(nodes);
    // Those of the root and of the device.
    assert!(fixture.fs.open_descriptors() <= 2);
}

#[test]
fn ten_thousand_nodes_by_kernel_handle() {
    if !is_root() {
        return eprintln!("skipped: kernel handles need CAP_DAC_READ_SEARCH");
    }
    many(false);
}

#[test]
fn ten_thousand_nodes_by_name() {
    many(true);
}

#[test]
fn without_kernel_handles_open_files_keep_theirs_and_then_it_is_full() {
    let fixture = tight(true);
    let mut files = Vec::new();
    let errno = loop {
        match create(&root(), &*fixture.root, &format!("f{}", files.len()), 0o600) {
            Ok((_, file)) => files.push(file),
            Err(errno) => break errno,
        }
        assert!(files.len() < 100);
    };
    assert_eq!(errno, Errno::ENFILE);
    assert!(files.len() >= 28, "{}", files.len());
    for file in &files {
        assert_eq!(read(&root(), &**file, 0, 1), Ok(vec![]));
    }
    files.truncate(10);
    assert!(fixture.lookup("f0").is_ok());
}

#[test]
fn more_files_are_open_than_there_are_descriptors() {
    if !is_root() {
        return eprintln!("skipped: kernel handles need CAP_DAC_READ_SEARCH");
    }
    const FILES: usize = 600;
    let fixture = tight(false);
    let text = |n: usize| format!("file {n}").into_bytes();
    let files: Vec<_> = (0..FILES)
        .map(|n| {
            let (_, file) =
                create(&root(), &*fixture.root, &format!("f{n}"), 0o000).expect("creates");
            assert_eq!(write(&root(), &*file, 0, &text(n)), Ok(text(n).len()));
            file
        })
        .collect();
    assert!(fixture.fs.open_descriptors() <= 32);
    // Files without a descriptor are removed and replaced: these and their nodes keep a descriptor
    // from then on.
    const STEP: usize = 150;
    for n in (0..FILES).step_by(STEP) {
        let [one, next] = [n, n + 1].map(|n| format!("f{n}"));
        fixture
            .root
            .unlink(&root(), name(&one), false)
            .expect("unlinks");
        let moved = fixture.root.rename(
            &root(),
            name(&next),
            &*fixture.root,
            name("moved"),
            RenameFlags::empty(),
        );
        moved.expect("renames");
    }
    for (n, file) in files.iter().enumerate() {
        assert_eq!(read(&root(), &**file, 0, 99), Ok(text(n)), "{n}");
        assert_eq!(write(&root(), &**file, 5, b"again"), Ok(5), "{n}");
        let attr = file.attr(&root(), AttrMask::STAT).expect("attributes");
        let removed = n % STEP == 0 || (n % STEP == 1 && n + STEP < FILES);
        assert_eq!(attr.nlink, u32::from(!removed), "{n}");
        file.fsync(&root(), false).expect("syncs");
    }
    drop(files);
    assert!(
        fixture.fs.open_descriptors() <= 2,
        "{}",
        fixture.fs.open_descriptors()
    );
}

#[test]
fn what_the_host_removes_while_it_has_no_descriptor_is_stale() {
    if !is_root() {
        return eprintln!("skipped: kernel handles need CAP_DAC_READ_SEARCH");
    }
    let fixture = tight(false);
    let (_, file) = create(&root(), &*fixture.root, "idle", 0o600).expect("creates");
    let others: Vec<_> = (0..100)
        .map(|n| create(&root(), &*fixture.root, &format!("f{n}"), 0o600).expect("creates"))
        .collect();
    fixture.outside(|dir| std::fs::remove_file(dir.join("idle")).expect("removes"));
    assert_eq!(failed(read(&root(), &*file, 0, 1)), Errno::ESTALE);
    drop(others);
}

/// Evicts every other node's descriptor.
fn press(fixture: &Fixture) -> Vec<Arc<dyn Node>> {
    fixture.outside(|dir| {
        for n in 0..64 {
            std::fs::write(dir.join(format!("press{n}")), "").expect("writes");
        }
    });
    (0..64)
        .map(|n| fixture.lookup(&format!("press{n}")).expect("there").node)
        .collect()
}

fn gone(no_kernel_handles: bool) {
    let fixture = tight(no_kernel_handles);
    fixture.outside(|dir| {
        for file in ["idle", "unlinked", "replaced"] {
            std::fs::write(dir.join(file), file).expect("writes");
        }
    });
    let [idle, unlinked, replaced] =
        ["idle", "unlinked", "replaced"].map(|file| fixture.lookup(file).expect("there").node);
    fixture
        .root
        .unlink(&root(), name("unlinked"), false)
        .expect("unlinks");
    let pressing = press(&fixture);
    // A node without a name keeps its descriptor and therefore its object.
    assert_eq!(
        unlinked
            .attr(&root(), AttrMask::STAT)
            .map(|attr| attr.nlink),
        Ok(0)
    );
    assert!(idle.attr(&root(), AttrMask::STAT).is_ok());
    drop(pressing);
    let pressing = press(&fixture);
    fixture.outside(|dir| {
        std::fs::remove_file(dir.join("replaced")).expect("removes");
        std::fs::write(dir.join("replaced"), "other").expect("writes");
    });
    assert_eq!(
        failed(replaced.attr(&root(), AttrMask::STAT)),
        Errno::ESTALE
    );
    let new = fixture.lookup("replaced").expect("there");
    assert!(
        !Arc::ptr_eq(&new.node, &replaced),
        "the same number perhaps, another life"
    );
    let file = new.node.open(&root(), OpenFlags::READ).expect("opens");
    assert_eq!(read(&root(), &*file, 0, 9), Ok(b"other".to_vec()));
    drop(pressing);
}

#[test]
fn an_idle_node_that_is_unlinked_is_stale_by_kernel_handle() {
    if !is_root() {
        return eprintln!("skipped: kernel handles need CAP_DAC_READ_SEARCH");
    }
    gone(false);
}

#[test]
fn an_idle_node_that_is_unlinked_is_stale_by_name() {
    gone(true);
}

#[test]
fn nodes_found_by_name_follow_our_renames_even_into_each_other() {
    let fixture = tight(true);
    fixture.outside(|dir| std::fs::create_dir_all(dir.join("a/b/c")).expect("makes"));
    let a = fixture.lookup("a").expect("there").node;
    let b = fixture.lookup("a/b").expect("there").node;
    let c = fixture.lookup("a/b/c").expect("there").node;
    let none = vfs::RenameFlags::empty();
    a.rename(&root(), name("b"), &*fixture.root, name("b2"), none)
        .expect("renames");
    fixture
        .root
        .rename(&root(), name("a"), &*c, name("a2"), none)
        .expect("renames");
    let pressing = press(&fixture);
    for node in [&a, &b, &c] {
        assert_eq!(
            node.attr(&root(), AttrMask::STAT).map(|attr| attr.id),
            Ok(node.id())
        );
    }
    assert_eq!(
        fixture.lookup("b2/c/a2").map(|entry| entry.node.id()),
        Ok(a.id())
    );
    drop(pressing);
    // Another process swaps parent and child: the records of both are wrong, and form no cycle.
    fixture.outside(|dir| {
        std::fs::rename(dir.join("b2/c/a2"), dir.join("a3")).expect("moves");
        std::fs::rename(dir.join("b2"), dir.join("a3/b3")).expect("moves");
    });
    assert_eq!(
        walk(&root(), a.clone(), "b3").map(|entry| entry.node.id()),
        Ok(b.id())
    );
    assert_eq!(
        fixture.lookup("a3/b3/c").map(|entry| entry.node.id()),
        Ok(c.id())
    );
    let pressing = press(&fixture);
    assert_eq!(
        fixture.lookup("a3/b3/c").map(|entry| entry.node.id()),
        Ok(c.id())
    );
    assert!(a.attr(&root(), AttrMask::STAT).is_ok());
    drop(pressing);
}

#[test]
fn a_deep_chain_of_directories_is_dropped_without_a_deep_stack() {
    let fixture = tight(true);
    let mut node = fixture.root.clone();
    for _ in 0..5_000 {
        let mode = vfs::Mode::without_umask(0o700);
        node = match node.make(&root(), name("d"), vfs::NewNode::Directory, mode) {
            Ok(entry) => entry.node,
            Err(errno) => panic!("{errno:?}"),
        };
    }
    let small = std::thread::Builder::new().stack_size(32 << 10);
    small
        .spawn(move || drop(node))
        .expect("starts")
        .join()
        .expect("no overflow");
    // tempfile's removal would overflow the stack.
    fixture.outside(|dir| {
        let removed = std::process::Command::new("rm")
            .arg("-rf")
            .arg(dir.join("d"))
            .status();
        assert!(removed.expect("runs").success());
    });
}

#[test]
fn many_threads_share_a_tight_budget() {
    let fixture = tight(!is_root());
    populate(&fixture);
    std::thread::scope(|scope| {
        for t in 0..4 {
            let fixture = &fixture;
            scope.spawn(move || {
                for n in 0..2000u32 {
                    let (d, f) = ((n * 7 + t) % 10, (n * 13 + t * 5) % 1000);
                    let node = fixture.lookup(&format!("d{d}/f{f}")).expect("there").node;
                    let file = node.open(&root(), OpenFlags::READ).expect("opens");
                    let expected = format!("{d} {f}").into_bytes();
                    assert_eq!(read(&root(), &*file, 0, 99), Ok(expected));
                }
            });
        }
    });
    assert!(fixture.fs.open_descriptors() <= 3);
}

#[test]
fn open_directories_lend_their_descriptors_and_go_on_where_they_were() {
    if !is_root() {
        return eprintln!("skipped: kernel handles need CAP_DAC_READ_SEARCH");
    }
    const OPEN: usize = 100;
    let fixture = tight(false);
    populate(&fixture);
    let open: Vec<Arc<dyn File>> = (0..OPEN)
        .map(|n| {
            let dir = fixture.lookup(&format!("d{}", n % 10)).expect("there").node;
            dir.open(&root(), OpenFlags::READ).expect("opens")
        })
        .collect();
    let mut seen = vec![(Vec::new(), 0); OPEN];
    // A part of each in turn, so that each has to seek.
    for _ in 0..=4 {
        for (file, (names, cookie)) in open.iter().zip(&mut seen) {
            let mut some = List(Vec::new(), 250);
            file.readdir(&root(), *cookie, ReaddirMode::Names, &mut some)
                .expect("lists");
            *cookie = some.0.last().map_or(*cookie, |entry| entry.2);
            names.extend(some.0.into_iter().map(|entry| entry.0));
            assert!(fixture.fs.open_descriptors() <= 32);
        }
    }
    let mut expected: Vec<String> = (0..1000).map(|n| format!("f{n}")).collect();
    expected.sort();
    for (mut names, _) in seen {
        names.sort();
        assert_eq!(names, expected);
    }
}

/// The read-ahead of open directories is limited per client, counts towards the memory budget, and
/// is freed by idle ones.
#[test]
fn what_open_directories_keep_counts_and_idle_ones_give_it_up() {
    const EACH: usize = 64 << 10;
    const SHARE: usize = 8 << 20;
    const OPEN: usize = 2 * SHARE / EACH;
    let fixture = Fixture::fixed();
    let names: Vec<String> = (0..100).map(|n| format!("f{n}")).collect();
    fixture.outside(|dir| {
        for name in &names {
            std::fs::write(dir.join(name), "").expect("written");
        }
    });
    let budget = MemoryBudget::new(64 << 20);
    let call =
        |user| Call::detached().with_account(Account::in_budget(&budget, PeerKey::User(user)));
    let (one, other) = (call(1), call(2));
    // Opens the directory and reads its first entry.
    let begin = |call: &Call| {
        let cx = Cx::new(&Caller::ROOT, call);
        let file = fixture.root.open(&cx, OpenFlags::READ).expect("opens");
        let mut first = List(Vec::new(), 1);
        file.readdir(&cx, 0, ReaddirMode::Names, &mut first)
            .expect("lists");
        (file, first.0)
    };
    let others = begin(&other);
    assert_eq!(budget.state_bytes(), EACH);
    let mut open = Vec::new();
    for _ in 0..OPEN {
        open.push(begin(&one));
        assert!(
            budget.state_bytes() <= EACH + SHARE,
            "{} bytes",
            budget.state_bytes()
        );
    }
    assert!(
        budget.state_bytes() > SHARE / 2,
        "{} bytes",
        budget.state_bytes()
    );
    // The first ones have freed their read-ahead for the last.
    let last = open.split_off(OPEN / 2);
    drop(open.split_off(1));
    assert!(
        budget.state_bytes() > SHARE / 2,
        "{} bytes",
        budget.state_bytes()
    );
    // All continue at their positions.
    for (file, mut seen) in open.into_iter().chain(last).chain([others]) {
        let cx = Cx::new(&Caller::ROOT, &one);
        let mut rest = List(Vec::new(), usize::MAX);
        file.readdir(&cx, seen[0].2, ReaddirMode::Names, &mut rest)
            .expect("lists");
        seen.extend(rest.0);
        let mut seen: Vec<_> = seen.into_iter().map(|entry| entry.0).collect();
        let mut all = names.clone();
        seen.sort();
        all.sort();
        assert_eq!(seen, all);
    }
    assert_eq!(budget.used(), 0);
}

/// Returns a call of the client at `addr`.
fn call_from(addr: &str) -> Call {
    Call::detached().with_peer(Arc::new(Peer::remote(
        addr.parse().expect("an address"),
        700,
    )))
}

#[test]
fn one_client_leaves_descriptors_to_others() {
    let fixture = tight(true);
    fixture.outside(|dir| std::fs::write(dir.join("f"), "text").expect("writes"));
    let [greedy, other] = ["10.0.0.1", "10.0.0.2"].map(call_from);
    let [greedy, other] = [&greedy, &other].map(|call| Cx::new(&Caller::ROOT, call));
    let f = fixture.lookup("f").expect("there").node;
    let mut held = Vec::new();
    let errno = loop {
        match f.open(&greedy, OpenFlags::READ) {
            Ok(file) => held.push(file),
            Err(errno) => break errno,
        }
        assert!(held.len() < 32, "no bound");
    };
    assert_eq!((errno, held.len()), (Errno::EMFILE, 12));
    let theirs = f.open(&other, OpenFlags::READ).expect("there is room");
    assert_eq!(read(&other, &*theirs, 0, 9), Ok(b"text".to_vec()));
    assert!(create(&other, &*fixture.root, "new", 0o600).is_ok());
    assert_eq!(
        failed(create(&greedy, &*fixture.root, "more", 0o600)),
        Errno::EMFILE
    );
    assert_eq!(
        failed(fixture.lookup("more")),
        Errno::ENOENT,
        "nothing is left behind"
    );
    held.pop();
    assert!(f.open(&greedy, OpenFlags::READ).is_ok());
}

#[test]
fn what_a_client_has_unlinked_counts_until_it_lets_go() {
    if !is_root() {
        return eprintln!("skipped: kernel handles need CAP_DAC_READ_SEARCH");
    }
    let fixture = tight(false);
    let [greedy, other] = ["10.0.0.1", "10.0.0.2"].map(call_from);
    let [greedy, other] = [&greedy, &other].map(|call| Cx::new(&Caller::ROOT, call));
    let mut held = Vec::new();
    let errno = loop {
        let file = format!("f{}", held.len());
        let (entry, _) = create(&greedy, &*fixture.root, &file, 0o600).expect("creates");
        let opened = entry.node.open(&greedy, OpenFlags::READ).expect("opens");
        held.push((entry.node, opened));
        if let Err(errno) = fixture.root.unlink(&greedy, name(&file), false) {
            break errno;
        }
        assert!(held.len() < 64, "no bound");
    };
    assert_eq!((errno, held.len()), (Errno::EMFILE, 13));
    // Another client finds room, and the files are unchanged.
    for n in 0..40 {
        let (entry, file) =
            create(&other, &*fixture.root, &format!("g{n}"), 0o600).expect("creates");
        assert_eq!(write(&other, &*file, 0, b"x"), Ok(1));
        drop(entry);
    }
    for (node, file) in &held[..12] {
        assert_eq!(read(&greedy, &**file, 0, 1), Ok(vec![]));
        assert_eq!(
            node.attr(&greedy, AttrMask::STAT).map(|attr| attr.nlink),
            Ok(0)
        );
    }
    held.remove(0);
    assert_eq!(fixture.root.unlink(&greedy, name("f12"), false), Ok(()));
}

/// Makes and removes files, far more than a client's share, and returns their nodes.
fn removed_nodes(cx: &Cx<'_>, fixture: &Fixture) -> Vec<Arc<dyn Node>> {
    let removed = (0..100).map(|number| {
        let file = format!("removed{number}");
        let (entry, opened) = create(cx, &*fixture.root, &file, 0o600).expect("creates");
        drop(opened);
        let removed = fixture.root.unlink(cx, name(&file), false);
        assert_eq!(removed, Ok(()), "{file}");
        entry.node
    });
    removed.collect()
}

#[test]
fn removed_files_that_a_client_merely_remembers_do_not_use_up_its_share() {
    if !is_root() {
        return eprintln!("skipped: kernel handles need CAP_DAC_READ_SEARCH");
    }
    let fixture = tight(false);
    let call = call_from("10.0.0.1");
    let cx = Cx::new(&Caller::ROOT, &call);
    let dir = NewNode::Directory;
    let cwd = fixture
        .root
        .make(&cx, name("cwd"), dir, Mode::without_umask(0o700));
    let cwd = cwd.expect("makes").node;
    assert_eq!(fixture.root.unlink(&cx, name("cwd"), true), Ok(()));
    let (open, file) = create(&cx, &*fixture.root, "open", 0o600).expect("creates");
    assert_eq!(fixture.root.unlink(&cx, name("open"), false), Ok(()));
    let removed = removed_nodes(&cx, &fixture);
    // The oldest are given up, and neither the open one nor the directory.
    let attr = |node: &Arc<dyn Node>| node.attr(&cx, AttrMask::STAT).map(|attr| attr.nlink);
    assert_eq!(attr(&removed[0]), Err(Errno::ESTALE));
    assert_eq!(attr(&removed[99]), Ok(0));
    assert_eq!(attr(&open.node), Ok(0));
    assert_eq!(write(&cx, &*file, 0, b"x"), Ok(1));
    assert!(attr(&cwd).is_ok());
}

#[test]
fn files_that_the_host_removes_and_clients_remember_do_not_use_up_the_descriptors() {
    if !is_root() {
        return eprintln!("skipped: kernel handles need CAP_DAC_READ_SEARCH");
    }
    let fixture = tight(false);
    let mut remembered = Vec::new();
    for number in 0..100 {
        let file = format!("gone{number}");
        fixture.outside(|dir| std::fs::write(dir.join(&file), "").expect("writes"));
        remembered.push(fixture.lookup(&file).expect("finds it").node);
        fixture.outside(|dir| std::fs::remove_file(dir.join(&file)).expect("removes"));
    }
    let (_, file) = create(&root(), &*fixture.root, "new", 0o600).expect("creates");
    assert_eq!(write(&root(), &*file, 0, b"x"), Ok(1));
}
