//! The user that a client acts as: attacks by a local user, clients of other hosts, and the modes
//! of sockets and files.

mod qemu;

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use barge_client::{Client, OpenOptions};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;
use vfs_testkit::copy_program;

use crate::mount::{Mounted, may_mount, unmount};
use crate::nfs::port as nfs_port;
use crate::served::{BARGE, ServerProcess, has, stderr_of, stdout_of};

const NOBODY: u32 = 65534;

/// A directory to serve, and a copy of the program that other users may run.
struct Fixture {
    dir: TempDir,
}

impl Fixture {
    /// Returns `None` without root, which takes other users' identities.
    fn new() -> Option<Fixture> {
        if !geteuid().is_root() {
            eprintln!("skipped: becoming another user takes root");
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let bed = Fixture { dir };
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("changed");
        };
        mode(bed.dir.path(), 0o755);
        copy_program(BARGE, bed.path("barge"));
        for (name, bits) in [("share", 0o755), ("share/open", 0o777)] {
            fs::create_dir(bed.path(name)).expect("made");
            mode(&bed.path(name), bits);
        }
        fs::write(bed.path("share/secret"), "root's").expect("written");
        mode(&bed.path("share/secret"), 0o600);
        fs::write(bed.path("file"), "hello").expect("written");
        mode(&bed.path("file"), 0o644);
        Some(bed)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("text").to_owned()
    }

    /// Runs `barge` as the user `uid`.
    fn barge(&self, uid: u32, args: &[&str]) -> Output {
        let mut command = Command::new(self.path("barge"));
        command.args(args).current_dir("/").env("HOME", "/");
        command.uid(uid).gid(uid).output().expect("runs")
    }

    /// Returns the owner and group of a file that `uid` creates at `url`.
    fn created(&self, uid: u32, url: &Url) -> (u32, u32) {
        let new = self.path("share/open/new");
        let _ = fs::remove_file(&new);
        stdout_of(&self.barge(uid, &["cp", &self.text("file"), &url("open/new")]));
        let is = fs::metadata(new).expect("made");
        (is.uid(), is.gid())
    }

    fn reads_secret(&self, uid: u32, url: &Url) -> bool {
        let read = self.barge(uid, &["cat", &url("secret")]);
        if read.status.success() {
            assert_eq!(read.stdout, b"root's");
            return true;
        }
        let told = stderr_of(&read);
        assert!(
            told.contains("Permission denied"),
            "{}: {told}",
            url("secret")
        );
        false
    }
}

/// The URL of a path in the share.
type Url = dyn Fn(&str) -> String;

/// Runs `barge serve` of the share over 9P and NFS, on TCP and Unix sockets that all users may
/// connect to.
fn serve(bed: &Fixture, more: &[&str]) -> ServerProcess {
    let [nine, nfs] = ["9p", "nfs"].map(|name| format!("unix:{}", bed.text(name)));
    let share = bed.text("share");
    let mut args = vec![share.as_str(), "--9p", &nine, "--nfs", "tcp:127.0.0.1:0"];
    args.extend(["--nfs", &nfs, "--nfs-state-dir"]);
    let state = bed.text("state");
    args.push(&state);
    args.extend(more);
    let served = ServerProcess::start(&args);
    for socket in ["9p", "nfs"] {
        let all = Permissions::from_mode(0o666);
        fs::set_permissions(bed.path(socket), all).expect("changed");
    }
    served
}

fn urls(bed: &Fixture, served: &ServerProcess, uid: u32) -> Vec<Box<Url>> {
    let (nine, nfs) = (served.port(), nfs_port(served));
    let sockets = ["9p", "nfs"].map(|name| bed.text(name));
    let mut all: Vec<Box<Url>> = Vec::new();
    all.push(Box::new(move |path| {
        format!("9p://127.0.0.1:{nine}/{path}?uid={uid}")
    }));
    let socket = sockets[0].clone();
    all.push(Box::new(move |path| {
        format!("9p+unix:{socket}?uid={uid}&aname=/{path}")
    }));
    for version in ["3", "4.0", "4.2"] {
        all.push(Box::new(move |path| {
            format!("nfs://127.0.0.1:{nfs}/{path}?vers={version}&uid={uid}&gid={uid}")
        }));
        let socket = sockets[1].clone();
        all.push(Box::new(move |path| {
            format!("nfs+unix:{socket}?path={path}&vers={version}&uid={uid}&gid={uid}")
        }));
    }
    all
}

