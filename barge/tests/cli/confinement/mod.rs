//! Confinement of the process that serves: the tests stop it with ptrace(2) and make it carry out
//! system calls, as code that has taken it over would.

#![cfg(target_arch = "x86_64")]

mod broker_requests;
mod features;
mod mounts;
mod nlm;
mod stopped;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::libc;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tempfile::TempDir;

use self::stopped::Stopped;
use vfs_testkit::wait_until;

use crate::served::{BARGE, ServerProcess, has, stderr_of};

/// A directory with a share and a file beside it, which are served.
struct Bed {
    dir: TempDir,
    served: ServerProcess,
}

impl Bed {
    /// Starts `barge virtiofsd` with `args` as user `uid`.
    fn start(args: &[&str], uid: u32) -> Bed {
        Bed::run(uid, |command, dir| {
            command
                .args(["virtiofsd", "--shared-dir"])
                .arg(dir.join("share"))
                .arg("--socket-path")
                .arg(dir.join("socket"))
                .args(args);
        })
    }

    /// Starts `barge serve` with `args` as user `uid`, with NFS at `socket`.
    fn serve(args: &[&str], uid: u32) -> Bed {
        Bed::run(uid, |command, dir| {
            command
                .args(["serve", "--nfs"])
                .arg(format!("unix:{}", dir.join("socket").display()))
                .arg("--nfs-state-dir")
                .arg(dir.join("state"))
                .arg(dir.join("share"))
                .args(args);
        })
    }

    /// Starts `barge` as user `uid` with the arguments that `arguments` adds.
    fn run(uid: u32, arguments: impl Fn(&mut Command, &Path)) -> Bed {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("share")).expect("made");
        fs::write(dir.path().join("share/file"), "served\n").expect("written");
        fs::write(dir.path().join("beside"), "not served\n").expect("written");
        for path in ["", "share", "share/file"] {
            std::os::unix::fs::chown(dir.path().join(path), Some(uid), Some(uid))
                .expect("root may");
        }
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--reuid={uid}"))
            .arg(format!("--regid={uid}"))
            .args(["--clear-groups", BARGE]);
        arguments(&mut command, dir.path());
        let served = ServerProcess::run(command);
        Bed { dir, served }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir
            .path()
            .canonicalize()
            .expect("it exists")
            .join(name)
    }

    fn stop_server(&self) -> Stopped {
        Stopped::attach(self.served.serving_id())
    }
}

/// Returns where the directory `name` is mounted in the root of `process`, if it is.
fn place_of(process: u32, name: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string(format!("/proc/{process}/mountinfo")).expect("it runs");
    let fields = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let found = fields.into_iter().find(|fields| {
        let root = Path::new(fields[3]);
        root.file_name().is_some_and(|last| last == name) && root != Path::new(fields[4])
    });
    found.map(|fields| fields[4].into())
}

/// Reads `file` of the share as a guest.
fn read_as_guest(socket: &Path) -> Vec<u8> {
    let url = format!("virtiofs:{}/file", socket.display());
    let output = Command::new(BARGE).args(["cat", &url]).output();
    let output = output.expect("runs");
    assert!(output.status.success(), "{}", stderr_of(&output));
    output.stdout
}

/// Reads `file` of the share over NFS.
fn read_over_nfs(bed: &Bed) -> Vec<u8> {
    let url = format!("nfs+unix:{}?path=file", bed.path("socket").display());
    let output = Command::new(BARGE).args(["cat", &url]).output();
    let output = output.expect("runs");
    assert!(output.status.success(), "{}", stderr_of(&output));
    output.stdout
}

/// Starts `barge virtiofsd` with `args` as user `uid`, and checks that a guest is served and that
/// the server [opens the share alone](opens_the_share_alone).
fn reaches_the_share_alone(args: &[&str], uid: u32, refused: i32) -> (Bed, Stopped) {
    let bed = Bed::start(args, uid);
    let read = read_as_guest(&bed.path("socket"));
    assert_eq!(read, b"served\n", "user {uid}");
    // It has ended with its guest.
    let bed = Bed::start(args, uid);
    let server = opens_the_share_alone(&bed, refused);
    (bed, server)
}

