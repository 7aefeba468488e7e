//! `cache_dir=` of mounts of other servers: data that was read stays on a disk of this host, also
//! for later mounts.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::mount::{Mounted, may_mount};
use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

/// A tree whose files have not changed recently: new changes are not cached.
const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");

/// Returns the number of read requests that the server received.
fn reads(http: &str) -> u64 {
    let mut top = Command::new(BARGE);
    let json = stdout_of(
        &top.args(["top", http, "--json", "--once"])
            .output()
            .expect("runs"),
    );
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let operations = json["operations"].as_array().expect("a list").iter();
    let reads = operations.filter(|operation| {
        let name = operation["name"].as_str().expect("a name");
        ["Tread", "NFS4_READ", "NFS4_READ_PLUS", "FUSE_READ"].contains(&name)
    });
    reads
        .map(|operation| operation["count"].as_u64().expect("a number"))
        .sum()
}

/// Returns all files below a directory, by their relative paths.
fn tree(at: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(at).expect("listed") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("text");
        if entry.file_type().expect("a type").is_dir() {
            let below = tree(&entry.path()).into_iter();
            files.extend(below.map(|(path, data)| (format!("{name}/{path}"), data)));
        } else {
            files.insert(name, fs::read(entry.path()).expect("read"));
        }
    }
    files
}

#[test]
fn kept_files_are_not_read_of_their_server_again() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path().join("at");
    fs::create_dir(&at).expect("made");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (ninep, nfs, device) = (path("9p"), path("nfs"), path("virtiofs"));
    let http = format!("unix:{}", path("http"));
    let _served = ServerProcess::start(&[
        "--9p",
        &format!("unix:{ninep}"),
        "--nfs",
        &format!("unix:{nfs}"),
        "--virtiofs",
        &device,
        "--http",
        &http,
        "--read-only",
        TREE,
    ]);
    let files = tree(Path::new(TREE));
    let cache = path("cache");
    for (url, cached) in [
        (format!("9p+unix:{ninep}"), "mmap"),
        (format!("9p+unix:{ninep}"), "none"),
        (format!("nfs+unix:{nfs}"), "mmap"),
        (format!("nfs+unix:{nfs}"), "loose"),
        (format!("virtiofs:{device}"), "mmap"),
    ] {
        // A busy host may drop some of the data that is to be kept, as its queue is bounded.
        let mut counts = vec![reads(&http)];
        // Two mounts in a row read the server no more.
        while !counts.ends_with(&[counts[counts.len() - 1]; 3]) {
            assert!(counts.len() < 7, "{url}, {cached}: {counts:?} reads");
            let options = format!("ro,cache={cached},cache_dir={cache}");
            let mounted = Mounted::new(&[&url, "-o", &options], &at);
            assert!(tree(&at) == files, "{url}");
            drop(mounted);
            counts.push(reads(&http));
        }
    }
    assert!(reads(&http) > 0, "it was read once");
    let private = fs::metadata(dir.path().join("cache/files")).expect("made");
    assert_eq!(private.permissions().mode() & 0o7777, 0o700);
    for entry in fs::read_dir(dir.path().join("cache/files")).expect("listed") {
        let entry = entry.expect("an entry");
        let mode = entry.metadata().expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{entry:?}");
    }
}

#[test]
fn kept_is_what_is_far_away_in_a_directory_of_ones_own() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path().display().to_string();
    let mount = |source: &str, options: &str| {
        let mut command = Command::new(BARGE);
        let command = command.args(["mount", "-f", source, &at, "-o", options]);
        command.output().expect("runs")
    };
    let local = mount("mem:", "cache_dir=/tmp");
    assert_eq!(local.status.code(), Some(2));
    assert!(stderr_of(&local).contains("another server"));
    let served = ServerProcess::start(&["mem:"]);
    let url = format!("9p://127.0.0.1:{}/", served.port());
    let files = dir.path().join("files");
    fs::create_dir(&files).expect("made");
    fs::set_permissions(&files, fs::Permissions::from_mode(0o755)).expect("set");
    let open = mount(&url, &format!("cache_dir={at}"));
    assert_eq!(open.status.code(), Some(1));
    let why = stderr_of(&open);
    assert!(why.contains("0700") && why.contains("0755"), "{why}");
}
