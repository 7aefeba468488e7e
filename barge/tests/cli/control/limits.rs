//! Limits of shares and clients: requests wait, follow changes, and end with their clients and
//! shares.

use std::net::TcpStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use vfs::{Call, Caller, Cx, Name, OpenFlags};
use vfs_testkit::wait_until;

use super::*;

/// A rate at which the second request for some bytes waits for longer than any test.
const SLOW: &str = "bytes=1";

/// A server of the share `a` with these options, also at a Unix socket, a device and as disks.
fn serve(options: &[&str]) -> Fixture {
    Fixture::started(|dir, command| {
        let at = |name: &str| dir.path().join(name).display().to_string();
        command.args(["--9p", "tcp:127.0.0.1:0", "--nfs", "tcp:127.0.0.1:0"]);
        command.args(["--nbd", "tcp:127.0.0.1:0", "--9p-fd-passing"]);
        command.args(["--nfs-state-dir", &at("state"), "--ready", "json"]);
        command.arg(format!("--9p=unix:{}", at("9p.sock")));
        command.arg(format!("--virtiofs=a={}", at("fs.sock")));
        command.arg(format!("--control=unix:{}", at("control")));
        command.args(options).arg(format!("a={}", at("a")));
    })
}

/// Returns the limits and figures of the share `a`.
fn limits(place: &Fixture) -> Value {
    let text = stdout_of(&place.ctl(&["limit", "a", "--json"]));
    let limits: Value = serde_json::from_str(&text).expect("JSON");
    limits["shares"][0].clone()
}

fn waiting(place: &Fixture) -> u64 {
    limits(place)["waiting"].as_u64().expect("a number")
}

/// Returns the URLs of the share `a` over each protocol that a client half speaks.
fn urls(place: &Fixture) -> [String; 4] {
    let nfs = place.url("nfs", "a");
    [
        place.url("9p", "a"),
        format!("{nfs}?vers=3"),
        nfs,
        format!("virtiofs:{}", place.at("fs.sock")),
    ]
}

/// Reads a file twice on a thread, of which the second read waits. Returns the errno at its end.
fn read_twice(place: &Fixture, url: &str) -> JoinHandle<Option<i32>> {
    let client = Client::open(url).expect("connected");
    let file = client.open_file("large").expect("opened");
    let before = waiting(place);
    let thread = std::thread::spawn(move || {
        let _client = client;
        for _ in 0..2 {
            if let Err(error) = file.read_at(&mut [0; 4096], 0) {
                return Some(error.raw_os_error().unwrap_or(0));
            }
        }
        None
    });
    wait_until("a request waits", || waiting(place) > before);
    thread
}

/// Returns how long `read` takes to read the file of 1 MiB three times.
fn time(mut read: impl FnMut()) -> Duration {
    let start = Instant::now();
    (0..3).for_each(|_| read());
    start.elapsed()
}

#[test]
fn the_rate_is_held_over_each_protocol() {
    for option in ["--limit", "--client-limit"] {
        let place = serve(&[option, "bytes=4M"]);
        // The burst, and what is left after the last request's admission.
        let least = Duration::from_millis(750 - 100 - 250);
        for url in urls(&place) {
            let client = Client::open(&url).expect("connected");
            let elapsed = time(|| assert_eq!(client.read("large").expect("read").len(), LARGE));
            assert!(elapsed >= least, "{url}: {elapsed:?}");
        }
        let mut disk = Disk::open(&place, "a/large");
        let elapsed = time(|| {
            for at in 0..8 {
                disk.read(at << 17, 1 << 17);
            }
        });
        assert!(elapsed >= least, "{elapsed:?}");
        let now = limits(&place);
        assert!(now["delayed"].as_u64() > Some(4), "{now}");
        assert!(now["waited"].as_f64() > Some(1.0), "{now}");
        assert_eq!(now["waiting"], 0);
    }
}

/// An export of NBD, after the handshake.
struct Disk(TcpStream);

impl Disk {
    fn open(place: &Fixture, name: &str) -> Disk {
        let mut socket = TcpStream::connect(place.addr("nbd")).expect("connected");
        let timeout = Some(Duration::from_secs(60));
        socket.set_read_timeout(timeout).expect("set");
        socket.read_exact(&mut [0; 18]).expect("a greeting");
        // Fixed newstyle; NBD_OPT_EXPORT_NAME, whose reply ends with zeros.
        let mut choice = vec![0, 0, 0, 1];
        choice.extend(b"IHAVEOPT");
        choice.extend(1u32.to_be_bytes());
        choice.extend((name.len() as u32).to_be_bytes());
        choice.extend(name.as_bytes());
        socket.write_all(&choice).expect("sent");
        socket.read_exact(&mut [0; 8 + 2 + 124]).expect("an export");
        Disk(socket)
    }

