//! Changes of the running set while requests are in flight, after failures and after crashes.

use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use p9::numbers::lock_kind;
use remote::ninep::Connection;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use vfs_testkit::wait_until;
use virtqueue::driver::{self, Driver, Stream, WaitMode};

use super::*;
use crate::locks;
use crate::served::has;

/// Returns the options of a server with and without a process that is confined. Without
/// privileges, the latter cannot add directories.
pub(super) fn modes() -> Vec<&'static [&'static str]> {
    let all: [&[&str]; 2] = [&["--sandbox=none"], &[]];
    all[..if is_privileged() { 2 } else { 1 }].to_vec()
}

/// A server of the file `barge.toml`, which can be edited.
struct Configured {
    place: Fixture,
    options: &'static [&'static str],
}

impl Configured {
    fn new(options: &'static [&'static str], text: &str) -> Configured {
        let place = Fixture::started(|dir, command| {
            write_config(dir, options, text);
            command.arg("--config").arg(dir.path().join("barge.toml"));
        });
        Configured { place, options }
    }

    fn write(&self, text: &str) {
        write_config(&self.place.dir, self.options, text);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.place.served.id() as i32).expect("a process");
        kill_process(pid, signal).expect("sent");
    }
}

/// Writes the file with `text`, in which `DIR` is replaced, at once.
fn write_config(dir: &TempDir, options: &[&str], text: &str) {
    let path = dir.path().display().to_string();
    let sandbox = match options.is_empty() {
        true => "",
        false => "sandbox = 'none'\n",
    };
    let global = format!("ready = 'json'\ncontrol = 'unix:{path}/control'\n{sandbox}");
    let text = global + &text.replace("DIR", &path);
    std::fs::write(dir.path().join("new.toml"), text).expect("written");
    let renamed = std::fs::rename(dir.path().join("new.toml"), dir.path().join("barge.toml"));
    renamed.expect("replaced");
}

/// Kills the process that serves, and waits until the next one does.
pub(super) fn crash(place: &Fixture) {
    let serving = place.served.serving_id();
    let pid = Pid::from_raw(serving as i32).expect("a process");
    kill_process(pid, Signal::KILL).expect("killed");
    wait_until("it serves again", || {
        place.ctl(&["list"]).status.success() && place.served.serving_id() != serving
    });
}

fn state_of(place: &Fixture, list: &str, key: &str, name: &str) -> Value {
    let listing = place.listing();
    let all = listing[list].as_array().expect("a list");
    let found = all.iter().find(|it| it[key] == name);
    found.map_or(Value::Null, |it| it["state"].clone())
}

/// Returns a 9P session with the device at `socket`.
fn guest(socket: &str) -> Arc<Connection> {
    let options = driver::Options {
        queues: 1,
        depth: 16,
        payload: 8192,
        waiting: WaitMode::Adaptive(Duration::ZERO),
    };
    let socket = UnixStream::connect(socket).expect("connected");
    let driver = Driver::connect(socket, 1, options).expect("a device");
    let size = |head: &[u8]| Some(u32::from_le_bytes(*head.first_chunk()?) as usize);
    locks::session(Stream::new(driver, size, "a device").expect("a stream"))
}

/// A request of `session` that waits for a lock.
struct Waiting {
    session: Arc<Connection>,
    thread: JoinHandle<Option<u8>>,
}

impl Waiting {
    fn start(place: &Fixture, session: Arc<Connection>, path: &[&[u8]]) -> Waiting {
        locks::open(&session, path);
        assert!(locks::lock_as(&session, 1, lock_kind::WRLCK).is_some());
        let own = session.clone();
        let thread = std::thread::spawn(move || locks::lock_as(&own, 2, lock_kind::WRLCK));
        wait_until("a request waits", || {
            let debug = stdout_of(&place.ctl(&["debug"]));
            let debug: Value = serde_json::from_str(&debug).expect("JSON");
            debug["serving"]["status"]["parked"] != 0
        });
        Waiting { session, thread }
    }

