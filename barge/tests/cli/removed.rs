//! Files that programs have open while they are removed or replaced, on each kind of mount.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use vfs_testkit::wait_until;

use crate::interrupts::{KINDS, Tree};
use crate::mount::{Mounted, may_mount, unmount};

/// Writes through an open file whose name is gone, and reads it back.
fn use_open(mut file: &fs::File, text: &str) {
    file.write_all(text.as_bytes()).expect("written");
    file.sync_all().expect("synchronized");
    file.seek(SeekFrom::Start(0)).expect("found");
    let mut read = String::new();
    file.read_to_string(&mut read).expect("read");
    assert!(read.ends_with(text), "{read}");
}

#[test]
fn open_files_outlast_their_removal_and_replacement_on_each_mount() {
    if !may_mount() {
        return eprintln!("skipped: it takes FUSE");
    }
    for kind in KINDS {
        eprintln!("{kind}");
        let tree = Tree::new(kind);
        let at = tree.at();
        let open = |name: &str| {
            let mut options = fs::File::options();
            let options = options.read(true).write(true).create(true).truncate(false);
            options.open(at.join(name)).expect("opened")
        };
        // As Python's tempfile.TemporaryFile() does where there is no O_TMPFILE.
        let temporary = open("temporary");
        fs::remove_file(at.join("temporary")).expect("removed");
        use_open(&temporary, "text");
        // As a database replaces a table that other processes have open.
        fs::write(at.join("new"), "new").expect("written");
        let old = open("table");
        fs::rename(at.join("new"), at.join("table")).expect("renamed");
        use_open(&old, "old");
        assert_eq!(fs::read(at.join("table")).expect("read"), b"new");
        // The kernel does not wait for the last close.
        fs::create_dir(at.join("dir")).expect("made");
        let inside = open("dir/file");
        fs::remove_file(at.join("dir/file")).expect("removed");
        use_open(&inside, "inside");
        drop(inside);
        fs::remove_dir(at.join("dir")).expect("removed");
        drop((temporary, old));
        wait_until("the files are gone", || names(&tree.share()) == ["table"]);
    }
}

#[test]
fn a_mount_removes_the_hidden_files_of_one_that_was_killed() {
    let dir = Path::new("/run");
    if !may_mount() || !rustix::process::geteuid().is_root() || !dir.is_dir() {
        return eprintln!("skipped: it takes FUSE, and root, whose mounts are recorded in /run");
    }
    for kind in ["nfs3", "nfs4.2"] {
        let mut source = String::new();
        let tree = Tree::with(kind, |url, at| {
            url.clone_into(&mut source);
            Mounted::new(&[url], at)
        });
        let file = fs::File::create(tree.at().join("file")).expect("made");
        fs::remove_file(tree.at().join("file")).expect("removed");
        assert!(names(&tree.share())[0].starts_with(".nfs"), "{kind}");
        tree.mounted.kill();
        let serving = "the process that serves has ended";
        wait_until(serving, || fs::metadata(tree.at()).is_err());
        drop(file);
        unmount(&tree.at());
        assert_eq!(names(&tree.share()).len(), 1, "{kind}");
        let _next = Mounted::new(&[&source], &tree.at());
        wait_until("the file is gone", || names(&tree.share()).is_empty());
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("listed");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect()
}