/// Stops the server of `bed`, and checks that it opens files of the share, while other files and
/// programs are `refused`.
fn opens_the_share_alone(bed: &Bed, refused: i32) -> Stopped {
    let share = place_of(bed.served.serving_id(), "share").unwrap_or_else(|| bed.path("share"));
    let server = bed.stop_server();
    assert!(server.open(&share.join("file"), libc::O_RDWR).is_ok());
    for path in [Path::new("/etc/passwd"), &bed.path("beside")] {
        let opened = server.open(path, libc::O_RDONLY);
        assert_eq!(opened, Err(refused), "{}", path.display());
    }
    assert_eq!(server.execute("/bin/true"), Err(refused));
    server
}

/// Checks that a stopped server sees no devices and no settings of the kernel, as with a root of
/// its own, and reaches neither another host nor another process.
fn is_alone(server: &Stopped) {
    for path in ["/proc/sys/kernel/core_pattern", "/dev/null"] {
        let opened = server.open(Path::new(path), libc::O_RDONLY);
        assert_eq!(opened, Err(libc::ENOENT), "{path}");
    }
    // Landlock refuses TCP.
    let connected = server.connect(libc::SOCK_DGRAM, 53);
    assert_eq!(connected, Err(libc::ENETUNREACH));
    assert_eq!(server.signal(), Err(libc::ESRCH));
}

fn can_run() -> bool {
    let can = rustix::process::geteuid().is_root() && has("setpriv");
    if !can {
        eprintln!("skipped: it takes root, and setpriv (package util-linux)");
    }
    can
}

/// The super-user and another user, whose namespaces are in a user namespace.
const USERS: [u32; 2] = [0, 65534];

#[test]
fn injected_code_in_namespaces_reaches_the_share_alone() {
    if !can_run() {
        return;
    }
    for uid in USERS {
        let args = ["--sandbox=namespace", "--seccomp=none"];
        let (_bed, server) = reaches_the_share_alone(&args, uid, libc::ENOENT);
        is_alone(&server);
        server.kill();
    }
}

#[test]
fn injected_code_gets_no_privileges_in_namespaces() {
    if !can_run() {
        return;
    }
    for uid in USERS {
        let bed = Bed::start(&["--sandbox=namespace", "--seccomp=none"], uid);
        let server = bed.stop_server();
        let share = server.put_path(&bed.path("share"));
        let mount = [share, share, 0, libc::MS_BIND];
        let mounted = server.call(libc::SYS_mount, mount).expect("it survives");
        assert_eq!(mounted, Err(libc::EPERM), "user {uid}");
        let unshare = [libc::CLONE_NEWNS as u64, 0, 0, 0];
        let unshared = server
            .call(libc::SYS_unshare, unshare)
            .expect("it survives");
        assert_eq!(unshared, Err(libc::EPERM), "user {uid}");
        server.kill();
    }
    // The super-user may create devices, as guests do; nothing opens them.
    let bed = Bed::start(&["--sandbox=namespace", "--seccomp=none"], 0);
    let server = bed.stop_server();
    let device = bed.path("share/memory");
    let path = server.put_path(&device);
    let memory = libc::makedev(1, 1);
    let mknod = [
        libc::AT_FDCWD as u64,
        path,
        u64::from(libc::S_IFCHR | 0o600),
        memory,
    ];
    let made = server.call(libc::SYS_mknodat, mknod).expect("it survives");
    assert_eq!(made, Ok(0));
    assert_eq!(server.open(&device, libc::O_RDONLY), Err(libc::EACCES));
    server.kill();
}

