//! `barge serve --control`, `barge ctl`: the running set is changed, and clients of other shares
//! notice nothing.

mod changes;
mod limits;
mod sources;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use barge_client::{Client, File};
use rustix::process::{Gid, Pid, Signal, Uid, kill_process};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use serde_json::{Value, json};
use tempfile::TempDir;
use vfs_testkit::{SetOnDrop, wait_until};

use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

/// Size of the files that are read continuously.
const LARGE: usize = 1 << 20;

fn byte(at: usize) -> u8 {
    (at / 7) as u8 ^ (at >> 8) as u8
}

/// A server with the share `a`, and directories `b` and `c` to share.
struct Fixture {
    dir: TempDir,
    served: ServerProcess,
    /// The object that it printed.
    ready: Value,
}

impl Fixture {
    fn new(options: &[&str]) -> Fixture {
        Fixture::started(|dir, command| {
            let at = |name: &str| dir.path().join(name).display().to_string();
            command.args(["--9p", "tcp:127.0.0.1:0", "--nfs", "tcp:127.0.0.1:0"]);
            command.args(["--nfs-state-dir", &at("state"), "--pidfile", &at("pid")]);
            command.arg(format!("--control=unix:{}", at("control")));
            command.args(["--ready", "json"]).args(options);
            command.arg(format!("a={}", at("a")));
        })
    }

    fn started(options: impl FnOnce(&TempDir, &mut Command)) -> Fixture {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["a", "b", "c"] {
            std::fs::create_dir(dir.path().join(name)).expect("made");
            std::fs::write(dir.path().join(name).join("f"), name).expect("written");
        }
        let large: Vec<u8> = (0..LARGE).map(byte).collect();
        std::fs::write(dir.path().join("a/large"), large).expect("written");
        let mut command = Command::new(BARGE);
        command.arg("serve");
        options(&dir, &mut command);
        command.stderr(std::fs::File::create(dir.path().join("log")).expect("made"));
        let (served, ready) = ServerProcess::run_until_json(command);
        Fixture { dir, served, ready }
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn ctl(&self, args: &[&str]) -> Output {
        let socket = format!("--control=unix:{}", self.at("control"));
        let mut command = Command::new(BARGE);
        command.args(["ctl", &socket]).args(args);
        command.output().expect("runs")
    }

    fn listing(&self) -> Value {
        let listing = stdout_of(&self.ctl(&["list", "--json"]));
        serde_json::from_str(&listing).expect("JSON")
    }

    /// Returns the host and port of the first endpoint of a protocol.
    fn addr(&self, protocol: &str) -> &str {
        let endpoints = self.ready["endpoints"].as_array().expect("endpoints");
        let endpoint = endpoints.iter().find(|one| one["protocol"] == protocol);
        let addr = endpoint.expect("one")["address"].as_str();
        let addr = addr.and_then(|addr| addr.strip_prefix("tcp:"));
        addr.expect("a TCP address")
    }

    /// Returns the URL of the share `name` over a protocol at its first address.
    fn url(&self, protocol: &str, name: &str) -> String {
        format!("{protocol}://{}/{name}", self.addr(protocol))
    }

    fn connect(&self) -> BufReader<UnixStream> {
        let socket = UnixStream::connect(self.at("control")).expect("connected");
        let patience = Some(Duration::from_secs(60));
        socket.set_read_timeout(patience).expect("set");
        BufReader::new(socket)
    }
}

fn send(connection: &mut BufReader<UnixStream>, line: &[u8]) -> Value {
    connection.get_mut().write_all(line).expect("sent");
    receive(connection)
}

fn receive(connection: &mut BufReader<UnixStream>) -> Value {
    let mut line = String::new();
    connection.read_line(&mut line).expect("a line");
    serde_json::from_str(&line).expect(&line)
}

fn call(connection: &mut BufReader<UnixStream>, method: &str, params: &Value) -> Value {
    let request = json!({ "version": 1, "id": 1, "method": method, "params": params });
    send(connection, format!("{request}\n").as_bytes())
}

/// Returns whether directories can be added to the running process.
fn is_privileged() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: without privileges, a new source takes a restart");
    }
    root
}

