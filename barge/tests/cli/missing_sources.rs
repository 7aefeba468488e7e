//! Shares whose sources cannot be opened, or hang: they stop no other share, and are served once
//! their sources are there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use barge_client::Client;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use vfs_testkit::wait_until;

use crate::mount::{Mounted, may_mount};
use crate::restart::free_port;
use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};
use crate::status::{http, probe};

/// The message about a path that leads nowhere.
const MISSING: &str = "away: no such file or directory";

/// The options of the sandboxes.
const SANDBOXES: [&str; 3] = ["namespace", "landlock", "none"];

/// A server with a control socket and a status page in a directory of its own.
struct Fixture {
    dir: TempDir,
    served: ServerProcess,
}

impl Fixture {
    /// Starts a server of `sources`, in which `{}` is the directory.
    fn new(dir: TempDir, sources: &[&str], options: &[&str]) -> Fixture {
        let served = ServerProcess::run(command(dir.path(), sources, options));
        Fixture { dir, served }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn ctl(&self, args: &[&str]) -> Output {
        let control = format!("--control=unix:{}", self.path("control").display());
        let mut command = Command::new(BARGE);
        command.arg("ctl").arg(control).args(args);
        command.output().expect("runs")
    }

    /// Returns the contents of the file `f` of the share `name`, as a new client sees it.
    fn read(&self, name: &str) -> Result<String, String> {
        let port = self.served.port();
        let client = Client::open(&format!("9p://127.0.0.1:{port}/"));
        let read = client.and_then(|client| client.read(format!("{name}/f")));
        let read = read.map_err(|error| error.to_string())?;
        Ok(String::from_utf8(read).expect("text"))
    }

    /// Waits until the share `name` is served.
    fn wait_for(&self, name: &str) {
        wait_until("the share is served", || self.read(name).is_ok());
        let listing = stdout_of(&self.ctl(&["list"]));
        assert!(!listing.contains("failed"), "{listing}");
    }

    /// Checks that only the share `name` is not served, and that its problem says `why`.
    fn lacks(&self, name: &str, why: &str) {
        let error = self.read(name).expect_err("there is no source");
        assert!(error.contains("Input/output error"), "{error}");
        let ready = probe(&http(&self.served), "/readyz");
        let failed = format!("[-]source/{name} failed: ");
        assert_eq!(ready.0, "503", "{}", ready.1);
        let problems = ready.1.lines().filter(|line| line.starts_with("[-]"));
        let problems: Vec<_> = problems.collect();
        let [problem] = problems[..] else {
            panic!("{}", ready.1);
        };
        assert!(
            problem.starts_with(&failed) && problem.contains(why),
            "{problem}"
        );
        let listing = stdout_of(&self.ctl(&["list"]));
        let mut lines = listing.lines();
        assert!(
            lines.any(|line| line.starts_with(name) && line.ends_with("failed")),
            "{listing}"
        );
        assert!(listing.contains(why), "{listing}");
    }
}

fn command(dir: &Path, sources: &[&str], options: &[&str]) -> Command {
    let mut command = Command::new(BARGE);
    command.args(["serve", "--9p=tcp:127.0.0.1:0", "--http=tcp:127.0.0.1:0"]);
    command.arg(format!("--control=unix:{}/control", dir.display()));
    command.args(options);
    let dir = dir.display().to_string();
    command.args(sources.iter().map(|source| source.replace("{}", &dir)));
    command
}

/// Returns a new directory with the directory `there`, whose file `f` has a text.
fn directory() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    make(&dir.path().join("there"), "there");
    dir
}

fn make(dir: &Path, text: &str) {
    fs::create_dir_all(dir).expect("made");
    fs::write(dir.join("f"), text).expect("written");
}

