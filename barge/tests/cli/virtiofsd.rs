//! `barge virtiofsd`, as monitors and management programs use virtiofsd.

use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use vhost::VhostBackend;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};

use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

fn virtiofsd(dir: &Path) -> Command {
    let mut command = Command::new(BARGE);
    command
        .arg("virtiofsd")
        .args(["--log-level", "warn", "--shared-dir"])
        .arg(dir);
    command
}

/// Negotiates all offered features, and returns the protocol features.
fn negotiate(monitor: &mut Frontend) -> VhostUserProtocolFeatures {
    monitor.set_owner().expect("taken");
    let features = monitor.get_features().expect("features");
    monitor.set_features(features).expect("agreed");
    let protocol = monitor.get_protocol_features().expect("features");
    monitor.set_protocol_features(protocol).expect("agreed");
    protocol
}

#[test]
fn a_link_named_virtiofsd_says_what_it_can_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let link = dir.path().join("virtiofsd");
    std::os::unix::fs::symlink(BARGE, &link).expect("linked");
    let output = Command::new(&link).arg("--print-capabilities").output();
    let told: serde_json::Value =
        serde_json::from_str(&stdout_of(&output.expect("runs"))).expect("JSON");
    assert_eq!(told["type"], "fs");
    let features = told["features"].as_array().expect("a list");
    assert!(features.contains(&"separate-options".into()), "{told}");
    assert!(features.contains(&"migrate-precopy".into()), "{told}");
    let named = Command::new(BARGE).arg0("/x/virtiofsd").arg("-V").output();
    assert!(stdout_of(&named.expect("runs")).contains("virtiofsd"));
}

#[test]
fn a_monitor_is_served_until_it_goes() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("socket");
    let mut command = virtiofsd(dir.path());
    command
        .args(["--tag", "share", "--cache=never", "--socket-path"])
        .arg(&socket);
    let served = ServerProcess::run(command);
    let mode = std::fs::metadata(&socket).expect("made").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let mut monitor = Frontend::connect(&socket, 1).expect("connected");
    assert!(negotiate(&mut monitor).contains(VhostUserProtocolFeatures::CONFIG));
    let room = [0; 40];
    let (_, config) = monitor
        .get_config(0, 40, VhostUserConfigFlags::empty(), &room)
        .expect("a configuration");
    assert_eq!(&config[..7], b"share\0\0");
    drop(monitor);
    assert!(served.wait().success());
    assert!(!socket.exists(), "removed");
}

/// User-mode Linux has no tag of its own for a device.
#[test]
fn a_device_of_serve_tells_its_tag() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (named, tagged) = (format!("a={}", at("named")), at("tagged"));
    let tagged_device = format!("{tagged},tag=x");
    let source = format!("a={}", dir.path().display());
    let served =
        ServerProcess::start(&["--virtiofs", &named, "--virtiofs", &tagged_device, &source]);
    let mount = "mount -t virtiofs x /mnt";
    assert!(served.output.iter().any(|line| line == mount));
    for (socket, tag) in [(at("named"), b"a\0"), (tagged, b"x\0")] {
        let mut monitor = Frontend::connect(&socket, 1).expect("connected");
        assert!(negotiate(&mut monitor).contains(VhostUserProtocolFeatures::CONFIG));
        let (_, config) = monitor
            .get_config(0, 40, VhostUserConfigFlags::empty(), &[0; 40])
            .expect("a configuration");
        assert_eq!(&config[..2], tag);
    }
    assert!(served.stop().success());

    let long = format!("/s,tag={}", "x".repeat(37));
    let refused = Command::new(BARGE)
        .args(["serve", &source, "--virtiofs", &long])
        .output()
        .expect("runs");
    assert_eq!(refused.status.code(), Some(2));
    let error = stderr_of(&refused);
    assert!(error.contains("expected a tag of 1 to 36 bytes"), "{error}");
}

/// As libvirt starts it: with an inherited listening socket and without a tag.
#[test]
fn an_inherited_socket_is_listened_at() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).expect("bound");
    let inherited = rustix::io::dup(&listener).expect("without close-on-exec");
    let mut command = virtiofsd(dir.path());
    command
        .arg(format!("--fd={}", inherited.as_raw_fd()))
        .args(["-o", "cache=none,xattr,no_posix_lock", "--sandbox=chroot"])
        .args(["--translate-uid", "map:0:1000:1"])
        .args(["--translate-uid", "forbid-guest:1000:1"]);
    let served = ServerProcess::run(command);
    let mut monitor = Frontend::connect(&socket, 1).expect("connected");
    assert!(!negotiate(&mut monitor).contains(VhostUserProtocolFeatures::CONFIG));
    drop(monitor);
    assert!(served.wait().success());
}