#[test]
fn a_local_user_acts_as_itself_whatever_it_claims_to_be() {
    let Some(bed) = Fixture::new() else { return };
    let served = serve(&bed, &["--admit=*"]);
    let says = |line: &str| served.output.iter().any(|said| said == line);
    assert!(says(
        "# local users: root as any user, others as themselves (--admit)"
    ));
    for claim in [0, 1000] {
        for url in urls(&bed, &served, claim) {
            let shown = url("");
            assert!(!bed.reads_secret(NOBODY, &url), "{shown}");
            assert_eq!(bed.created(NOBODY, &url), (NOBODY, NOBODY), "{shown}");
        }
    }
    // A mount of root's, for example, acts for many users.
    for url in urls(&bed, &served, 0) {
        assert!(bed.reads_secret(0, &url), "{}", url(""));
    }
    for url in urls(&bed, &served, 1000) {
        assert!(!bed.reads_secret(0, &url), "{}", url(""));
        assert_eq!(bed.created(0, &url).0, 1000, "{}", url(""));
    }
    assert!(served.stop().success());
}

impl Fixture {
    /// Returns whether `uid` may see the status page at `at`, or is refused.
    fn sees_status(&self, uid: u32, at: &str) -> bool {
        let shown = self.barge(uid, &["top", "--once", at]);
        let is_shown = shown.status.success();
        assert!(is_shown || stderr_of(&shown).contains("403"));
        is_shown
    }

    /// Returns whether `uid` may list the share at `url`, or is refused; nothing else happens.
    fn is_admitted(&self, uid: u32, url: &str) -> bool {
        let listed = self.barge(uid, &["ls", url]);
        if listed.status.success() {
            return true;
        }
        let told = stderr_of(&listed);
        assert!(told.contains("Permission denied"), "{url}: {told}");
        false
    }
}

/// Runs `barge serve` with `args` and a log in the file `log`, on Unix sockets 9p, nfs and http
/// that all users may connect to, and on loopback. Returns the URLs of the share without
/// `trailing`.
fn serve_logged(bed: &Fixture, uid: u32, args: &[&str]) -> (ServerProcess, Vec<String>) {
    let log = fs::File::create(bed.path("log")).expect("made");
    let _ = fs::remove_dir_all(bed.path("run"));
    fs::create_dir(bed.path("run")).expect("made");
    std::os::unix::fs::chown(bed.path("run"), Some(uid), Some(uid)).expect("given");
    let mut command = Command::new(bed.path("barge"));
    command
        .uid(uid)
        .gid(uid)
        .env("HOME", "/")
        .stderr(log)
        .arg("serve");
    let of = |name: &str| format!("unix:{}", bed.text(&format!("run/{name}")));
    for option in ["--9p", "--nfs"] {
        command.args([option, "tcp:127.0.0.1:0", option, "tcp:[::1]:0"]);
        command.args([option, &of(&option[2..])]);
    }
    command.args([
        "--http",
        &of("http"),
        "--nfs-state-dir",
        &bed.text("run/state"),
    ]);
    let served = ServerProcess::run({
        command.args(args);
        command
    });
    for socket in ["9p", "nfs", "http"] {
        let all = Permissions::from_mode(0o666);
        fs::set_permissions(bed.path(&format!("run/{socket}")), all).expect("changed");
    }
    let mut urls = Vec::new();
    for line in served.output.iter().filter(|line| !line.contains("aname=")) {
        let port = |after: &str| {
            let rest = line.split_once(after)?.1;
            rest.split([',', ' ']).next()?.parse::<u16>().ok()
        };
        let host = if line.contains("::1") {
            "[::1]"
        } else {
            "127.0.0.1"
        };
        match port("port=") {
            Some(port) if line.contains("-t 9p") => urls.push(format!("9p://{host}:{port}/")),
            Some(port) if line.contains("vers=4.2") => {
                urls.extend(
                    ["3", "4.0", "4.2"]
                        .map(|version| format!("nfs://{host}:{port}/?vers={version}")),
                );
            }
            _ => {}
        }
    }
    urls.push(format!("9p+unix:{}", bed.text("run/9p")));
    urls.push(format!("nfs+unix:{}?vers=3", bed.text("run/nfs")));
    urls.push(format!("nfs+unix:{}?vers=4.2", bed.text("run/nfs")));
    assert_eq!(urls.len(), 11, "{:?}", served.output);
    (served, urls)
}