#[test]
fn a_system_call_beyond_the_filter_ends_the_server() {
    if !can_run() {
        return;
    }
    let none = [0; 4];
    let internet = [libc::AF_INET as u64, libc::SOCK_STREAM as u64, 0, 0];
    let code = [
        0,
        4096,
        (libc::PROT_READ | libc::PROT_EXEC) as u64,
        libc::MAP_PRIVATE as u64,
    ];
    let process = [libc::SIGCHLD as u64, 0, 0, 0];
    let test = u64::from(std::process::id());
    for (number, arguments) in [
        (libc::SYS_socket, internet),
        (libc::SYS_execve, none),
        (libc::SYS_mmap, code),
        (libc::SYS_clone, process),
        (libc::SYS_ptrace, none),
        (libc::SYS_mount, none),
        (libc::SYS_setns, none),
        (libc::SYS_bpf, none),
        (libc::SYS_io_uring_setup, none),
        (libc::SYS_keyctl, none),
        (libc::SYS_kill, none),
        // Other processes than itself.
        (libc::SYS_prlimit64, [1, libc::RLIMIT_NOFILE as u64, 0, 0]),
        (libc::SYS_setpriority, [libc::PRIO_PROCESS as u64, 1, 19, 0]),
        (libc::SYS_setpriority, [libc::PRIO_USER as u64, 0, 19, 0]),
        (libc::SYS_sched_setaffinity, [1, 0, 0, 0]),
        (libc::SYS_tgkill, [test, test, libc::SIGCONT as u64, 0]),
    ] {
        let bed = Bed::start(&["--sandbox=none"], 0);
        let ended = bed.stop_server().call(number, arguments);
        assert_eq!(ended, Err(Signal::SIGSYS), "{number}");
        let bed = Bed::start(&[], 0);
        let ended = bed.stop_server().call(number, arguments);
        assert_eq!(ended, Err(Signal::SIGSYS), "{number}");
        assert_eq!(bed.served.wait().code(), Some(1));
    }
}

#[test]
fn landlock_refuses_other_files_and_the_network() {
    if !can_run() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    for uid in USERS {
        let args = [
            "--sandbox=chroot",
            "--inode-file-handles=never",
            "--seccomp=none",
        ];
        let (_bed, server) = reaches_the_share_alone(&args, uid, libc::EACCES);
        let connected = server.connect(libc::SOCK_STREAM, port);
        assert_eq!(connected, Err(libc::EACCES), "user {uid}");
        assert_eq!(server.signal(), Err(libc::EPERM), "user {uid}");
        server.kill();
    }
}

#[test]
fn the_server_ends_with_its_first_process_and_the_other_way_round() {
    if !can_run() {
        return;
    }
    let bed = Bed::start(&[], 0);
    let server = bed.stop_server();
    server.kill();
    assert_eq!(bed.served.wait().code(), Some(1));
    let bed = Bed::start(&[], 0);
    let (id, child) = (bed.served.id(), bed.served.serving_id());
    assert_ne!(id, child);
    nix::sys::signal::kill(Pid::from_raw(id as i32), Signal::SIGKILL).expect("it runs");
    drop(bed.served);
    let gone = || !Path::new(&format!("/proc/{child}")).exists();
    for _ in 0..500 {
        if gone() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("it still runs");
}

#[test]
fn a_server_keeps_few_capabilities() {
    if !can_run() {
        return;
    }
    const CHOWN: u64 = 1;
    const SYS_ADMIN: u64 = 1 << 21;
    const NET_ADMIN: u64 = 1 << 12;
    let kept = |modcaps: &[&str]| {
        let bed = Bed::serve(modcaps, 0);
        let path = format!("/proc/{}/status", bed.served.serving_id());
        let status = fs::read_to_string(path).expect("it runs");
        let set = |name: &str| {
            let set = status.lines().find_map(|line| line.strip_prefix(name));
            u64::from_str_radix(set.expect("a line").trim(), 16).expect("a number")
        };
        assert_eq!(set("CapPrm:"), set("CapBnd:"));
        set("CapPrm:")
    };
    let usual = kept(&[]);
    assert_eq!(usual & (CHOWN | SYS_ADMIN | NET_ADMIN), CHOWN);
    let other = kept(&["--modcaps=-chown:+sys_admin"]);
    assert_eq!(other, usual - CHOWN + SYS_ADMIN);
}

#[test]
fn injected_code_in_a_server_reaches_its_sources_alone() {
    if !can_run() {
        return;
    }
    let bed = Bed::serve(&["--seccomp=none"], 0);
    assert_eq!(read_over_nfs(&bed), b"served\n");
    let share = place_of(bed.served.serving_id(), "share").expect("it is mounted");
    let server = opens_the_share_alone(&bed, libc::ENOENT);
    is_alone(&server);
    assert_eq!(server.connect(libc::SOCK_STREAM, 53), Err(libc::EACCES));
    let share = server.put_path(&share);
    let mount = [share, share, 0, libc::MS_BIND];
    let mounted = server.call(libc::SYS_mount, mount).expect("it survives");
    assert_eq!(mounted, Err(libc::EPERM));
    server.kill();
}

#[test]
fn a_server_of_images_alone_lacks_calls_that_change_directories() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let [share, image] = ["share", "image"].map(|name| dir.path().join(name));
    fs::create_dir(&share).expect("made");
    let packed = Command::new(BARGE)
        .arg("pack")
        .args([&share, &image])
        .status();
    assert!(packed.expect("runs").success());
    for (source, survives) in [(&share, true), (&image, false)] {
        let served = ServerProcess::start(&[&format!("a={}", source.display())]);
        let server = Stopped::attach(served.serving_id());
        let path = server.put_path(Path::new("/.objects/new"));
        let called = server.call(libc::SYS_mkdir, [path, 0, 0, 0]);
        assert_eq!(called.is_ok(), survives, "{}", source.display());
        if survives {
            server.kill();
        }
    }
}

