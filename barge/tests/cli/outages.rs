//! Mounts of every protocol whose server is away for a while, hard and soft ones, with the default
//! timeout and a short one.
//!
//! The times of the outages are 1 and 4 s, or `OUTAGES` in the environment, such as 1,4,30,120.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{Pid, Signal, kill_process};
use vfs_testkit::wait_until;

use crate::mount::{Mounted, may_mount};
use crate::restart::free_port;
use crate::served::{BARGE, ServerProcess};

/// The errno of a call that was not answered in time.
const ETIMEDOUT: i32 = 110;

/// Time within which a mount must work after an outage: a client waits at most 1 s between attempts
/// to connect, and a server has a grace period of at most two leases.
const RECOVERY: Duration = Duration::from_secs(60);

/// The lengths of the outages.
fn outages() -> Vec<Duration> {
    let text = std::env::var("OUTAGES").unwrap_or_else(|_| "1,4".into());
    let seconds = text.split(',').map(|text| text.parse().expect("a number"));
    seconds.map(Duration::from_secs).collect()
}

/// The cause of an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    /// The server is stopped, and continues: connections stay.
    Stopped,
    /// The server is killed, and another one is started.
    Killed,
}

/// A server of one directory over every protocol that connects again.
struct Server {
    share: PathBuf,
    state: PathBuf,
    port: (u16, u16),
    /// The sockets of virtiofs devices, one for each of [`OPTIONS`].
    devices: Vec<PathBuf>,
    running: Option<ServerProcess>,
}

impl Server {
    fn start(dir: &Path, kind: Outage) -> Server {
        let mut server = Server {
            share: dir.join("share"),
            state: dir.join("state"),
            port: (free_port(), free_port()),
            devices: Vec::new(),
            running: None,
        };
        // Mounts of a device end with its connection.
        if kind == Outage::Stopped {
            let device = |number| dir.join(format!("device-{number}"));
            server.devices = (0..OPTIONS.len()).map(device).collect();
        }
        fs::create_dir(&server.share).expect("made");
        server.run();
        server
    }

    fn run(&mut self) {
        let (ninep, nfs) = self.port;
        let mut command = Command::new(BARGE);
        command.arg("serve").arg(&self.share);
        command.args(["--9p", &format!("tcp:127.0.0.1:{ninep}")]);
        command.args(["--nfs", &format!("tcp:127.0.0.1:{nfs}")]);
        command.args(["--nfs-lease", "10", "--nfs-state-dir"]);
        command.arg(&self.state);
        // A device has one client.
        for device in &self.devices {
            command.arg("--virtiofs").arg(device);
        }
        self.running = Some(ServerProcess::run(command));
    }

    fn signal(&self, signal: Signal) {
        let server = self.running.as_ref().expect("it runs");
        for id in server.serving_ids().into_iter().chain([server.id()]) {
            let process = Pid::from_raw(id as i32).expect("a process");
            kill_process(process, signal).expect("it runs");
        }
    }

    /// Is away for `time`.
    fn outage(&mut self, kind: Outage, time: Duration) {
        match kind {
            Outage::Stopped => {
                self.signal(Signal::STOP);
                thread::sleep(time);
                self.signal(Signal::CONT);
            }
            Outage::Killed => {
                drop(self.running.take());
                thread::sleep(time);
                self.run();
            }
        }
    }

    /// Returns the protocol and the URL for each mount, with its options.
    fn sources(&self) -> Vec<(&'static str, String, &'static str)> {
        let (ninep, nfs) = self.port;
        let mut sources = Vec::new();
        for (number, options) in OPTIONS.into_iter().enumerate() {
            sources.push(("9p", format!("9p://127.0.0.1:{ninep}/"), options));
            for version in ["3", "4.0", "4.1", "4.2"] {
                let url = format!("nfs://127.0.0.1:{nfs}/?vers={version}");
                sources.push((version, url, options));
            }
            if let Some(device) = self.devices.get(number) {
                sources.push((
                    "virtiofs",
                    format!("virtiofs:{}", device.display()),
                    options,
                ));
            }
        }
        sources
    }
}