fn names(listing: &Value) -> Vec<&str> {
    let shares = listing["shares"].as_array().expect("shares").iter();
    shares
        .map(|share| share["name"].as_str().expect("a name"))
        .collect()
}

const ESTALE: i32 = 116;

#[test]
fn shares_and_endpoints_are_added_listed_and_removed() {
    for options in changes::modes() {
        let place = Fixture::new(options);
        let pid = std::fs::read_to_string(place.at("pid")).expect("a file");
        assert_eq!(pid.trim(), place.served.id().to_string());
        assert_eq!(place.ready, place.listing());
        let socket = std::fs::symlink_metadata(place.at("control")).expect("there");
        assert!(socket.file_type().is_socket() && socket.mode() & 0o777 == 0o600);

        let device = place.at("b.sock");
        let share = format!("b={}", place.at("b"));
        let text = stdout_of(&place.ctl(&["add", &share, "--read-only", "--virtiofs", &device]));
        assert!(text.contains(&format!("path={device}")), "{text}");
        assert!(text.ends_with("mount -t virtiofs b /mnt\n"), "{text}");
        let listing = place.listing();
        assert_eq!(names(&listing), ["a", "b"]);
        let endpoint = listing["endpoints"]
            .as_array()
            .expect("endpoints")
            .last()
            .cloned();
        let endpoint = endpoint.expect("one");
        assert_eq!(endpoint["address"], format!("unix:{device}"));
        assert_eq!(
            (&endpoint["share"], &endpoint["state"]),
            (&json!("b"), &json!("serving"))
        );

        let guest = Client::open(&format!("virtiofs:{device}")).expect("connected");
        assert_eq!(guest.read("f").expect("read"), b"b");
        let clients = ["9p", "nfs"].map(|it| Client::open(&place.url(it, "b")).expect("connected"));
        let files = clients
            .each_ref()
            .map(|client| client.open_file("f").expect("opened"));
        assert!(clients[0].write("new", "").is_err(), "it is read-only");

        let socket = place.at("9p.sock");
        stdout_of(&place.ctl(&["add", "--9p", &format!("unix:{socket}")]));
        let other = Client::open(&format!("9p+unix:{socket}")).expect("connected");
        assert_eq!(other.read("b/f").expect("read"), b"b");

        let text = stderr_of(&place.ctl(&["add", &share]));
        assert!(text.contains("a share named 'b' exists"), "{text}");
        let taken = format!("c={}", place.at("c"));
        let text = stderr_of(&place.ctl(&["add", &taken, "--virtiofs", &device]));
        assert!(
            text.contains("an endpoint at unix:") && text.contains("exists"),
            "{text}"
        );
        assert_eq!(names(&place.listing()), ["a", "b"]);

        stdout_of(&place.ctl(&["remove", "b"]));
        assert!(!Path::new(&device).exists());
        for file in &files {
            let error = file.read_at(&mut [0; 4], 0).expect_err("it is gone");
            assert_eq!(error.raw_os_error(), Some(ESTALE), "{error}");
        }
        drop(guest);
        assert!(Client::open(&place.url("9p", "b")).is_err());
        assert_eq!(other.read("a/f").expect("read"), b"a");
        stdout_of(&place.ctl(&["remove", &format!("unix:{socket}")]));
        assert!(!Path::new(&socket).exists());
        drop(other);
        assert_eq!(place.ready, place.listing());

        for (args, status, expected) in [
            (
                vec!["remove", "b"],
                1,
                "expected the name of a share, got 'b'",
            ),
            (
                vec!["remove", "unix:/none"],
                1,
                "expected the address of an endpoint",
            ),
            (vec!["add", "d=/no/such/directory"], 1, "/no/such/directory"),
            (vec!["add", "--nbd", "x"], 2, "nbd"),
            (vec!["add", "mem:"], 2, "expected NAME=mem:"),
            (vec!["add"], 2, "expected NAME=SOURCE"),
            (
                vec!["disconnect", "999"],
                1,
                "expected the number of a client",
            ),
        ] {
            let output = place.ctl(&args);
            let text = stderr_of(&output);
            assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
            assert!(text.contains(expected), "{args:?}: {text}");
        }
        let (control, pid) = (place.at("control"), place.at("pid"));
        assert!(place.served.stop().success());
        assert!(!Path::new(&control).exists() && !Path::new(&pid).exists());
    }
}