/// Without privileges, a user's other files are out of reach as well.
#[test]
fn landlock_confines_a_server_of_an_ordinary_user() {
    if !can_run() {
        return;
    }
    let bed = Bed::serve(&["--seccomp=none"], 65534);
    assert_eq!(read_over_nfs(&bed), b"served\n");
    let server = opens_the_share_alone(&bed, libc::EACCES);
    assert_eq!(server.connect(libc::SOCK_STREAM, 53), Err(libc::EACCES));
    assert_eq!(server.signal(), Err(libc::EPERM));
    server.kill();
}

/// A server that is a client of another one opens sockets, and neither programs nor namespaces.
#[test]
fn a_server_with_a_remote_source_is_confined_by_its_system_calls() {
    if !can_run() {
        return;
    }
    let first = Bed::serve(&[], 0);
    let source = format!("nfs+unix:{}", first.path("socket").display());
    for (number, arguments) in [
        (libc::SYS_execve, [0; 4]),
        (libc::SYS_mount, [0; 4]),
        (libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0]),
        (libc::SYS_ptrace, [0; 4]),
    ] {
        let served = ServerProcess::start(&[&source]);
        let output = served.barge(&["cat", "{}"], "file");
        assert_eq!(output.stdout, b"served\n");
        let server = Stopped::attach(served.serving_id());
        let ended = server.call(number, arguments);
        assert_eq!(ended, Ok(Err(libc::EPERM)), "{number}");
        server.kill();
    }
}

#[test]
fn a_server_that_is_killed_is_started_again_with_its_sockets() {
    if !can_run() {
        return;
    }
    let bed = Bed::serve(&[], 0);
    let url = format!("nfs+unix:{}", bed.path("socket").display());
    let client = barge_client::Client::open(&url).expect("connected");
    let file = client.open_file("file").expect("opened");
    for _ in 0..3 {
        let serving = bed.served.serving_id();
        let pid = Pid::from_raw(serving as i32);
        nix::sys::signal::kill(pid, Signal::SIGKILL).expect("it runs");
        let mut text = [0; 7];
        let len = file.read_at(&mut text, 0).expect("read after a restart");
        assert_eq!(&text[..len], b"served\n");
        assert_ne!(bed.served.serving_id(), serving);
    }
    assert!(bed.served.stop().success());
    assert!(!bed.dir.path().join("socket").exists());
}

#[test]
fn commands_that_connect_execute_and_write_nothing() {
    if !can_run() {
        return;
    }
    // Connections are not accepted.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let create = (libc::O_WRONLY | libc::O_CREAT) as u64;
    for (number, arguments) in [
        (libc::SYS_execve, [0; 4]),
        (libc::SYS_mount, [0; 4]),
        (libc::SYS_unlinkat, [0; 4]),
        (libc::SYS_openat, [0, 0, create, 0]),
    ] {
        let url = format!("9p://127.0.0.1:{port}/file");
        let child = Command::new(BARGE).args(["cat", &url]).spawn();
        let child = child.expect("starts").id();
        let is_confined = || {
            let status = fs::read_to_string(format!("/proc/{child}/status"));
            status.expect("it runs").contains("Seccomp:\t2")
        };
        let call = || fs::read_to_string(format!("/proc/{child}/syscall")).expect("it runs");
        let mut waits = String::new();
        wait_until("the command waits in a system call", || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let before = std::mem::replace(&mut waits, call());
            is_confined() && waits == before && !waits.starts_with("running")
        });
        let command = Stopped::attach(child);
        let refused = command.call(number, arguments);
        assert_eq!(refused, Ok(Err(libc::EPERM)), "{number}");
        command.kill();
    }
}