    fn read(&mut self, offset: u64, len: u32) {
        let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
        request.extend([0; 4 + 8]);
        request.extend(offset.to_be_bytes());
        request.extend(len.to_be_bytes());
        self.0.write_all(&request).expect("sent");
        let mut reply = vec![0; 16 + len as usize];
        self.0.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply[4..8], [0; 4], "no error");
        assert_eq!(reply[16], byte(offset as usize));
    }
}

#[test]
fn waiting_requests_follow_a_change() {
    let place = serve(&["--limit", SLOW, "--client-limit", "ops=100000"]);
    let urls = urls(&place);
    // A client whose requests move no bytes does not wait.
    let other = Client::open(&urls[0]).expect("connected");
    let threads: Vec<_> = urls.iter().map(|url| read_twice(&place, url)).collect();
    assert_eq!(waiting(&place), 4);
    assert!(other.metadata("f").is_ok());
    let text = stdout_of(&place.ctl(&["limit", "a", "--limit", "ops=50000"]));
    assert!(
        text.starts_with("SHARE  LIMIT      CLIENT LIMIT  DELAYED"),
        "{text}"
    );
    for thread in threads {
        assert_eq!(thread.join().expect("no panic"), None);
    }
    let now = limits(&place);
    assert_eq!(now["limit"], "ops=50000");
    assert_eq!(now["client_limit"], "ops=100000");
    assert_eq!(now["waiting"], 0);
    for (args, status, expected) in [
        (
            vec!["limit", "b"],
            1,
            "expected the name of a share, got 'b'",
        ),
        (vec!["limit", "--limit", "ops=1"], 2, "required"),
        (
            vec!["limit", "a", "--limit", "ops=0"],
            2,
            "ops: expected a number from 1",
        ),
    ] {
        let output = place.ctl(&args);
        let text = stderr_of(&output);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
        assert!(text.contains(expected), "{args:?}: {text}");
    }
    let params = json!({ "name": "a", "limit": "ops=x" });
    let reply = call(&mut place.connect(), "limit.set", &params);
    assert_eq!(reply["error"]["code"], "invalid-params", "{reply}");
}

#[test]
fn a_waiting_request_ends_with_its_connection_or_at_its_cancellation() {
    let place = serve(&["--client-limit", SLOW]);
    let urls = urls(&place);
    let _reader = read_twice(&place, &format!("{}?retry=0", urls[0]));
    let text = stdout_of(&place.ctl(&["clients", "--json"]));
    let clients: Value = serde_json::from_str(&text).expect("JSON");
    let clients = clients["clients"].as_array().expect("clients").iter();
    let busy: Vec<_> = clients.filter(|one| one["in_flight"] == 1).collect();
    let [client] = busy.as_slice() else {
        panic!("{busy:?}");
    };
    stdout_of(&place.ctl(&["disconnect", &client["id"].to_string()]));
    wait_until("it does not wait any more", || waiting(&place) == 0);

    for url in [&urls[0], &urls[3]] {
        let call = Arc::new(Call::parkable(vfs::cx::thread_waker()));
        let parsed: remote::Url = url.parse().expect("a URL");
        let fs = parsed.open().expect("attached");
        let own = call.clone();
        let thread = std::thread::spawn(move || {
            let file = vfs::cx::block_on(&Caller::ROOT, |cx| {
                let found = fs.root(cx)?.lookup(cx, Name::new(b"large")?)?;
                found.node.open(cx, OpenFlags::READ)
            });
            let file = file.expect("opened");
            let read = || {
                let mut reply = wire::payload::VecSink::new(4096);
                file.read(&Cx::new(&Caller::ROOT, &own), 0, 4096, &mut reply)
            };
            (read(), read())
        });
        wait_until("a request waits", || waiting(&place) == 1);
        call.cancel();
        wait_until("it was cancelled", || waiting(&place) == 0);
        let (first, second) = thread.join().expect("no panic");
        assert!(second.is_err(), "{url}: {first:?} {second:?}");
    }
}