/// The server of an ordinary user gave every local user that user's access, and one of root's let
/// everybody in.
#[test]
fn another_local_user_is_refused_at_loopback_and_unix_sockets_unless_admitted() {
    let Some(bed) = Fixture::new() else { return };
    const OWNER: u32 = 1001;
    const OTHER: u32 = 1002;
    std::os::unix::fs::chown(bed.path("share"), Some(OWNER), Some(OWNER)).expect("given");
    let share = bed.text("share");
    let page = format!("unix:{}", bed.text("run/http"));
    let tops = |uid: u32| bed.sees_status(uid, &page);
    let alone = "0 1001".to_owned();
    for (server, args, admitted) in [
        (OWNER, vec![], alone.clone()),
        (OWNER, vec!["--sandbox=none"], alone),
        (OWNER, vec!["--admit=1002"], "0 1001 1002".into()),
        (OWNER, vec!["--admit=*"], "0 1001 1002 65534".into()),
        (OWNER, vec!["--trust-uids=1002"], "0 1001 1002".into()),
        (0, vec![], "0".into()),
        (0, vec!["--admit=1001,65534"], "0 1001 65534".into()),
    ] {
        let args = [&[share.as_str()][..], &args].concat();
        let (served, urls) = serve_logged(&bed, server, &args);
        for uid in [0, OWNER, OTHER, NOBODY] {
            let expected = admitted.split(' ').any(|one| one == uid.to_string());
            for url in &urls {
                assert_eq!(
                    bed.is_admitted(uid, url),
                    expected,
                    "{server} {args:?} {uid} {url}"
                );
            }
            let is_named = expected && !args.contains(&"--trust-uids=1002");
            assert!(tops(uid) || !is_named, "{server} {args:?} {uid}");
            assert!(expected || !tops(uid), "{server} {args:?} {uid}");
        }
        let log = fs::read_to_string(bed.path("log")).expect("read");
        let told = log.lines().filter(|line| line.contains("--admit 1002"));
        let is_told = !admitted.contains("1002") && !args.contains(&"--admit=*");
        assert_eq!(told.clone().count() > 0, is_told, "{log}");
        assert!(told.count() <= 16, "bounded: {log}");
        assert!(served.stop().success());
    }
}

/// Refuses netlink sockets to itself, as profiles of containers do, and executes its arguments.
const WITHOUT_NETLINK: &str = r#"
import ctypes, os, platform, struct, sys
calls = {"x86_64": 41, "aarch64": 198}
socket = calls[platform.machine()]
load, equals, answer = 0x20, 0x15, 0x06
code = [
    (load, 0, 0, 0),            # the number of the call
    (equals, 0, 3, socket),
    (load, 0, 0, 16),           # its family
    (equals, 0, 1, 16),         # AF_NETLINK
    (answer, 0, 0, 0x50000 | 97),  # EAFNOSUPPORT
    (answer, 0, 0, 0x7fff0000),
]
filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(filters))
libc = ctypes.CDLL(None, use_errno=True)
# PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[1], sys.argv[1:])
"#;

/// Then the users of local peers were unknown, and root and the server's own user refused.
#[test]
fn the_own_user_and_root_are_admitted_where_netlink_is_refused() {
    const OWNER: u32 = 1001;
    let Some(bed) = Fixture::new() else { return };
    if !has("python3") {
        return eprintln!("skipped: this takes python3");
    }
    for (owner, sandbox) in [(0, "namespace"), (OWNER, "landlock"), (OWNER, "none")] {
        let mut command = Command::new("python3");
        command.args(["-c", WITHOUT_NETLINK, &bed.text("barge"), "serve"]);
        command.args([&bed.text("share"), "--9p", "tcp:127.0.0.1:0"]);
        command.args(["--sandbox", sandbox]);
        command
            .uid(owner)
            .gid(owner)
            .current_dir("/")
            .env("HOME", "/");
        let served = ServerProcess::run(command);
        let url = format!("9p://127.0.0.1:{}/", served.port());
        for uid in [0, OWNER, NOBODY] {
            let expected = uid == 0 || uid == owner;
            assert_eq!(bed.is_admitted(uid, &url), expected, "{sandbox} {uid}");
        }
        assert!(served.stop().success());
    }
}