/// Two shares of virtual machines and a status page, each with a process of its own.
struct Shares {
    dir: TempDir,
    served: ServerProcess,
}

impl Shares {
    fn start(options: &[&str]) -> Shares {
        let dir = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(BARGE);
        command.current_dir(dir.path()).arg("serve");
        for name in ["a", "b"] {
            fs::create_dir(dir.path().join(name)).expect("made");
            fs::write(dir.path().join(name).join("file"), "served\n").expect("written");
            let (share, socket) = (format!("{name}={name}"), format!("{name}={name}.sock"));
            command.args([&share, "--virtiofs", &socket]);
        }
        command.args(["--http", "tcp:127.0.0.1:0"]).args(options);
        let served = ServerProcess::run(command);
        Shares { dir, served }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.sock"))
    }

    fn page(&self, path: &str) -> String {
        let mut lines = self.served.output.iter();
        let url = lines.find(|line| line.starts_with("http://"));
        let url = format!("{}{path}", url.expect("an address"));
        let output = Command::new("curl").args(["-s", &url]).output();
        String::from_utf8(output.expect("runs").stdout).expect("text")
    }
}

#[test]
fn shares_of_virtual_machines_have_processes_of_their_own() {
    if !can_run() || !has("curl") {
        return;
    }
    let shares = Shares::start(&["--seccomp=none"]);
    for name in ["a", "b"] {
        assert_eq!(read_as_guest(&shares.socket(name)), b"served\n");
    }
    let status: serde_json::Value =
        serde_json::from_str(&shares.page("status.json")).expect("JSON");
    let exports = status["exports"].as_array().expect("a list");
    let names: Vec<_> = exports.iter().map(|export| &export["name"]).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(status["done"]["requests"].as_u64() > Some(8), "{status}");
    assert_eq!(status["pid"].as_u64(), Some(shares.served.id().into()));
    let processes = shares.served.serving_ids();
    assert_eq!(processes.len(), 3);
    let own = |process: &u32| {
        let places = ["a", "b"].map(|name| place_of(*process, name));
        let server = Stopped::attach(*process);
        let opens = |at: usize| {
            let path = places[at].as_ref().map(|place| place.join("file"));
            path.is_some_and(|path| server.open(&path, libc::O_RDWR).is_ok())
        };
        let own = (opens(0), opens(1));
        server.kill();
        own
    };
    let mut own: Vec<_> = processes.iter().map(own).collect();
    own.sort_unstable();
    assert_eq!(own, [(false, false), (false, true), (true, false)]);
    assert_eq!(
        Shares::start(&["--processes=one"])
            .served
            .serving_ids()
            .len(),
        1
    );
}

