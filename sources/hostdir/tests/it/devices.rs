//! File systems mounted below the root.

use std::collections::HashSet;
use std::path::PathBuf;

use hostdir::{HostDir, Identity, Options};
use rustix::mount::{MountFlags, UnmountFlags};
use vfs::{FileSystem, HandleKey, ReaddirMode, Support};

use crate::fixture::{Fixture, create, is_root, list, root};

/// Mounts that are removed even after a failed test.
struct Mounted([PathBuf; 2]);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = hostdir::identity::release_thread();
        for point in &self.0 {
            let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
        }
    }
}

#[test]
fn a_mount_below_is_visible_and_its_numbers_are_its_own() {
    if !is_root() {
        return eprintln!("skipped: mounting needs root");
    }
    let options = Options {
        identity: Identity::Fixed,
        key: Some(HandleKey::new([7; 32])),
        ..Options::default()
    };
    let fixture = Fixture::new(options.clone());
    let mounted = fixture.outside(|dir| {
        let points = [dir.join("one two"), dir.join("b")];
        for point in &points {
            std::fs::create_dir(point).expect("makes");
            if rustix::mount::mount("none", point, "tmpfs", MountFlags::empty(), None).is_err() {
                return None;
            }
        }
        Some(points)
    });
    let Some(points) = mounted else {
        return eprintln!("skipped: this sandbox mounts nothing");
    };
    let points = Mounted(points);
    let mut ids = HashSet::new();
    let mut handles = Vec::new();
    for point in ["", "one two", "b"] {
        let dir = fixture.lookup(point).expect("there");
        for n in 0..50 {
            let (entry, _) = create(&root(), &*dir.node, &format!("f{n}"), 0o600).expect("creates");
            assert!(ids.insert(entry.node.id()), "{point} {n}");
            assert_eq!(entry.attr.device, dir.attr.device);
            handles.push((entry.node.id(), entry.node.handle(&root())));
        }
        for (name, id, _, entry) in list(&root(), &*dir.node, ReaddirMode::Entries).expect("lists")
        {
            assert_eq!(entry.map(|entry| entry.attr.id), Some(id), "{name}");
        }
        assert_eq!(
            dir.node.parent(&root()).map(|up| up.node.id()),
            Ok(fixture.root.id())
        );
    }
    let [on_root, on_one] = ["", "one two"].map(|p| fixture.lookup(p).expect("there").attr.device);
    assert_ne!(on_root, on_one);
    if fixture.fs.capabilities().handles != Support::Native {
        return eprintln!("skipped: no kernel handles, so none outlives the export");
    }
    // A restarted program, without any nodes yet, finds the objects on them.
    let again = fixture.outside(|dir| HostDir::open(dir, options).expect("exports"));
    for (id, handle) in &handles {
        let found = again.resolve(&root(), &handle.expect("a handle"));
        assert_eq!(found.map(|node| node.id()), Ok(*id));
    }
    drop(again);
    // Without nodes on them they are not kept mounted.
    fixture.outside(|_| {
        for point in &points.0 {
            rustix::mount::unmount(point, UnmountFlags::empty()).expect("not busy");
        }
    });
}
