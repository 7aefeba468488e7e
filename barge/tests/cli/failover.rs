//! NFS servers that share their state in etcd, with three members on this host.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use barge_client::{Client, OpenOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sources::{Source, Tree};
use tempfile::TempDir;
use vfs::lock::{HostLock, LockFamily, LockRange};
use vfs::{Errno, OpenFlags};
use vfs_testkit::wait_until;

use crate::restart::{self, free_port};
use crate::served::{BARGE, has, serving_id};
use crate::tls::certify;

/// Time to live of leases, long enough for a machine with other work.
const TTL: Duration = Duration::from_secs(4);

/// Time to live of a lease that does not expire during a test.
const LONG_TTL: Duration = Duration::from_secs(60);

/// Time after the lease within which a standby server has to serve.
const TAKEOVER: Duration = Duration::from_secs(5);

/// A cluster of three members, which is killed when it is dropped.
struct Etcd {
    members: Vec<Child>,
    ports: Vec<u16>,
    /// Options of etcdctl.
    options: Vec<String>,
    dir: TempDir,
}

impl Etcd {
    /// Starts a cluster, and waits until it has agreed on a leader. Returns `None` if there is no
    /// etcd on this host.
    fn start() -> Option<Etcd> {
        Etcd::start_with(false)
    }

    /// Does the same for a cluster that demands certificates of its clients.
    fn start_with(certificates: bool) -> Option<Etcd> {
        if !has("etcd") || !has("etcdctl") {
            eprintln!("skipped: this takes etcd (packages etcd-server and etcd-client)");
            return None;
        }
        for _ in 0..5 {
            let mut etcd = Etcd::spawn(certificates);
            // Another program may have taken one of the free ports.
            let (mut has_leader, mut has_ended) = (false, false);
            wait_until("etcd has a leader", || {
                has_ended = etcd.has_ended();
                has_leader = !has_ended && etcd.ctl(&["get", "/"]).is_some();
                has_ended || has_leader
            });
            if has_leader && !etcd.has_ended() {
                return Some(etcd);
            }
        }
        panic!("a member of etcd ended at each of five starts")
    }

    fn spawn(certificates: bool) -> Etcd {
        // In memory: a disk that other programs write to delays each renewal of a lease.
        let in_memory = tempfile::tempdir_in("/dev/shm");
        let dir = in_memory.or_else(|_| tempfile::tempdir());
        let dir = dir.expect("a directory");
        let names = ["a", "b", "c"];
        let ports: Vec<(u16, u16)> = names.iter().map(|_| (free_port(), free_port())).collect();
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let secured = |port: u16| match certificates {
            true => url(port).replace("http", "https"),
            false => url(port),
        };
        let file = |name: &str| dir.path().join(name).display().to_string();
        if certificates {
            certify(dir.path());
        }
        let peers = names.iter().zip(&ports);
        let peers = peers.map(|(name, (_, peer))| format!("{name}={}", url(*peer)));
        let peers = peers.collect::<Vec<_>>().join(",");
        let member = |(name, (client, peer)): (&&str, &(u16, u16))| {
            let log = fs::File::create(dir.path().join(format!("{name}.log"))).expect("made");
            let mut command = Command::new("etcd");
            command.args(["--name", name, "--data-dir"]);
            command.arg(dir.path().join(name));
            for (option, url) in [
                ("listen-client-urls", secured(*client)),
                ("advertise-client-urls", secured(*client)),
                ("listen-peer-urls", url(*peer)),
                ("initial-advertise-peer-urls", url(*peer)),
                ("initial-cluster", peers.clone()),
            ] {
                command.args([format!("--{option}"), url]);
            }
            command.args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
            if certificates {
                command.args(["--client-cert-auth", "--trusted-ca-file", &file("ca.pem")]);
                command.args(["--cert-file", &file("server.pem")]);
                command.args(["--key-file", &file("server.key")]);
            }
            let log = (log.try_clone().expect("a copy"), log);
            command.stdout(log.0).stderr(log.1).spawn().expect("starts")
        };
        let members = names.iter().zip(&ports).map(member).collect();
        let ctl = [
            "--cacert",
            "ca.pem",
            "--cert",
            "alice.pem",
            "--key",
            "alice.key",
        ];
        let ctl = ctl.chunks(2).flat_map(|it| [it[0].to_owned(), file(it[1])]);
        Etcd {
            members,
            ports: ports.into_iter().map(|(client, _)| client).collect(),
            options: ctl.filter(|_| certificates).collect(),
            dir,
        }
    }