/// Each connection that its client had closed before it was served was a line in the log.
#[test]
fn connections_of_unknown_users_do_not_fill_the_log() {
    const CONNECTIONS: usize = 40;
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    let mut command = Command::new(BARGE);
    command.args(["serve", "mem:", "--9p", "tcp:127.0.0.1:0"]);
    command.stderr(fs::File::create(&log).expect("made"));
    let served = ServerProcess::run(command);
    let serving = Pid::from_raw(served.serving_id() as i32).expect("an id");
    kill_process(serving, Signal::STOP).expect("stopped");
    for _ in 0..CONNECTIONS {
        let client = std::net::TcpStream::connect(("127.0.0.1", served.port()));
        drop(client.expect("connected"));
    }
    kill_process(serving, Signal::CONT).expect("continued");
    // It is served after them.
    stdout_of(&served.barge(&["ls", "{}"], ""));
    assert!(served.stop().success());
    let log = fs::read_to_string(log).expect("read");
    let lines = log.matches("the user of a local client is unknown").count();
    assert!((1..CONNECTIONS / 2).contains(&lines), "{lines}: {log}");
}

/// The user of Prometheus needed `--admit`, which admitted it to shares as well.
#[test]
fn a_user_that_is_admitted_to_the_status_page_is_admitted_to_no_share() {
    let Some(bed) = Fixture::new() else { return };
    let share = bed.text("share");
    let (served, urls) = serve_logged(&bed, 0, &[&share, "--http-admit=65534"]);
    let page = format!("unix:{}", bed.text("run/http"));
    for (uid, expected) in [(0, true), (NOBODY, true), (1002, false)] {
        assert_eq!(bed.sees_status(uid, &page), expected, "{uid}");
    }
    for url in &urls {
        assert!(!bed.is_admitted(NOBODY, url), "{url}");
    }
    assert!(served.stop().success());
}

/// All local users saw the names of the mount's clients and files.
#[test]
fn the_status_page_of_a_mount_is_for_its_user_and_root_unless_it_says_otherwise() {
    let Some(bed) = Fixture::new() else { return };
    if !may_mount() {
        return;
    }
    let at = bed.path("at");
    fs::create_dir(&at).expect("made");
    // A port that is free.
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let tcp = format!("tcp:127.0.0.1:{}", port.expect("an address").port());
    let unix = format!("unix:{}", bed.text("http"));
    for (page, admitted) in [(&tcp, ""), (&unix, ""), (&unix, ",http_admit=65534")] {
        let options = format!("http={page}{admitted}");
        let mounted = Mounted::new(&[&bed.text("share"), "-o", &options], &at);
        if page == &unix {
            let all = Permissions::from_mode(0o666);
            fs::set_permissions(bed.path("http"), all).expect("changed");
        }
        assert!(bed.sees_status(0, page), "{options}");
        assert!(!bed.sees_status(1002, page), "{options}");
        let expected = !admitted.is_empty();
        assert_eq!(bed.sees_status(NOBODY, page), expected, "{options}");
        unmount(&at);
        assert!(mounted.ended().success());
    }
}

/// Lists are of shares: one that names this host admits to its share alone.
#[test]
fn a_list_admits_local_users_only_if_it_names_this_host() {
    let Some(bed) = Fixture::new() else { return };
    let share = bed.text("share");
    let names = ["all", "host", "loop", "mapped", "net", "none", "off"];
    let sources: Vec<_> = names.iter().map(|name| format!("{name}={share}")).collect();
    let mut args: Vec<&str> = sources.iter().map(String::as_str).collect();
    for list in [
        "all *(rw,insecure)",
        "host 10.0.0.0/8 localhost(rw)",
        "loop 127.0.0.0/8 ::1",
        "mapped ::ffff:127.0.0.1 ::1 localhost",
        "net 0.0.0.0/0 ::/0 *",
        "off 192.0.2.0/24",
    ] {
        args.extend(["--export", list]);
    }
    let (served, urls) = serve_logged(&bed, 0, &args);
    for url in &urls {
        let at = |name: &str| match url.split_once('?') {
            Some((path, query)) if url.contains("unix") => format!("{path}?path={name}&{query}"),
            Some((path, query)) => format!("{path}{name}?{query}"),
            None if url.contains("unix") => format!("{url}?aname=/{name}"),
            None => format!("{url}{name}"),
        };
        for name in names {
            let by_unix = url.contains("unix");
            let expected = match name {
                "host" | "mapped" => true,
                "loop" => !by_unix,
                _ => false,
            };
            assert_eq!(bed.is_admitted(NOBODY, &at(name)), expected, "{}", at(name));
            let of_root = name != "off" && (name != "loop" || !by_unix);
            assert_eq!(bed.is_admitted(0, &at(name)), of_root, "{}", at(name));
        }
    }
    // Names of shares are for those who may use them.
    let listed = bed.barge(NOBODY, &["ls", &urls[0]]);
    assert_eq!(stdout_of(&listed), "host\nloop\nmapped\n");
    assert!(served.stop().success());
}

