//! File systems on disks of the test's own: listings, and handles of objects that were moved, as
//! unmounting a disk empties the kernel's dentry cache of it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use hostdir::{HostDir, Identity, Options};
use tempfile::TempDir;
use vfs::{Cx, Errno, FileSystem, Handle, HandleKey, NodeId, Result};
use vfs_testkit::wait_until;

use crate::fixture::{Fixture, chmod, create, fixed, is_root, root, user, walk, write};
use crate::names::check_first_read_at_end;

/// A file system in a file, mounted.
struct Disk {
    dir: TempDir,
}

impl Disk {
    /// Makes one of `kind`; prints the reason and returns `None` if this machine does not support
    /// it.
    fn new(kind: &str) -> Option<Disk> {
        Disk::with(kind, 512 << 20, &[])
    }

    /// Makes one of `size` bytes, with more options.
    fn with(kind: &str, size: u64, options: &[&str]) -> Option<Disk> {
        if !is_root() {
            eprintln!("skipped: mounting needs root");
            return None;
        }
        let _ = hostdir::identity::release_thread();
        let dir = TempDir::new().expect("a directory");
        let image = std::fs::File::create(dir.path().join("image")).expect("a file");
        image.set_len(size).expect("a sparse file");
        std::fs::create_dir(dir.path().join("mount")).expect("makes");
        let disk = Disk { dir };
        let made = run(Command::new(format!("mkfs.{kind}"))
            .args(options)
            .arg(disk.path("image")));
        if !made || !disk.mount() {
            eprintln!("skipped: no {kind} to be made or mounted here");
            return None;
        }
        Some(disk)
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn mount(&self) -> bool {
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]);
        run(mount.arg(self.path("image")).arg(self.path("mount")))
    }

    fn unmount(&self) {
        assert!(
            run(Command::new("umount").arg(self.path("mount"))),
            "not busy"
        );
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = hostdir::identity::release_thread();
        let _ = run(Command::new("umount").arg("-l").arg(self.path("mount")));
    }
}

