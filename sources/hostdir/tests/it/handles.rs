//! Handles.

use hostdir::{HostDir, Identity, Options};
use vfs::{AttrMask, Errno, FileSystem, Handle, HandleKey, Support};

use crate::fixture::{Fixture, create, failed, name, root, walk};

fn both(test: impl Fn(Fixture)) {
    for no_kernel_handles in [false, true] {
        test(Fixture::new(Options {
            identity: Identity::Fixed,
            no_kernel_handles,
            ..Options::default()
        }));
    }
}

#[test]
fn a_handle_leads_to_its_node_even_when_that_was_dropped() {
    both(|fixture| {
        fixture.outside(|dir| {
            std::fs::create_dir_all(dir.join("a/b")).expect("makes");
            std::fs::write(dir.join("a/b/f"), "x").expect("writes");
        });
        let handle = |path: &str| {
            let node = fixture.lookup(path).expect("there").node;
            (node.id(), node.handle(&root()).expect("a handle"))
        };
        let resolve = |handle: &Handle| fixture.fs.resolve(&root(), handle);
        for path in ["", "a", "a/b", "a/b/f"] {
            let (id, handle) = handle(path);
            assert_eq!(resolve(&handle).map(|node| node.id()), Ok(id), "{path}");
            let alive = fixture.lookup(path).expect("there").node;
            let found = resolve(&handle).expect("resolves");
            assert!(std::sync::Arc::ptr_eq(&alive, &found));
        }
        let (_, file) = handle("a/b/f");
        fixture.outside(|dir| {
            std::fs::remove_file(dir.join("a/b/f")).expect("removes");
            std::fs::write(dir.join("a/b/f"), "other").expect("writes");
        });
        assert_eq!(failed(resolve(&file)), Errno::ESTALE);
    });
}

#[test]
fn a_forged_handle_is_stale() {
    both(|fixture| {
        let (entry, _file) = create(&root(), &*fixture.root, "f", 0o600).expect("creates");
        let handle = entry.node.handle(&root()).expect("a handle");
        for at in 0..handle.bytes().len() {
            let mut bytes = handle.bytes().to_vec();
            bytes[at] ^= 1;
            let forged = Handle::new(&bytes).expect("short");
            assert_eq!(
                failed(fixture.fs.resolve(&root(), &forged)),
                Errno::ESTALE,
                "{at}"
            );
        }
        for len in 0..handle.bytes().len() {
            let short = Handle::new(&handle.bytes()[..len]).expect("short");
            assert_eq!(
                failed(fixture.fs.resolve(&root(), &short)),
                Errno::ESTALE,
                "{len}"
            );
        }
    });
}

/// `FORGED_HANDLES` is the number of attempts, if it is not 20,000 for each kind of handles.
#[test]
fn no_altered_handle_of_many_is_accepted() {
    let attempts = std::env::var("FORGED_HANDLES").map_or(Ok(20_000), |number| number.parse());
    let attempts: u64 = attempts.expect("a number");
    both(|fixture| {
        let (entry, _file) = create(&root(), &*fixture.root, "f", 0o600).expect("creates");
        let good = entry.node.handle(&root()).expect("a handle");
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..attempts {
            let mut bytes = good.bytes().to_vec();
            for _ in 0..random.usize(1..8) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            let forged = Handle::new(&bytes).expect("short");
            let resolved = fixture.fs.resolve(&root(), &forged);
            assert!(forged == good || resolved.is_err(), "{bytes:?}");
        }
    });
}

#[test]
fn kernel_handles_outlive_the_export() {
    let sealed_with = |key: Option<[u8; 32]>| Options {
        identity: Identity::Fixed,
        key: key.map(HandleKey::new),
        ..Options::default()
    };
    let fixture = Fixture::new(sealed_with(Some([7; 32])));
    if fixture.fs.capabilities().handles != Support::Native {
        return eprintln!("skipped: kernel handles are not permitted");
    }
    let (entry, _file) = create(&root(), &*fixture.root, "f", 0o600).expect("creates");
    let handle = entry.node.handle(&root()).expect("a handle");
    fixture
        .root
        .rename(
            &root(),
            name("f"),
            &*fixture.root,
            name("g"),
            vfs::RenameFlags::empty(),
        )
        .expect("renames");
    let reopen = |key| {
        let again = fixture.outside(|dir| HostDir::open(dir, sealed_with(key)).expect("exports"));
        again.resolve(&root(), &handle).map(|node| node.id())
    };
    assert_eq!(reopen(Some([7; 32])), Ok(entry.node.id()));
    assert_eq!(reopen(Some([8; 32])), Err(Errno::ESTALE));
    // Without a key each export has a random one.
    assert_eq!(reopen(None), Err(Errno::ESTALE));
}

/// Returns the handle of the file at `path`, which is looked up until its directory expects to know
/// what it looks up.
fn handle_of(fs: &HostDir, path: &str) -> Handle {
    let (dir, last) = path.rsplit_once('/').expect("a directory");
    let dir = walk(&root(), fs.root(&root()).expect("a root"), dir);
    let dir = dir.expect("there").node;
    let look_up = || dir.lookup(&root(), name(last)).expect("there").node;
    let file = look_up();
    for _ in 0..3 {
        assert_eq!(look_up().id(), file.id());
    }
    file.handle(&root()).expect("a handle")
}