/// The options of the mounts. The default is hard, and gives a lost server up after a minute.
const OPTIONS: [&str; 5] = ["rw", "hard", "hard,timeo=20", "soft", "soft,timeo=20"];

/// A mount whose programs do not stop.
struct Client {
    name: String,
    at: PathBuf,
    /// A file that was open before the outages.
    open: File,
}

/// The content of the file that stays open.
const CONTENT: &[u8] = b"opened before";

impl Client {
    fn new(name: String, at: PathBuf) -> Client {
        let path = at.join(format!("open-{}", name.replace([',', '='], "-")));
        let make = || {
            fs::write(&path, CONTENT)?;
            File::open(&path)
        };
        let mut opened = (0..20).filter_map(|_| make().ok());
        let open = opened.next().expect("opened");
        Client { name, at, open }
    }

    /// Does what programs do, in files that no other client has.
    fn work(&self, round: u32) -> io::Result<()> {
        let name = format!("{}-{round}", self.name.replace([',', '='], "-"));
        let [one, other] = ["", ".renamed"].map(|end| self.at.join(format!("{name}{end}")));
        let file = File::create(&one)?;
        file.write_all_at(name.as_bytes(), 0)?;
        file.sync_all()?;
        drop(file);
        fs::rename(&one, &other)?;
        let read = fs::read(&other)?;
        assert_eq!(read, name.as_bytes(), "{}", self.name);
        fs::remove_file(&other)?;
        fs::read_dir(&self.at)?.try_for_each(|entry| entry.map(drop))?;
        let mut read = [0; CONTENT.len()];
        self.open.read_exact_at(&mut read, 0)?;
        assert_eq!(read, CONTENT, "{}", self.name);
        Ok(())
    }

    /// Returns whether a call may fail with this error, in a round that has begun after the outage
    /// or before its end.
    fn may_fail(&self, error: &io::Error, outage: &Steps, began_after: bool) -> bool {
        let unlimited = self.name.contains("hard");
        // By default, calls wait for a minute.
        let waits = !self.name.contains("soft") && outage.time < Duration::from_secs(55);
        let is_timeout = error.raw_os_error() == Some(ETIMEDOUT);
        // A server that was killed has forgotten the requests that it has carried out, and NFS
        // sends them again.
        let is_nfs = !self.name.starts_with(['9', 'v']);
        let again = outage.kind == Outage::Killed && is_nfs && !began_after;
        let done_twice = again && error.kind() == io::ErrorKind::NotFound;
        done_twice || (is_timeout && !unlimited && !waits)
    }
}

/// An outage, which the clients' threads follow.
struct Steps {
    kind: Outage,
    time: Duration,
    over: AtomicBool,
}

