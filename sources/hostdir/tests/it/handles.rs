//! Handles.

use hostdir::{HostDir, Identity, Options};
use vfs::{Errno, FileSystem, Handle, Level, Want};

use crate::bed::{Bed, create, failed, name, root};

fn both(test: impl Fn(Bed)) {
    for no_kernel_handles in [false, true] {
        test(Bed::new(Options {
            identity: Identity::Fixed,
            no_kernel_handles,
            ..Options::default()
        }));
    }
}

#[test]
fn a_handle_leads_to_its_node_even_when_that_was_dropped() {
    both(|bed| {
        bed.outside(|dir| {
            std::fs::create_dir_all(dir.join("a/b")).expect("makes");
            std::fs::write(dir.join("a/b/f"), "x").expect("writes");
        });
        let handle = |path: &str| {
            let node = bed.lookup(path).expect("there").node;
            (node.id(), node.handle(&root()).expect("a handle"))
        };
        let resolve = |handle: &Handle| bed.fs.resolve(&root(), handle);
        for path in ["", "a", "a/b", "a/b/f"] {
            let (id, handle) = handle(path);
            assert_eq!(resolve(&handle).map(|node| node.id()), Ok(id), "{path}");
            let alive = bed.lookup(path).expect("there").node;
            let found = resolve(&handle).expect("resolves");
            assert!(std::sync::Arc::ptr_eq(&alive, &found));
        }
        let (_, file) = handle("a/b/f");
        bed.outside(|dir| {
            std::fs::remove_file(dir.join("a/b/f")).expect("removes");
            std::fs::write(dir.join("a/b/f"), "other").expect("writes");
        });
        assert_eq!(failed(resolve(&file)), Errno::ESTALE);
    });
}

#[test]
fn a_forged_handle_is_stale() {
    both(|bed| {
        let (entry, _file) = create(&root(), &*bed.root, "f", 0o600).expect("creates");
        let handle = entry.node.handle(&root()).expect("a handle");
        for at in 0..handle.bytes().len() {
            let mut bytes = handle.bytes().to_vec();
            bytes[at] ^= 1;
            let forged = Handle::new(&bytes).expect("short");
            assert_eq!(
                failed(bed.fs.resolve(&root(), &forged)),
                Errno::ESTALE,
                "{at}"
            );
        }
        for len in 0..handle.bytes().len() {
            let short = Handle::new(&handle.bytes()[..len]).expect("short");
            assert_eq!(
                failed(bed.fs.resolve(&root(), &short)),
                Errno::ESTALE,
                "{len}"
            );
        }
    });
}

#[test]
fn kernel_handles_outlive_the_export() {
    let bed = Bed::fixed();
    if bed.fs.capabilities().handles != Level::Native {
        return eprintln!("skipped: kernel handles are not permitted");
    }
    let (entry, _file) = create(&root(), &*bed.root, "f", 0o600).expect("creates");
    let handle = entry.node.handle(&root()).expect("a handle");
    bed.root
        .rename(
            &root(),
            name("f"),
            &*bed.root,
            name("g"),
            vfs::RenameFlags::empty(),
        )
        .expect("renames");
    let reopen = |key| {
        let options = Options {
            identity: Identity::Fixed,
            key,
            ..Options::default()
        };
        let again = bed.outside(|dir| HostDir::open(dir, options).expect("exports"));
        again.resolve(&root(), &handle).map(|node| node.id())
    };
    assert_eq!(reopen(None), Ok(entry.node.id()));
    assert_eq!(reopen(Some([7; 16])), Err(Errno::ESTALE));
}

#[test]
fn generations_tell_two_lives_of_a_number_apart() {
    let bed = Bed::fixed();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..20 {
        let (entry, _file) = create(&root(), &*bed.root, "f", 0o600).expect("creates");
        let attr = entry.node.attr(&root(), Want::GENERATION).expect("attr");
        let again = entry.node.attr(&root(), Want::GENERATION).expect("attr");
        assert_eq!(attr.generation, again.generation);
        assert!(seen.insert((attr.id, attr.generation)));
        bed.root.unlink(&root(), name("f"), false).expect("unlinks");
    }
}