#[test]
fn neither_a_drain_nor_a_removal_nor_a_stop_hangs_because_of_a_waiting_request() {
    for options in changes::modes() {
        let place = serve(&[&["--limit", SLOW][..], options].concat());
        let urls = urls(&place);
        let reader = read_twice(&place, &urls[0]);
        let text = stdout_of(&place.ctl(&["drain", "a", "--timeout", "1", "--json"]));
        let drained: Value = serde_json::from_str(&text).expect("JSON");
        // The drain ends with the removal, which the request notices at once.
        assert_eq!(drained, json!({ "drained": false }));
        assert_eq!(reader.join().expect("no panic"), Some(ESTALE));
        assert!(place.served.stop().success());

        let place = serve(&[&["--limit", SLOW][..], options].concat());
        let url = place.url("9p", "a");
        let _reader = read_twice(&place, &format!("{url}?retry=0"));
        let start = Instant::now();
        assert!(place.served.stop().success());
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}

#[test]
fn a_reload_changes_the_limits_and_a_crash_keeps_them() {
    let table = |dir: &TempDir, limits: &str| {
        let at = |name: &str| dir.path().join(name).display().to_string();
        let text = format!(
            "9p = 'tcp:127.0.0.1:0'\nready = 'json'\ncontrol = 'unix:{}'\nclient-limit = 'ops=9'\n\
             [[share]]\nname = 'a'\nsource = '{}'\n{limits}",
            at("control"),
            at("a")
        );
        std::fs::write(dir.path().join("barge.toml"), text).expect("written");
    };
    let place = Fixture::started(|dir, command| {
        table(dir, "");
        command.arg("--config").arg(dir.path().join("barge.toml"));
    });
    let shown = |limit: &str, client_limit: &str| {
        let now = limits(&place);
        assert_eq!(now["limit"], limit, "{now}");
        assert_eq!(now["client_limit"], client_limit, "{now}");
    };
    shown("none", "ops=9");
    let url = place.url("9p", "a");
    let client = Client::open(&url).expect("connected");
    table(
        &place.dir,
        "limit = 'bytes=1G,burst=1s'\nclient-limit = 'none'\n",
    );
    stdout_of(&place.ctl(&["reload"]));
    shown("bytes=1G,burst=1s", "none");
    assert_eq!(client.read("f").expect("the share stays"), b"a");
    stdout_of(&place.ctl(&["limit", "a", "--client-limit", "ops=77"]));
    shown("bytes=1G,burst=1s", "ops=77");
    if is_privileged() {
        changes::crash(&place);
        shown("bytes=1G,burst=1s", "ops=77");
    }
    stdout_of(&place.ctl(&["reload"]));
    shown("bytes=1G,burst=1s", "none");
}

#[test]
fn descriptors_are_passed_only_without_a_limit() {
    for (options, passes) in [
        (vec![], true),
        (vec!["--limit=ops=1000000"], false),
        (vec!["--client-limit=bytes=1T"], false),
    ] {
        // A file system whose files can be passed on every host.
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        std::fs::write(dir.path().join("f"), "f").expect("written");
        let socket = dir.path().join("socket").display().to_string();
        let mut command = Command::new(BARGE);
        command.args(["serve", "--9p-fd-passing"]).args(&options);
        command.arg(format!("--9p=unix:{socket}")).arg(dir.path());
        let _served = ServerProcess::run(command);
        let mut url: remote::Url = format!("9p+unix:{socket}").parse().expect("a URL");
        *url.fd_passing().expect("of this host") = true;
        let fs = url.open().expect("attached");
        let passed = vfs::cx::block_on(&Caller::ROOT, |cx| {
            let found = fs.root(cx)?.lookup(cx, Name::new(b"f")?)?;
            let file = found.node.open(cx, OpenFlags::READ)?;
            Ok(file.backing(cx).is_some())
        });
        assert_eq!(passed, Ok(passes), "{options:?}");
    }
}

#[test]
fn the_status_shows_the_limits_of_shares_that_have_any() {
    let place = serve(&["--http=0", "--limit=ops=100,bytes=8M"]);
    let client = Client::open(&place.url("9p", "a")).expect("connected");
    for _ in 0..2 {
        client.read("large").expect("read");
    }
    let debug: Value = serde_json::from_str(&stdout_of(&place.ctl(&["debug"]))).expect("JSON");
    let export = &debug["serving"]["status"]["exports"][0];
    assert_eq!(export["limit"]["limit"], "ops=100,bytes=8M", "{export}");
    assert_eq!(export["limit"]["client_limit"], Value::Null);
    assert!(export["limit"]["delayed"].as_u64() > Some(0), "{export}");
    let limits = &debug["serving"]["limits"];
    assert_eq!(limits["connections"]["max"], 4096);
    assert!(
        limits["connections"]["most_of_a_client"].as_u64() > Some(0),
        "{limits}"
    );
    assert_eq!(limits["in_flight_per_connection"]["max"], 256);
    assert!(limits["memory"]["used"].as_u64() < limits["memory"]["max"].as_u64());
    let addr = place.addr("http");
    let page = format!("tcp:{addr}");
    let top = Command::new(BARGE).args(["top", "--once", &page]).output();
    let text = stdout_of(&top.expect("runs"));
    assert!(text.contains(", limit ops=100,bytes=8M, "), "{text}");
    let metrics = crate::status::get(addr, "/metrics");
    for name in [
        "barge_limit_delayed_requests_total{export=\"a\"} ",
        "barge_limit_wait_seconds_total{export=\"a\"} ",
        "barge_limit_waiting_requests{export=\"a\"} 0",
    ] {
        assert!(metrics.contains(name), "{metrics}");
    }
}