#[test]
fn a_share_whose_process_is_killed_leaves_others_alone() {
    if !can_run() || !has("curl") {
        return;
    }
    let shares = Shares::start(&[]);
    let url = format!("virtiofs:{}", shares.socket("b").display());
    let client = barge_client::Client::open(&url).expect("connected");
    let first = shares.served.serving_ids();
    let a = first
        .iter()
        .find(|process| place_of(**process, "a").is_some());
    let a = Pid::from_raw(*a.expect("a process for a") as i32);
    nix::sys::signal::kill(a, Signal::SIGKILL).expect("it runs");
    assert_eq!(client.read("file").expect("read"), b"served\n");
    for _ in 0..500 {
        if shares.page("healthz") == "ok\n" && shares.served.serving_ids() != first {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(shares.page("healthz"), "ok\n");
    assert_eq!(read_as_guest(&shares.socket("a")), b"served\n");
    assert_eq!(client.read("file").expect("read"), b"served\n");
    let same = shares.served.serving_ids();
    let same = same.iter().filter(|process| first.contains(process));
    assert_eq!(same.count(), 2);
}

/// The names of 9P2000, which the server cannot look up itself.
#[test]
fn users_are_looked_up_by_the_broker() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    fs::write(&file, "of daemon\n").expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("changed");
    std::os::unix::fs::chown(&file, Some(1), Some(1)).expect("root may");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("changed");
    let served = ServerProcess::start(&[&dir.path().display().to_string()]);
    let read = |user: &str| {
        let url = format!("file?version=9p2000&uname={user}");
        served.barge(&["cat", "{}"], &url)
    };
    assert_eq!(read("daemon").stdout, b"of daemon\n");
    assert!(stderr_of(&read("nobody")).contains("ermission denied"));
}

/// A container (bubblewrap), in a user namespace with `options`, that serves a directory.
struct Container {
    dir: TempDir,
    options: &'static [&'static str],
}

impl Container {
    fn new(options: &'static [&'static str]) -> Container {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("file"), "served\n").expect("written");
        Container { dir, options }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Returns the command that runs `barge virtiofsd` with `args` in it.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("bwrap");
        command
            .args(["--unshare-user", "--uid", "65534", "--die-with-parent"])
            .args(["--dev-bind", "/", "/"])
            .args(self.options)
            .args([BARGE, "virtiofsd", "--shared-dir"])
            .arg(self.dir.path())
            .arg("--socket-path")
            .arg(self.socket())
            .args(args);
        command
    }
}

/// A part of /proc is covered, so that Linux mounts no other one.
#[test]
fn namespaces_do_without_a_new_proc() {
    if !can_run() || !has("bwrap") {
        return;
    }
    let container = Container::new(&["--ro-bind", "/dev/null", "/proc/cpuinfo"]);
    let _served = ServerProcess::run(container.command(&["--sandbox=namespace"]));
    assert_eq!(read_as_guest(&container.socket()), b"served\n");
}

#[test]
fn without_namespaces_the_default_warns_and_an_explicit_one_fails() {
    if !can_run() || !has("bwrap") {
        return;
    }
    let container = Container::new(&["--disable-userns"]);
    let output = container.command(&["--sandbox=namespace"]).output();
    let output = output.expect("runs");
    let said = stderr_of(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("namespace"), "{said}");
    let _served = ServerProcess::run(container.command(&[]));
    assert_eq!(read_as_guest(&container.socket()), b"served\n");
}

/// Runs the program `$2` with the further arguments in a chroot at `$1`, which is a directory.
const IN_CHROOT: &str = r#"
set -e
root=$1 program=$2
shift 2
for path in /bin /lib /lib64 /usr /proc /dev; do
    if [ -L $path ]; then
        ln -sfn "$(readlink $path)" "$root$path"
    elif [ -d $path ]; then
        mkdir -p "$root$path"
        mount --rbind $path "$root$path"
    fi
done
touch "$root/barge"
mount --bind "$program" "$root/barge"
exec chroot "$root" /barge "$@"
"#;

#[test]
fn a_chroot_is_served_by_default_and_refused_with_explicit_namespaces() {
    if !can_run() {
        return;
    }
    let root = tempfile::tempdir().expect("a directory");
    fs::create_dir(root.path().join("share")).expect("made");
    fs::write(root.path().join("share/file"), "served\n").expect("written");
    let in_chroot = |args: &[&str]| {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation=private", "sh", "-c", IN_CHROOT])
            .arg("sh")
            .arg(root.path())
            .arg(BARGE)
            .args(args);
        command
    };
    let socket = root.path().join("socket");
    for args in [
        ["virtiofsd", "--shared-dir=/share", "--socket-path=/socket"],
        ["serve", "/share", "--virtiofs=/socket"],
    ] {
        let output = in_chroot(&[&args[..], &["--sandbox=namespace"]].concat()).output();
        let output = output.expect("runs");
        let said = stderr_of(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("as in a chroot"), "{said}");
        let _served = ServerProcess::run(in_chroot(&args));
        assert_eq!(read_as_guest(&socket), b"served\n");
    }
}