    /// Returns whether a member has ended.
    fn has_ended(&mut self) -> bool {
        let mut members = self.members.iter_mut();
        members.any(|member| member.try_wait().expect("a child").is_some())
    }

    fn hosts(ports: &[u16]) -> String {
        let hosts = ports.iter().map(|port| format!("127.0.0.1:{port}"));
        hosts.collect::<Vec<_>>().join(",")
    }

    fn url(&self) -> String {
        format!("etcd://{}/barge/test", Etcd::hosts(&self.ports))
    }

    /// Runs etcdctl, and returns its output if it succeeds.
    fn ctl(&self, args: &[&str]) -> Option<String> {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--dial-timeout", "5s", "--command-timeout", "5s"])
            .args(["--endpoints", &Etcd::hosts(&self.ports)])
            .args(&self.options)
            .args(args)
            .output()
            .expect("runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    }

    /// Returns the revisions that created and last changed the key of the active server.
    fn active(&self) -> Option<(i64, i64)> {
        let text = self.ctl(&["get", "--write-out", "json", "/barge/test/active"])?;
        let found: Value = serde_json::from_str(&text).expect("JSON");
        let entry = &found["kvs"][0];
        let revision = |name: &str| entry[name].as_i64();
        Some((revision("create_revision")?, revision("mod_revision")?))
    }

    fn signal(&self, signal: Signal) {
        for member in &self.members {
            kill_process(Pid::from_child(member), signal).expect("sent");
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

/// A server, active or standby, which is killed when it is dropped.
struct Server {
    child: Child,
    /// Its lines of both outputs.
    lines: Receiver<String>,
}

impl Server {
    fn start(bed: &Bed, url: &str, port: u16) -> Server {
        Server::start_with(bed, url, port, &[])
    }

    fn start_with(bed: &Bed, url: &str, port: u16, more: &[&str]) -> Server {
        let mut command = Command::new(BARGE);
        command.arg("serve").arg(&bed.share);
        command.args([
            "--nfs",
            &format!("tcp:127.0.0.1:{port}"),
            "--nfs-lease",
            "10",
        ]);
        command.args(["--nfs-state", url, "--nfs-state-ttl"]);
        command.arg(bed.ttl.as_secs().to_string());
        command.arg("--nfs-state-dir").arg(&bed.state).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("starts");
        let (seen, lines) = channel();
        let outputs: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().expect("piped")),
            Box::new(child.stderr.take().expect("piped")),
        ];
        for output in outputs {
            let seen = seen.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let _ = seen.send(line);
                }
            });
        }
        Server { child, lines }
    }

