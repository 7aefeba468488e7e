//! Confinement of the process that serves a mount.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use nix::libc;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::stopped::Stopped;
use super::{can_run, is_alone};
use crate::mount::{Mounted, OWN_DEVICE, may_mount, unmount};
use crate::served::{BARGE, ServerProcess, has, stdout_of};

/// A directory that is mounted at `at`, with a file beside it.
struct Bed {
    dir: TempDir,
    mounted: Mounted,
}

impl Bed {
    /// Mounts the directory `share` with the options `options`, or a server that serves it.
    fn new(options: &str, server: Option<&ServerProcess>) -> Bed {
        let dir = tempfile::tempdir().expect("a directory");
        for made in ["share", "at"] {
            fs::create_dir(dir.path().join(made)).expect("made");
        }
        fs::write(dir.path().join("share/file"), "served\n").expect("written");
        fs::write(dir.path().join("beside"), "not served\n").expect("written");
        let share = dir.path().join("share").display().to_string();
        let source = server.map_or(share, |server| format!("9p://127.0.0.1:{}/", server.port()));
        let at = dir.path().join("at");
        let mounted = Mounted::new(&["-o", options, &source], &at);
        let text = fs::read(at.join("file")).expect("read");
        assert_eq!(text, b"served\n");
        Bed { dir, mounted }
    }

    fn path(&self, name: &str) -> PathBuf {
        let dir = self.dir.path().canonicalize().expect("it exists");
        dir.join(name)
    }

    fn stop_server(&self) -> Stopped {
        Stopped::attach(self.mounted.serving_id())
    }

    /// Checks that another process continues the mount of a directory after one that was killed.
    fn continues(self) {
        let text = fs::read(self.path("at/file")).expect("read");
        assert_eq!(text, b"served\n");
        unmount(&self.path("at"));
        assert!(self.mounted.ended().success());
    }

    /// Removes the mount of a process that was killed, and checks that its holder has failed.
    fn has_failed(self) {
        unmount(&self.path("at"));
        assert_eq!(self.mounted.ended().code(), Some(1));
    }
}

#[test]
fn injected_code_in_a_mount_reaches_its_source_alone() {
    if !can_run() || !may_mount() {
        return;
    }
    let bed = Bed::new("seccomp=none,passthrough=off", None);
    let server = bed.stop_server();
    assert!(server.open(&bed.path("share/file"), libc::O_RDWR).is_ok());
    for path in [
        "/etc/passwd".into(),
        bed.path("beside"),
        bed.path("at/file"),
    ] {
        let opened = server.open(&path, libc::O_RDONLY);
        assert_eq!(opened, Err(libc::ENOENT), "{}", path.display());
    }
    assert_eq!(server.execute("/bin/true"), Err(libc::ENOENT));
    is_alone(&server);
    let at = server.put_path(&bed.path("share"));
    let mount = [at, at, 0, libc::MS_BIND];
    let mounted = server.call(libc::SYS_mount, mount).expect("it survives");
    assert_eq!(mounted, Err(libc::EPERM));
    server.kill();
    bed.continues();
}

#[test]
fn a_system_call_beyond_the_filter_ends_the_process_that_serves_a_mount() {
    if !can_run() || !may_mount() {
        return;
    }
    for number in [
        libc::SYS_socket,
        libc::SYS_execve,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_ptrace,
        libc::SYS_kill,
    ] {
        let bed = Bed::new("defaults", None);
        let ended = bed.stop_server().call(number, [0; 4]);
        assert_eq!(ended, Err(Signal::SIGSYS), "{number}");
        bed.continues();
    }
}

#[test]
fn a_mount_of_another_server_executes_and_mounts_nothing() {
    if !can_run() || !may_mount() {
        return;
    }
    let share = tempfile::tempdir().expect("a directory");
    fs::write(share.path().join("file"), "served\n").expect("written");
    let served = ServerProcess::start(&[&share.path().display().to_string()]);
    let bed = Bed::new("seccomp=errno", Some(&served));
    let server = bed.stop_server();
    for number in [libc::SYS_execve, libc::SYS_mount, libc::SYS_umount2] {
        let refused = server.call(number, [0; 4]);
        assert_eq!(refused, Ok(Err(libc::EPERM)), "{number}");
    }
    let beside = server.open(&bed.path("new"), libc::O_CREAT | libc::O_RDWR);
    assert_eq!(beside, Err(libc::EPERM));
    server.kill();
    bed.has_failed();
}

/// Whether it is confined or not.
#[test]
fn a_mount_ends_with_its_holder() {
    if !can_run() || !may_mount() {
        return;
    }
    for options in ["defaults", "sandbox=none"] {
        let bed = Bed::new(options, None);
        let serving = bed.mounted.serving_id();
        bed.mounted.kill();
        unmount(&bed.path("at"));
        let runs = || std::path::Path::new(&format!("/proc/{serving}")).exists();
        for _ in 0..500 {
            if !runs() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(!runs(), "{options}");
    }
}

#[test]
fn a_mount_without_confinement_has_none() {
    if !can_run() || !may_mount() {
        return;
    }
    let bed = Bed::new("sandbox=none", None);
    let server = bed.stop_server();
    assert!(server.open("/etc/passwd".as_ref(), libc::O_RDONLY).is_ok());
    server.kill();
    bed.continues();
}

/// Without privileges, the user's other files are out of reach as well.
#[test]
fn landlock_confines_a_mount_of_an_ordinary_user() {
    if !can_run() || !has("fusermount3") {
        return;
    }
    const USER: u32 = 65534;
    const SCRIPT: &str = r#"shift && exec "$@""#;
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().canonicalize().expect("it exists").join(name);
    for made in ["share", "at"] {
        fs::create_dir(path(made)).expect("made");
    }
    for file in ["share/file", "beside"] {
        fs::write(path(file), "text\n").expect("written");
    }
    for owned in ["", "share", "share/file", "beside", "at"] {
        std::os::unix::fs::chown(path(owned), Some(USER), Some(USER)).expect("root may");
    }
    let as_user = [
        "setpriv".into(),
        format!("--reuid={USER}"),
        format!("--regid={USER}"),
        "--clear-groups".into(),
    ];
    let mut mount = Command::new("unshare");
    mount
        .args(["-m", "sh", "-c", &format!("{OWN_DEVICE}{SCRIPT}"), "sh"])
        .arg(dir.path())
        .args(&as_user)
        .args([BARGE, "mount", "-f", "-o", "seccomp=none"])
        .args([path("share"), path("at")]);
    let mounted = ServerProcess::run(mount);
    let mut read = Command::new("nsenter");
    read.args(["-m", "-t", &mounted.id().to_string()])
        .args(&as_user)
        .arg("cat")
        .arg(path("at/file"));
    let read = read.output();
    assert_eq!(stdout_of(&read.expect("runs")), "text\n");
    let server = Stopped::attach(mounted.serving_id());
    assert!(server.open(&path("share/file"), libc::O_RDWR).is_ok());
    for other in ["/etc/passwd".into(), path("beside")] {
        let opened = server.open(&other, libc::O_RDONLY);
        assert_eq!(opened, Err(libc::EACCES), "{}", other.display());
    }
    assert_eq!(server.signal(), Err(libc::EPERM));
    server.kill();
    assert_eq!(mounted.wait().code(), Some(1));
}
