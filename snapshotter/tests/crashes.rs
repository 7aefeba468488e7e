//! SIGKILL at each system call of the life of an image that changes files, mounts or processes: the
//! next start repairs what is left. Skipped without root, /dev/fuse or strace(1).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{UnmountFlags, unmount};
use snapshotter::{MountConfig, Snapshotter, SnapshotterConfig};

/// System calls before which the program is killed.
const CALLS: [&str; 12] = [
    "mkdir",
    "chmod",
    "symlink",
    "renameat",
    "unlinkat",
    "rmdir",
    "fsync",
    "fdatasync",
    "pwrite64",
    "umount2",
    "wait4",
    "clone3",
];

/// Removes what a failed test leaves mounted.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        for point in mounts(self.0) {
            let _ = unmount(point, UnmountFlags::DETACH);
        }
    }
}

#[test]
fn a_kill_at_any_system_call_is_repaired() {
    let has_strace = Command::new("strace")
        .arg("-V")
        .stdout(Stdio::null())
        .status()
        .is_ok();
    let is_root = rustix::process::geteuid().is_root();
    if !has_strace || !is_root || !Path::new("/dev/fuse").exists() {
        return eprintln!("skipped: takes root, /dev/fuse and strace");
    }
    let programs = Path::new(env!("CARGO_BIN_EXE_barge-snapshotter"))
        .parent()
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let _mounted = Mounted(dir.path());
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "file").unwrap();
    let barge = programs.join("barge");
    let image = dir.path().join(format!("{}.erofs", "1".repeat(64)));
    let packed = Command::new(&barge)
        .args(["pack", "--quiet"])
        .arg(tree)
        .arg(image)
        .status();
    assert!(packed.expect("cargo build -p barge makes it").success());
    let script = format!(
        "#!/bin/sh\nshift\nexec {} mount --fuse \"$@\"\n",
        barge.display()
    );
    vfs_testkit::write_program(dir.path().join("barge"), script);

    let operations = programs.join("examples/operations");
    let mut kills = 0;
    for call in CALLS {
        for number in 1.. {
            let mut strace = Command::new("strace");
            strace
                .args(["-qq", "-o", "/dev/null", "-e"])
                .arg(format!("trace={call}"));
            strace
                .arg("-e")
                .arg(format!("inject={call}:signal=KILL:when={number}"));
            let status = strace.arg(&operations).arg(dir.path()).status().unwrap();
            if status.success() {
                assert!(number > 1, "{call} is never called");
                break;
            }
            // strace ends as the program did.
            assert_eq!(status.signal(), Some(9), "{call} {number}: {status}");
            kills += 1;
            check(dir.path(), &format!("{call} {number}: {status}"));
        }
    }
    // Some calls are made many times.
    assert!(kills > 50, "{kills} kills");
}

/// Checks the state after a start, and that a second run comes to its end.
fn check(dir: &Path, when: &str) {
    let root = dir.join("root");
    let snapshotter = open(dir);
    snapshotter.recover();
    let all = snapshotter.list(&[]).unwrap();
    let lazy = all
        .iter()
        .any(|info| info.labels.contains_key("containerd.io/snapshot/remote"));
    assert_eq!(
        mounts(&root.join("layers")).len(),
        usize::from(lazy),
        "{when}"
    );
    let snapshots: Vec<PathBuf> = fs::read_dir(root.join("snapshots"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(snapshots.len(), all.len(), "{when}");
    for snapshot in &snapshots {
        let files = fs::metadata(snapshot.join("fs")).expect(when);
        assert_eq!(files.mode() & 0o7777, 0o755, "{when}");
    }
    for info in &all {
        if info.name == "diff" || info.name == "container" {
            snapshotter.mounts(&info.name).expect(when);
        }
    }
    drop(snapshotter);
    let operations = Path::new(env!("CARGO_BIN_EXE_barge-snapshotter"));
    let operations = operations.with_file_name("examples/operations");
    let status = Command::new(operations).arg(dir).status().unwrap();
    assert!(status.success(), "{when}");
    assert!(mounts(&root.join("layers")).is_empty(), "{when}");
    assert_eq!(
        fs::read_dir(root.join("layers")).unwrap().count(),
        0,
        "{when}"
    );
    assert_eq!(
        fs::read_dir(root.join("snapshots")).unwrap().count(),
        0,
        "{when}"
    );
}

fn open(dir: &Path) -> Snapshotter {
    let config = SnapshotterConfig {
        root: dir.join("root"),
        mount: MountConfig {
            program: dir.join("barge"),
            cache_dir: None,
            cache_dir_size: None,
            verify_keys: Vec::new(),
            cosign_keys: Vec::new(),
        },
        layer_sources: Vec::new(),
    };
    Snapshotter::open(config).unwrap()
}

/// Returns the mount points in `dir`.
fn mounts(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let points = table
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .map(PathBuf::from);
    points.filter(|point| point.starts_with(dir)).collect()
}