#[test]
fn a_missing_source_stops_no_other_share_and_is_served_once_it_is_there() {
    for sandbox in SANDBOXES {
        let option = format!("--sandbox={sandbox}");
        for image in [false, true] {
            let fixture = Fixture::new(directory(), &["a={}/away", "b={}/there"], &[&option]);
            assert_eq!(fixture.read("b").as_deref(), Ok("there"), "{sandbox}");
            fixture.lacks("a", MISSING);
            // It is not lost by a crash.
            if sandbox != "none" {
                fixture.served.crash();
                wait_until("it is served", || fixture.read("b").is_ok());
                fixture.lacks("a", MISSING);
            }
            make(&fixture.path("new"), "new");
            let new = fixture.path("new");
            match image {
                false => fs::rename(new, fixture.path("away")).expect("moved"),
                true => {
                    let mut pack = Command::new(BARGE);
                    pack.arg("pack").args([new, fixture.path("packed")]);
                    stdout_of(&pack.output().expect("runs"));
                    fs::rename(fixture.path("packed"), fixture.path("away")).expect("moved");
                }
            }
            fixture.wait_for("a");
            assert_eq!(fixture.read("a").as_deref(), Ok("new"), "{sandbox}");
            let ready = probe(&http(&fixture.served), "/readyz");
            assert_eq!(ready.0, "200", "{}", ready.1);
            // From now on it is this object.
            fs::rename(fixture.path("away"), fixture.path("moved")).expect("moved");
            make(&fixture.path("away"), "another");
            if sandbox != "none" {
                fixture.served.crash();
                wait_until("it is served", || fixture.read("a").is_ok());
            }
            assert_eq!(fixture.read("a").as_deref(), Ok("new"), "{sandbox}");
            assert!(fixture.served.stop().success());
        }
    }
}

#[test]
fn a_server_without_any_source_ends_with_one_line() {
    for sandbox in SANDBOXES {
        for sources in [
            &["{}/away"][..],
            &["a={}/away", "b={}/gone"],
            &["a={}/away", "b=9p://127.0.0.1:1/"],
        ] {
            let dir = directory();
            let option = format!("--sandbox={sandbox}");
            let mut command = command(dir.path(), sources, &[&option]);
            let ended = command.stdin(Stdio::null()).output().expect("runs");
            let told = stderr_of(&ended);
            assert_eq!(ended.status.code(), Some(1), "{sandbox} {told}");
            assert_eq!(told.lines().count(), 1, "{sandbox} {told}");
            assert!(told.contains(MISSING), "{told}");
        }
    }
}

#[test]
fn a_source_on_another_server_that_is_away_stops_no_other_share() {
    let upstream = |port: &str| {
        let mut command = Command::new(BARGE);
        command.args(["serve", &format!("--9p=tcp:127.0.0.1:{port}"), "mem:"]);
        ServerProcess::run(command)
    };
    let first = upstream("0");
    let port = first.port().to_string();
    let client = Client::open(&format!("9p://127.0.0.1:{port}/")).expect("connected");
    client.write("f", "1").expect("written");
    drop(client);
    let source = format!("a=9p://127.0.0.1:{port}/");
    let fixture = Fixture::new(directory(), &[&source, "b={}/there"], &[]);
    assert_eq!(fixture.read("a").as_deref(), Ok("1"));
    drop(first);
    fixture.served.crash();
    wait_until("it is served", || fixture.read("b").is_ok());
    fixture.lacks("a", "Connection refused");
    let second = upstream(&port);
    let client = Client::open(&format!("9p://127.0.0.1:{port}/")).expect("connected");
    client.write("f", "2").expect("written");
    fixture.wait_for("a");
    assert_eq!(fixture.read("a").as_deref(), Ok("2"));
    assert!(fixture.served.stop().success());
    drop(second);
}

