//! virtiofs without a virtual machine: served by barge, and by virtiofsd.

use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fuse::layout::{EntryOut, InitOut, OutHeader};
use fuse::message::{HEADER, InitIn, REPLY_HEADER, Text, WireFormat};
use fuse::numbers::{ATTR_SUBMOUNT, InitFlags, MAJOR, MINOR, ROOT_ID};
use fuse::{Header, Request};
use remote::virtiofs::{Options, RemoteFuse};
use rustix::thread::{CpuSet, sched_getaffinity};
use tempfile::TempDir;
use virtqueue::driver::{self, Driver, Lengths, Queue};

use crate::served::{BARGE, ServerProcess, has, stderr_of, stdout_of};

fn barge(args: &[&str]) -> Output {
    Command::new(BARGE).args(args).output().expect("runs")
}

/// Makes a directory with a `share` in it, which has a file and a directory.
fn place() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir_all(dir.path().join("share/dir")).expect("made");
    std::fs::write(dir.path().join("share/dir/file"), "contents\n").expect("written");
    dir
}

fn text(path: PathBuf) -> String {
    path.display().to_string()
}

#[test]
fn a_share_is_listed_read_and_written_through_its_socket() {
    let dir = place();
    let at = |name: &str| text(dir.path().join(name));
    let served = ServerProcess::start(&["--virtiofs", &at("socket"), &at("share")]);
    let url = |path: &str| format!("virtiofs:{}{path}", at("socket"));
    assert_eq!(stdout_of(&barge(&["ls", &url("")])), "dir\n");
    assert_eq!(stdout_of(&barge(&["cat", &url("/dir/file")])), "contents\n");
    // Several requests, the last one partial.
    let large: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8).collect();
    std::fs::write(at("large"), &large).expect("written");
    stdout_of(&barge(&["cp", &at("large"), &url("/dir/copy")]));
    assert_eq!(
        std::fs::read(at("share/dir/copy")).expect("there").len(),
        large.len()
    );
    stdout_of(&barge(&["cp", "-r", &url("/dir"), &at("back")]));
    assert!(std::fs::read(at("back/copy")).expect("there") == large);
    let error = stderr_of(&barge(&["cat", &url("/dir/none")]));
    assert!(error.contains("No such file"), "{error}");
    assert!(served.stop().success());
}

#[test]
fn a_virtiofs_server_is_served_on_over_9p() {
    let dir = place();
    let at = |name: &str| text(dir.path().join(name));
    let _first = ServerProcess::start(&["--virtiofs", &at("socket"), &at("share")]);
    let gateway = ServerProcess::start(&[&format!("virtiofs:{}", at("socket"))]);
    let output = gateway.barge(&["cat", "{}"], "dir/file");
    assert_eq!(stdout_of(&output), "contents\n");
    assert!(gateway.stop().success());
}

#[test]
fn one_monitor_after_the_other_is_served() {
    let dir = place();
    let at = |name: &str| text(dir.path().join(name));
    let _served = ServerProcess::start(&["--virtiofs", &at("socket"), &at("share")]);
    let url = format!("virtiofs:{}/dir/file", at("socket"));
    for _ in 0..20 {
        assert_eq!(stdout_of(&barge(&["cat", &url])), "contents\n");
    }
}

#[test]
fn queue_affinity_keeps_the_threads_of_queues_to_processors() {
    let may = sched_getaffinity(None).expect("known");
    let mut all = (0..CpuSet::MAX_CPU).filter(|&processor| may.is_set(processor));
    let (Some(_), Some(processor)) = (all.next(), all.next()) else {
        return eprintln!("skipped: on one processor every thread keeps to it");
    };
    let processor = processor.to_string();
    let dir = place();
    let at = |name: &str| text(dir.path().join(name));
    let kept = |options: &[&str]| {
        let served = ["--virtiofs", &at("socket"), &at("share")];
        let served = ServerProcess::start(&[&served[..], options].concat());
        let socket = UnixStream::connect(at("socket")).expect("connected");
        let options = Options {
            queues: 1,
            ..Options::default()
        };
        // A reply has come through the request queue, so that queue's thread has set its affinity.
        let _mount = RemoteFuse::mount(socket, options).expect("mounted");
        let queues = processors(served.serving_id(), "barge-queue");
        queues.iter().filter(|&list| *list == processor).count()
    };
    assert_eq!(kept(&[]), 0);
    // The high-priority queue is not pinned.
    assert_eq!(kept(&["--queue-affinity", &processor]), 1);
}

