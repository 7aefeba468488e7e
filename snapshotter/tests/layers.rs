//! Layers that are mounted lazily, with the program `barge` (`cargo build -p barge`) and the
//! kernel's overlayfs. Skipped without root.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use snapshotter::api::{Kind, Labels, Mount};
use snapshotter::error::ErrorKind;
use snapshotter::source::LayerSource;
use snapshotter::{MountConfig, Snapshotter, SnapshotterConfig};
use tempfile::TempDir;
use vfs_testkit::write_program;

/// Unmounts a directory of which files were read, which such a child may have open for a moment.
fn unmount_read(dir: &Path) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut unmounted = unmount(dir, UnmountFlags::empty());
    while unmounted == Err(Errno::BUSY) && Instant::now() < deadline {
        thread::yield_now();
        unmounted = unmount(dir, UnmountFlags::empty());
    }
    unmounted.unwrap();
}

/// A snapshotter and a store of layers.
struct Node {
    dir: TempDir,
    snapshotter: Option<Arc<Snapshotter>>,
}

impl Node {
    /// Returns `None`, and says so, if this process may not mount.
    fn new() -> Option<Node> {
        // A server for each layer, as for remote ones.
        Node::with_options("--fuse")
    }

    /// Does the same, with further options for `barge mount`.
    fn with_options(options: &str) -> Option<Node> {
        if !geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            eprintln!("skipped: takes root and /dev/fuse");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("store")).unwrap();
        let barge = Path::new(env!("CARGO_BIN_EXE_barge-snapshotter")).with_file_name("barge");
        assert!(
            barge.exists(),
            "{}: cargo build -p barge makes it",
            barge.display()
        );
        let barge = barge.display();
        let script = format!("#!/bin/sh\nshift\nexec {barge} mount {options} \"$@\"\n");
        let program = dir.path().join("barge");
        write_program(&program, &script);
        let mut node = Node {
            dir,
            snapshotter: None,
        };
        node.restart();
        Some(node)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Ends the snapshotter, and starts another one in the same directory.
    fn restart(&mut self) -> Arc<Snapshotter> {
        self.snapshotter = None;
        let config = SnapshotterConfig {
            root: self.path("root"),
            mount: MountConfig {
                program: self.path("barge"),
                cache_dir: None,
                cache_dir_size: None,
                verify_keys: Vec::new(),
                cosign_keys: Vec::new(),
            },
            layer_sources: vec![
                LayerSource::Registry,
                format!("{}/{{hex}}.erofs", self.path("store").display())
                    .parse()
                    .unwrap(),
            ],
        };
        let snapshotter = Arc::new(Snapshotter::open(config).unwrap());
        self.snapshotter = Some(snapshotter.clone());
        snapshotter
    }

    /// Puts a layer into the store, with a file `name`. Returns its digest's digits.
    fn store(&self, digit: char, name: &str) -> String {
        let hex = digit.to_string().repeat(64);
        let tree = self.path(&hex);
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join(name), name).unwrap();
        let barge = Path::new(env!("CARGO_BIN_EXE_barge-snapshotter")).with_file_name("barge");
        let mut pack = Command::new(barge);
        pack.args(["pack", "--quiet"]).arg(tree);
        let status = pack
            .arg(self.path("store").join(format!("{hex}.erofs")))
            .status();
        assert!(status.unwrap().success());
        hex
    }

    /// Returns the mounts of layers.
    fn mounted(&self) -> Vec<String> {
        let layers = format!("{}/", self.path("root/layers").display());
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let points = table.lines().filter_map(|line| line.split(' ').nth(1));
        points
            .filter_map(|point| point.strip_prefix(&layers))
            .map(str::to_owned)
            .collect()
    }

    /// Mounts a snapshot and returns the directory.
    fn mount(&self, mounts: &[Mount], name: &str) -> PathBuf {
        let dir = self.path(name);
        fs::create_dir(&dir).unwrap();
        let [
            Mount {
                r#type,
                source,
                options,
                ..
            },
        ] = mounts
        else {
            panic!("expected one mount, got {mounts:?}");
        };
        if r#type == "bind" {
            mount_at(source, &dir, "", MountFlags::BIND | MountFlags::REC, "");
        } else {
            mount_at(
                source,
                &dir,
                r#type,
                MountFlags::empty(),
                &options.join(","),
            );
        }
        dir
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.snapshotter = None;
        let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let points = table.lines().filter_map(|line| line.split(' ').nth(1));
        let ours: Vec<_> = points
            .filter(|point| Path::new(point).starts_with(&self.dir))
            .collect();
        for point in ours.iter().rev() {
            let _ = unmount(*point, UnmountFlags::DETACH);
        }
    }
}