#[test]
fn a_reload_serves_what_can_be_opened_and_a_request_is_refused() {
    let dir = directory();
    let write = |shares: &[&str]| {
        let at = dir.path().display().to_string();
        let mut text = format!(
            "9p = 'tcp:127.0.0.1:0'\nhttp = 'tcp:127.0.0.1:0'\ncontrol = 'unix:{at}/control'\n"
        );
        for name in shares {
            text += &format!("[[share]]\nname = '{name}'\nsource = '{at}/{name}'\n");
        }
        fs::write(dir.path().join("barge.toml"), text).expect("written");
    };
    write(&["there"]);
    let mut command = Command::new(BARGE);
    command
        .arg("serve")
        .arg("--config")
        .arg(dir.path().join("barge.toml"));
    let served = ServerProcess::run(command);
    write(&["there", "away"]);
    let fixture = Fixture { dir, served };
    let added = fixture.ctl(&["add", &format!("c={}/away", fixture.dir.path().display())]);
    assert!(!added.status.success());
    let told = stderr_of(&added);
    assert!(told.contains(MISSING), "{told}");
    stdout_of(&fixture.ctl(&["reload"]));
    assert_eq!(fixture.read("there").as_deref(), Ok("there"));
    fixture.lacks("away", MISSING);
    let reopened = fixture.ctl(&["reopen", "away"]);
    assert!(!reopened.status.success());
    let told = stderr_of(&reopened);
    assert!(told.contains(MISSING), "{told}");
    // That one is missing does not concern another one.
    stdout_of(&fixture.ctl(&["reopen", "there"]));
    make(&fixture.path("away"), "new");
    fixture.wait_for("away");
    // It stays as it is at a reload that does not change it.
    let client = Client::open(&format!("9p://127.0.0.1:{}/", fixture.served.port()));
    let client = client.expect("connected");
    assert_eq!(client.read("away/f").expect("read"), b"new");
    stdout_of(&fixture.ctl(&["reload"]));
    assert_eq!(client.read("away/f").expect("read"), b"new");
    assert!(fixture.served.stop().success());
}

#[test]
fn a_source_that_hangs_stops_no_other_share() {
    if !may_mount() {
        return;
    }
    // Each waits for the source for some time.
    thread::scope(|scope| {
        for sandbox in SANDBOXES {
            scope.spawn(|| check_hanging(sandbox));
        }
        scope.spawn(check_hanging_alone);
    });
}

/// Starts a server whose only source hangs, which may be slow.
fn check_hanging_alone() {
    let dir = directory();
    let at = dir.path().join("hangs");
    fs::create_dir(&at).expect("made");
    let shared = dir.path().join("there").display().to_string();
    let mounted = Mounted::new(&[&shared], &at);
    let stopped = Stopped(Pid::from_raw(mounted.serving_id() as i32).expect("a process"));
    stopped.signal(Signal::STOP);
    let fixture = Fixture::new(dir, &["a={}/hangs"], &[]);
    let (_mounted, stopped) = (mounted, stopped);
    fixture.lacks("a", "has not opened");
    stopped.signal(Signal::CONT);
    fixture.wait_for("a");
    assert!(fixture.served.stop().success());
}