/// Members of the group of Unix sockets may connect to these, and to nothing else.
#[test]
fn the_group_of_unix_sockets_is_admitted_to_them_alone() {
    let Some(bed) = Fixture::new() else { return };
    let share = bed.text("share");
    let (served, urls) = serve_logged(&bed, 0, &[&share, "--socket-group=65534"]);
    for url in &urls {
        let by_unix = url.contains("unix");
        assert_eq!(bed.is_admitted(NOBODY, url), by_unix, "{url}");
        assert!(!bed.is_admitted(1002, url), "{url}");
    }
    assert!(served.stop().success());
}

#[test]
fn users_that_are_trusted_are_believed_and_others_are_not() {
    let Some(bed) = Fixture::new() else { return };
    let served = serve(&bed, &["--trust-uids=7,65534", "--admit=8"]);
    for url in urls(&bed, &served, 0) {
        assert!(bed.reads_secret(NOBODY, &url), "{}", url(""));
        assert!(!bed.reads_secret(8, &url), "{}", url(""));
    }
    assert!(served.stop().success());
    let served = serve(&bed, &["--trust-uids"]);
    for url in urls(&bed, &served, 0) {
        assert!(bed.reads_secret(8, &url), "{}", url(""));
    }
    assert!(served.stop().success());
}

/// Plan 9's dialect has user names only.
#[test]
fn a_client_without_a_name_is_its_socket_s_owner_and_one_with_a_wrong_name_is_told_of() {
    let Some(bed) = Fixture::new() else { return };
    let log = fs::File::create(bed.path("log")).expect("made");
    let mut command = Command::new(BARGE);
    command.args(["serve", "--9p", "tcp:127.0.0.1:0", "--admit", "nobody"]);
    command.arg(bed.path("share")).stderr(log);
    let served = ServerProcess::run(command);
    let port = served.port();
    let named = |name: &str| -> Box<Url> {
        let name = name.to_owned();
        Box::new(move |path| format!("9p://127.0.0.1:{port}/{path}?version=9p2000&uname={name}"))
    };
    assert!(bed.reads_secret(0, &named("")));
    assert!(!bed.reads_secret(NOBODY, &named("")));
    assert_eq!(bed.created(0, &named("")), (0, 0));
    assert_eq!(bed.created(NOBODY, &named("")), (NOBODY, NOBODY));
    let log = || fs::read_to_string(bed.path("log")).expect("read");
    assert!(!log().contains("without a known user"), "{}", log());
    assert!(!bed.reads_secret(0, &named("no-such-user")));
    let told = log();
    assert!(
        told.contains("without a known user: it acts as uid 65534"),
        "{told}"
    );
    assert!(served.stop().success());
}

/// Returns the mode and the group.
fn mode(path: &Path) -> (u32, u32) {
    let is = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    (is.mode() & 0o7777, is.gid())
}