    /// Releases the lock. Returns whether the request gets it.
    fn end(self) -> bool {
        locks::lock_as(&self.session, 1, lock_kind::UNLCK);
        self.thread.join().expect("no panic").is_some()
    }
}

/// Drains a target with a thread.
fn draining(place: &Fixture, target: &str, timeout: &str) -> JoinHandle<Value> {
    let socket = format!("--control=unix:{}", place.at("control"));
    let args = [
        "ctl",
        &socket,
        "drain",
        target,
        "--timeout",
        timeout,
        "--json",
    ];
    let mut command = Command::new(BARGE);
    command.args(args);
    std::thread::spawn(move || {
        let output = command.output().expect("runs");
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    })
}

#[test]
fn a_server_runs_without_endpoints_until_it_is_stopped() {
    for options in modes() {
        let place = Fixture::started(|dir, command| {
            let control = dir.path().join("control").display().to_string();
            command
                .args(["--ready=json", "--9p=tcp:127.0.0.1:0"])
                .args(options);
            command.arg(format!("--control=unix:{control}"));
            command.arg(format!("a={}", dir.path().join("a").display()));
        });
        let nine = place.ready["endpoints"][0]["address"]
            .as_str()
            .expect("one");
        stdout_of(&place.ctl(&["remove", nine]));
        assert_eq!(place.listing()["endpoints"], json!([]), "{options:?}");
        if options.is_empty() {
            crash(&place);
            assert_eq!(place.listing()["endpoints"], json!([]));
        }
        let socket = place.at("9p.sock");
        stdout_of(&place.ctl(&["add", "--9p", &format!("unix:{socket}")]));
        let client = Client::open(&format!("9p+unix:{socket}")).expect("connected");
        assert_eq!(client.read("a/f").expect("read"), b"a");
        drop(client);
        // A device is no connection: the server does not end after the last of these.
        let device = place.at("a.sock");
        stdout_of(&place.ctl(&["add", "--virtiofs", &format!("a={device}")]));
        stdout_of(&place.ctl(&["remove", &format!("unix:{socket}")]));
        stdout_of(&place.ctl(&["remove", &format!("unix:{device}")]));
        assert_eq!(names(&place.listing()), ["a"]);
        assert!(place.served.stop().success());
    }
}

#[test]
fn a_drain_waits_for_requests_and_lets_other_changes_pass() {
    for options in modes() {
        let place = Fixture::new(options);
        let device = place.at("a.sock");
        stdout_of(&place.ctl(&["add", "--virtio-9p", &format!("a={device}")]));
        let nine = place.ready["endpoints"][0]["address"]
            .as_str()
            .expect("one");
        let port = nine
            .rsplit(':')
            .next()
            .expect("a port")
            .parse()
            .expect("a number");
        let listens = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        let targets = [(format!("unix:{device}"), true), (nine.to_owned(), false)];
        for (target, is_device) in targets {
            let waiting = match is_device {
                true => Waiting::start(&place, guest(&device), &[b"f"]),
                false => Waiting::start(&place, locks::connect(port), &[b"a", b"f"]),
            };
            let drain = draining(&place, &target, "60");
            wait_until("it is being drained", || {
                state_of(&place, "endpoints", "address", &target) == "draining"
            });
            // Other changes do not wait for it.
            stdout_of(&place.ctl(&["add", &format!("b={}", place.at("b"))]));
            stdout_of(&place.ctl(&["reload"]));
            stdout_of(&place.ctl(&["remove", "b"]));
            if !is_device {
                wait_until("new clients are refused", || !listens());
            }
            assert!(!drain.is_finished(), "{target}");
            assert!(waiting.end(), "{target}");
            let drained = drain.join().expect("no panic");
            assert_eq!(drained, json!({ "drained": true }), "{target}");
            assert_eq!(
                state_of(&place, "endpoints", "address", &target),
                Value::Null
            );
        }
        // After the timeout it is removed in any case.
        stdout_of(&place.ctl(&["add", "--virtio-9p", &format!("a={device}")]));
        let waiting = Waiting::start(&place, guest(&device), &[b"f"]);
        let drained = draining(&place, &format!("unix:{device}"), "0").join();
        assert_eq!(drained.expect("no panic"), json!({ "drained": false }));
        assert!(!Path::new(&device).exists());
        drop(waiting);
        assert!(place.served.stop().success());
    }
}