#[test]
fn a_share_that_is_added_may_hide_paths() {
    for options in changes::modes() {
        let place = Fixture::new(options);
        let (share, list) = (format!("b={}", place.at("b")), place.at("list"));
        std::fs::write(place.dir.path().join("b/x.key"), "x").expect("written");
        std::fs::write(place.dir.path().join("b/other"), "x").expect("written");
        std::fs::write(&list, "f\nx.key\n").expect("written");
        stdout_of(&place.ctl(&["add", &share, "--hide", "*.key", "--only", &list]));
        let client = Client::open(&place.url("9p", "b")).expect("served");
        assert_eq!(client.read("f").expect("shown"), b"b");
        for hidden in ["x.key", "other"] {
            let error = client.read(hidden).expect_err("hidden");
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
        }
    }
}

#[test]
fn clients_are_listed_and_disconnected_and_the_state_is_printed() {
    let place = Fixture::new(&[]);
    let client = Client::open(&format!("{}?reconnect=0", place.url("9p", "a")))
        .or_else(|_| Client::open(&place.url("9p", "a")))
        .expect("connected");
    assert_eq!(client.read("f").expect("read"), b"a");
    let clients = || -> Value {
        let text = stdout_of(&place.ctl(&["clients", "--json"]));
        serde_json::from_str(&text).expect("JSON")
    };
    let list = clients();
    let first = &list["clients"][0];
    assert_eq!(
        (&first["protocol"], first["requests"].as_u64() > Some(0)),
        (&json!("9p"), true)
    );
    assert_eq!(first["endpoint"], place.ready["endpoints"][0]["address"]);
    let text = stdout_of(&place.ctl(&["clients"]));
    assert!(text.starts_with("CLIENT  ADDRESS"), "{text}");
    let id = first["id"].as_u64().expect("a number");
    stdout_of(&place.ctl(&["disconnect", &id.to_string()]));
    let deadline = Instant::now() + Duration::from_secs(10);
    let is_there = |list: &Value| {
        let mut all = list["clients"].as_array().expect("clients").iter();
        all.any(|one| one["id"] == id)
    };
    while is_there(&clients()) {
        assert!(Instant::now() < deadline, "it is still connected");
    }
    let debug: Value = serde_json::from_str(&stdout_of(&place.ctl(&["debug"]))).expect("JSON");
    assert!(
        debug["configuration"]
            .as_str()
            .expect("text")
            .contains("[[share]]")
    );
    assert_eq!(debug["serving"]["status"]["exports"][0]["name"], "a");
    assert!(debug["kernel"]["release"].is_string() && debug["limits"]["open_files"].is_u64());
}

#[test]
fn shares_and_endpoints_are_drained() {
    for options in changes::modes() {
        let place = Fixture::new(options);
        let device = place.at("b.sock");
        let share = format!("b={}", place.at("b"));
        stdout_of(&place.ctl(&["add", &share, "--virtiofs", &device]));
        let text = stdout_of(&place.ctl(&["drain", "b", "--json"]));
        let drained: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(drained, json!({ "drained": true }));
        assert!(!Path::new(&device).exists());
        assert_eq!(names(&place.listing()), ["a"]);
        let nine = place.ready["endpoints"][0]["address"]
            .as_str()
            .expect("an address");
        stdout_of(&place.ctl(&["drain", nine, "--timeout", "1"]));
        assert!(Client::open(&place.url("9p", "a")).is_err());
        assert!(Client::open(&place.url("nfs", "a")).is_ok());
    }
}