/// Returns the allowed processors of the threads called `name` of a process, in the kernel's
/// format.
fn processors(process: u32, name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let of = |task: PathBuf| {
        let comm = std::fs::read_to_string(task.join("comm")).ok()?;
        let status = std::fs::read_to_string(task.join("status")).ok()?;
        let mut lines = status.lines();
        let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        (comm.trim_end() == name).then(|| list.trim().to_owned())
    };
    let tasks = tasks.map(|task| task.expect("an entry").path());
    tasks.filter_map(of).collect()
}

/// For `barge serve` and `barge virtiofsd`.
#[test]
fn mounts_below_are_announced_unless_told_otherwise() {
    let device = |path: &str| std::fs::metadata(path).map(|found| found.dev()).ok();
    if device("/dev/shm").is_none_or(|below| Some(below) == device("/dev")) {
        return eprintln!("skipped: nothing is mounted at /dev/shm");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("socket");
    let is_submount = |options: &[&str]| {
        let mut command = Command::new(BARGE);
        command.args(options);
        let _served = ServerProcess::run(command);
        let guest = Guest::negotiate(&socket, InitFlags::SUBMOUNTS);
        let name = Text(b"shm");
        let found = guest.ask(&Request::Lookup { name });
        let _ = std::fs::remove_file(&socket);
        let entry = EntryOut::decode(&found).expect("an entry");
        entry.attr.flags & ATTR_SUBMOUNT != 0
    };
    let at = text(socket.clone());
    let serve = ["serve", "--read-only", "--virtiofs", &at, "/dev"];
    let virtiofsd = [
        "virtiofsd",
        "--log-level=warn",
        "--readonly",
        "--socket-path",
        &at,
        "--shared-dir",
        "/dev",
    ];
    for (command, option) in [
        (&serve[..], "--virtiofs-no-announce-submounts"),
        (&virtiofsd, "--no-announce-submounts"),
    ] {
        assert!(is_submount(command), "{command:?}");
        let quiet = [command, &[option]].concat();
        assert!(!is_submount(&quiet), "{quiet:?}");
    }
}

/// For `barge serve` and `barge virtiofsd`: the features that a guest gets by default, and the
/// options that change them.
#[test]
fn a_guest_gets_privileges_and_acls_by_default() {
    const KILLPRIV: InitFlags = InitFlags::HANDLE_KILLPRIV_V2;
    const ACL: InitFlags = InitFlags::POSIX_ACL.union(InitFlags::DONT_MASK);
    let dir = place();
    let at = |name: &str| text(dir.path().join(name));
    let (socket, share) = (at("socket"), at("share"));
    let asked = KILLPRIV | ACL | InitFlags::SETXATTR_EXT;
    let agreed = |words: &[&str]| {
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new(BARGE);
        command.args(words);
        let _served = ServerProcess::run(command);
        Guest::negotiate(Path::new(&socket), asked).agreed & (KILLPRIV | ACL)
    };
    let serve = ["serve", "--virtiofs", &socket, &share];
    for (options, expected) in [
        (&[][..], KILLPRIV | ACL),
        (&["--virtiofs-no-killpriv-v2"], ACL),
        (&["--virtiofs-killpriv-v2"], KILLPRIV | ACL),
        (&["--virtiofs-posix-acl=never"], KILLPRIV),
        (&["--virtiofs-posix-acl"], KILLPRIV | ACL),
    ] {
        assert_eq!(agreed(&[&serve, options].concat()), expected, "{options:?}");
    }
    let virtiofsd = [
        "virtiofsd",
        "--log-level=warn",
        "--socket-path",
        &socket,
        "--shared-dir",
        &share,
    ];
    for (options, expected) in [
        // As virtiofsd: without extended attributes unless they are requested.
        (&[][..], InitFlags::empty()),
        (&["--xattr"], KILLPRIV),
        (&["--xattr", "--no-killpriv-v2"], InitFlags::empty()),
        (&["--posix-acl=auto"], KILLPRIV | ACL),
    ] {
        let words = [&virtiofsd, options].concat();
        assert_eq!(agreed(&words), expected, "{options:?}");
    }
}

const LOCKS: InitFlags = InitFlags::POSIX_LOCKS.union(InitFlags::FLOCK_LOCKS);

/// For `barge serve` and `barge virtiofsd`: a guest's process that waits for a lock of the server
/// could not be killed.
#[test]
fn a_guest_keeps_its_locks_by_default() {
    let dir = place();
    let at = |name: &str| text(dir.path().join(name));
    let (socket, share) = (at("socket"), at("share"));
    let agreed = |words: &[&str]| {
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new(BARGE);
        command.args(words);
        let _served = ServerProcess::run(command);
        Guest::negotiate(Path::new(&socket), LOCKS).agreed & LOCKS
    };
    let serve = ["serve", "--virtiofs", &socket, &share];
    for (options, expected) in [
        (&[][..], InitFlags::empty()),
        (&["--virtiofs-locks=guest"], InitFlags::empty()),
        (&["--virtiofs-locks=shared"], LOCKS),
    ] {
        assert_eq!(agreed(&[&serve, options].concat()), expected, "{options:?}");
    }
    let virtiofsd = [
        "virtiofsd",
        "--log-level=warn",
        "--socket-path",
        &socket,
        "--shared-dir",
        &share,
    ];
    for (options, expected) in [
        (&[][..], InitFlags::empty()),
        (&["-o", "no_posix_lock,no_flock"], InitFlags::empty()),
        (&["-o", "posix_lock"], InitFlags::POSIX_LOCKS),
        (&["-o", "flock,posix_lock"], LOCKS),
    ] {
        let words = [&virtiofsd, options].concat();
        assert_eq!(agreed(&words), expected, "{options:?}");
    }
}

/// One line, however many clients there are, and none without need.
#[test]
fn a_second_client_of_a_share_whose_locks_stay_in_guests_is_logged() {
    const LINE: &str = "locks of virtiofs guests stay in each guest";
    let dir = place();
    let at = |name: &str| text(dir.path().join(name));
    let logged = |options: &[&str], clients: &dyn Fn()| {
        let log = std::fs::File::create(at("log")).expect("a file");
        let mut command = Command::new(BARGE);
        command.args(["serve", "--virtiofs", &at("one"), "--virtiofs", &at("two")]);
        command.args(["--9p", &format!("unix:{}", at("9p"))]);
        command.args(["--nfs", &format!("unix:{}", at("nfs"))]);
        command.args(options).arg(at("share")).stderr(log);
        let served = ServerProcess::run(command);
        clients();
        assert!(served.stop().success());
        let log = std::fs::read_to_string(at("log")).expect("a log");
        log.matches(LINE).count()
    };
    let guest = |name: &str| Guest::negotiate(Path::new(&at(name)), LOCKS);
    let list = |url: String| stdout_of(&barge(&["ls", &url]));
    let ninep = || list(format!("9p+unix:{}", at("9p")));
    let nfs = |version: &str| list(format!("nfs+unix:{}?vers={version}", at("nfs")));
    let one_after_the_other = || {
        drop(guest("one"));
        drop(guest("one"));
        // A device answers one driver at a time: when it answers this one, which is no client yet,
        // the server has noticed that the guest has gone. Until then there are two clients.
        drop(connected(Path::new(&at("one"))));
        drop(guest("two"));
    };
    assert_eq!(logged(&[], &one_after_the_other), 0);
    for number in 0..4 {
        let second = || {
            let _first = guest("one");
            match number {
                0 => drop(guest("two")),
                1 => drop(ninep()),
                2 => drop(nfs("3")),
                _ => drop(nfs("4.2")),
            }
            ninep();
        };
        assert_eq!(logged(&[], &second), 1, "{number}");
        assert_eq!(logged(&["--virtiofs-locks=shared"], &second), 0, "{number}");
    }
    let guest_is_second = || {
        ninep();
        let _second = guest("one");
    };
    assert_eq!(logged(&[], &guest_is_second), 1);
}

/// A client with features that barge's own client lacks.
struct Guest {
    driver: Driver,
    agreed: InitFlags,
}

/// Returns a driver of the device at `socket`, whose guest has not sent a request yet.
fn connected(socket: &Path) -> Driver {
    let options = driver::Options {
        queues: 2,
        depth: 1,
        payload: 0,
        waiting: driver::WaitMode::Adaptive(Duration::ZERO),
    };
    let socket = UnixStream::connect(socket).expect("connected");
    Driver::connect(socket, 2, options).expect("a device")
}

impl Guest {
    /// Sends INIT with `flags`.
    fn negotiate(socket: &Path, flags: InitFlags) -> Guest {
        let mut guest = Guest {
            driver: connected(socket),
            agreed: InitFlags::empty(),
        };
        let args = InitIn {
            major: MAJOR,
            minor: MINOR,
            max_readahead: 0,
            flags,
        };
        let answer = guest.ask(&Request::Init { args });
        let answer = InitOut::decode(&answer).expect("an answer");
        guest.agreed = InitFlags::from_bits_truncate(answer.flags.into());
        guest
    }

    /// Returns the reply to a request for the root, which must succeed.
    fn ask(&self, request: &Request<'_>) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEADER);
        let header = Header {
            unique: 2,
            nodeid: ROOT_ID,
            ..Header::default()
        };
        request.encode(WireFormat::default(), header, &mut message);
        let mut chain = self.driver.queues()[1].chain(|| false).expect("room");
        chain.request(&message);
        let lengths = Lengths {
            request: message.len(),
            reply: Queue::MAX_INLINE_REPLY,
            ..Lengths::default()
        };
        let mut reply = vec![0; Queue::MAX_INLINE_REPLY];
        let len = chain
            .submit(lengths)
            .wait(|| false)
            .expect("answered")
            .inline(&mut reply);
        let head = OutHeader::decode(&reply[..len]).expect("a header");
        assert_eq!(head.error, 0, "{request:?}");
        reply[REPLY_HEADER..len].to_vec()
    }
}

/// virtiofsd 1.14, serving the directory `share`.
struct Daemon(Child);

impl Daemon {
    fn start(dir: &Path) -> Daemon {
        let child = Command::new("virtiofsd")
            .arg("--socket-path")
            .arg(dir.join("socket"))
            .arg("--shared-dir")
            .arg(dir.join("share"))
            .args(["--sandbox", "none", "--xattr"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("runs");
        let deadline = Instant::now() + Duration::from_secs(10);
        // It does not report when it listens, and the socket exists before that.
        while !listens(&dir.join("socket")) {
            assert!(Instant::now() < deadline, "virtiofsd does not listen");
            std::thread::sleep(Duration::from_millis(2));
        }
        Daemon(child)
    }
}

/// Returns whether a process listens at a Unix socket, from proc_pid_net(5): connecting would use
/// up the single connection.
fn listens(socket: &Path) -> bool {
    const ACCEPTS: &str = "00010000";
    let table = std::fs::read("/proc/net/unix").expect("a table");
    // Abstract names are arbitrary bytes.
    let table = String::from_utf8_lossy(&table);
    let mut lines = table.lines().map(|line| line.split_whitespace());
    lines.any(|mut words| {
        words.nth(3) == Some(ACCEPTS) && words.last().map(Path::new) == Some(socket)
    })
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It ends with its only client.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn virtiofsd_is_a_source_as_any_other() {
    if !has("virtiofsd") {
        eprintln!("skipped: virtiofsd is not installed");
        return;
    }
    let dir = place();
    let at = |name: &str| text(dir.path().join(name));
    let url = |path: &str| format!("virtiofs:{}{path}", at("socket"));
    for (args, expected) in [
        (vec!["cat".to_owned(), url("/dir/file")], "contents\n"),
        (
            vec!["cp".into(), "-r".into(), at("share/dir"), url("/new")],
            "",
        ),
        (vec!["ls".into(), url("/new")], "file\n"),
    ] {
        // It ends after one client.
        let _daemon = Daemon::start(dir.path());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        assert_eq!(stdout_of(&barge(&args)), expected, "{args:?}");
        drop(_daemon);
        let _ = std::fs::remove_file(at("socket"));
    }
    let copied = std::fs::read_to_string(at("share/new/file"));
    assert_eq!(copied.expect("there"), "contents\n");
}