#[test]
fn clients_cannot_open_a_share_that_is_being_drained_by_its_name() {
    for options in modes() {
        let place = Fixture::new(options);
        let url = place.url("9p", "a");
        let port = url
            .split([':', '/'])
            .nth(4)
            .expect("a port")
            .parse()
            .expect("a number");
        let waiting = Waiting::start(&place, locks::connect(port), &[b"a", b"f"]);
        let drain = draining(&place, "a", "60");
        wait_until("it is refused", || Client::open(&url).is_err());
        assert_eq!(state_of(&place, "shares", "name", "a"), "draining");
        let taken = stderr_of(&place.ctl(&["add", &format!("a={}", place.at("b"))]));
        assert!(taken.contains("a share named 'a' exists"), "{taken}");
        assert!(waiting.end());
        assert_eq!(drain.join().expect("no panic"), json!({ "drained": true }));
        assert_eq!(names(&place.listing()), [""; 0]);
        stdout_of(&place.ctl(&["add", &format!("a={}", place.at("b"))]));
        assert_eq!(
            Client::open(&url).expect("served").read("f").expect("read"),
            b"b"
        );
    }
}

#[test]
fn a_signal_to_stop_waits_for_no_drain_and_no_reload() {
    let file = "9p = 'tcp:127.0.0.1:0'\n[[share]]\nname = 'a'\nsource = 'DIR/a'\n";
    for options in modes() {
        let configured = Configured::new(options, file);
        let place = &configured.place;
        let device = place.at("a.sock");
        stdout_of(&place.ctl(&["add", "--virtio-9p", &format!("a={device}")]));
        let waiting = Waiting::start(place, guest(&device), &[b"f"]);
        let drain = draining(place, &format!("unix:{device}"), "3600");
        wait_until("it is being drained", || {
            state_of(place, "endpoints", "address", &format!("unix:{device}")) == "draining"
        });
        configured.write(&format!("{file}[[share]]\nname = 'c'\nsource = 'DIR/c'\n"));
        configured.signal(Signal::HUP);
        wait_until("it is reloaded", || names(&place.listing()) == ["a", "c"]);
        drop(waiting);
        assert!(configured.place.served.stop().success(), "{options:?}");
        drain.join().expect("no panic");

        let configured = Configured::new(options, file);
        let path = configured.place.dir.path().join("barge.toml");
        std::fs::remove_file(&path).expect("removed");
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
        configured.signal(Signal::HUP);
        // Fails as long as nobody reads.
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        let mut writer = None;
        wait_until("it reads the file", || {
            writer = rustix::fs::open(&path, flags, Mode::empty()).ok();
            writer.is_some()
        });
        assert!(configured.place.served.stop().success(), "{options:?}");
    }
}

#[test]
fn an_addition_that_the_next_process_could_not_serve_is_refused() {
    for options in modes() {
        let file = "9p = 'tcp:127.0.0.1:0'\nrecord-trace = 'DIR/trace'\n\
            [[share]]\nname = 'a'\nsource = 'DIR/a'\n";
        let configured = Configured::new(options, file);
        let place = &configured.place;
        let text = stderr_of(&place.ctl(&["add", &format!("b={}", place.at("b"))]));
        assert!(text.contains("expected one source"), "{text}");
        let mut connection = place.connect();
        let list = json!({ "endpoint": { "export": "/a *" } });
        let reply = call(&mut connection, "endpoint.add", &list);
        assert_eq!(reply["error"]["code"], "invalid-params", "{reply}");
        let device = format!("none={}", place.at("x.sock"));
        let text = stderr_of(&place.ctl(&["add", "--virtiofs", &device]));
        assert!(
            text.contains("expected the name of a share, got 'none'"),
            "{text}"
        );
        if options.is_empty() {
            crash(place);
        }
        assert_eq!(names(&place.listing()), ["a"]);
    }
}