/// Works during an outage and after it, until three rounds in a row are without an error.
fn live_through(client: &Client, steps: &Steps, rounds: &mut u32) -> Result<(), String> {
    let mut fine = 0;
    let mut over_since = None;
    while fine < 3 {
        *rounds += 1;
        let began_after = steps.over.load(Ordering::SeqCst);
        let done = client.work(*rounds);
        match &done {
            Ok(()) if began_after => fine += 1,
            Ok(()) => {}
            Err(error) => {
                fine = 0;
                if !client.may_fail(error, steps, began_after) {
                    return Err(format!("{} fails: {error}", client.name));
                }
            }
        }
        if steps.over.load(Ordering::SeqCst) {
            let since = *over_since.get_or_insert_with(Instant::now);
            if since.elapsed() > RECOVERY {
                return Err(format!("{} does not recover: {done:?}", client.name));
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Lets all `clients` live through the outages that `make` makes.
fn check(clients: &[Client], kind: Outage, mut make: impl FnMut(Duration)) {
    for time in outages() {
        let steps = Steps {
            kind,
            time,
            over: AtomicBool::new(false),
        };
        thread::scope(|scope| {
            let (sender, ended) = channel();
            let mut begun = Vec::new();
            for client in clients {
                let (steps, sender) = (&steps, sender.clone());
                let (first, is_first) = channel();
                begun.push(is_first);
                scope.spawn(move || {
                    // A busy machine may exceed the short timeout.
                    let mut rounds = (0..20).filter(|round| client.work(*round).is_ok());
                    let mut rounds = rounds.next().expect("it works before the outage");
                    first.send(()).expect("waited for");
                    let end = live_through(client, steps, &mut rounds);
                    sender.send((&client.name, end)).expect("waited for");
                });
            }
            for first in begun {
                first.recv().expect("no panic");
            }
            make(time);
            steps.over.store(true, Ordering::SeqCst);
            let mut left: Vec<_> = clients.iter().map(|client| &client.name).collect();
            let mut failed = Vec::new();
            let end = Instant::now() + 2 * RECOVERY;
            while !left.is_empty() {
                let time = end.saturating_duration_since(Instant::now());
                let Ok((name, end)) = ended.recv_timeout(time) else {
                    // Threads in system calls that do not return cannot be ended, and the harness
                    // shows nothing of what it has captured.
                    let text = format!("these hang: {left:?}; failed: {failed:?}\n");
                    let _ = io::stderr().write_all(text.as_bytes());
                    std::process::exit(1);
                };
                left.retain(|other| *other != name);
                failed.extend(end.err());
            }
            assert!(failed.is_empty(), "{kind:?} for {time:?}: {failed:#?}");
        });
    }
}

/// Mounts with `options`, again if a busy machine exceeds their timeout.
fn mount(dir: &Path, (protocol, url, options): (&str, String, &str)) -> (Mounted, Client) {
    let name = format!("{protocol},{options}");
    let at = dir.join(&name);
    fs::create_dir(&at).expect("made");
    // Without a cache, all calls reach the server.
    let options = format!("cache=none,{options}");
    let args = [&url, "-o", &options];
    let mut mounted = (0..20).filter_map(|_| Mounted::try_new(&args, &at));
    (mounted.next().expect("mounted"), Client::new(name, at))
}

/// Makes all mounts, several at a time.
fn mounts(dir: &Path, server: &Server) -> (Vec<Mounted>, Vec<Client>) {
    const THREADS: usize = 4;
    let sources = Mutex::new(server.sources());
    let mounted = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let next = sources.lock().expect("no panic").pop();
                    let Some(source) = next else {
                        return;
                    };
                    let made = mount(dir, source);
                    mounted.lock().expect("no panic").push(made);
                }
            });
        }
    });
    let mounted = mounted.into_inner().expect("no panic");
    mounted.into_iter().unzip()
}

/// Held by one test at a time: each one takes all processors for some seconds.
static ALONE: Mutex<()> = Mutex::new(());

fn recover_from(kind: Outage) {
    if !may_mount() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(|broken| broken.into_inner());
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = Server::start(dir.path(), kind);
    let (mounts, clients) = mounts(dir.path(), &server);
    check(&clients, kind, |time| server.outage(kind, time));
    drop((clients, mounts));
}

#[test]
fn hard_and_soft_mounts_recover_after_a_server_that_did_not_answer() {
    recover_from(Outage::Stopped);
}

#[test]
fn hard_and_soft_mounts_recover_after_a_server_that_was_killed() {
    recover_from(Outage::Killed);
}

/// Locks the whole file for writing, as fcntl(2) does.
fn lock(file: &File) -> rustix::io::Result<()> {
    fcntl_lock(file, FlockOperation::NonBlockingLockExclusive)
}

/// Gives the lock back.
fn unlock(file: &File) -> rustix::io::Result<()> {
    fcntl_lock(file, FlockOperation::NonBlockingUnlock)
}