#[test]
fn sockets_and_files_are_this_user_s_alone_unless_a_group_is_named() {
    let Some(bed) = Fixture::new() else { return };
    let sockets = ["9p", "nfs", "nbd", "http", "virtiofs", "virtio-9p", "block"];
    let serve = |more: &[&str]| {
        // The umask has no influence.
        let mut command = Command::new("sh");
        command.args(["-c", "umask 0; exec \"$0\" \"$@\"", BARGE, "serve"]);
        command.arg(bed.path("share"));
        for (at, socket) in sockets.iter().enumerate() {
            let prefix = if at < 4 { "unix:" } else { "" };
            let of_file = if *socket == "block" {
                ",file=secret"
            } else {
                ""
            };
            command.arg(format!("--{socket}"));
            command.arg(format!("{prefix}{}{of_file}", bed.text(socket)));
        }
        command.arg("--nfs-state-dir").arg(bed.path("new/state"));
        command.arg("--record-calls").arg(bed.path("calls"));
        command.arg("--record-trace").arg(bed.path("trace"));
        ServerProcess::run({
            command.args(more);
            command
        })
    };
    let served = serve(&[]);
    for socket in sockets {
        let path = bed.path(socket);
        let kind = fs::symlink_metadata(&path).expect("made").file_type();
        assert!(kind.is_socket());
        assert_eq!(mode(&path), (0o600, 0), "{socket}");
    }
    for dir in ["new", "new/state"] {
        assert_eq!(mode(&bed.path(dir)), (0o700, 0), "{dir}");
    }
    for record in ["calls", "trace"] {
        assert_eq!(mode(&bed.path(record)), (0o600, 0), "{record}");
    }
    let kept: Vec<_> = fs::read_dir(bed.path("new/state"))
        .expect("listed")
        .collect();
    assert!(!kept.is_empty());
    for file in kept {
        let path = file.expect("an entry").path();
        assert_eq!(mode(&path), (0o600, 0), "{path:?}");
    }
    let connects = |uid| {
        let url = format!("9p+unix:{}", bed.text("9p"));
        bed.barge(uid, &["ls", &url]).status.success()
    };
    assert!(connects(0) && !connects(NOBODY));
    assert!(served.stop().success());
    let served = serve(&["--socket-group", "65534"]);
    for socket in sockets {
        assert_eq!(mode(&bed.path(socket)), (0o660, NOBODY), "{socket}");
    }
    assert!(connects(NOBODY) && !connects(1));
    assert!(served.stop().success());
}

#[test]
fn clients_get_the_modes_that_they_ask_for_and_the_command_keeps_the_caller_s_umask() {
    let Some(bed) = Fixture::new() else { return };
    let mut command = Command::new("sh");
    command.args(["-c", "umask 077; exec \"$0\" \"$@\"", BARGE, "serve"]);
    command.arg(bed.path("share"));
    command.args(["--9p", "tcp:127.0.0.1:0", "--run"]);
    command.arg(format!(
        "{} cp {} ${{BARGE_9P}}open/new; echo then; umask; touch {}; read end; echo ready",
        BARGE,
        bed.text("file"),
        bed.text("trace"),
    ));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut out = std::io::BufReader::new(child.stdout.take().expect("piped"));
    let mut line = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut out, &mut line).expect("read");
        line.trim_end().to_owned()
    };
    let mut first = line();
    let mut port = None;
    while first != "then" {
        assert!(!first.is_empty(), "it ended");
        if let Some((_, rest)) = first.split_once("port=") {
            port = rest.split(',').next().map(str::to_owned);
        }
        first = line();
    }
    assert_eq!(line(), "0077");
    let url = format!("9p://127.0.0.1:{}/", port.expect("a port"));
    let client = Client::open(&url).expect("connected");
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o755);
    drop(client.open_with("open/program", &options).expect("made"));
    client.create_dir("open/dir").expect("made");
    let modes = ["open/program", "open/dir"].map(|name| mode(&bed.path("share").join(name)).0);
    assert_eq!(modes, [0o755, 0o755]);
    let end = child.stdin.take();
    end.expect("piped").write_all(b"\n").expect("told");
    assert_eq!(line(), "ready");
    assert!(child.wait().expect("ends").success());
    assert_eq!(mode(&bed.path("trace")).0, 0o600);
}

/// A process in a network namespace of its own, as another host.
struct Host(Child);