#[test]
fn additions_have_the_defaults_of_the_last_reload() {
    for options in modes() {
        let share = "[[share]]\nname = 'a'\nsource = 'DIR/a'\n";
        let nine = "9p = 'tcp:127.0.0.1:0'\n";
        let configured = Configured::new(options, &format!("{nine}{share}"));
        let place = &configured.place;
        configured.write(&format!("{nine}read-only = true\n{share}"));
        stdout_of(&place.ctl(&["reload"]));
        stdout_of(&place.ctl(&["add", &format!("b={}", place.at("b"))]));
        let client = Client::open(&place.url("9p", "b")).expect("served");
        assert!(client.write("new", "").is_err(), "{options:?}");
        assert!(!place.dir.path().join("b/new").exists());
    }
}

#[test]
fn a_failed_reload_changes_nothing_also_for_the_next_process() {
    let nine = "9p = 'tcp:127.0.0.1:0'\n";
    let share = "[[share]]\nname = 'a'\nsource = 'DIR/a'\nvirtiofs = 'DIR/a.sock'\n";
    for options in modes() {
        let configured = Configured::new(options, &format!("{nine}{share}"));
        let place = &configured.place;
        let before = place.listing();
        let device = format!("virtiofs:{}", place.at("a.sock"));
        let client = Client::open(&device).expect("connected");
        let other = "[[share]]\nname = 'b'\nsource = 'DIR/b'\nvirtiofs = 'DIR/none/b.sock'\n";
        configured.write(&format!("{nine}{other}"));
        let failed = stderr_of(&place.ctl(&["reload"]));
        assert!(
            failed.contains("keeping the previous configuration"),
            "{failed}"
        );
        assert_eq!(place.listing(), before, "{options:?}");
        assert_eq!(client.read("f").expect("read"), b"a");
        drop(client);
        if options.is_empty() {
            crash(place);
            assert_eq!(names(&place.listing()), ["a"]);
        }
        let client = Client::open(&device).expect("connected");
        assert_eq!(client.read("f").expect("read"), b"a");
    }
}

#[test]
fn a_signal_to_reload_is_not_lost_while_the_serving_process_restarts() {
    if !is_privileged() {
        return;
    }
    let file = "9p = 'tcp:127.0.0.1:0'\n[[share]]\nname = 'a'\nsource = 'DIR/a'\n";
    let configured = Configured::new(&[], file);
    let place = &configured.place;
    stdout_of(&place.ctl(&["add", &format!("b={}", place.at("b"))]));
    configured.write(&format!("{file}[[share]]\nname = 'c'\nsource = 'DIR/c'\n"));
    let serving = Pid::from_raw(place.served.serving_id() as i32).expect("a process");
    kill_process(serving, Signal::KILL).expect("killed");
    configured.signal(Signal::HUP);
    let listed = || stdout_if_done(&place.ctl(&["list", "--json"]));
    wait_until("it is reloaded", || {
        listed().is_some_and(|listing| names(&listing) == ["a", "c"])
    });
    crash(place);
    assert_eq!(names(&place.listing()), ["a", "c"]);
}

fn stdout_if_done(output: &Output) -> Option<Value> {
    let done = output.status.success();
    done.then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
}