/// The file and requests change the same set.
#[test]
fn a_reload_makes_the_file_the_running_set_with_its_devices() {
    for options in changes::modes() {
        let table = |dir: &TempDir, name: &str, device: bool| {
            let at = |name: &str| dir.path().join(name).display().to_string();
            let device = match device {
                true => format!("virtiofs = '{}.sock'\n", at(name)),
                false => String::new(),
            };
            format!(
                "[[share]]\nname = '{name}'\nsource = '{}'\n{device}",
                at(name)
            )
        };
        let global = |dir: &TempDir| {
            let control = dir.path().join("control");
            let control = control.display();
            let sandbox = match options.is_empty() {
                true => "",
                false => "sandbox = 'none'\n",
            };
            format!("9p = 'tcp:127.0.0.1:0'\nready = 'json'\ncontrol = 'unix:{control}'\n{sandbox}")
        };
        let write = |dir: &TempDir, text: String| {
            std::fs::write(dir.path().join("barge.toml"), text).expect("written");
        };
        let place = Fixture::started(|dir, command| {
            write(dir, global(dir) + &table(dir, "a", true));
            command.arg("--config").arg(dir.path().join("barge.toml"));
        });
        let a = Client::open(&format!("virtiofs:{}", place.at("a.sock"))).expect("connected");
        stdout_of(&place.ctl(&["add", &format!("b={}", place.at("b"))]));
        write(
            &place.dir,
            global(&place.dir) + &table(&place.dir, "a", true) + &table(&place.dir, "c", true),
        );
        stdout_of(&place.ctl(&["reload"]));
        assert_eq!(names(&place.listing()), ["a", "c"]);
        let c = Client::open(&format!("virtiofs:{}", place.at("c.sock"))).expect("connected");
        assert_eq!(c.read("f").expect("read"), b"c");
        assert_eq!(a.read("f").expect("read"), b"a");
        write(
            &place.dir,
            global(&place.dir) + &table(&place.dir, "a", true) + "workers = x",
        );
        let text = stderr_of(&place.ctl(&["reload"]));
        assert!(text.contains("barge.toml:"), "{text}");
        assert_eq!(names(&place.listing()), ["a", "c"]);
        write(
            &place.dir,
            global(&place.dir) + &table(&place.dir, "a", false),
        );
        let pid = Pid::from_raw(place.served.id() as i32).expect("a process");
        kill_process(pid, Signal::HUP).expect("asked");
        let deadline = Instant::now() + Duration::from_secs(20);
        while names(&place.listing()) != ["a"] {
            assert!(Instant::now() < deadline, "it has not been reloaded");
        }
        assert!(!Path::new(&place.at("c.sock")).exists());
        assert!(!Path::new(&place.at("a.sock")).exists());
    }
}

/// After a crash, the next process serves the shares that were added.
#[test]
fn added_shares_survive_a_crash_of_the_serving_process() {
    if !is_privileged() {
        return;
    }
    let place = Fixture::new(&[]);
    let device = place.at("b.sock");
    let share = format!("b={}", place.at("b"));
    stdout_of(&place.ctl(&["add", &share, "--virtiofs", &device]));
    let serving = place.served.serving_id();
    let pid = Pid::from_raw(serving as i32).expect("a process");
    kill_process(pid, Signal::KILL).expect("killed");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !place.ctl(&["list"]).status.success() || place.served.serving_id() == serving {
        assert!(Instant::now() < deadline, "it does not serve again");
        std::thread::sleep(Duration::from_millis(10));
    }
    let guest = Client::open(&format!("virtiofs:{device}")).expect("connected");
    assert_eq!(guest.read("f").expect("read"), b"b");
    assert_eq!(names(&place.listing()), ["a", "b"]);
    stdout_of(&place.ctl(&["remove", "b"]));
    assert!(!Path::new(&device).exists());
}

#[test]
fn a_server_without_confinement_is_controlled_too() {
    let place = Fixture::new(&["--sandbox", "none"]);
    let (device, socket) = (place.at("b.sock"), format!("unix:{}", place.at("9p.sock")));
    let share = format!("b={}", place.at("b"));
    stdout_of(&place.ctl(&["add", &share, "--virtiofs", &device, "--9p", &socket]));
    let guest = Client::open(&format!("virtiofs:{device}")).expect("connected");
    assert_eq!(guest.read("f").expect("read"), b"b");
    stdout_of(&place.ctl(&["remove", "b"]));
    assert!(!Path::new(&device).exists());
    drop(guest);
    stdout_of(&place.ctl(&["remove", &socket]));
    assert!(!Path::new(&place.at("9p.sock")).exists());
    stdout_of(&place.ctl(&["reload"]));
    assert_eq!(place.ready, place.listing());
    assert!(place.served.stop().success());
}