fn mount_at(source: &str, dir: &Path, kind: &str, flags: MountFlags, options: &str) {
    let options = std::ffi::CString::new(options).unwrap();
    mount(source, dir, kind, flags, options.as_c_str()).unwrap();
}

/// Labels as the CRI plugin sends them for the layer `hex` of a chain that ends in `chain`.
fn labels(hex: &str, chain: &str) -> Labels {
    BTreeMap::from([
        (
            "containerd.io/snapshot.ref".into(),
            format!("sha256:{chain}"),
        ),
        (
            "containerd.io/snapshot/cri.layer-digest".into(),
            format!("sha256:{hex}"),
        ),
        (
            "containerd.io/snapshot/cri.image-ref".into(),
            "localhost:1/a:1".into(),
        ),
    ])
}

/// Prepares a layer, and returns whether it is mounted instead of a download.
fn prepare(snapshotter: &Snapshotter, hex: &str, chain: &str, parent: &str) -> bool {
    let key = format!("default/1/extract-{hex} sha256:{chain}");
    match snapshotter.prepare(&key, parent, &labels(hex, chain)) {
        Err(error) if error.kind == ErrorKind::AlreadyExists => true,
        prepared => {
            prepared.unwrap();
            false
        }
    }
}

#[test]
fn lazy_layers_are_committed_shared_and_unmounted_with_their_last_snapshot() {
    shares_layers(Node::new());
}

/// Processes that end when this is dropped.
struct Processes(Vec<Pid>);

impl Processes {
    /// Finds those whose command lines contain `text`.
    fn with(text: &str) -> Processes {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if String::from_utf8_lossy(&line).contains(text) {
                found.extend(pid.and_then(Pid::from_raw));
            }
        }
        Processes(found)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for &pid in &self.0 {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Takes ten seconds, the time-out.
#[test]
fn a_source_whose_server_does_not_answer_is_mounted_once_in_a_short_time() {
    let Some(mut node) = Node::new() else { return };
    let snapshotter = node.restart();
    let (layer, chain) = (node.store('1', "one"), "a".repeat(64));
    let program = node.path("barge");
    let real = node.path("real");
    fs::rename(&program, &real).unwrap();
    let runs = node.path("runs");
    // Stops the processes of the mount, but not this one.
    let script = format!(
        "#!/bin/sh\necho >>{runs}\n{real} \"$@\" || exit\nfor process in /proc/[0-9]*; do\n\
         pid=${{process#/proc/}}\n[ $pid = $$ ] && continue\n\
         grep -q {layers} $process/cmdline 2>/dev/null && kill -STOP $pid\ndone\nexit 0\n",
        runs = runs.display(),
        real = real.display(),
        layers = node.path("root/layers").display(),
    );
    write_program(&program, &script);
    assert!(!prepare(&snapshotter, &layer, &chain, ""));
    let stopped = Processes::with(node.path("root/layers").to_str().unwrap());
    assert!(!stopped.0.is_empty());
    assert!(node.mounted().is_empty());
    assert_eq!(fs::read_to_string(&runs).unwrap(), "\n");
    let key = "default/2/extract-again";
    let prepared = snapshotter.prepare(key, "", &labels(&layer, &chain));
    prepared.expect("a snapshot for the download");
    assert_eq!(fs::read_to_string(&runs).unwrap(), "\n", "it ran again");
}

/// The kernel mounts local images itself, if it can.
#[test]
fn local_layers_are_shared_likewise() {
    shares_layers(Node::with_options(""));
}

fn shares_layers(node: Option<Node>) {
    let Some(mut node) = node else { return };
    let snapshotter = node.restart();
    let (one, two) = (node.store('1', "one"), node.store('2', "two"));
    let (first, second, other) = ("a".repeat(64), "b".repeat(64), "c".repeat(64));
    assert!(prepare(&snapshotter, &one, &first, ""));
    let parent = format!("sha256:{first}");
    assert!(prepare(&snapshotter, &two, &second, &parent));
    // containerd looks for the snapshot with this filter.
    let top = format!("sha256:{second}");
    let filter = format!("labels.\"containerd.io/snapshot.ref\"=={top},parent==\"{parent}\"");
    let found = snapshotter.list(&[filter]).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].name.as_str(), found[0].kind()),
        (top.as_str(), Kind::Committed)
    );
    assert!(
        prepare(&snapshotter, &two, &second, &parent),
        "an image with the same layers"
    );
    // Another image has the second layer alone.
    assert!(prepare(&snapshotter, &two, &other, ""));
    let mut mounted = node.mounted();
    mounted.sort();
    assert_eq!(mounted, [one.clone(), two.clone()]);

    let mounts = snapshotter
        .prepare("default/2/run", &top, &Labels::new())
        .unwrap();
    let dir = node.mount(&mounts, "rootfs");
    assert_eq!(fs::read_to_string(dir.join("one")).unwrap(), "one");
    assert_eq!(fs::read_to_string(dir.join("two")).unwrap(), "two");
    fs::write(dir.join("new"), "new").unwrap();
    unmount_read(&dir);
    let usage = snapshotter.usage("default/2/run").unwrap();
    assert_eq!(usage.inodes, 2);
    let view = snapshotter
        .view("default/3/view", &parent, &Labels::new())
        .unwrap();
    let dir = node.mount(&view, "view");
    assert_eq!(fs::read_to_string(dir.join("one")).unwrap(), "one");

    let refused = snapshotter.remove(&top).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::FailedPrecondition);
    snapshotter.remove("default/2/run").unwrap();
    snapshotter.remove(&top).unwrap();
    assert_eq!(
        node.mounted().len(),
        2,
        "the other image uses the second layer"
    );
    snapshotter.remove(&format!("sha256:{other}")).unwrap();
    assert_eq!(node.mounted(), [one]);
    snapshotter.remove("default/3/view").unwrap();
    snapshotter.remove(&parent).unwrap();
    assert!(node.mounted().is_empty());
    assert_eq!(
        fs::read_to_string(dir.join("one")).unwrap(),
        "one",
        "its user still reads it"
    );
    snapshotter.cleanup().unwrap();
    assert_eq!(
        fs::read_dir(node.path("root/snapshots")).unwrap().count(),
        0
    );
    assert_eq!(fs::read_dir(node.path("root/layers")).unwrap().count(), 0);
}