/// Repeats what a busy machine may not do in time.
fn again<T, E: std::fmt::Debug>(name: &str, what: impl Fn() -> Result<T, E>) -> T {
    let mut done = what();
    for _ in 0..20 {
        if done.is_ok() {
            break;
        }
        done = what();
    }
    done.expect(name)
}

/// Returns whether a call fails since it was not answered in time.
fn is_given_up(error: Option<i32>) -> bool {
    error == Some(ETIMEDOUT)
}

/// 9P and the four versions of NFS, as [`Server::sources`] begins with them.
const PROTOCOLS: usize = 5;

/// Lets a mount give up requests to a server that `stop` stops and `go_on` continues, and makes
/// others. `other` is a mount of the same share.
fn give_up(client: &Client, other: &Client, share: &Path, stop: &dyn Fn(), go_on: &dyn Fn()) {
    let name = &client.name;
    let file = |what: &str| format!("{what}-{}", name.replace([',', '='], "-"));
    let path = |what: &str| client.at.join(file(what));
    // v3 has locks of another protocol, whose requests have no sequence.
    let locks = !name.starts_with('3');
    let rounds: u32 = if locks { 3 } else { 1 };
    let open = || again(name, || File::create(path("locked")));
    let mut locked = open();
    for round in 0..rounds {
        if round == 2 && locks {
            again(name, || lock(&locked));
        }
        stop();
        let made = File::create(path(&format!("given-up-{round}"))).map(drop);
        let made = made.map_err(|error| error.raw_os_error());
        assert!(made.is_err_and(is_given_up), "{name}: {made:?}");
        if locks {
            let done = match round {
                2 => unlock(&locked),
                _ => lock(&locked),
            };
            let done = done.map_err(|error| Some(error.raw_os_error()));
            assert!(done.is_err_and(is_given_up), "{name}: {done:?}");
        }
        go_on();
        let next = path(&format!("next-{round}"));
        let content = format!("next {round}");
        again(name, || {
            fs::write(&next, &content)?;
            fs::rename(&next, path("renamed"))
        });
        let text = |what: &str| fs::read_to_string(share.join(file(what)));
        assert_eq!(text("renamed").ok(), Some(content), "{name}");
        let given_up = text(&format!("given-up-{round}")).unwrap_or_default();
        assert_eq!(given_up, "", "{name}");
        if !locks {
            continue;
        }
        let others = OpenOptions::new()
            .write(true)
            .open(other.at.join(file("locked")));
        let others = others.expect("it is there");
        match round {
            // The next request after a lock that was given up.
            0 => {
                again(name, || lock(&locked));
                lock(&others).expect_err("it is locked");
                again(name, || unlock(&locked));
            }
            // After one, the file is closed.
            1 => {
                drop(locked);
                locked = open();
            }
            // The next request after one to unlock.
            _ => again(name, || lock(&locked).and_then(|()| unlock(&locked))),
        }
        wait_until("the lock is gone", || lock(&others).is_ok());
    }
}

/// A request without a reply may be executed later. The next one, on another file, is another one.
#[test]
fn a_request_that_was_given_up_does_not_leave_its_reply_to_the_next() {
    if !may_mount() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(|broken| broken.into_inner());
    let check = |number: usize| {
        let dir = tempfile::tempdir().expect("a directory");
        let server = Server::start(dir.path(), Outage::Killed);
        let (protocol, url, _) = server.sources().swap_remove(number);
        let source = |options| (protocol, url.clone(), options);
        let (_mounted, client) = mount(dir.path(), source("soft,timeo=10"));
        let (_others, other) = mount(dir.path(), source("rw"));
        let (stop, go_on) = (
            || server.signal(Signal::STOP),
            || server.signal(Signal::CONT),
        );
        give_up(&client, &other, &server.share, &stop, &go_on);
    };
    thread::scope(|scope| {
        (0..PROTOCOLS).for_each(|number| drop(scope.spawn(move || check(number))))
    });
}