#[test]
fn other_users_are_refused() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs another user");
    }
    let place = Fixture::new(&[]);
    // An abstract socket has no mode. The random name of a directory is unused as an abstract one.
    let dir = tempfile::tempdir().expect("a directory");
    let name = format!("unix:@{}", dir.path().display());
    let other = Fixture::started(|_, command| {
        command.args(["--ready=json", "--9p=tcp:127.0.0.1:0", "mem:"]);
        command.arg(format!("--control={name}"));
    });
    assert_eq!(other.ready["shares"][0]["name"], "");
    let as_user = |socket: String| {
        // The identity is that of a thread.
        let tried = std::thread::spawn(move || {
            let (user, group) = (Uid::from_raw(65534), Gid::from_raw(65534));
            set_thread_res_gid(group, group, group).expect("permitted");
            set_thread_res_uid(user, user, user).expect("permitted");
            let path = socket.strip_prefix("unix:").expect("a path");
            let connected = match path.strip_prefix('@') {
                Some(name) => {
                    let addr = SocketAddr::from_abstract_name(name).expect("a name");
                    UnixStream::connect_addr(&addr)
                }
                None => UnixStream::connect(path),
            };
            match connected {
                Err(error) => error.to_string(),
                Ok(socket) => receive(&mut BufReader::new(socket)).to_string(),
            }
        });
        tried.join().expect("no panic")
    };
    let text = as_user(name);
    assert!(
        text.contains("expected the user of the server or root"),
        "{text}"
    );
    let text = as_user(format!("unix:{}", place.at("control")));
    assert!(text.contains("Permission denied"), "{text}");
}

/// Maximum length of a line in bytes, with its newline.
const MAX_LINE: usize = 65_536;

/// Returns a request of `len` bytes, with its newline.
fn line_of(len: usize) -> Vec<u8> {
    let request = |method: &str| format!("{{\"version\":1,\"method\":\"{method}\"}}\n");
    let method = "x".repeat(len - request("").len());
    request(&method).into_bytes()
}

#[test]
fn malformed_lines_get_errors_and_long_ones_end_the_connection() {
    let place = Fixture::new(&[]);
    let mut connection = place.connect();
    for (line, code) in [
        (&b"\n"[..], "invalid-request"),
        (b"\xff\xfe{\n", "invalid-request"),
        (b"{\"id\":3}\n", "unsupported-version"),
        (b"{\"version\":1,\"id\":3,\"method\":\"x\"}\n", "unknown-method"),
        (
            b"{\"version\":1,\"id\":3,\"method\":\"share.add\",\"params\":{\"share\":{\"x\":1}}}\n",
            "invalid-params",
        ),
        (
            b"{\"version\":1,\"method\":\"endpoint.add\",\"params\":{\"endpoint\":{\"nfs\":\"tcp:[::]:0\"}}}\n",
            "invalid-params",
        ),
    ] {
        let reply = send(&mut connection, line);
        assert_eq!(reply["error"]["code"], code, "{reply}");
    }
    // Requests that are sent together are answered in their order.
    let many: String = (0..200)
        .map(|id| format!("{{\"version\":1,\"id\":{id},\"method\":\"server.list\"}}\n"))
        .collect();
    connection
        .get_mut()
        .write_all(many.as_bytes())
        .expect("sent");
    for id in 0..200 {
        assert_eq!(receive(&mut connection)["id"], id);
    }
    // The longest line, and one that is longer by a byte.
    let reply = send(&mut connection, &line_of(MAX_LINE));
    assert_eq!(reply["error"]["code"], "unknown-method", "{reply}");
    let mut long = line_of(MAX_LINE + 1);
    long.pop();
    let reply = send(&mut connection, &long);
    let message = reply["error"]["message"].as_str().expect("a message");
    assert!(message.contains("expected at most 65536 bytes"), "{reply}");
    let mut rest = Vec::new();
    connection.read_to_end(&mut rest).expect("an end");
    assert!(rest.is_empty());
    // Connections are limited, and each that ends makes room.
    let mut open: Vec<_> = (0..16).map(|_| place.connect()).collect();
    for connection in &mut open {
        let reply = call(connection, "server.list", &json!({}));
        assert_eq!(names(&reply["result"]), ["a"]);
    }
    assert_eq!(receive(&mut place.connect())["error"]["code"], "busy");
    drop(open.pop());
    let deadline = Instant::now() + Duration::from_secs(10);
    while !place.ctl(&["list"]).status.success() {
        assert!(Instant::now() < deadline, "no connection becomes free");
    }
}