#[test]
fn other_layers_become_ordinary_snapshots() {
    let Some(mut node) = Node::new() else { return };
    let snapshotter = node.restart();
    let (none, text) = ("1".repeat(64), "2".repeat(64));
    fs::write(node.path(&format!("store/{text}.erofs")), "no image").unwrap();
    for (hex, chain) in [(&none, "a"), (&text, "b")] {
        assert!(!prepare(&snapshotter, hex, &chain.repeat(64), ""));
    }
    assert!(node.mounted().is_empty());
    assert_eq!(fs::read_dir(node.path("root/layers")).unwrap().count(), 0);
    let infos = snapshotter.list(&["kind==active".into()]).unwrap();
    assert_eq!(infos.len(), 2);
    // In parallel without the parent: the snapshot would have the wrong one.
    let layer = node.store('3', "three");
    let chain = "c".repeat(64);
    let mut labels = labels(&layer, &chain);
    labels.insert(
        "containerd.io/snapshot/parent-chain-id".into(),
        "sha256:x".into(),
    );
    snapshotter.prepare("parallel", "", &labels).unwrap();
    // The name is taken by a snapshot with another parent.
    snapshotter
        .commit("parallel", &format!("sha256:{chain}"), "", &Labels::new())
        .unwrap();
    assert!(!prepare(&snapshotter, &layer, &chain, ""));
}

#[test]
fn calls_for_one_layer_at_a_time_mount_it_once() {
    let Some(mut node) = Node::new() else { return };
    let snapshotter = node.restart();
    let layer = node.store('1', "one");
    std::thread::scope(|scope| {
        for digit in ['a', 'b', 'c', 'd', 'd', 'd'] {
            let (snapshotter, layer) = (&snapshotter, &layer);
            scope.spawn(move || {
                assert!(prepare(
                    snapshotter,
                    layer,
                    &digit.to_string().repeat(64),
                    ""
                ));
            });
        }
    });
    assert_eq!(node.mounted(), [layer]);
    assert_eq!(snapshotter.list(&[]).unwrap().len(), 4);
}

