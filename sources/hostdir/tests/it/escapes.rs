//! Attempts to escape from the export.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use vfs::{Errno, OpenFlags, ReaddirMode};

use crate::fixture::{Fixture, failed, list, name, read, root, walk};

/// Swaps a directory and a symbolic link that leads outside as fast as possible, while clients
/// walk.
#[test]
fn a_link_swapped_in_for_a_directory_leads_nowhere() {
    let fixture = Fixture::fixed();
    let secret = tempfile::tempdir().expect("a directory");
    std::fs::write(secret.path().join("f"), "secret").expect("writes");
    let dir: PathBuf = fixture.outside(|dir| {
        std::fs::create_dir(dir.join("d")).expect("makes");
        std::fs::write(dir.join("d/f"), "public").expect("writes");
        std::os::unix::fs::symlink(secret.path(), dir.join("l")).expect("links");
        dir.to_owned()
    });
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (d, l) = (dir.join("d"), dir.join("l"));
            while !done.load(Ordering::Relaxed) {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(rustix::fs::CWD, &d, rustix::fs::CWD, &l, exchange)
                    .expect("swaps");
            }
        });
        let (mut reached, mut refused) = (0, 0);
        while reached < 500 || refused < 500 {
            match walk(&root(), fixture.root.clone(), "d/f") {
                Ok(entry) => {
                    let file = entry.node.open(&root(), OpenFlags::READ).expect("opens");
                    assert_eq!(read(&root(), &*file, 0, 9), Ok(b"public".to_vec()));
                    reached += 1;
                }
                Err(errno) => {
                    assert_eq!(errno, Errno::ENOTDIR);
                    refused += 1;
                }
            }
            let made = fixture.root.lookup(&root(), name("d")).and_then(|dir| {
                let flags = OpenFlags::WRITE | OpenFlags::TRUNC;
                dir.node
                    .create(&root(), name("new"), flags, vfs::Mode::without_umask(0o600))
            });
            assert!(made.is_ok() || failed(made) == Errno::ENOTDIR);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(!secret.path().join("new").exists());
}

#[test]
fn links_are_told_not_followed() {
    let fixture = Fixture::fixed();
    fixture.outside(|dir| {
        for (link, target) in [
            ("abs", "/etc"),
            ("up", "../.."),
            ("magic", "/proc/self/root"),
        ] {
            std::os::unix::fs::symlink(target, dir.join(link)).expect("links");
        }
    });
    for link in ["abs", "up", "magic"] {
        let entry = fixture.lookup(link).expect("there");
        assert_eq!(entry.attr.kind, vfs::Kind::Symlink);
        assert_eq!(
            failed(entry.node.lookup(&root(), name("passwd"))),
            Errno::ENOTDIR
        );
        assert_eq!(
            failed(entry.node.open(&root(), OpenFlags::READ)),
            Errno::ELOOP
        );
        assert_eq!(
            failed(entry.node.setattr(
                &root(),
                &vfs::SetAttr {
                    size: Some(0),
                    ..Default::default()
                }
            )),
            Errno::EINVAL
        );
    }
    assert_eq!(
        list(&root(), &*fixture.root, ReaddirMode::Entries)
            .expect("lists")
            .len(),
        3
    );
}

/// Another process moves the directory that a client is in out of the export.
#[test]
fn what_is_moved_out_leads_not_back_up() {
    let fixture = Fixture::fixed();
    let outside = fixture.outside(|dir| {
        std::fs::create_dir_all(dir.join("a/b")).expect("makes");
        tempfile::tempdir_in(dir.parent().expect("not /")).expect("a directory")
    });
    let b = fixture.lookup("a/b").expect("there");
    fixture.outside(|dir| std::fs::rename(dir.join("a"), outside.path().join("a")).expect("moves"));
    assert_eq!(failed(b.node.parent(&root())), Errno::ESTALE);
}
