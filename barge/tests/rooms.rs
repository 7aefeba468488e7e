//! Checks the allowed dependencies between the crates of the workspace. ARCHITECTURE.md has the
//! same table for people.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// The crates, and the crates that each may use. Dependencies of tests do not count.
const ROOMS: &[(&str, &[&str])] = &[
    ("vfs", &[]),
    ("concurrency", &[]),
    ("vfs-testkit", &["vfs", "wire"]),
    ("wire", &["vfs", "sys"]),
    ("sys", &["vfs"]),
    ("sandbox", &["sys"]),
    ("hostdir", &["concurrency", "vfs", "sys"]),
    ("image", &["vfs", "sys", "erofs", "rofs", "sidecar"]),
    ("objects", &["vfs", "image"]),
    ("registry", &["vfs", "image", "objects", "pack"]),
    ("memory", &["concurrency", "vfs"]),
    ("stdfs", &["vfs", "sys"]),
    (
        "remote",
        &[
            "concurrency",
            "vfs",
            "wire",
            "sys",
            "transports",
            "tls",
            "virtqueue",
            "fuse",
            "nfs",
            "p9",
        ],
    ),
    (
        "sources",
        &[
            "vfs", "sys", "hostdir", "image", "memory", "objects", "registry", "remote", "stdfs",
        ],
    ),
    (
        "client",
        &["concurrency", "vfs", "wire", "remote", "sources"],
    ),
    ("layers", &["vfs", "wire", "sys"]),
    ("block", &["vfs", "wire"]),
    ("p9", &["concurrency", "vfs", "wire"]),
    ("fuse", &["concurrency", "vfs", "wire"]),
    ("nfs", &["concurrency", "vfs", "wire"]),
    ("transports", &["vfs", "wire", "sys"]),
    ("tls", &["vfs", "wire", "transports"]),
    ("virtqueue", &["vfs", "wire", "sys", "transports"]),
    ("engine", &["vfs", "wire", "sys", "transports"]),
    ("erofs", &[]),
    ("pack", &["vfs", "wire", "sys", "erofs", "rofs", "sidecar"]),
    ("rofs", &[]),
    ("sidecar", &[]),
    ("command", &["sys"]),
    ("agent", &["command", "sys", "transports"]),
    ("connect", &["command", "remote", "transports"]),
    ("etcd", &[]),
    ("grpc", &["command", "transports"]),
    ("snapshotter", &["command", "grpc", "sys"]),
    (
        "bench",
        &[
            "vfs",
            "wire",
            "sys",
            "hostdir",
            "remote",
            "sources",
            "layers",
            "fuse",
            "nfs",
            "p9",
            "transports",
            "tls",
            "command",
        ],
    ),
    ("csi", &["vfs", "sources", "command", "grpc", "sys"]),
    ("python", &["client"]),
    ("capi", &["client"]),
    ("guest", &["sys", "vfs-testkit"]),
];

/// Libraries that crates without I/O must not use.
const IO: &[&str] = &["libc", "rustix", "tempfile", "signal-hook"];

#[test]
fn rooms_use_only_what_they_may() {
    let metadata = MetadataCommand::new()
        .no_deps()
        .exec()
        .expect("cargo metadata");
    let mut seen = BTreeSet::new();
    for package in &metadata.packages {
        let room = room(&package.name);
        let Some((_, may)) = ROOMS.iter().find(|(name, _)| *name == room) else {
            assert!(
                ["barge", "fuzz", "hostile"].contains(&room),
                "{room} has no place in the table of rooms"
            );
            continue;
        };
        seen.insert(room.to_owned());
        for dependency in &package.dependencies {
            if dependency.kind != DependencyKind::Normal {
                continue;
            }
            let used = self::room(&dependency.name);
            if dependency.path.is_some() {
                assert!(may.contains(&used), "{room} must not use {used}");
            }
            let pure = [
                "vfs",
                "vfs-testkit",
                "wire",
                "layers",
                "block",
                "p9",
                "fuse",
                "nfs",
                "memory",
                "erofs",
                "rofs",
                "sidecar",
            ]
            .contains(&room);
            assert!(
                !(pure && IO.contains(&used)),
                "{room} does no I/O, and must not use {used}"
            );
        }
    }
    assert_eq!(
        seen.len(),
        ROOMS.len(),
        "a room of the table is no crate: {seen:?}"
    );
}

/// The list of reviewed dependencies has all of them.
#[test]
fn each_dependency_is_justified() {
    let metadata = MetadataCommand::new()
        .no_deps()
        .exec()
        .expect("cargo metadata");
    let list = include_str!("../../docs/design/dependencies.md");
    let is_part = |c: char| c.is_alphanumeric() || "-_".contains(c);
    let listed: BTreeSet<_> = list.split(|c| !is_part(c)).collect();
    let all = metadata
        .packages
        .iter()
        .flat_map(|package| &package.dependencies);
    for dependency in all.filter(|dependency| dependency.path.is_none()) {
        let name = dependency.name.as_str();
        assert!(
            listed.contains(name),
            "docs/design/dependencies.md: expected {name}"
        );
    }
}

#[test]
fn unsafe_code_lives_in_sys_and_where_memory_is_a_guests_or_a_c_programs() {
    let metadata = MetadataCommand::new()
        .no_deps()
        .exec()
        .expect("cargo metadata");
    for package in &metadata.packages {
        let manifest = std::fs::read_to_string(&package.manifest_path).expect("a manifest");
        let inherits = manifest.contains("[lints]\nworkspace = true");
        assert!(
            inherits || ["sys", "virtqueue", "capi"].contains(&room(&package.name)),
            "{}: own lints",
            package.name
        );
    }
    let capi = concat!(env!("CARGO_MANIFEST_DIR"), "/../capi/src");
    for file in std::fs::read_dir(capi).expect("a directory") {
        let path = file.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a source file");
        let allows = text.contains("(unsafe_code)");
        assert_eq!(allows, path.ends_with("ffi.rs"), "{}", path.display());
    }
}

/// Programs print through `command`, whose writers neither panic nor wait if standard error is full
/// or closed.
#[test]
fn programs_print_with_no_macro_that_panics() {
    let metadata = MetadataCommand::new()
        .no_deps()
        .exec()
        .expect("cargo metadata");
    let mut found = Vec::new();
    for package in &metadata.packages {
        // Test programs end when they fail.
        if ["guest", "hostile", "vfs-testkit", "fuzz"].contains(&room(&package.name)) {
            continue;
        }
        let folder = package.manifest_path.parent().expect("a folder");
        for file in rust_files(folder.join("src").as_std_path()) {
            let text = std::fs::read_to_string(&file).expect("text");
            // Tests come last.
            let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            let shown = file.display();
            let prints = code.lines().filter(|line| prints(line));
            found.extend(prints.map(|line| format!("{shown}: {}", line.trim())));
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

/// Returns whether a line of code prints, other than through `command`.
fn prints(line: &str) -> bool {
    let macros = [
        "println!(",
        "print!(",
        "dbg!(",
        "io::stderr().write",
        "(stderr()",
    ];
    !line.trim_start().starts_with("//") && macros.iter().any(|name| line.contains(name))
}

/// Returns the Rust files below `folder` but those of tests and of the writer itself.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.ends_with("tests") || path.ends_with("tests.rs") {
            continue;
        }
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|name| name == "rs")
            && !path.ends_with("command/src/stderr.rs")
        {
            files.push(path);
        }
    }
    files
}

fn room(package: &str) -> &str {
    package.strip_prefix("barge-").unwrap_or(package)
}