/// A second server fails at once, and leaves the first one's files alone.
#[test]
fn a_locked_pidfile_and_a_control_socket_in_use_are_errors() {
    let place = Fixture::new(&[]);
    let start = |option: String| {
        let mut command = Command::new(BARGE);
        command.args(["serve", "mem:", "--9p", "tcp:127.0.0.1:0", &option]);
        stderr_of(&command.output().expect("runs"))
    };
    let text = start(format!("--pidfile={}", place.at("pid")));
    assert!(text.contains("another server has locked it"), "{text}");
    let text = start(format!("--control=unix:{}", place.at("control")));
    assert!(text.contains("in use"), "{text}");
    assert_eq!(names(&place.listing()), ["a"]);
}

/// Reads blocks at varying offsets from one file after the other until `stop`, and compares each
/// with the expected contents.
fn read_all_the_time(files: &[File], stop: &AtomicBool, reads: &AtomicU64) {
    let mut block = vec![0; 4096 + 13];
    let mut at = 1;
    for file in files.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        at = (at * 7919 + 31) % (LARGE - block.len());
        let len = file.read_at(&mut block, at as u64).expect("read");
        let same = (at..at + len).zip(&block).all(|(at, got)| byte(at) == *got);
        assert!(len > 0 && same, "{at}");
        reads.fetch_add(1, Ordering::Relaxed);
    }
}

/// Adds and removes `count` shares, `at_once` of them at the same time, while clients of another
/// share read and verify its contents over 9P, NFS and virtiofs. The shares are directories in that
/// share: mounting others in the root of the serving process would wait for the busy processors.
fn churn(count: usize, at_once: usize, device: bool) {
    let place = Fixture::new(&[]);
    let own = place.at("a.sock");
    let own_device = json!({ "endpoint": { "virtiofs": format!("a={own}") } });
    let mut connection = place.connect();
    let added = call(&mut connection, "endpoint.add", &own_device);
    assert!(added["error"].is_null(), "{added}");
    for number in 0..at_once {
        let dir = place.dir.path().join(format!("a/dirs/{number}"));
        std::fs::create_dir_all(&dir).expect("made");
        std::fs::write(dir.join("f"), "f").expect("written");
    }
    let urls = [
        place.url("9p", "a"),
        place.url("nfs", "a?vers=4.2"),
        place.url("nfs", "a?vers=3"),
        format!("virtiofs:{own}"),
    ];
    let clients = urls.map(|url| Client::open(&url).expect(&url));
    let files = clients
        .each_ref()
        .map(|client| client.open_file("large").expect("opened"));
    let stop = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        scope.spawn(|| read_all_the_time(&files, &stop, &reads));
        let begin = Instant::now();
        for round in 0..count.div_ceil(at_once) {
            let numbers = round * at_once..count.min((round + 1) * at_once);
            for number in numbers.clone() {
                let dir = place.at(&format!("a/dirs/{}", number % at_once));
                let mut share = json!({ "name": format!("s{number}"), "source": dir });
                if device {
                    share["virtiofs"] = json!(place.at(&format!("{number}.sock")));
                }
                let added = call(&mut connection, "share.add", &json!({ "share": share }));
                assert!(added["error"].is_null(), "{added}");
            }
            let last = numbers.end - 1;
            let url = match device {
                true => format!("virtiofs:{}", place.at(&format!("{last}.sock"))),
                false => place.url("9p", &format!("s{last}")),
            };
            let added = Client::open(&url).expect(&url);
            assert_eq!(added.read("f").expect("read"), b"f");
            for number in numbers {
                let name = json!({ "name": format!("s{number}") });
                let removed = call(&mut connection, "share.remove", &name);
                assert!(removed["error"].is_null(), "{removed}");
            }
            // A client of a device waits for the device to return.
            assert!(device || added.read("f").is_err());
        }
        let kind = if device {
            "shares with devices"
        } else {
            "shares"
        };
        eprintln!("{count} {kind}, {at_once} at once: {:?}", begin.elapsed());
    });
    assert!(reads.load(Ordering::Relaxed) > 100);
    assert_eq!(names(&place.listing()), ["a"]);
}

