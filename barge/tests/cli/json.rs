//! `--json` of commands that print one object: its keys, and that errors stay on standard error.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use vfs_testkit::wait_until;

use crate::mount::may_mount;
use crate::served::{BARGE, has, stderr_of, stdout_of};

fn barge(args: &[&str]) -> Output {
    Command::new(BARGE).args(args).output().expect("runs")
}

/// Returns the only line of a program's output as an object.
fn object(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

/// Makes a tree with two files, a directory and a link, and returns its path and that of `name`
/// beside it.
fn tree(dir: &TempDir, name: &str) -> (String, String) {
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("sub")).expect("made");
    fs::write(tree.join("a"), "contents").expect("written");
    fs::write(tree.join("sub/b"), vec![7; 100_000]).expect("written");
    let _ = symlink("a", tree.join("link"));
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    (text(&tree), text(&dir.path().join(name)))
}

fn sha256(path: &Path) -> String {
    let digest = Sha256::digest(fs::read(path).expect("read"));
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digest}")
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).expect("there").len()
}

#[test]
fn pack_describes_the_image_that_check_finds_valid() {
    let dir = tempfile::tempdir().expect("a directory");
    let (from, image) = tree(&dir, "image");
    for format in ["erofs", "rofs"] {
        let packed = barge(&["pack", &from, &image, "--format", format, "--json", "-q"]);
        stdout_of(&packed);
        let found = object(&packed);
        let path = Path::new(&image);
        let root = found["root"].as_str();
        assert_eq!(root.map(str::len), (format == "erofs").then_some(64));
        let expected = json!({
            "image": image,
            "format": format,
            "size": size(path),
            "digest": sha256(path),
            "root": root,
            "signed": false,
            "tree": { "files": 2, "directories": 2, "others": 1, "bytes": 100_008 },
            "oci": null,
        });
        assert_eq!(found, expected);
        let checked = barge(&["check", &image, "--json"]);
        stdout_of(&checked);
        let expected = json!({
            "image": image,
            "format": format,
            "size": size(path),
            "digest": sha256(path),
            "valid": true,
            "errors": 0,
        });
        assert_eq!(object(&checked), expected);
    }
    let refused = barge(&["pack", &from, "-", "--json"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.stdout.is_empty());
    assert_eq!(stderr_of(&refused).lines().count(), 1);
}

#[test]
fn pack_of_an_oci_layout_has_its_manifest() {
    let dir = tempfile::tempdir().expect("a directory");
    let (from, layout) = tree(&dir, "layout");
    let packed = barge(&["pack", &from, &layout, "--oci", "--json", "-q"]);
    stdout_of(&packed);
    let found = object(&packed);
    let blob = |digest: &Value| {
        let digest = digest.as_str().expect("a digest").replace(':', "/");
        Path::new(&layout).join("blobs").join(digest)
    };
    let manifest = blob(&found["oci"]["manifest"]);
    let index = fs::read(Path::new(&layout).join("index.json")).expect("read");
    let index: Value = serde_json::from_slice(&index).expect("JSON");
    assert_eq!(found["oci"]["manifest"], index["manifests"][0]["digest"]);
    assert_eq!(found["oci"]["reference"], format!("oci:{layout}"));
    let manifest: Value = serde_json::from_slice(&fs::read(manifest).expect("read")).expect("JSON");
    let layer = &manifest["layers"][0];
    assert_eq!(
        (&found["digest"], &found["size"]),
        (&layer["digest"], &layer["size"])
    );
    assert_eq!(found["digest"], sha256(&blob(&found["digest"])));
}

#[test]
fn check_counts_the_errors_that_it_writes_to_standard_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let (from, image) = tree(&dir, "image");
    stdout_of(&barge(&["pack", &from, &image, "-q"]));
    let mut bytes = fs::read(&image).expect("read");
    let at = bytes.windows(100).position(|window| window == [7; 100]);
    bytes[at.expect("the contents of b")] ^= 1;
    fs::write(&image, bytes).expect("written");
    let checked = barge(&["check", &image, "--json"]);
    assert_eq!(checked.status.code(), Some(1));
    let found = object(&checked);
    assert_eq!(found["valid"], false);
    let lines = stderr_of(&checked).lines().count();
    assert_eq!(found["errors"], lines);
    assert!(lines > 0);
    // No image at all: one line, and no object.
    let none = barge(&["check", &from, "--json"]);
    assert!(none.stdout.is_empty() && stderr_of(&none).lines().count() == 1);
}