#[test]
fn a_file_has_one_handle_before_and_after_a_restart() {
    let options = || Options {
        identity: Identity::Fixed,
        key: Some(HandleKey::new([7; 32])),
        ..Options::default()
    };
    let fixture = Fixture::new(options());
    if fixture.fs.capabilities().handles != Support::Native {
        return eprintln!("skipped: kernel handles are not permitted");
    }
    fixture.outside(|dir| {
        std::fs::create_dir_all(dir.join("a/b")).expect("makes");
        std::fs::write(dir.join("a/b/f"), "x").expect("writes");
        std::fs::hard_link(dir.join("a/b/f"), dir.join("a/g")).expect("links");
    });
    let handle = handle_of(&fixture.fs, "a/b/f");
    let again = fixture.outside(|dir| HostDir::open(dir, options()).expect("exports"));
    // A client that reclaims its open names the file by handle, before any name is looked up.
    let found = again.resolve(&root(), &handle).expect("resolves");
    assert_eq!(found.handle(&root()), Ok(handle));
    assert_eq!(handle_of(&again, "a/b/f"), handle);
    assert_eq!(handle_of(&again, "a/g"), handle);
    drop((found, again));

    // Another handle of it, which a server issues that found it in another directory.
    let again = fixture.outside(|dir| HostDir::open(dir, options()).expect("exports"));
    let other = handle_of(&again, "a/g");
    assert_ne!(other, handle);
    drop(again);

    // Without its directory it has a handle as well.
    fixture.outside(|dir| std::fs::remove_dir_all(dir.join("a/b")).expect("removes"));
    let again = fixture.outside(|dir| HostDir::open(dir, options()).expect("exports"));
    let found = again.resolve(&root(), &handle).expect("resolves");
    let own = found.handle(&root()).expect("a handle");
    assert!(again.resolve(&root(), &own).is_ok());
}

#[test]
fn generations_tell_two_lives_of_a_number_apart() {
    let fixture = Fixture::fixed();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..20 {
        let (entry, _file) = create(&root(), &*fixture.root, "f", 0o600).expect("creates");
        let attr = entry
            .node
            .attr(&root(), AttrMask::GENERATION)
            .expect("attr");
        let again = entry
            .node
            .attr(&root(), AttrMask::GENERATION)
            .expect("attr");
        assert_eq!(attr.generation, again.generation);
        assert!(seen.insert((attr.id, attr.generation)));
        fixture
            .root
            .unlink(&root(), name("f"), false)
            .expect("unlinks");
    }
}

/// Returns the export of `fixture` after a restart of the program, with the locations in `names`.
fn restarted(fixture: &Fixture, names: &std::path::Path) -> std::sync::Arc<HostDir> {
    // As left by a killed process.
    let left = names.with_extension("left");
    std::fs::copy(names, &left).expect("copied");
    fixture.outside(|dir| HostDir::open(dir, by_name(&left)).expect("exports"))
}

fn by_name(names: &std::path::Path) -> Options {
    Options {
        identity: Identity::Fixed,
        no_kernel_handles: true,
        key: Some(HandleKey::new([7; 32])),
        handle_index: Some(names.into()),
        ..Options::default()
    }
}

#[test]
fn recorded_names_outlive_the_export() {
    let state = tempfile::tempdir().expect("a directory");
    let names = state.path().join("names");
    let fixture = Fixture::new(by_name(&names));
    fixture.outside(|dir| {
        std::fs::create_dir_all(dir.join("a/b")).expect("makes");
        for file in ["a/b/f", "a/b/g", "a/b/h", "a/b/i"] {
            std::fs::write(dir.join(file), file).expect("writes");
        }
    });
    let handle = |path: &str| {
        let node = fixture.lookup(path).expect("there").node;
        (node.id(), node.handle(&root()).expect("a handle"))
    };
    let paths = ["", "a", "a/b", "a/b/f", "a/b/g", "a/b/h", "a/b/i"];
    let given = paths.map(handle);
    let found = |fs: &HostDir| {
        given.map(|(id, handle)| {
            let found = fs.resolve(&root(), &handle);
            if let Ok(node) = &found {
                assert_eq!(node.id(), id);
            }
            found.is_ok()
        })
    };
    assert_eq!(found(&restarted(&fixture, &names)), [true; 7]);

    let rename = |from: &str, name_of: &str, to: &str, new: &str| {
        let dir = |path: &str| fixture.lookup(path).expect("there").node;
        let flags = vfs::RenameFlags::empty();
        dir(from)
            .rename(&root(), name(name_of), &*dir(to), name(new), flags)
            .expect("renames");
    };
    // A file, twice, and its directory; over a file that is lost.
    rename("a/b", "f", "", "moved");
    rename("", "moved", "a", "h");
    rename("a/b", "i", "a/b", "h");
    rename("", "a", "", "z");
    fixture.outside(|dir| {
        std::fs::remove_file(dir.join("z/b/g")).expect("removes");
        std::fs::write(dir.join("z/b/g"), "another").expect("writes");
    });
    let again = restarted(&fixture, &names);
    assert_eq!(found(&again), [true, true, true, true, false, false, true]);
    let file = again.resolve(&root(), &given[3].1).expect("resolves");
    let size = file.attr(&root(), AttrMask::SIZE).expect("attributes").size;
    assert_eq!(size, "a/b/f".len() as u64);
    // Another key means another export.
    drop(again);
    let other = Options {
        key: Some(HandleKey::new([8; 32])),
        ..by_name(&names.with_extension("left"))
    };
    let other = fixture.outside(|dir| HostDir::open(dir, other).expect("exports"));
    assert_eq!(found(&other), [false; 7]);
}

#[test]
fn names_that_cannot_be_recorded_are_told_of() {
    let fixture = Fixture::new(by_name("/nonexistent/names".as_ref()));
    let limits = fixture.fs.limitations();
    assert!(limits[0].contains("/nonexistent/names"), "{limits:?}");
    assert!(
        limits
            .iter()
            .any(|line| line.contains("become stale at a restart")),
        "{limits:?}"
    );
}