/// The number of shares that come and go: `SHARES`.
fn shares() -> usize {
    let shares = std::env::var("SHARES").ok();
    shares.map_or(200, |shares| shares.parse().expect("a number"))
}

#[test]
fn shares_come_and_go_while_others_are_read() {
    if is_privileged() {
        churn(shares(), 100, false);
    }
}

#[test]
fn devices_come_and_go_while_others_are_read() {
    if is_privileged() {
        churn(shares() / 5, 20, true);
    }
}

/// Returns the row of the share `name` in the result of `evict`.
fn evicted(output: &Output, name: &str) -> Value {
    let result: Value = serde_json::from_str(&stdout_of(output)).expect("JSON");
    let shares = result["shares"].as_array().expect("a list");
    let mut rows = shares.iter().filter(|share| share["name"] == name);
    rows.next().expect("the share").clone()
}

#[test]
fn what_is_cached_of_a_share_is_released_while_clients_read() {
    let server = Fixture::started(|dir, command| {
        let at = |name: &str| dir.path().join(name).display().to_string();
        let image = at("image");
        let packed = Command::new(BARGE)
            .args(["pack", &at("a"), &image, "--compress", "lz4", "-q"])
            .output();
        stdout_of(&packed.expect("runs"));
        command.args(["--9p", "tcp:127.0.0.1:0", "--ready", "json"]);
        command.arg(format!("--control=unix:{}", at("control")));
        command.args([format!("image={image}"), format!("a={}", at("a"))]);
    });
    let endpoints = server.ready["endpoints"].as_array().expect("a list");
    let address = endpoints[0]["address"].as_str().expect("an address");
    let url = |path: &str| format!("9p://{}/{path}", address.trim_start_matches("tcp:"));
    let clients = ["image", "a"].map(|share| Client::open(&url(share)).expect("connected"));
    let files = clients.each_ref();
    let files = files.map(|client| client.open_file("large").expect("opened"));
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0; 50_000];
            for at in (0..LARGE - buffer.len()).step_by(37_003).cycle() {
                for file in &files {
                    let read = file.read_at(&mut buffer, at as u64).expect("read");
                    assert!(read > 0);
                    let mut bytes = buffer[..read].iter().enumerate();
                    assert!(bytes.all(|(more, found)| *found == byte(at + more)));
                }
                reads.fetch_add(1, Ordering::Relaxed);
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let _stop = SetOnDrop(&stop);
        let (mut released, mut closed) = (0, 0);
        for _ in 0..5 {
            let before = reads.load(Ordering::Relaxed);
            wait_until("ten more rounds of reads", || {
                reads.load(Ordering::Relaxed) >= before + 10
            });
            let all = server.ctl(&["evict", "--json"]);
            let (image, directory) = (evicted(&all, "image"), evicted(&all, "a"));
            released += image["memory_bytes"].as_u64().expect("a number");
            closed += directory["descriptors"].as_u64().expect("a number");
            assert_eq!(image["disk_bytes"], 0);
        }
        assert!(released > 0 && closed > 0, "{released} {closed}");
    });
    // Once nobody reads, nothing is left.
    server.ctl(&["evict"]);
    let all = server.ctl(&["evict", "--json"]);
    assert_eq!(evicted(&all, "image")["memory_bytes"], 0);
    let text = stdout_of(&server.ctl(&["evict", "a"]));
    assert!(
        text.starts_with("SHARE") && text.lines().count() == 2,
        "{text}"
    );
    let missing = server.ctl(&["evict", "missing"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr_of(&missing).contains("expected the name of a share, got 'missing'"));
}
