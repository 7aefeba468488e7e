//! Hidden paths over every protocol.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::geteuid;

use crate::served::{BARGE, ServerProcess, has, stderr_of, stdout_of};
use crate::small_disk::SmallDisk;

#[test]
fn hidden_paths_are_out_of_reach_over_every_protocol() {
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    for path in ["store/a/bin", "store/b", "home/me/.ssh"] {
        fs::create_dir_all(tree.join(path)).expect("made");
    }
    for path in [
        "store/a/bin/tool",
        "store/b/file",
        "home/me/.ssh/id",
        "home/me/x.key",
    ] {
        fs::write(tree.join(path), path).expect("written");
    }
    let list = dir.path().join("list");
    let listed = format!("{}/store/a\nhome\n", tree.display());
    fs::write(&list, listed).expect("written");
    for (endpoint, scheme) in [("--9p", "9p"), ("--nfs", "nfs")] {
        let mut command = Command::new(BARGE);
        command.args(["serve", endpoint, "tcp:127.0.0.1:0", "--hide", "*.key"]);
        command
            .args(["--hide", "/home/*/.ssh", "--only"])
            .arg(&list)
            .arg(&tree);
        let served = ServerProcess::run(command);
        let run = |command: &str, path: &str| {
            let url = format!("{scheme}://127.0.0.1:{}/{path}", served.port());
            let ran = Command::new(BARGE).args([command, &url]).output();
            ran.expect("runs")
        };
        let ls = |path: &str| {
            let listed = stdout_of(&run("ls", path));
            listed
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(ls(""), ["home", "store"], "{endpoint}");
        assert_eq!(ls("store"), ["a"], "{endpoint}");
        assert!(ls("home/me").is_empty(), "{endpoint}");
        let tool = stdout_of(&run("cat", "store/a/bin/tool"));
        assert_eq!(tool, "store/a/bin/tool");
        for path in ["store/b/file", "home/me/.ssh/id", "home/me/x.key"] {
            let found = run("cat", path);
            assert!(!found.status.success(), "{path}");
            let missing = stderr_of(&found);
            assert!(missing.contains("No such file"), "{missing}");
        }
    }
}

/// The case of names was regarded, and `SECRET.KEY` was shown with `--hide '*.key'`.
#[test]
fn hidden_names_are_out_of_reach_in_each_case_on_file_systems_that_ignore_case() {
    if !geteuid().is_root() {
        return eprintln!("skipped: file systems take root");
    }
    let casefold = ["mkfs.ext4", "-q", "-O", "casefold", "-E", "encoding=utf8"];
    let exfat = ["mkfs.exfat"];
    let fuse = ["mount", "-t", "exfat-fuse", "-o", "loop,allow_other"];
    for (what, mkfs, mount) in [
        (
            "casefold of ext4",
            &casefold[..],
            &["mount", "-o", "loop"][..],
        ),
        ("exfat-fuse and exfatprogs", &exfat, &fuse),
    ] {
        let disk = match has(mkfs[0]) || Path::new("/usr/sbin").join(mkfs[0]).exists() {
            true => SmallDisk::mounted_by(mkfs, 64 << 20, mount),
            false => None,
        };
        match disk {
            Some(disk) => hides_each_case(&disk.path().join("tree")),
            None => eprintln!("skipped: there is no {what} here"),
        }
    }
}

/// Serves a new directory of a file system that ignores case with hidden names.
fn hides_each_case(tree: &Path) {
    fs::create_dir(tree).expect("made");
    let _ = Command::new("chattr").arg("+F").arg(tree).output();
    fs::create_dir_all(tree.join("Home/.ssh")).expect("made");
    for path in ["SECRET.KEY", "new.key", "notes", "Home/.ssh/id"] {
        fs::write(tree.join(path), path).expect("written");
    }
    for (endpoint, scheme) in [("--9p", "9p"), ("--nfs", "nfs")] {
        let mut command = Command::new(BARGE);
        command.args(["serve", endpoint, "tcp:127.0.0.1:0", "--hide=*.key"]);
        command.arg("--hide=/home/.ssh").arg(tree);
        let served = ServerProcess::run(command);
        let run = |command: &str, path: &str| {
            let url = format!("{scheme}://127.0.0.1:{}/{path}", served.port());
            let ran = Command::new(BARGE).args([command, &url]).output();
            ran.expect("runs")
        };
        assert_eq!(stdout_of(&run("ls", "")), "Home\nnotes\n", "{endpoint}");
        assert_eq!(stdout_of(&run("ls", "HOME")), "", "{endpoint}");
        assert_eq!(stdout_of(&run("cat", "Notes")), "notes", "{endpoint}");
        for path in [
            "SECRET.KEY",
            "secret.key",
            "Secret.Key",
            "new.key",
            "NEW.KEY",
            "Home/.ssh/id",
            "home/.SSH/ID",
        ] {
            assert!(fs::read(tree.join(path)).is_ok(), "{path}");
            let found = run("cat", path);
            assert!(!found.status.success(), "{path}");
            let missing = stderr_of(&found);
            assert!(missing.contains("No such file"), "{path}: {missing}");
        }
        let url = format!("{scheme}://127.0.0.1:{}/Other.KEY", served.port());
        let copied = Command::new(BARGE).args(["cp", "/dev/null", &url]).output();
        let refused = stderr_of(&copied.expect("runs"));
        assert!(refused.contains("Permission denied"), "{refused}");
        assert!(served.stop().success());
    }
}

#[test]
fn a_bad_rule_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let list = dir.path().join("list");
    fs::write(&list, "a/../b\n").expect("written");
    let list = list.display().to_string();
    for (args, status, expected) in [
        (["--hide", "a//b"], 2, "expected a pattern"),
        (["--hide", "[a"], 2, "expected a ']'"),
        (["--only", "missing"], 1, "missing: No such file"),
        (["--only", &list], 1, "expected a path without '..'"),
    ] {
        let mut command = Command::new(BARGE);
        command
            .args(["serve", "--9p", "tcp:127.0.0.1:0"])
            .args(args);
        let refused = command.arg(dir.path()).current_dir(dir.path()).output();
        let refused = refused.expect("runs");
        assert_eq!(refused.status.code(), Some(status), "{args:?}");
        let error = stderr_of(&refused);
        assert!(error.contains(expected), "{error}");
    }
}
