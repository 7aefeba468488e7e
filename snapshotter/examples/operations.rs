//! The life of an image and a container, in the directory of the first argument, for the test that
//! kills this program between its system calls. An object that exists already is no error, so that
//! another run completes it.

use std::path::PathBuf;

use snapshotter::api::Labels;
use snapshotter::error::ErrorKind;
use snapshotter::{MountConfig, Snapshotter, SnapshotterConfig};

fn main() {
    let dir = PathBuf::from(std::env::args().nth(1).expect("expected a directory"));
    let config = SnapshotterConfig {
        root: dir.join("root"),
        mount: MountConfig {
            program: dir.join("barge"),
            cache_dir: None,
            cache_dir_size: None,
            verify_keys: Vec::new(),
            cosign_keys: Vec::new(),
        },
        layer_sources: vec![
            format!("{}/{{hex}}.erofs", dir.display())
                .parse()
                .expect("a source"),
        ],
    };
    let snapshotter = Snapshotter::open(config).expect("a directory");
    let (layer, chain) = ("1".repeat(64), format!("sha256:{}", "a".repeat(64)));
    let labels = Labels::from([
        ("containerd.io/snapshot.ref".into(), chain.clone()),
        (
            "containerd.io/snapshot/cri.layer-digest".into(),
            format!("sha256:{layer}"),
        ),
    ]);
    let none = Labels::new();
    let prepared = snapshotter.prepare("extract", "", &labels).err();
    assert_eq!(
        prepared.map(|error| error.kind),
        Some(ErrorKind::AlreadyExists)
    );
    let usual = |result: snapshotter::error::Result<()>| match result {
        Err(error) if [ErrorKind::AlreadyExists, ErrorKind::NotFound].contains(&error.kind) => {}
        result => result.expect("an operation"),
    };
    usual(snapshotter.prepare("diff", &chain, &none).map(drop));
    usual(snapshotter.commit("diff", "top", "", &none));
    let container = snapshotter.prepare("container", "top", &none);
    for option in container.iter().flatten().flat_map(|mount| &mount.options) {
        if let Some(files) = option.strip_prefix("upperdir=") {
            std::fs::create_dir_all(format!("{files}/a/b/c")).expect("directories");
        }
    }
    usual(container.map(drop));
    for name in ["diff", "container", "top", &chain] {
        usual(snapshotter.remove(name));
    }
    snapshotter.cleanup().expect("a cleanup");
    assert!(snapshotter.list(&[]).expect("a list").is_empty());
}