/// The Rust runtime of Kata waits for a line of the log, the Go runtime passes a socket.
#[test]
fn both_runtimes_of_kata_start_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("socket");
    let mut of_rust = Command::new(BARGE);
    of_rust.arg("virtiofsd").arg("--socket-path").arg(&socket);
    of_rust.arg("--shared-dir").arg(dir.path());
    of_rust.args(["--cache", "auto", "--sandbox", "none", "--seccomp", "none"]);
    of_rust.args(["--inode-file-handles", "prefer", "--xattr"]);
    let mut child = of_rust
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut log = BufReader::new(child.stderr.take().expect("piped")).lines();
    let waits = "Waiting for vhost-user socket connection";
    assert!(log.any(|line| line.expect("text").contains(waits)));
    drop(Frontend::connect(&socket, 1).expect("connected"));
    assert!(child.wait().expect("ends").success());

    let socket = dir.path().join("inherited");
    let listener = UnixListener::bind(&socket).expect("bound");
    let inherited = rustix::io::dup(&listener).expect("without close-on-exec");
    let mut of_go = Command::new(BARGE);
    of_go.args(["virtiofsd", "--syslog", "--cache=auto"]);
    of_go.arg(format!("--shared-dir={}", dir.path().display()));
    of_go.arg(format!("--fd={}", inherited.as_raw_fd()));
    of_go.args(["--thread-pool-size=1", "-o", "announce_submounts"]);
    let served = ServerProcess::run(of_go);
    drop(Frontend::connect(&socket, 1).expect("connected"));
    assert!(served.wait().success());
}

#[test]
fn what_makes_no_sense_is_status_2_and_what_cannot_be_status_1() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("socket");
    let socket = socket.to_str().expect("text");
    let cases: &[(&[&str], i32, &str)] = &[
        (&["--posix-acl=maybe"], 2, "never, auto, always"),
        (&["--fd", "3"], 2, "cannot be used with"),
        (&["--tag", ""], 2, "expected a tag of 1 to 36 bytes"),
        (&["--xattrmap", ":ok:"], 2, "expected :TYPE:SCOPE:KEY"),
        (&["--modcaps=+chwon"], 2, "expected +CAPABILITY"),
        (&["--modcaps=-dac_read_search"], 2, "inode-file-handles"),
        (&["--uid-map", "0:1:2"], 2, "expected :NAMESPACE:HOST"),
        (&["--translate-uid", "map:0"], 2, "expected TYPE:FROM"),
        (
            &["--translate-gid=map:0:0:2", "--translate-gid=host:1:5:1"],
            2,
            "--translate-gid: expected disjoint ranges",
        ),
        (&["-o", "nonsense"], 2, "-o nonsense: expected"),
        (&["-o", "source=/no/such/place"], 1, "/no/such/place"),
        (&["--socket-group", "no-such-group"], 2, "no-such-group"),
    ];
    for (args, status, why) in cases {
        let mut command = virtiofsd(dir.path());
        command.args(["--socket-path", socket]).args(*args);
        let output = command.output().expect("runs");
        let told = stderr_of(&output);
        assert_eq!(output.status.code(), Some(*status), "{args:?}: {told}");
        assert!(told.contains(why), "{args:?}: {told}");
    }
    let without = Command::new(BARGE).args(["virtiofsd", "--fd=3"]).output();
    assert!(stderr_of(&without.expect("runs")).contains("--shared-dir"));
}

/// Capabilities that are not needed are dropped; `--modcaps` keeps or drops others.
#[test]
fn the_super_user_keeps_few_capabilities() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only the super-user has any");
    }
    const SETFCAP: u64 = 1 << 31;
    const SYS_ADMIN: u64 = 1 << 21;
    let dir = tempfile::tempdir().expect("a directory");
    let kept = |modcaps: &[&str]| {
        let mut command = virtiofsd(dir.path());
        command
            .arg("--socket-path")
            .arg(dir.path().join("socket"))
            .args(modcaps);
        let served = ServerProcess::run(command);
        let status = std::fs::read_to_string(format!("/proc/{}/status", served.serving_id()));
        let status = status.expect("it runs");
        let caps = status.lines().find_map(|line| line.strip_prefix("CapPrm:"));
        u64::from_str_radix(caps.expect("a line").trim(), 16).expect("a number")
    };
    let usual = kept(&[]);
    assert_eq!(usual & (SETFCAP | SYS_ADMIN), SETFCAP);
    let other = kept(&["--modcaps=-setfcap:+sys_admin"]);
    assert_eq!(other & SETFCAP, 0);
    assert_eq!(other & !SYS_ADMIN, usual & !SETFCAP);
}