#[test]
fn an_addition_at_an_address_in_use_leaves_its_owner_alone() {
    for options in modes() {
        let place = Fixture::started(|dir, command| {
            let at = |name: &str| dir.path().join(name).display().to_string();
            command
                .args(["--ready=json", "--9p=tcp:127.0.0.1:0"])
                .args(options);
            command.arg(format!("--http=unix:{}", at("http")));
            command.arg(format!("--control=unix:{}", at("control")));
            command.arg(format!("a={}", at("a")));
        });
        let foreign = place.at("foreign");
        let _foreign = UnixListener::bind(&foreign).expect("bound");
        let nine = place.ready["endpoints"][0]["address"]
            .as_str()
            .expect("one");
        let taken = [
            format!("unix:{}", place.at("http")),
            format!("unix:{}", place.at("control")),
            format!("unix:{foreign}"),
            nine.to_owned(),
        ];
        for addr in &taken {
            for _ in 0..2 {
                let text = stderr_of(&place.ctl(&["add", "--9p", addr]));
                assert!(text.contains("exists") || text.contains("in use"), "{text}");
            }
        }
        for name in ["http", "control", "foreign"] {
            assert!(
                UnixStream::connect(place.at(name)).is_ok(),
                "{name}: {options:?}"
            );
        }
        assert_eq!(place.listing(), place.ready);
        // A failed addition takes nothing from the next one at its address.
        let none = place.at("none/9p.sock");
        stderr_of(&place.ctl(&["add", "--9p", &format!("unix:{none}")]));
        std::fs::create_dir(place.at("none")).expect("made");
        stdout_of(&place.ctl(&["add", "--9p", &format!("unix:{none}")]));
        assert!(Client::open(&format!("9p+unix:{none}")).is_ok());
    }
}

#[test]
fn a_failed_addition_leaves_the_confinement_as_it_is() {
    if !is_privileged() {
        return;
    }
    let place = Fixture::new(&[]);
    let mounts = || {
        let mounts = format!("/proc/{}/mountinfo", place.served.serving_id());
        std::fs::read_to_string(mounts).expect("it runs")
    };
    let before = mounts();
    let share = format!("b={}", place.at("b"));
    // The name is taken; the socket's directory does not exist.
    let taken = format!("a={}", place.at("b"));
    stderr_of(&place.ctl(&["add", &taken]));
    stderr_of(&place.ctl(&["add", &share, "--virtiofs", &place.at("none/b.sock")]));
    assert_eq!(mounts(), before);
    stdout_of(&place.ctl(&["add", &share]));
    assert_ne!(mounts(), before);
    stdout_of(&place.ctl(&["remove", "b"]));
    assert_eq!(mounts(), before);
}

#[test]
fn paths_of_a_failed_reload_and_of_shares_that_a_reload_drops_are_not_visible() {
    if !is_privileged() {
        return;
    }
    let nine = "9p = 'tcp:127.0.0.1:0'\n";
    let share = |name: &str| format!("[[share]]\nname = '{name}'\nsource = 'DIR/{name}'\n");
    let configured = Configured::new(&[], &format!("{nine}{}", share("a")));
    let place = &configured.place;
    let sees = |name: &str| {
        let mounts = format!("/proc/{}/mountinfo", place.served.serving_id());
        let mounts = std::fs::read_to_string(mounts).expect("it runs");
        mounts.contains(&format!("{} ", place.at(name)))
    };
    assert!(sees("a") && !sees("b"));
    let device = "virtiofs = 'DIR/none/b.sock'\n";
    configured.write(&format!("{nine}{}{device}", share("b")));
    stderr_of(&place.ctl(&["reload"]));
    assert!(sees("a") && !sees("b"));
    configured.write(&format!("{nine}{}{}", share("a"), share("b")));
    stdout_of(&place.ctl(&["reload"]));
    assert!(sees("a") && sees("b"));
    configured.write(&format!("{nine}{}", share("a")));
    stdout_of(&place.ctl(&["reload"]));
    assert!(sees("a") && !sees("b"));
}

/// A crash does not change whether the default addresses are used.
#[test]
fn default_addresses_survive_a_crash_after_an_addition() {
    let programs = ["unshare", "nsenter", "ip"];
    if !is_privileged() || !programs.iter().all(|program| has(program)) {
        return eprintln!("skipped: a network of its own takes root, util-linux and iproute2");
    }
    let place = Fixture::started(|dir, command| {
        let at = |name: &str| dir.path().join(name).display().to_string();
        *command = Command::new("unshare");
        let script = format!(
            "ip link set lo up && exec '{BARGE}' serve --ready json --control 'unix:{}' 'a={}'",
            at("control"),
            at("a"),
        );
        command.args(["--net", "sh", "-c", &script]);
        command.env("STATE_DIRECTORY", at("state"));
    });
    let socket = format!("unix:{}", place.at("9p.sock"));
    stdout_of(&place.ctl(&["add", "--9p", &socket]));
    let addrs = || {
        let listing = place.listing();
        let all = listing["endpoints"].as_array().expect("endpoints").iter();
        let mut addrs: Vec<_> = all.map(|it| it["address"].to_string()).collect();
        addrs.sort();
        addrs
    };
    let before = addrs();
    assert!(before[0].contains("127.0.0.1:2049"), "{before:?}");
    assert!(before[1].contains("127.0.0.1:5640"), "{before:?}");
    crash(&place);
    assert_eq!(addrs(), before);
}