impl Host {
    fn run(&self, command: &str) -> Output {
        let mut nsenter = Command::new("nsenter");
        let net = format!("--net=/proc/{}/ns/net", self.0.id());
        nsenter.args([net.as_str(), "sh", "-c", command]);
        nsenter.output().expect("runs")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn metrics(socket: &Path) -> String {
    let mut stream = UnixStream::connect(socket).expect("connected");
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(request).expect("sent");
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

#[test]
fn the_root_of_another_host_is_squashed_and_lists_ask_for_ports_below_1024() {
    let programs = ["unshare", "nsenter", "ip"];
    if !programs.iter().all(|program| has(program)) {
        return eprintln!("skipped: a network of its own takes util-linux and iproute2");
    }
    let Some(bed) = Fixture::new() else { return };
    let mut other = Command::new("unshare");
    other.args(["--net", "sh", "-c", "echo; exec sleep infinity"]);
    let mut other = Host(other.stdout(Stdio::piped()).spawn().expect("starts"));
    let mut line = [0];
    let mut out = other.0.stdout.take().expect("piped");
    out.read_exact(&mut line).expect("it is there");
    let (share, http) = (bed.text("share"), bed.text("http"));
    let script = format!(
        "set -e
         ip link set lo up
         ip link add here type veth peer name there netns {}
         ip addr add 10.9.0.1/24 dev here && ip link set here up
         exec {BARGE} serve plain={share} none={share} port={share} insecure={share} \
           --9p tcp:0.0.0.0:5640 --nfs tcp:0.0.0.0:2049 --http unix:{http} --nfs-state-dir {} \
           --export 'none 10.9.0.0/24(rw,no_root_squash,insecure)' \
           --export 'port 10.9.0.0/24(rw,no_root_squash)' \
           --export 'insecure 10.9.0.0/24(rw,insecure) localhost'",
        other.0.id(),
        bed.text("state"),
    );
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", &script]);
    let served = ServerProcess::run(command);
    assert!(
        served
            .output
            .iter()
            .any(|line| line == "# other hosts: as --export says")
    );
    stdout_of(&other.run("ip addr add 10.9.0.2/24 dev there && ip link set there up"));
    let barge = |args: &str| other.run(&format!("{} {args}", bed.text("barge")));
    let reads = |url: &str| {
        let read = barge(&format!("cat '{url}'"));
        let denied = String::from_utf8_lossy(&read.stderr).contains("Permission denied");
        assert!(read.status.success() || denied, "{url}: {read:?}");
        read.status.success()
    };
    let created = |url: &str| {
        let new = bed.path("share/open/new");
        let _ = fs::remove_file(&new);
        stdout_of(&barge(&format!("cp {} '{url}'", bed.text("file"))));
        fs::metadata(new).expect("made").uid()
    };
    let nine = |path: &str, uid: u32| format!("9p://10.9.0.1:5640/{path}?uid={uid}");
    let nfs = |path: &str, uid: u32| {
        ["3", "4.2"]
            .map(|version| format!("nfs://10.9.0.1:2049/{path}?vers={version}&uid={uid}&gid={uid}"))
    };
    let both = |path: &str, uid: u32| {
        let [v3, v4] = nfs(path, uid);
        [nine(path, uid), v3, v4]
    };
    for url in both("plain/secret", 0) {
        assert!(!reads(&url), "{url}");
    }
    for (uid, acts) in [(0, NOBODY), (1000, 1000)] {
        for share in ["plain", "insecure"] {
            for url in both(&format!("{share}/open/new"), uid) {
                assert_eq!(created(&url), acts, "{url}");
            }
        }
    }
    for url in both("none/secret", 0) {
        assert!(reads(&url), "{url}");
    }
    for url in both("port/secret", 0) {
        assert!(!reads(&url), "{url}");
    }
    for url in nfs("port/secret", 0) {
        assert!(reads(&format!("{url}&resvport")), "{url}");
    }
    let figures = metrics(&bed.path("http"));
    let denied = |reason: &str| {
        let start = format!("barge_clients_denied_total{{reason=\"{reason}\"}} ");
        let found = figures.lines().find_map(|line| line.strip_prefix(&start));
        let found = found.unwrap_or_else(|| panic!("{reason} in {figures}"));
        found.parse::<u64>().expect("a number")
    };
    assert!(denied("insecure_port") >= 3, "{figures}");
    assert_eq!(denied("unlisted"), 0, "{figures}");
    // Root of this host is no root of another host, and is not squashed.
    let here = format!(
        "nsenter --net=/proc/{}/ns/net {BARGE} cat '{}'",
        served.id(),
        "9p://127.0.0.1:5640/plain/secret?uid=0"
    );
    let here = Command::new("sh").args(["-c", &here]).output();
    assert_eq!(stdout_of(&here.expect("runs")), "root's");
    assert!(served.stop().success());
}
