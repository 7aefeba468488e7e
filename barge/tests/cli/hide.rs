//! Hidden paths over every protocol.

use std::fs;
use std::process::Command;

use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

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
            let missing = stderr_of(&run("cat", path));
            assert!(missing.contains("No such file"), "{missing}");
        }
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