#[test]
fn a_start_repairs_each_state_that_a_crash_leaves() {
    let Some(mut node) = Node::new() else { return };
    let mut snapshotter = node.restart();
    let (used, unused) = (node.store('1', "used"), node.store('2', "unused"));
    let (chain, gone) = ("a".repeat(64), "b".repeat(64));
    assert!(prepare(&snapshotter, &used, &chain, ""));
    let name = format!("sha256:{chain}");
    let mounts = snapshotter.prepare("run", &name, &Labels::new()).unwrap();
    let rootfs = node.mount(&mounts, "rootfs");
    let device = fs::metadata(node.path("root/layers").join(&used))
        .unwrap()
        .dev();

    // A mount without a snapshot, directories without one, also of an interrupted removal.
    assert!(prepare(&snapshotter, &unused, &gone, ""));
    let moved = node.path("root/layers").join("3".repeat(64));
    fs::create_dir(&moved).unwrap();
    mount_at(
        node.path("root/layers").join(&unused).to_str().unwrap(),
        &moved,
        "",
        MountFlags::BIND,
        "",
    );
    snapshotter.remove(&format!("sha256:{gone}")).unwrap();
    fs::create_dir_all(node.path("root/snapshots/100/fs/deep")).unwrap();
    fs::create_dir_all(node.path("root/snapshots/101/7")).unwrap();
    // A link that the disk has lost.
    let mut links = fs::read_dir(node.path("root/snapshots"))
        .unwrap()
        .map(|entry| entry.unwrap().path().join("fs"));
    let link = links.find(|link| fs::read_link(link).is_ok_and(|to| to.ends_with(&used)));
    drop(snapshotter);
    snapshotter = node.restart();
    snapshotter.recover();
    assert_eq!(node.mounted(), [used.as_str()]);
    let left = fs::read_dir(node.path("root/snapshots")).unwrap().count();
    assert_eq!(left, 2, "a layer and a container");
    let now = fs::metadata(node.path("root/layers").join(&used))
        .unwrap()
        .dev();
    assert_eq!(now, device, "it is still the same mount");
    assert_eq!(fs::read_to_string(rootfs.join("used")).unwrap(), "used");
    // A number above all that were in use.
    let [mount] = &snapshotter.prepare("new", "", &Labels::new()).unwrap()[..] else {
        panic!("expected one mount");
    };
    assert!(mount.source.ends_with("/snapshots/102/fs"), "{mount:?}");
    unmount_read(&rootfs);

    // As after a reboot: no mounts.
    fs::remove_file(link.unwrap()).unwrap();
    unmount(node.path("root/layers").join(&used), UnmountFlags::DETACH).unwrap();
    drop(snapshotter);
    snapshotter = node.restart();
    snapshotter.recover();
    assert_eq!(node.mounted(), [used.as_str()]);
    let dir = node.mount(&snapshotter.mounts("run").unwrap(), "again");
    assert_eq!(fs::read_to_string(dir.join("used")).unwrap(), "used");
    unmount_read(&dir);
    // It is unmounted while the snapshotter runs: the next use mounts it again.
    unmount(node.path("root/layers").join(&used), UnmountFlags::DETACH).unwrap();
    let dir = node.mount(&snapshotter.mounts("run").unwrap(), "third");
    assert_eq!(fs::read_to_string(dir.join("used")).unwrap(), "used");

    // It cannot be mounted: the call may be repeated, and no other one fails.
    unmount_read(&dir);
    unmount(node.path("root/layers").join(&used), UnmountFlags::DETACH).unwrap();
    let file = node.path("store").join(format!("{used}.erofs"));
    fs::rename(&file, node.path("away")).unwrap();
    assert_eq!(
        snapshotter.mounts("run").unwrap_err().kind,
        ErrorKind::Unavailable
    );
    snapshotter.mounts("new").unwrap();
    fs::rename(node.path("away"), &file).unwrap();
    snapshotter.mounts("run").unwrap();
}

#[test]
fn one_process_has_a_directory() {
    let Some(mut node) = Node::new() else { return };
    let _first = node.restart();
    let config = SnapshotterConfig {
        root: node.path("root"),
        mount: MountConfig {
            program: node.path("barge"),
            cache_dir: None,
            cache_dir_size: None,
            verify_keys: Vec::new(),
            cosign_keys: Vec::new(),
        },
        layer_sources: Vec::new(),
    };
    let refused = Snapshotter::open(config).err().unwrap();
    assert_eq!(refused.kind, ErrorKind::FailedPrecondition);
    assert!(
        refused
            .to_string()
            .contains("in use by another barge-snapshotter"),
        "{refused}"
    );
}

#[test]
fn labels_choose_the_owner() {
    let Some(mut node) = Node::new() else { return };
    let snapshotter = node.restart();
    let mapped = |map: &str| {
        Labels::from([
            ("containerd.io/snapshot/uidmapping".into(), map.to_owned()),
            (
                "containerd.io/snapshot/gidmapping".into(),
                "0:300:10".to_owned(),
            ),
        ])
    };
    let mounts = snapshotter
        .prepare("a", "", &mapped("5:7:1,0:200:5"))
        .unwrap();
    let top = fs::metadata(&mounts[0].source).unwrap();
    assert_eq!(
        (top.uid(), top.gid(), top.mode() & 0o7777),
        (200, 300, 0o755)
    );
    for wrong in ["", "0", "0:1", "0:1:0", "1:0:1", "0:-1:1", "0:4294967296:1"] {
        let refused = snapshotter.prepare("b", "", &mapped(wrong)).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{wrong}");
    }
    assert_eq!(snapshotter.list(&[]).unwrap().len(), 1);
}
