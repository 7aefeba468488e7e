//! Requests to the snapshotter of containerd, with any keys, labels and filters: they are carried
//! out or refused, and the snapshots stay a tree whose files are in their own directories.

use std::fs;
use std::path::Path;

use snapshotter::api::{Kind, Labels};
use snapshotter::source::LayerSource;
use snapshotter::{MountConfig, Snapshotter, SnapshotterConfig};

/// Largest number of requests of a script.
const MAX_REQUESTS: usize = 16;

/// Makes the requests of a script. Each line is one: its name, and up to two words and labels
/// `NAME=VALUE`, after tabs.
pub fn script(data: &[u8]) {
    // Each request waits for the disk, unless that is memory.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let dir = dir.expect("a directory");
    let absent = dir.path().join("absent");
    let root = dir.path().join("root");
    let url = format!("{}/{{hex}}", absent.display());
    let config = SnapshotterConfig {
        root: root.clone(),
        mount: MountConfig {
            program: absent.clone(),
            cache_dir: None,
            cache_dir_size: None,
            verify_keys: Vec::new(),
            cosign_keys: Vec::new(),
        },
        layer_sources: vec![LayerSource::Registry, url.parse().expect("a source")],
    };
    let snapshotter = Snapshotter::open(config).expect("an empty directory");
    let text = String::from_utf8_lossy(data);
    for line in text.lines().take(MAX_REQUESTS) {
        request(&snapshotter, line, &root.join("snapshots"));
    }
    let all = snapshotter.list(&[]).expect("snapshots");
    for info in all.iter().filter(|info| !info.parent.is_empty()) {
        let parent = snapshotter.stat(&info.parent).expect("a parent");
        assert_eq!(parent.kind(), Kind::Committed, "{info:?}");
    }
    snapshotter.cleanup().expect("a directory");
    let count = |dir: &Path| fs::read_dir(dir).expect("a directory").count();
    assert_eq!(count(&root.join("snapshots")), all.len());
    assert_eq!(
        count(&root.join("layers")),
        0,
        "there is no program to mount one"
    );
    assert_eq!((count(&root), count(dir.path())), (3, 1));
}

/// Makes a request, and checks the places of mounts in the reply.
fn request(snapshotter: &Snapshotter, line: &str, snapshots: &Path) {
    let mut words = line.split('\t');
    let mut word = || words.next().unwrap_or_default();
    let (name, first, second) = (word(), word(), word());
    let rest: Vec<_> = words.map(str::to_owned).collect();
    let labels = rest.iter().filter_map(|label| label.split_once('='));
    let labels: Labels = labels
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    let mounts = match name {
        "prepare" => snapshotter.prepare(first, second, &labels),
        "view" => snapshotter.view(first, second, &labels),
        "mounts" => snapshotter.mounts(first),
        "commit" => snapshotter
            .commit(first, second, "", &labels)
            .map(|()| Vec::new()),
        "rebase" => snapshotter
            .commit(first, first, second, &labels)
            .map(|()| Vec::new()),
        "remove" => snapshotter.remove(first).map(|()| Vec::new()),
        "update" => snapshotter
            .update(first, &labels, &rest)
            .map(|_| Vec::new()),
        "usage" => snapshotter.usage(first).map(|_| Vec::new()),
        "list" => snapshotter
            .list(&[first.into(), second.into()])
            .map(|_| Vec::new()),
        _ => Ok(Vec::new()),
    };
    match mounts {
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
        Ok(mounts) => {
            for mount in mounts.iter().filter(|mount| mount.r#type == "bind") {
                let files = Path::new(&mount.source)
                    .strip_prefix(snapshots)
                    .expect("a snapshot");
                assert_eq!(files.components().count(), 2, "{mount:?}");
            }
        }
    }
}
