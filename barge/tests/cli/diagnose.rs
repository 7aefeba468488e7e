//! Common mistakes: each has a one-line message with the cause and the next step.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::geteuid;
use tempfile::TempDir;
use vfs_testkit::copy_program;

use crate::mount::may_mount;
use crate::served::{BARGE, has, stderr_of};

/// Makes a directory that other users may enter, with a tree to serve.
fn place() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::set_permissions(&dir, Permissions::from_mode(0o755)).expect("set");
    for name in ["documents", "full"] {
        fs::create_dir(dir.path().join(name)).expect("made");
    }
    for name in ["full/file", "text"] {
        fs::write(dir.path().join(name), "hello").expect("written");
    }
    dir
}

fn barge(dir: &TempDir, args: &[&str]) -> Output {
    let mut command = Command::new(BARGE);
    command.args(args).current_dir(dir).output().expect("runs")
}

/// Checks that it ended with `status` and printed a line that has all of `parts`.
#[track_caller]
fn tells(output: &Output, status: i32, parts: &[&str]) {
    let told = stderr_of(output);
    assert_eq!(output.status.code(), Some(status), "{told}");
    for part in parts {
        assert!(told.contains(part), "'{part}' in: {told}");
    }
    if status == 1 {
        // Limits of a source on this host are reported before, as on success.
        let lines: Vec<_> = told
            .lines()
            .filter(|line| !line.contains(" INFO "))
            .collect();
        assert_eq!(lines.len(), 1, "{told}");
    }
}

#[test]
fn sources_that_are_not_there() {
    let dir = place();
    let cwd = dir.path().display().to_string();
    let told = |args: &[&str], parts: &[&str]| tells(&barge(&dir, args), 1, parts);
    told(
        &["serve", "document"],
        &["document: no such file", &cwd, "did you mean documents?"],
    );
    told(
        &["ls", "documnets/a/b"],
        &["documnets does not exist", "did you mean documents?"],
    );
    told(
        &["mount", "host:/srv", "documents"],
        &["nfs://host/srv or 9p://host/srv"],
    );
    told(&["pack", "xyz", "image"], &["xyz: no such file"]);
    told(
        &["serve", "text"],
        &["expected an image", "barge pack DIR IMAGE"],
    );
    told(
        &["check", "text"],
        &["expected an EROFS or ROFS image", "truncated file"],
    );
    told(
        &["ls", "9p://127.0.0.1:1/"],
        &["refused", "is it running, and on this port?"],
    );
    told(
        &["ls", "9p+unix:none"],
        &["cannot connect to unix:none: No such file"],
    );
    let usage = |args: &[&str], parts: &[&str]| tells(&barge(&dir, args), 2, parts);
    usage(
        &["serve", "nsf://host/x"],
        &["'nsf'", "did you mean 'nfs://host/x'?"],
    );
    usage(&["ls", "smb://host/x"], &["got scheme 'smb'", "nfs://HOST"]);
    usage(&["serv"], &["'serve'"]);
    usage(&["serve", "--readonly"], &["--read-only"]);
}

#[test]
fn ports_that_cannot_be_had() {
    let dir = place();
    let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
    let taken = format!("tcp:{}", taken.local_addr().expect("bound"));
    let own = format!("(process {})", std::process::id());
    for option in ["--9p", "--nfs", "--nbd", "--http"] {
        let free = ["serve", "mem:", "--9p", "tcp:127.0.0.1:0", option, &taken];
        tells(
            &barge(&dir, &free),
            1,
            &[&taken, "in use by", &own, "choose another port"],
        );
    }
    let elsewhere = ["serve", "mem:", "--9p", "tcp:192.0.2.1:0"];
    tells(
        &barge(&dir, &elsewhere),
        1,
        &["no such address", "0.0.0.0 for others"],
    );
    let nobody = ["serve", "mem:", "--9p", "vsock:77:9999"];
    let output = barge(&dir, &nobody);
    let told = stderr_of(&output);
    assert!(
        told.contains("no such CID") || told.contains("no vsock"),
        "{told}"
    );
}

#[test]
fn the_usual_port_is_in_use() {
    let dir = place();
    // In use by this test or by another process.
    let _taken = TcpListener::bind("127.0.0.1:5640");
    let parts = [
        "tcp:127.0.0.1:5640",
        "in use",
        "--9p tcp:127.0.0.1:0 selects a free port",
    ];
    tells(&barge(&dir, &["serve"]), 1, &parts);
}