    /// Waits for a line that contains `text`.
    fn until(&self, text: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut all = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => all.push(line),
                Err(_) => panic!("no line with '{text}' in {all:#?}"),
            }
        }
    }

    /// Waits until it ends, and returns its exit status and its lines.
    fn ended(&mut self) -> (Option<i32>, Vec<String>) {
        let mut status = None;
        wait_until("the server ends", || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        (status.and_then(|it| it.code()), self.lines.iter().collect())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The directories of the servers of one test.
struct Bed {
    _dir: TempDir,
    share: PathBuf,
    state: PathBuf,
    /// Time to live of leases.
    ttl: Duration,
}

impl Bed {
    fn new() -> Bed {
        let dir = tempfile::tempdir().expect("a directory");
        let [share, state] = ["share", "state"].map(|name| dir.path().join(name));
        fs::create_dir(&share).expect("made");
        fs::write(share.join("f"), [0; 100]).expect("written");
        Bed {
            share,
            state,
            ttl: TTL,
            _dir: dir,
        }
    }
}

/// An NFS v4.2 client with the file `f` open.
pub(crate) struct Locker {
    tree: Tree,
    _file: Arc<dyn vfs::File>,
}

impl Locker {
    pub(crate) fn open(port: u16, version: &str) -> Locker {
        let source: Source = format!("nfs://127.0.0.1:{port}/?vers={version}")
            .parse()
            .expect("a source");
        let tree = Tree::new(source.open(sources::local_options()).expect("a client"));
        let node = tree.resolve(b"f", true).expect("a file").node;
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        Locker {
            _file: tree.with(|cx| node.open(cx, flags)).expect("open"),
            tree,
        }
    }

    /// Sets the lock on the bytes from `start` to `end`.
    pub(crate) fn lock(&self, (start, end): (u64, u64), state: HostLock) -> vfs::Result<()> {
        let tree = &self.tree;
        let node = tree.resolve(b"f", true)?.node;
        let range = LockRange {
            family: LockFamily::Posix,
            start,
            end,
        };
        tree.with(|cx| node.host_lock(cx, range, state))
    }
}

/// Asks a server for a reply to a call of NFS v3 without arguments.
fn answers(port: u16) -> bool {
    let call = || -> std::io::Result<()> {
        let mut socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        let words = [1u32 << 31 | 40, 7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0];
        socket.write_all(&words.map(u32::to_be_bytes).concat())?;
        socket.read_exact(&mut [0; 28])
    };
    call().is_ok()
}

/// Writes blocks to the file `data` through a client, synchronizes now and then, and reads them.
fn write_and_verify(client: &Client, stop: &AtomicBool) -> u64 {
    const LEN: usize = 16 << 10;
    let block = |number: u64| -> Vec<u8> {
        let bytes = (0..LEN as u64).map(|at| (at * 7 + number * 13) as u8);
        bytes.collect()
    };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = client.open_with("data", &options).expect("made");
    let mut number = 0;
    while !stop.load(Ordering::SeqCst) {
        let at = number * LEN as u64;
        file.write_all_at(&block(number), at).expect("written");
        if number % 32 == 31 {
            file.sync_all().expect("synchronized");
        }
        number += 1;
        // The file does not grow beyond 32 MiB, and the disk is not the limit of this test.
        if number == 2048 {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    file.sync_all().expect("synchronized");
    let mut found = vec![0; LEN];
    for number in 0..number {
        let at = number * LEN as u64;
        let len = file.read_at(&mut found, at).expect("read");
        assert!(len == LEN && found == block(number), "block {number}");
    }
    number
}

fn takes_over(version: &'static str) {
    let Some(etcd) = Etcd::start() else {
        return;
    };
    let (bed, port) = (Bed::new(), free_port());
    let active = Server::start(&bed, &etcd.url(), port);
    active.until("ready");
    // Another host has a state directory of its own, with a copy of the secret.
    let other = bed.state.with_file_name("other");
    fs::create_dir(&other).expect("made");
    fs::copy(bed.state.join("handle-key"), other.join("handle-key")).expect("copied");
    let bed = Bed {
        state: other,
        ttl: LONG_TTL,
        ..bed
    };
    let standby = Server::start(&bed, &etcd.url(), port);
    standby.until("standby: the active server is");
    let (handle, verifier) = {
        let mut client = restart::Client::connect(port);
        let handle = client.handle();
        let verifier = client.write(&handle);
        (handle, verifier)
    };

    let (one, two) = (Locker::open(port, version), Locker::open(port, version));
    let (first, second) = ((0, 9), (10, 19));
    assert_eq!(one.lock(first, HostLock::Exclusive), Ok(()));
    assert_eq!(two.lock(second, HostLock::Exclusive), Ok(()));
    assert_eq!(two.lock(first, HostLock::Exclusive), Err(Errno::EAGAIN));
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let writer = Client::open(&format!("nfs://127.0.0.1:{port}/?vers={version}"));
    let writer = writer.expect("a client");
    let writing = std::thread::spawn(move || write_and_verify(&writer, &stopped));
    let written = || fs::metadata(bed.share.join("data")).map_or(0, |data| data.len());
    wait_until("something is written", || written() > 1 << 20);

    let killed = Instant::now();
    drop(active);
    standby.until("ready");
    let took = killed.elapsed();
    assert!(took < TTL + TAKEOVER, "{took:?}");
    println!("serving {took:?} after the kill");
    // Both reclaim; no lock is granted twice, in whatever order they come.
    assert_eq!(two.lock(first, HostLock::Exclusive), Err(Errno::EAGAIN));
    assert_eq!(one.lock(second, HostLock::Exclusive), Err(Errno::EAGAIN));
    let new = Locker::open(port, version);
    assert_eq!(new.lock(first, HostLock::Shared), Err(Errno::EAGAIN));
    assert_eq!(one.lock(first, HostLock::Unlocked), Ok(()));
    assert_eq!(new.lock(first, HostLock::Exclusive), Ok(()));
    // Handles are the same, and clients send again what they had not committed.
    let mut client = restart::Client::connect(port);
    assert_ne!(client.write(&handle), verifier);
    let before = written();
    wait_until("the writer goes on", || {
        written() > before + (1 << 20) || writing.is_finished()
    });
    stop.store(true, Ordering::SeqCst);
    let blocks = writing.join().expect("verified");
    println!("{blocks} blocks");

    // A server that is stopped lets the next one act before the lease has expired.
    let third = Server::start(&bed, &etcd.url(), port);
    third.until("standby: the active server is");
    let (mut stopped, before) = (standby, Instant::now());
    kill_process(Pid::from_child(&stopped.child), Signal::TERM).expect("sent");
    assert_eq!(stopped.ended().0, Some(0));
    third.until("ready");
    assert!(before.elapsed() < LONG_TTL / 2, "{:?}", before.elapsed());
    assert_eq!(two.lock(first, HostLock::Exclusive), Err(Errno::EAGAIN));
}

#[test]
fn a_standby_server_takes_over_from_a_killed_one_v4_2() {
    takes_over("4.2");
}

#[test]
fn a_standby_server_takes_over_from_a_killed_one_v4_0() {
    takes_over("4.0");
}

#[test]
fn a_server_without_etcd_stops_answering_and_ends() {
    let Some(etcd) = Etcd::start() else {
        return;
    };
    let (bed, port) = (Bed::new(), free_port());
    let mut active = Server::start(&bed, &etcd.url(), port);
    active.until("ready");
    let locker = Locker::open(port, "4.2");
    assert_eq!(locker.lock((0, 9), HostLock::Exclusive), Ok(()));
    wait_until("it answers", || answers(port));
    etcd.signal(Signal::STOP);
    let stopped = Instant::now();
    // The last call that got a reply: a test that is held up sends the next one later.
    let mut last = stopped;
    wait_until("it stops answering", || {
        let asked = Instant::now();
        let answered = answers(port);
        if answered {
            last = asked;
        }
        !answered
    });
    assert!(last - stopped < TTL, "{:?}", last - stopped);
    let (status, lines) = active.ended();
    assert_eq!(status, Some(1), "{lines:#?}");
    let why = "no longer the active server: the lease was not renewed in time";
    assert!(lines.iter().any(|line| line.contains(why)), "{lines:#?}");
    // Without etcd a server waits, and listens at no address.
    let standby = Server::start(&bed, &etcd.url(), port);
    standby.until("standby: ");
    assert!(!answers(port));
    etcd.signal(Signal::CONT);
    standby.until("ready");
    assert_eq!(locker.lock((10, 19), HostLock::Exclusive), Ok(()));
    let other = Locker::open(port, "4.2");
    assert_eq!(other.lock((0, 9), HostLock::Exclusive), Err(Errno::EAGAIN));
}

/// Forwards connections to `port` until it is cut, and returns its own port.
fn forward(port: u16, cut: &Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let own = listener.local_addr().expect("bound").port();
    let cut = cut.clone();
    let pipe = |mut from: TcpStream, mut to: TcpStream, cut: Arc<AtomicBool>| {
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = from.read(&mut bytes) {
                // As in a partition, nothing arrives, and no connection is closed.
                if !cut.load(Ordering::SeqCst) && to.write_all(&bytes[..len]).is_err() {
                    return;
                }
            }
        })
    };
    std::thread::spawn(move || {
        for here in listener.incoming().flatten() {
            if let Ok(there) = TcpStream::connect(("127.0.0.1", port)) {
                let copies = (here.try_clone(), there.try_clone());
                let (Ok(from), Ok(to)) = copies else {
                    continue;
                };
                pipe(here, to, cut.clone());
                pipe(there, from, cut.clone());
            }
        }
    });
    own
}

/// Returns whether a process has not ended.
fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_server_that_is_cut_off_from_etcd_has_stopped_before_another_one_answers() {
    let Some(etcd) = Etcd::start() else {
        return;
    };
    // Time enough to see that the server is fenced before it is killed.
    let ttl = TTL * 2;
    let (bed, cut) = (Bed { ttl, ..Bed::new() }, Arc::new(AtomicBool::new(false)));
    let [one, two] = [free_port(), free_port()];
    let forwarded: Vec<u16> = etcd.ports.iter().map(|port| forward(*port, &cut)).collect();
    let url = format!("etcd://{}/barge/test", Etcd::hosts(&forwarded));
    let mut active = Server::start(&bed, &url, one);
    active.until("ready");
    let standby = Server::start(&bed, &etcd.url(), two);
    standby.until("standby: the active server is");
    let client = Locker::open(one, "4.2");
    assert_eq!(client.lock((0, 9), HostLock::Exclusive), Ok(()));
    let serving = serving_id(active.child.id());
    cut.store(true, Ordering::SeqCst);
    let (mut last, mut is_fenced) = (Instant::now(), false);
    wait_until("the standby server answers", || {
        let asked = Instant::now();
        match answers(one) {
            true => last = asked,
            false => is_fenced |= is_running(serving),
        }
        answers(two)
    });
    // The fence closes a quarter of the time to live before the lease can expire, and half of that
    // before the process is killed.
    let gap = last.elapsed();
    println!("no answer for {gap:?}");
    assert!(gap > ttl / 8, "{gap:?}");
    assert!(is_fenced, "it answered until it was killed");
    let (status, lines) = active.ended();
    assert_eq!(status, Some(1), "{lines:#?}");
    // Its lock waits for the client that does not come here, as long as that may reclaim it.
    assert!(!answers(one));
    let keys = etcd.ctl(&["get", "--prefix", "--keys-only", "/barge/test/clients/"]);
    assert!(keys.is_some_and(|keys| keys.contains("/clients/")));
}

#[test]
fn a_process_that_is_started_again_has_the_state_and_another_verifier() {
    let Some(etcd) = Etcd::start() else {
        return;
    };
    let (bed, port) = (Bed::new(), free_port());
    let boot = || {
        let value = etcd.ctl(&["get", "--print-value-only", "/barge/test/server"]);
        value.expect("read")
    };
    for sandbox in ["namespace", "none"] {
        let mut active = Server::start_with(&bed, &etcd.url(), port, &["--sandbox", sandbox]);
        active.until("ready");
        let one = Locker::open(port, "4.2");
        assert_eq!(one.lock((0, 9), HostLock::Exclusive), Ok(()));
        let (first, broker) = (boot(), active.child.id());
        let serving = serving_id(broker);
        if serving != broker {
            let pid = Pid::from_raw(serving as i32).expect("a process");
            kill_process(pid, Signal::KILL).expect("sent");
            let other = Locker::open(port, "4.2");
            assert_eq!(other.lock((0, 9), HostLock::Exclusive), Err(Errno::EAGAIN));
            assert_eq!(one.lock((0, 9), HostLock::Unlocked), Ok(()));
            assert_ne!(boot(), first);
        }
        drop(one);
        kill_process(Pid::from_child(&active.child), Signal::TERM).expect("sent");
        assert_eq!(active.ended().0, Some(0));
        assert_eq!(
            etcd.ctl(&["get", "/barge/test/active"]).as_deref(),
            Some("")
        );
    }
}

#[test]
fn servers_with_different_secrets_do_not_share_state() {
    let Some(etcd) = Etcd::start() else {
        return;
    };
    let bed = Bed::new();
    let active = Server::start(&bed, &etcd.url(), free_port());
    active.until("ready");
    let other = Bed {
        state: bed.share.with_file_name("other"),
        ..bed
    };
    let mut refused = Server::start(&other, &etcd.url(), free_port());
    let (status, lines) = refused.ended();
    assert_eq!(status, Some(1), "{lines:#?}");
    let why = lines
        .iter()
        .any(|line| line.contains("handle-key in the state directory differs"));
    assert!(why, "{lines:#?}");
}

#[test]
fn values_that_no_server_has_written_are_an_error() {
    let Some(etcd) = Etcd::start() else {
        return;
    };
    let bed = Bed::new();
    let large = "x".repeat(5000);
    let last = r#"{"name":"a b","boot":7,"handle_key":""}"#;
    for (value, why) in [
        ("{", "key server"),
        (last, "invalid name"),
        (&large, "at most 4096"),
    ] {
        etcd.ctl(&["put", "/barge/test/server", value])
            .expect("put");
        let mut refused = Server::start(&bed, &etcd.url(), free_port());
        let (status, lines) = refused.ended();
        assert_eq!(status, Some(1), "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains(why)), "{lines:#?}");
    }
    etcd.ctl(&["del", "/barge/test/server"]).expect("removed");
    let record = format!("/barge/test/clients/{large}");
    etcd.ctl(&["put", &record, ""]).expect("put");
    let mut refused = Server::start(&bed, &etcd.url(), free_port());
    let (status, lines) = refused.ended();
    assert_eq!(status, Some(1), "{lines:#?}");
    assert!(
        lines.iter().any(|line| line.contains("at most 4096")),
        "{lines:#?}"
    );
}

#[test]
fn certificates_and_a_password_open_a_cluster_that_demands_them() {
    use std::os::unix::fs::PermissionsExt;
    let Some(mut etcd) = Etcd::start_with(true) else {
        return;
    };
    for change in [
        &["user", "add", "root:top"][..],
        &["user", "add", "barge:secret"],
        &["role", "add", "state"],
        &[
            "role",
            "grant-permission",
            "state",
            "--prefix",
            "readwrite",
            "/barge/test/",
        ],
        &["user", "grant-role", "barge", "state"],
        &["auth", "enable"],
    ] {
        etcd.ctl(change).unwrap_or_else(|| panic!("{change:?}"));
    }
    etcd.options.extend(["--user".into(), "root:top".into()]);
    let (bed, port) = (Bed::new(), free_port());
    let file = |name: &str| etcd.dir.path().join(name).display().to_string();
    let (ca, cert, key, auth) = (
        file("ca.pem"),
        file("alice.pem"),
        file("alice.key"),
        file("auth"),
    );
    let tls = [
        "--nfs-state-ca",
        &ca,
        "--nfs-state-cert",
        &cert,
        "--nfs-state-key",
        &key,
    ];
    let login = ["--nfs-state-auth", &auth];
    fs::write(&auth, "barge:secret\n").expect("written");
    let all = [&tls[..], &login].concat();

    let mut refused = Server::start_with(&bed, &etcd.url(), port, &all);
    let (status, lines) = refused.ended();
    assert_eq!(status, Some(1), "{lines:#?}");
    assert!(
        lines.iter().any(|line| line.contains("mode 0600")),
        "{lines:#?}"
    );
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(&auth, private).expect("changed");

    let mut active = Server::start_with(&bed, &etcd.url(), port, &all);
    active.until("ready");
    let locker = Locker::open(port, "4.2");
    assert_eq!(locker.lock((0, 9), HostLock::Exclusive), Ok(()));
    assert!(
        etcd.ctl(&["get", "/barge/test/active"])
            .is_some_and(|text| text.contains("process"))
    );
    // A change of users makes its token invalid. It goes on with another one.
    etcd.ctl(&["user", "add", "other:secret"]).expect("added");
    let (created, mut modified) = etcd.active().expect("it is active");
    for _ in 0..8 {
        wait_until("the lease is renewed", || {
            let now = etcd.active().expect("it is active");
            assert_eq!(now.0, created, "it has been active all the time");
            std::mem::replace(&mut modified, now.1) != now.1
        });
    }
    wait_until("it answers", || answers(port));
    kill_process(Pid::from_child(&active.child), Signal::TERM).expect("sent");
    assert_eq!(active.ended().0, Some(0));

    let standby = Server::start_with(&bed, &etcd.url(), port, &tls);
    let line = standby.until("standby: 127.0.0.1");
    assert!(
        line.contains("user name is empty") || line.contains("permission denied"),
        "{line}"
    );
    fs::write(&auth, "barge:wrong").expect("written");
    let standby = Server::start_with(&bed, &etcd.url(), port, &all);
    let line = standby.until("standby: 127.0.0.1");
    assert!(
        line.contains("authentication failed") && !line.contains("wrong"),
        "{line}"
    );
}

fn usage_error(args: &[&str], share: &Path) -> String {
    let output = Command::new(BARGE)
        .arg("serve")
        .arg(share)
        .args(args)
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    text
}

#[test]
fn options_of_shared_state_that_cannot_be_right_are_refused() {
    let bed = Bed::new();
    let nfs = ["--nfs", "tcp:127.0.0.1:0"];
    let remote = "etcd://etcd.example:2379/p";
    for (args, why) in [
        (
            &["--nfs-state", "etcd://h:1"][..],
            "expected etcd://HOST:PORT",
        ),
        (
            &["--nfs-state", remote, "--nfs-state-ttl", "1"],
            "1 is not in 2..=120",
        ),
        (
            &[
                "--nfs-state",
                remote,
                "--nfs-state-cert",
                "c",
                "--nfs-state-key",
                "k",
            ],
            "--nfs-state-ca",
        ),
        (
            &["--nfs-state", remote, "--nfs-state-auth", "a"],
            "--nfs-state-ca",
        ),
        (
            &["--nfs-state-cert", "c", "--nfs-state-key", "k"],
            "--nfs-state <URL>",
        ),
        (&["--nfs-state-ttl", "5"], "--nfs-state <URL>"),
        (
            &["--nfs-state", "etcd://u:secret@h:1/p"],
            "expected etcd://HOST:PORT",
        ),
    ] {
        let text = usage_error(&[&nfs[..], args].concat(), &bed.share);
        assert!(text.contains(why), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }
    let text = usage_error(&["--nfs-state", remote], &bed.share);
    assert!(text.contains("--nfs"), "{text}");
}