#[test]
fn requests_that_hang_in_one_share_hold_up_no_other_share_of_their_client() {
    const REQUESTS: usize = 48;
    if !may_mount() {
        return;
    }
    let dir = directory();
    let at = dir.path().join("hangs");
    fs::create_dir(&at).expect("made");
    let shared = dir.path().join("there").display().to_string();
    let mounted = Mounted::new(&[&shared], &at);
    let stopped = Stopped(Pid::from_raw(mounted.serving_id() as i32).expect("a process"));
    let nfs = free_port();
    let option = format!("--nfs=tcp:127.0.0.1:{nfs}");
    let fixture = Fixture::new(dir, &["a={}/hangs", "b={}/there"], &[&option]);
    let (_mounted, stopped) = (mounted, stopped);
    fixture.wait_for("a");
    let ninep = fixture.served.port();
    for url in [
        format!("9p://127.0.0.1:{ninep}/"),
        format!("nfs://127.0.0.1:{nfs}/?vers=3"),
        format!("nfs://127.0.0.1:{nfs}/?vers=4.2"),
    ] {
        let client = Arc::new(Client::open(&url).expect("connected"));
        assert_eq!(client.read("a/f").expect("read"), b"there", "{url}");
        assert_eq!(client.read("b/f").expect("read"), b"there", "{url}");
        stopped.signal(Signal::STOP);
        let hanging = (0..REQUESTS).map(|number| {
            let client = client.clone();
            thread::spawn(move || client.read(format!("a/none-{number}")).map(drop))
        });
        let hanging: Vec<_> = hanging.collect();
        // They count as stuck after a second.
        for _ in 0..3 {
            thread::sleep(Duration::from_secs(1));
            let (sender, synced) = channel();
            let writer = client.clone();
            thread::spawn(move || {
                // A server does not wait for a disk in the thread that reads requests.
                let synced = writer.create("b/new").and_then(|new| new.sync_all());
                sender.send(synced)
            });
            let synced = synced.recv_timeout(Duration::from_secs(20));
            let synced = synced.unwrap_or_else(|_| panic!("{url} hangs in another share"));
            synced.expect("synchronized");
        }
        stopped.signal(Signal::CONT);
        for one in hanging {
            one.join().expect("no panic").expect_err("there is none");
        }
    }
    assert!(fixture.served.stop().success());
}

fn check_hanging(sandbox: &str) {
    let dir = directory();
    let at = dir.path().join("hangs");
    fs::create_dir(&at).expect("made");
    let shared = dir.path().join("there").display().to_string();
    let mounted = Mounted::new(&[&shared], &at);
    let server = Pid::from_raw(mounted.serving_id() as i32).expect("a process");
    // It goes on before the mount ends, also if the test fails.
    let stopped = Stopped(server);
    stopped.signal(Signal::STOP);
    let begin = Instant::now();
    let option = format!("--sandbox={sandbox}");
    let fixture = Fixture::new(dir, &["a={}/hangs", "b={}/there"], &[&option]);
    // They end before the directory.
    let (_mounted, stopped) = (mounted, stopped);
    let taken = begin.elapsed();
    assert!(taken < Duration::from_secs(25), "{taken:?}");
    assert_eq!(fixture.read("b").as_deref(), Ok("there"));
    fixture.lacks("a", "has not opened");
    if sandbox != "none" {
        fixture.served.crash();
        wait_until("it is served", || fixture.read("b").is_ok());
    }
    stopped.signal(Signal::CONT);
    fixture.wait_for("a");
    assert_eq!(fixture.read("a").as_deref(), Ok("there"));
    stopped.signal(Signal::STOP);
    let at = http(&fixture.served);
    wait_until("it is known that the source hangs", || {
        probe(&at, "/readyz").1.contains("has not answered")
    });
    // Another program would wait for it.
    if sandbox != "none" {
        let refused = fixture.ctl(&["upgrade"]);
        assert!(!refused.status.success());
        let told = stderr_of(&refused);
        assert!(told.contains("has not answered"), "{told}");
    }
    assert_eq!(fixture.read("b").as_deref(), Ok("there"));
    if sandbox == "none" {
        // Linux does not end a process while it closes a file of a FUSE file system that hangs.
        stopped.signal(Signal::CONT);
        fixture.wait_for("a");
        assert!(fixture.served.stop().success());
        return;
    }
    // Nor does a stop wait, with a request that hangs.
    let url = format!("9p://127.0.0.1:{}/", fixture.served.port());
    let client = Client::open(&url).expect("connected");
    // The client waits for another server after that.
    thread::spawn(move || client.read("a/f").map(drop));
    let begin = Instant::now();
    assert!(fixture.served.stop().success());
    let taken = begin.elapsed();
    assert!(taken < Duration::from_secs(9), "{taken:?}");
}

/// A process that is stopped for a while, and goes on when this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn signal(&self, signal: Signal) {
        kill_process(self.0, signal).expect("it runs");
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
    }
}