#[test]
fn a_server_whose_ready_message_fails_ends() {
    for options in modes() {
        let dir = tempfile::tempdir().expect("a directory");
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let mut command = Command::new(BARGE);
        command.args(["serve", "--ready=json", "--9p=tcp:127.0.0.1:0", "mem:"]);
        command
            .args(options)
            .current_dir(&dir)
            .stdout(full.expect("opened"));
        command.stderr(std::process::Stdio::piped());
        let mut server = command.spawn().expect("starts");
        wait_until("it ends", || server.try_wait().expect("a child").is_some());
        let output = server.wait_with_output().expect("ended");
        assert_eq!(output.status.code(), Some(1), "{options:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("standard output"), "{text}");
    }
}

#[test]
fn a_server_goes_on_if_its_output_is_closed_after_the_addresses() {
    for options in modes() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(BARGE);
        command.args(["serve", "--9p=unix:socket", "--pidfile=pid", "mem:"]);
        command.args(options).current_dir(&dir);
        command.stdout(std::process::Stdio::piped());
        let mut server = command.spawn().expect("starts");
        let mut addresses = String::new();
        let mut output = BufReader::new(server.stdout.take().expect("piped"));
        output.read_line(&mut addresses).expect("a line");
        drop(output);
        // The file is written before the ready message.
        wait_until("it is ready", || {
            std::fs::read_to_string(dir.path().join("pid")).is_ok_and(|text| !text.is_empty())
        });
        for _ in 0..50 {
            assert!(server.try_wait().expect("a child").is_none(), "it ends");
            let url = format!("9p+unix:{}", dir.path().join("socket").display());
            let listed = Command::new(BARGE).args(["ls", &url]).output();
            assert!(listed.expect("runs").status.success());
        }
        let pid = Pid::from_child(&server);
        kill_process(pid, Signal::TERM).expect("it runs");
        assert!(server.wait().expect("ended").success());
    }
}

#[test]
fn the_ready_message_of_several_processes_has_the_status_page() {
    if !is_privileged() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| -> PathBuf { dir.path().join(name) };
    let mut command = Command::new(BARGE);
    command.args(["serve", "--ready=json", "--processes=share"]);
    command.arg(format!("--http=unix:{}", at("http").display()));
    for name in ["a", "b"] {
        std::fs::create_dir(at(name)).expect("made");
        command.arg(format!("{name}={}", at(name).display()));
        command.arg(format!(
            "--virtiofs={name}={}",
            at("s").with_extension(name).display()
        ));
    }
    let (served, ready) = ServerProcess::run_until_json(command);
    assert_eq!(served.serving_ids().len(), 3);
    let endpoints = ready["endpoints"].as_array().expect("endpoints");
    let protocols: Vec<_> = endpoints.iter().map(|it| &it["protocol"]).collect();
    assert_eq!(protocols, ["virtiofs", "virtiofs", "http"]);
}

/// The read trace of a share is complete once the share has ended.
#[test]
fn a_read_trace_ends_with_its_share() {
    for options in modes() {
        let place = Fixture::new(options);
        let (share, trace) = (format!("b={}", place.at("b")), place.at("trace"));
        stdout_of(&place.ctl(&["add", &share, "--record-trace", &trace]));
        let client = Client::open(&place.url("9p", "b")).expect("served");
        assert_eq!(client.read("f").expect("read"), b"b");
        stdout_of(&place.ctl(&["remove", "b"]));
        let text = std::fs::read_to_string(&trace).expect("written");
        assert!(text.contains('f'), "{options:?}: {text}");
    }
}