fn run(command: &mut Command) -> bool {
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn export(dir: &Path) -> Arc<HostDir> {
    let _ = hostdir::identity::release_thread();
    let options = Options {
        identity: Identity::Fixed,
        key: Some(HandleKey::new([7; 32])),
        ..Options::default()
    };
    HostDir::open(dir, options).expect("exports")
}

/// Resolves `handle`, retrying until a search is permitted.
fn resolve(fs: &HostDir, handle: &Handle) -> Result<NodeId> {
    let mut found = Err(Errno::EAGAIN);
    wait_until("a search is permitted", || {
        found = fs.resolve(&root(), handle).map(|node| node.id());
        found != Err(Errno::EAGAIN)
    });
    found
}

fn given(fs: &HostDir, path: &str) -> (NodeId, Handle) {
    let top = fs.root(&root()).expect("a root");
    let node = walk(&root(), top, path).expect(path).node;
    (node.id(), node.handle(&root()).expect("a handle"))
}

const BELOW: [&str; 8] = [
    "",
    "a",
    "a/kept",
    "a/renamed",
    "a/moved",
    "a/linked",
    "moving",
    "moving/in",
];
const GONE: [&str; 5] = ["a/out", "a/half", "a/removed", "leaving", "leaving/in"];

/// Changes the files as a host may while no server exports them.
fn shuffle(top: &Path) {
    let [from, to] = ["export", "outside"].map(|dir| top.join(dir));
    let rename = |old: PathBuf, new: PathBuf| std::fs::rename(old, new).expect("moves");
    rename(from.join("a/renamed"), from.join("a/other name"));
    rename(from.join("a/moved"), from.join("b/c/moved"));
    rename(from.join("moving"), from.join("b/c/moving"));
    rename(from.join("a/out"), to.join("out"));
    rename(from.join("leaving"), to.join("leaving"));
    for name in ["a/linked", "a/half", "a/removed"] {
        std::fs::remove_file(from.join(name)).expect("removes");
    }
}

/// `cold`: with an empty dentry cache.
fn handles_lead_to_what_is_below_the_root_alone(kind: &str, cold: bool) {
    let Some(disk) = Disk::new(kind) else {
        return;
    };
    let top = disk.path("mount");
    for dir in [
        "export/a",
        "export/b/c",
        "export/moving",
        "export/leaving",
        "outside",
    ] {
        std::fs::create_dir_all(top.join(dir)).expect("makes");
    }
    for path in BELOW.iter().chain(&GONE) {
        let path = top.join("export").join(path);
        if !path.exists() {
            std::fs::write(&path, "x").expect("writes");
        }
    }
    let link = |old: &str, new: &str| std::fs::hard_link(top.join(old), top.join(new));
    link("export/a/linked", "export/b/again").expect("links");
    link("export/a/half", "outside/half").expect("links");

    let fs = export(&top.join("export"));
    let below = BELOW.map(|path| given(&fs, path));
    let gone = GONE.map(|path| given(&fs, path));
    // Clients cache a file once per handle, so that its handle stays the same while the node is
    // live.
    let linked = walk(&root(), fs.root(&root()).expect("a root"), "a/linked");
    assert_eq!(given(&fs, "b/again").1, given(&fs, "a/linked").1);
    drop(linked);
    drop(fs);
    shuffle(&top);
    if cold {
        disk.unmount();
        assert!(disk.mount(), "mounted again");
    }
    let fs = export(&top.join("export"));
    for (path, (id, handle)) in BELOW.iter().zip(&below) {
        assert_eq!(
            resolve(&fs, handle),
            Ok(*id),
            "{kind}, cold {cold}: {path:?}"
        );
    }
    for (path, (_, handle)) in GONE.iter().zip(&gone) {
        assert_eq!(
            resolve(&fs, handle),
            Err(Errno::ESTALE),
            "{kind}, cold {cold}: {path:?}"
        );
    }
}

#[test]
fn handles_lead_to_what_is_below_the_root_alone_on_ext4() {
    handles_lead_to_what_is_below_the_root_alone("ext4", true);
    handles_lead_to_what_is_below_the_root_alone("ext4", false);
}

#[test]
fn handles_lead_to_what_is_below_the_root_alone_on_xfs() {
    handles_lead_to_what_is_below_the_root_alone("xfs", true);
    handles_lead_to_what_is_below_the_root_alone("xfs", false);
}

#[test]
fn handles_lead_to_what_is_below_the_root_alone_on_btrfs() {
    handles_lead_to_what_is_below_the_root_alone("btrfs", true);
    handles_lead_to_what_is_below_the_root_alone("btrfs", false);
}

#[test]
fn a_handle_of_one_export_is_no_other_exports_although_the_secret_is_the_same() {
    let Some(disk) = Disk::new("ext4") else {
        return;
    };
    let top = disk.path("mount");
    for dir in ["one/a", "two"] {
        std::fs::create_dir_all(top.join(dir)).expect("makes");
    }
    std::fs::write(top.join("one/a/f"), "x").expect("writes");
    let [whole, one, two] = ["", "one", "two"].map(|dir| export(&top.join(dir)));
    for path in ["a", "a/f"] {
        let (id, handle) = given(&one, path);
        assert_eq!(resolve(&one, &handle), Ok(id));
        for other in [&two, &whole] {
            assert_eq!(resolve(other, &handle), Err(Errno::ESTALE));
        }
    }
}

#[test]
fn a_directory_that_was_first_read_at_its_end_has_entries_on_each_file_system() {
    for kind in ["ext4", "xfs", "btrfs"] {
        let Some(disk) = Disk::new(kind) else {
            continue;
        };
        check_first_read_at_end(&Fixture::at(disk.path("mount"), fixed()));
    }
}

#[test]
fn what_is_mounted_in_from_beside_the_root_is_found_again() {
    let Some(disk) = Disk::new("ext4") else {
        return;
    };
    let top = disk.path("mount");
    for dir in ["export/bind", "outside/dir"] {
        std::fs::create_dir_all(top.join(dir)).expect("makes");
    }
    std::fs::write(top.join("outside/dir/f"), "x").expect("writes");
    let bind = || {
        let mut mount = Command::new("mount");
        mount.arg("--bind").arg(top.join("outside"));
        assert!(run(mount.arg(top.join("export/bind"))), "bound");
    };
    bind();
    let fs = export(&top.join("export"));
    let handles = ["bind", "bind/dir", "bind/dir/f"].map(|path| given(&fs, path));
    drop(fs);
    let unbind = || assert!(run(Command::new("umount").arg(top.join("export/bind"))));
    unbind();
    disk.unmount();
    assert!(disk.mount(), "mounted again");
    bind();
    let fs = export(&top.join("export"));
    for (id, handle) in &handles {
        assert_eq!(resolve(&fs, handle), Ok(*id));
    }
    drop(fs);
    unbind();
    let fs = export(&top.join("export"));
    for (_, handle) in &handles {
        assert_eq!(resolve(&fs, handle), Err(Errno::ESTALE));
    }
}

#[test]
fn an_ordinary_caller_gets_no_reserved_block() {
    const CHUNK: usize = 1 << 20;
    let Some(disk) = Disk::with("ext4", 64 << 20, &["-m", "50"]) else {
        return;
    };
    let top = disk.path("mount");
    chmod(&top, 0o777);
    let options = Options {
        identity: Identity::Switch,
        ..Options::default()
    };
    let fs = HostDir::open(&top, options).expect("exports");
    let dir = fs.root(&root()).expect("a root");
    let caller = user(1000, 1000);
    let cx = Cx::new(&caller, &crate::fixture::CALL);
    // After root, on the same thread.
    let (_, super_file) = create(&root(), &*dir, "root's", 0o600).expect("creates");
    let (_, file) = create(&cx, &*dir, "user's", 0o600).expect("creates");
    let data = vec![7; CHUNK];
    let mut at = 0;
    let full = loop {
        match write(&cx, &*file, at, &data) {
            Ok(written) => at += written as u64,
            Err(errno) => break errno,
        }
    };
    assert_eq!(full, Errno::ENOSPC);
    file.fsync(&root(), false).expect("written");
    let figures = dir.statfs(&root()).expect("figures");
    let free = figures.bfree * u64::from(figures.bsize);
    assert!(free > 16 << 20, "{free} bytes are left of 32 MiB");
    assert_eq!(write(&root(), &*super_file, 0, &data), Ok(CHUNK));
    assert_eq!(write(&cx, &*file, at, &data), Err(Errno::ENOSPC));
}