#[test]
fn cp_counts_what_it_copied_and_what_it_did_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let (from, to) = tree(&dir, "copy");
    let copied = barge(&["cp", "-r", &from, &to, "--json"]);
    stdout_of(&copied);
    let expected = json!({
        "destination": to,
        "files": 2,
        "directories": 2,
        "others": 1,
        "bytes": 100_008,
        "errors": 0,
    });
    assert_eq!(object(&copied), expected);
    let missing = format!("{from}/missing");
    let partly = barge(&["cp", &format!("{from}/a"), &missing, &to, "--json"]);
    assert_eq!(partly.status.code(), Some(1));
    let found = object(&partly);
    let counts = (&found["files"], &found["bytes"], &found["errors"]);
    assert_eq!(counts, (&json!(1), &json!(8), &json!(1)));
    assert_eq!(stderr_of(&partly).lines().count(), 1);
}

#[test]
fn a_configuration_is_checked_and_shown() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("barge.toml");
    let at = file.to_str().expect("text");
    let text = "9p = 'unix:/run/x'\nworkers = 7\n[[share]]\nname = 'a'\nsource = 'mem:'\nread-only = true\n";
    fs::write(&file, text).expect("written");
    let checked = barge(&["config", "check", at, "--json"]);
    stdout_of(&checked);
    let expected = json!({ "file": at, "valid": true, "errors": [] });
    assert_eq!(object(&checked), expected);
    let shown = barge(&["config", "show", at, "--json"]);
    stdout_of(&shown);
    let shown = object(&shown);
    assert_eq!(shown["9p"], json!(["unix:/run/x"]));
    assert_eq!(shown["workers"].to_string().trim_matches('"'), "7");
    let share = &shown["share"][0];
    let found = (&share["name"], &share["source"], &share["read-only"]);
    assert_eq!(found, (&json!("a"), &json!("mem:"), &json!(true)));
    fs::write(&file, "workers = 'many'\nbad = 1\n").expect("written");
    let checked = barge(&["config", "check", at, "--json"]);
    assert_eq!(checked.status.code(), Some(2));
    let found = object(&checked);
    let lines: Vec<String> = stderr_of(&checked).lines().map(str::to_owned).collect();
    assert_eq!(
        found,
        json!({ "file": at, "valid": false, "errors": lines })
    );
    assert!(!lines.is_empty());
    let shown = barge(&["config", "show", at, "--json"]);
    assert!(shown.status.code() == Some(2) && shown.stdout.is_empty());
}

/// Ends the process that holds a mount.
fn stop(pid: &Value) {
    let pid = pid.as_i64().expect("a number") as i32;
    kill_process(Pid::from_raw(pid).expect("a process"), Signal::TERM).expect("it runs");
}

#[test]
fn a_mount_says_where_it_is_and_how() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (from, at) = tree(&dir, "mnt");
    fs::create_dir(&at).expect("made");
    let is_mounted = || Path::new(&at).join("a").exists();
    let expected = |pid: &Value, read_only: bool| {
        json!({
            "source": from,
            "mountpoint": at,
            "backend": "fuse",
            "read_only": read_only,
            "pid": pid,
        })
    };
    // In the background.
    let mounted = barge(&["mount", &from, &at, "--json"]);
    stdout_of(&mounted);
    let found = object(&mounted);
    assert!(is_mounted());
    assert_eq!(found, expected(&found["pid"], false));
    stop(&found["pid"]);
    wait_until("it is unmounted", || !is_mounted());
    // In the foreground.
    let mut command = Command::new(BARGE);
    command.args(["mount", "-f", &from, &at, "-o", "ro", "--json"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
    let mut line = String::new();
    let out = child.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut line).expect("read");
    let found: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(found, expected(&json!(child.id()), true));
    stop(&found["pid"]);
    assert!(child.wait().expect("a child").success());
    // A failure has no object.
    let refused = barge(&["mount", "/nonexistent", &at, "--json"]);
    assert!(refused.stdout.is_empty());
    assert!(stderr_of(&refused).contains("barge: /nonexistent: "));
    let remount = barge(&["mount", &from, &at, "-o", "remount,ro", "--json"]);
    assert_eq!(remount.status.code(), Some(2));
}

#[test]
fn a_mount_of_an_image_says_whether_the_kernel_reads_it() {
    if !may_mount() || !rustix::process::geteuid().is_root() || !has("umount") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (from, image) = tree(&dir, "image");
    let at = dir.path().join("mnt");
    fs::create_dir(&at).expect("made");
    stdout_of(&barge(&["pack", &from, &image, "-q"]));
    let mounted = barge(&["mount", &image, at.to_str().expect("text"), "--json"]);
    stdout_of(&mounted);
    let found = object(&mounted);
    let mounts = fs::read_to_string("/proc/self/mounts").expect("read");
    let own = mounts
        .lines()
        .find(|line| line.contains(&*at.to_string_lossy()));
    let own = own.expect("mounted");
    let kind = own.split(' ').nth(2).expect("a type");
    let backend = found["backend"].as_str().expect("a name");
    assert!(kind.starts_with(backend), "{own}: {found}");
    assert_eq!(found["read_only"], true);
    assert_eq!(found["pid"].is_null(), backend == "erofs");
    let unmounted = Command::new("umount").arg(&at).status();
    assert!(unmounted.expect("runs").success());
}