#[test]
fn sockets_that_cannot_be_made() {
    let dir = place();
    let told = |socket: &str, parts: &[&str]| {
        let nine = format!("unix:{socket}");
        tells(&barge(&dir, &["serve", "mem:", "--9p", &nine]), 1, parts);
        tells(
            &barge(&dir, &["serve", "mem:", "--virtiofs", socket]),
            1,
            parts,
        );
    };
    told(
        "none/socket",
        &["directory none does not exist", "mkdir -p none"],
    );
    told("text", &["not a socket", "remove it"]);
    assert_eq!(fs::read(dir.path().join("text")).expect("there"), b"hello");
    told("text/socket", &["text is not a directory"]);
    told(&"long/".repeat(30), &["at most 107 bytes, got 150"]);
    let path = dir.path().join("socket");
    let _taken = UnixListener::bind(&path).expect("bound");
    let own = format!("(process {})", std::process::id());
    told(
        path.to_str().expect("text"),
        &[&own, "in use", "choose another path"],
    );
    let monitor = format!("vsock-uds:{}:7", dir.path().join("none/vm").display());
    tells(
        &barge(&dir, &["serve", "mem:", "--9p", &monitor]),
        1,
        &["mkdir -p"],
    );
}

#[test]
fn mount_points_that_are_none() {
    let dir = place();
    let told = |at: &str, parts: &[&str]| {
        tells(&barge(&dir, &["mount", "mem:", at]), 1, parts);
        let connect = ["connect", "9p://127.0.0.1:1/", at];
        tells(&barge(&dir, &connect), 1, parts);
    };
    told("none", &["none: no such directory", "mkdir -p /", "/none"]);
    told("text", &["expected a directory", "got a file"]);
}

#[test]
fn a_mount_point_that_is_not_empty_is_told_of() {
    let dir = place();
    if !may_mount() {
        return;
    }
    let output = barge(&dir, &["mount", "mem:", "full"]);
    let at = dir.path().join("full");
    let unmounted = Command::new("umount").arg(&at).status();
    assert!(output.status.success() && unmounted.expect("runs").success());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("full: the directory is not empty"), "{told}");
    assert!(at.join("file").exists());
}

/// Runs the program as an unprivileged user, with `more` of setpriv(1) or unshare(1).
fn as_nobody(dir: &TempDir, path: &str, args: &[&str]) -> Option<Output> {
    if !geteuid().is_root() || !has("setpriv") {
        eprintln!("skipped: becoming another user takes root, and setpriv (package util-linux)");
        return None;
    }
    let program = dir.path().join("barge");
    if !program.exists() {
        copy_program(BARGE, &program);
    }
    let mut command = Command::new("/usr/bin/setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    let command = command.arg(program).args(args).current_dir(dir);
    Some(command.env("PATH", path).output().expect("runs"))
}

#[test]
fn users_without_privileges() {
    let dir = place();
    let own = dir.path().join("documents");
    std::os::unix::fs::chown(&own, Some(65534), None).ok();
    let path = std::env::var("PATH").expect("set");
    let low = ["serve", "mem:", "--9p", "tcp:127.0.0.1:99"];
    let Some(output) = as_nobody(&dir, &path, &low) else {
        return;
    };
    tells(
        &output,
        1,
        &["below 1024", "choose one from 1024 on", "root"],
    );
    let there = dir.path().join("socket").display().to_string();
    let nine = format!("unix:{there}");
    let socket = as_nobody(&dir, &path, &["serve", "mem:", "--9p", &nine]).expect("as before");
    tells(&socket, 1, &["cannot create files in", "$XDG_RUNTIME_DIR"]);
    let mount = ["mount", "mem:", "documents"];
    let open = Path::new("/dev/fuse");
    let for_all = fs::metadata(open).is_ok_and(|found| found.permissions().mode() & 0o6 == 0o6);
    let parts: &[&str] = match (open.exists(), for_all) {
        (true, true) => &["fusermount3 is not installed", "fuse3"],
        (true, false) => &["cannot open /dev/fuse", "chmod 666 /dev/fuse"],
        (false, _) => &["there is no /dev/fuse", "modprobe fuse"],
    };
    tells(
        &as_nobody(&dir, "/none", &mount).expect("as before"),
        1,
        parts,
    );
}

/// Runs the program as root in namespaces of its own, after `script`.
fn in_namespaces(dir: &TempDir, script: &str, args: &[&str]) -> Option<Output> {
    if !geteuid().is_root() || !has("unshare") {
        eprintln!("skipped: a namespace for mounts takes root, and unshare (package util-linux)");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "sh",
        "-c",
        &format!("{script} exec \"$@\""),
        "sh",
    ]);
    let output = command.arg(BARGE).args(args).current_dir(dir).output();
    Some(output.expect("runs"))
}

#[test]
fn containers_without_the_device_or_the_right_to_mount() {
    let dir = place();
    let mount = ["mount", "mem:", "documents"];
    let empty = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 &&";
    let Some(output) = in_namespaces(&dir, empty, &mount) else {
        return;
    };
    tells(
        &output,
        1,
        &["no /dev/fuse", "modprobe fuse", "--device /dev/fuse"],
    );
    if !may_mount() {
        return;
    }
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]);
    let output = command.arg(BARGE).args(mount).current_dir(&dir).output();
    tells(
        &output.expect("runs"),
        1,
        &["CAP_SYS_ADMIN", "--cap-add SYS_ADMIN"],
    );
}
