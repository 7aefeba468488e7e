//! Upgrades in place: the installed program continues with the clients of the running one. The
//! clients here do not connect again: a lost connection is an error.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use p9::message::{HEADER, Header};
use p9::numbers::{LockFlags, lock_kind, lock_status};
use p9::{Dialect, Fid, Names, Rmessage, Tag, Tmessage, Uid};
use rustix::process::{Pid, Signal, kill_process};
use sys::inherit::keep_on_exec;
use tempfile::TempDir;
use transports::fd_passing::recv_with_file;
use vfs_testkit::{wait_until, write_program};

use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

/// A client of 9P2000.L with an open file.
struct Client {
    socket: UnixStream,
}

impl Client {
    const ROOT: Fid = Fid(0);
    const FILE: Fid = Fid(1);

    /// Connects, and opens the file `f` of the export `aname`.
    fn connect(socket: &Path, aname: &[u8]) -> Client {
        let socket = UnixStream::connect(socket).expect("connected");
        let timeout = Some(Duration::from_secs(60));
        socket.set_read_timeout(timeout).expect("a socket");
        let mut client = Client { socket };
        client.rpc(&Tmessage::Version {
            msize: 8192,
            version: Dialect::Linux.version().as_bytes(),
        });
        client.rpc(&Tmessage::Attach {
            fid: Client::ROOT,
            afid: Fid::NONE,
            uname: b"",
            aname,
            n_uname: Uid(0),
        });
        client.rpc(&Tmessage::Walk {
            fid: Client::ROOT,
            newfid: Client::FILE,
            names: Names::new(&[b"f"]),
        });
        let (fid, flags) = (Client::FILE, 2);
        client.rpc(&Tmessage::Lopen { fid, flags });
        client
    }

    /// Sends a request, and returns the reply, which is no error.
    fn rpc(&mut self, request: &Tmessage<'_>) -> Vec<u8> {
        self.send(request);
        self.reply()
    }

    fn send(&mut self, request: &Tmessage<'_>) {
        let tag = match request {
            Tmessage::Version { .. } => Tag::NONE,
            _ => Tag(7),
        };
        let mut message = Vec::new();
        request.encode(Dialect::Linux, tag, &mut message);
        self.socket.write_all(&message).expect("sent");
    }

    fn reply(&mut self) -> Vec<u8> {
        let mut reply = vec![0; HEADER];
        self.socket.read_exact(&mut reply).expect("a reply");
        let size = Header::decode(&reply).expect("a header").size as usize;
        reply.resize(size, 0);
        self.socket.read_exact(&mut reply[HEADER..]).expect("all");
        let (_, decoded) = Rmessage::decode(Dialect::Linux, &reply).expect("a reply");
        assert!(!matches!(decoded, Rmessage::Lerror { .. }), "{decoded:?}");
        reply
    }

    /// Sends a request to lock or unlock the open file, which waits.
    fn send_lock(&mut self, kind: u8) {
        self.send(&Tmessage::Lock {
            fid: Client::FILE,
            kind,
            flags: LockFlags::BLOCK.bits(),
            start: 0,
            length: 0,
            proc_id: 1,
            client_id: b"client",
        });
    }

    /// Returns the status of the reply to such a request.
    fn lock_status(&mut self) -> u8 {
        let reply = self.reply();
        match Rmessage::decode(Dialect::Linux, &reply) {
            Ok((_, Rmessage::Lock { status })) => status,
            other => panic!("{other:?}"),
        }
    }

    /// Reads the open file.
    fn read(&mut self) -> String {
        let reply = self.rpc(&Tmessage::Read {
            fid: Client::FILE,
            offset: 0,
            count: 100,
        });
        match Rmessage::decode(Dialect::Linux, &reply) {
            Ok((_, Rmessage::Read { data })) => String::from_utf8_lossy(data.0).into_owned(),
            other => panic!("{other:?}"),
        }
    }
}

/// A directory with a program, a share with the file `f`, and sockets.
struct Fixture {
    dir: TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        let dir = tempfile::tempdir().expect("a directory");
        for share in ["a", "b"] {
            fs::create_dir(dir.path().join(share)).expect("made");
            fs::write(dir.path().join(share).join("f"), share).expect("written");
        }
        let fixture = Fixture { dir };
        fixture.install(&fs::read(BARGE).expect("the program"));
        fixture
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Replaces the program, as package managers do.
    fn install(&self, program: &[u8]) {
        let new = self.at("barge.new");
        write_program(&new, program);
        fs::rename(new, self.at("barge")).expect("renamed");
    }

    fn serve(&self, options: &[&str]) -> Command {
        let mut command = Command::new(self.at("barge"));
        command.args(["serve", "--9p"]).arg(self.addr("9p"));
        command.arg("--control").arg(self.addr("control"));
        command
            .args(options)
            .arg(format!("a={}", self.at("a").display()));
        command.stderr(File::create(self.at("log")).expect("made"));
        command
    }

    fn addr(&self, name: &str) -> String {
        format!("unix:{}", self.at(name).display())
    }

    fn ctl(&self, args: &[&str]) -> Output {
        let mut command = Command::new(BARGE);
        command
            .arg("ctl")
            .arg("--control")
            .arg(self.addr("control"));
        command.args(args).output().expect("runs")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.at("log")).expect("a log")
    }
}

/// Returns the inode number of the program that the process executes, if it runs.
fn program_of(id: u32) -> Option<u64> {
    let program = fs::metadata(format!("/proc/{id}/exe"));
    program.ok().map(|program| program.ino())
}

#[test]
fn clients_and_changes_outlive_upgrades_by_request_and_by_signal() {
    let fixture = Fixture::new();
    let pidfile = fixture.at("pid");
    let pid_option = format!("--pidfile={}", pidfile.display());
    let served = ServerProcess::run(fixture.serve(&[&pid_option, "--nfs", "tcp:127.0.0.1:0"]));
    let other = format!("b={}", fixture.at("b").display());
    stdout_of(&fixture.ctl(&["add", &other]));
    let before = stdout_of(&fixture.ctl(&["list"]));
    assert!(before.contains("tcp:127.0.0.1:"), "{before}");
    let (mut one, mut two) = (
        Client::connect(&fixture.at("9p"), b"a"),
        Client::connect(&fixture.at("9p"), b"b"),
    );
    let first = program_of(served.id());
    for by_request in [true, false] {
        fixture.install(&fs::read(BARGE).expect("the program"));
        let serving = served.serving_id();
        if by_request {
            let said = stdout_of(&fixture.ctl(&["upgrade"]));
            assert_eq!(
                said,
                format!("barge {} serves\n", env!("CARGO_PKG_VERSION"))
            );
        } else {
            let pid = Pid::from_raw(served.id() as i32).expect("a process");
            kill_process(pid, Signal::USR2).expect("sent");
            wait_until("another process serves", || {
                ![serving, served.id()].contains(&served.serving_id())
            });
        }
        assert_eq!((one.read(), two.read()), ("a".into(), "b".into()));
        let installed = fs::metadata(fixture.at("barge")).expect("a program").ino();
        wait_until("the installed program starts the processes", || {
            program_of(served.broker_id()) == Some(installed)
        });
        wait_until("the earlier programs have ended", || {
            crate::served::children(served.id()).len() == 1
        });
        assert_eq!(program_of(served.id()), first, "it passes signals on");
    }
    wait_until("it can be controlled", || {
        fixture.ctl(&["list"]).status.success()
    });
    assert_eq!(stdout_of(&fixture.ctl(&["list"])), before);
    let listed = stdout_of(&fixture.ctl(&["list", "--json"]));
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!(listed["pid"], served.id());
    let pid = fs::read_to_string(&pidfile).expect("a process id");
    assert_eq!(pid, format!("{}\n", served.id()));
    assert_eq!(Client::connect(&fixture.at("9p"), b"b").read(), "b");
    assert!(served.stop().success());
    let left = ["9p", "control", "pid"].map(|name| fixture.at(name).exists());
    assert_eq!(left, [false; 3], "{}", fixture.log());
}

#[test]
fn a_request_that_waits_for_a_lock_gets_it_after_an_upgrade() {
    let fixture = Fixture::new();
    let served = ServerProcess::run(fixture.serve(&[]));
    let [mut holder, mut waiter] = [(); 2].map(|()| Client::connect(&fixture.at("9p"), b"a"));
    holder.send_lock(lock_kind::WRLCK);
    assert_eq!(holder.lock_status(), lock_status::SUCCESS);
    waiter.send_lock(lock_kind::WRLCK);
    // The lock is held, and the other client waits.
    wait_until("a request waits", || {
        let clients = stdout_of(&fixture.ctl(&["clients", "--json"]));
        let clients: serde_json::Value = serde_json::from_str(&clients).expect("JSON");
        let clients = clients["clients"].as_array().expect("a list").iter();
        clients
            .filter_map(|one| one["in_flight"].as_u64())
            .sum::<u64>()
            == 1
    });
    stdout_of(&fixture.ctl(&["upgrade"]));
    holder.send_lock(lock_kind::UNLCK);
    assert_eq!(holder.lock_status(), lock_status::SUCCESS);
    assert_eq!(
        waiter.lock_status(),
        lock_status::SUCCESS,
        "{}",
        fixture.log()
    );
    holder.send_lock(lock_kind::RDLCK);
    waiter.send_lock(lock_kind::UNLCK);
    assert_eq!(waiter.lock_status(), lock_status::SUCCESS);
    assert_eq!(holder.lock_status(), lock_status::SUCCESS);
    assert!(served.stop().success());
}

#[test]
fn an_open_file_that_was_removed_outlives_an_upgrade() {
    let fixture = Fixture::new();
    let share = fixture.at("a");
    let served = ServerProcess::run(fixture.serve(&[]));
    let mut client = Client::connect(&fixture.at("9p"), b"a");
    fs::remove_file(share.join("f")).expect("removed");
    fs::write(share.join("f"), "new").expect("written");
    for _ in 0..2 {
        stdout_of(&fixture.ctl(&["upgrade"]));
        assert_eq!(client.read(), "a", "{}", fixture.log());
        wait_until("only the serving process has it open", || {
            [served.id(), served.broker_id()]
                .iter()
                .all(|&process| !crate::mount::holds_removed(process, &share))
        });
    }
    assert_eq!(Client::connect(&fixture.at("9p"), b"a").read(), "new");
    drop(client);
    wait_until("it is closed", || {
        !crate::mount::holds_removed(served.serving_id(), &share)
    });
    assert!(served.stop().success());
}

#[test]
fn an_upgrade_that_fails_leaves_the_server_and_its_clients_as_they_are() {
    let fixture = Fixture::new();
    let served = ServerProcess::run(fixture.serve(&[]));
    let mut client = Client::connect(&fixture.at("9p"), b"a");
    let serving = served.serving_id();
    let failed = || {
        let upgraded = fixture.ctl(&["upgrade"]);
        assert_eq!(upgraded.status.code(), Some(1));
        stderr_of(&upgraded)
    };
    fixture.install(b"#!/bin/sh\necho 'barge: it knows no --9p' >&2\nexit 2\n");
    let error = failed();
    assert!(error.contains("it knows no --9p"), "{error}");
    assert_eq!(served.serving_id(), serving, "no process has ended");
    // It is gone after the check, when the processes have handed their connections over.
    fixture.install(b"#!/bin/sh\nrm \"$0\"\n");
    let error = failed();
    assert!(error.contains("the old program continues"), "{error}");
    assert_eq!(client.read(), "a", "{}", fixture.log());
    assert_ne!(served.serving_id(), serving);
    let error = failed();
    assert!(error.contains("No such file or directory"), "{error}");
    assert_eq!(client.read(), "a");
    assert!(served.stop().success());
}

#[test]
fn a_program_that_cannot_read_the_manifest_declines() {
    let fixture = Fixture::new();
    let check = |version: &str| {
        let mut command = fixture.serve(&[]);
        command.env("BARGE_UPGRADE_CHECK", version);
        command.status().expect("runs").code()
    };
    assert_eq!((check("3"), check("2")), (Some(0), Some(1)));
    assert!(
        fixture.log().contains("takes a restart"),
        "{}",
        fixture.log()
    );
}

#[test]
fn a_server_without_a_broker_takes_a_restart() {
    let fixture = Fixture::new();
    let _served = ServerProcess::run(fixture.serve(&["--sandbox", "none"]));
    let upgraded = fixture.ctl(&["upgrade"]);
    assert_eq!(upgraded.status.code(), Some(1));
    let error = stderr_of(&upgraded);
    assert!(error.contains("--sandbox none"), "{error}");
}

#[test]
fn a_command_goes_on_during_upgrades_and_its_status_is_that_of_the_server() {
    let fixture = Fixture::new();
    let end = fixture.at("end");
    let command = format!(
        "until [ -e {} ]; do sleep 0.05; done; exit 7",
        end.display()
    );
    let served = ServerProcess::run(fixture.serve(&["--run", &command]));
    let mut client = Client::connect(&fixture.at("9p"), b"a");
    for _ in 0..2 {
        stdout_of(&fixture.ctl(&["upgrade"]));
        assert_eq!(client.read(), "a", "{}", fixture.log());
    }
    fs::write(end, "").expect("written");
    assert_eq!(served.wait().code(), Some(7), "{}", fixture.log());
    assert!(!fixture.at("9p").exists() && !fixture.at("control").exists());
}

#[test]
fn a_server_ends_with_the_process_that_others_know() {
    let fixture = Fixture::new();
    let served = ServerProcess::run(fixture.serve(&[]));
    let client = Client::connect(&fixture.at("9p"), b"a");
    stdout_of(&fixture.ctl(&["upgrade"]));
    let serving = served.serving_id();
    let pid = Pid::from_raw(served.id() as i32).expect("a process");
    kill_process(pid, Signal::KILL).expect("sent");
    assert!(!served.wait().success());
    wait_until("the processes end", || program_of(serving).is_none());
    wait_until("the socket is removed", || !fixture.at("9p").exists());
    drop(client);
}

/// A program that is installed and does not serve.
struct Broken {
    name: &'static str,
    /// A script, after a check that succeeds.
    script: &'static str,
    /// A part of the error.
    message: &'static str,
}

/// Programs that pass the check. `@REAL@` is one that serves.
const BROKEN: [Broken; 8] = [
    Broken {
        name: "exits with success",
        script: "exit 0",
        message: "(exit status 0)",
    },
    Broken {
        name: "exits",
        script: "exit 1",
        message: "(exit status 1)",
    },
    Broken {
        name: "is killed, and leaves a process behind",
        script: "sleep 1000 & kill -KILL $$",
        message: "(signal 9)",
    },
    Broken {
        name: "hangs before it does anything",
        script: "sleep 1000",
        message: "it does not serve within 30s",
    },
    Broken {
        name: "prints and does not serve",
        script: "echo ready >&2; sleep 1000",
        message: "it does not serve within 30s",
    },
    Broken {
        name: "is of another version",
        script: "echo '{\"version\":9}' > @DIR@/manifest; exec 9< @DIR@/manifest; BARGE_UPGRADE=9 exec @REAL@ \"$@\"",
        message: "(exit status 1)",
    },
    Broken {
        name: "serves by itself",
        script: "unset BARGE_UPGRADE; exec @REAL@ \"$@\"",
        message: "(exit status 1)",
    },
    Broken {
        name: "prints its version",
        script: "exec @REAL@ --version",
        message: "(exit status 0)",
    },
];

/// A server with a 9P connection, an NFS client with an open file, and a virtiofs device.
struct Clients {
    fixture: Fixture,
    served: ServerProcess,
    p9: Client,
    others: Vec<(barge_client::Client, barge_client::File)>,
}

impl Clients {
    fn new() -> Clients {
        let fixture = Fixture::new();
        let options = [
            format!("--nfs={}", fixture.addr("nfs")),
            format!("--nfs-state-dir={}", fixture.at("state").display()),
            format!("--virtiofs={}", fixture.at("virtiofs").display()),
            format!("--pidfile={}", fixture.at("pid").display()),
        ];
        let options = options.each_ref().map(String::as_str);
        let served = ServerProcess::run(fixture.serve(&options));
        let p9 = Client::connect(&fixture.at("9p"), b"a");
        let mut clients = Clients {
            fixture,
            served,
            p9,
            others: Vec::new(),
        };
        let device = format!("virtiofs:{}", clients.fixture.at("virtiofs").display());
        let urls = clients.nfs_urls().into_iter().chain([device]);
        clients.others = urls.map(|url| Clients::open(&url)).collect();
        clients
    }

    fn nfs_urls(&self) -> Vec<String> {
        let socket = self.fixture.at("nfs");
        let url = |version| format!("nfs+unix:{}?vers={version}", socket.display());
        ["4.2", "3"].map(url).into()
    }

    /// Connects, and opens the file `f`.
    fn open(url: &str) -> (barge_client::Client, barge_client::File) {
        let client = barge_client::Client::open(url).expect("connected");
        let mut paths = ["f", "a/f"].into_iter();
        let file = paths.find_map(|path| client.open_file(path).ok());
        (client, file.expect("a file"))
    }

    /// Checks that all clients continue, and that others can connect.
    fn check(&mut self, what: &str) {
        let log = self.fixture.log();
        assert_eq!(self.p9.read(), "a", "{what}: {log}");
        for (_, file) in &self.others {
            let mut bytes = [0; 1];
            let read = file.read_at(&mut bytes, 0);
            assert_eq!(read.ok(), Some(1), "{what}: {log}");
            assert_eq!(&bytes, b"a", "{what}: {log}");
        }
        let socket = self.fixture.at("9p");
        assert_eq!(Client::connect(&socket, b"a").read(), "a", "{what}");
        for url in self.nfs_urls() {
            Clients::open(&url);
        }
    }

    /// Upgrades to a program that does not serve, and returns the only line of the error.
    fn fail(&mut self, what: &str) -> String {
        self.fail_while(what, || {})
    }

    /// Does the same, and sends requests once `has_begun` returns.
    fn fail_while(&mut self, what: &str, has_begun: impl FnOnce()) -> String {
        let program = program_of(self.served.id());
        let upgraded = std::thread::scope(|scope| {
            let fixture = &self.fixture;
            let upgraded = scope.spawn(|| fixture.ctl(&["upgrade"]));
            has_begun();
            let reads = self.others.iter().map(|(_, file)| file.submit_read(0, 1));
            let reads: Vec<_> = reads.collect();
            assert_eq!(self.p9.read(), "a", "{what}: {}", fixture.log());
            for read in reads {
                let bytes = read.wait();
                assert_eq!(bytes.expect("read"), b"a", "{what}: {}", fixture.log());
            }
            upgraded.join().expect("no panic")
        });
        let error = stderr_of(&upgraded);
        assert_eq!(error.trim_end().lines().count(), 1, "{what}: {error}");
        self.check(what);
        assert_eq!(program_of(self.served.id()), program, "{what}");
        wait_until("only the own process is left", || {
            self.served.serving_ids().len() == 1
        });
        error
    }

    /// Upgrades to a program that serves, and stops the server.
    fn upgrade_and_end(mut self, what: &str) {
        self.fixture.install(&fs::read(BARGE).expect("the program"));
        stdout_of(&self.fixture.ctl(&["upgrade"]));
        self.check(what);
        drop(self.others);
        assert!(self.served.stop().success(), "{what}");
        let left = ["9p", "nfs", "virtiofs", "control", "pid"];
        let left = left.map(|name| self.fixture.at(name).exists());
        assert_eq!(left, [false; 5], "{what}: {}", self.fixture.log());
    }

    /// Installs `text` as a program, with its names replaced.
    fn install_script(&self, text: &str) {
        let dir = self.fixture.dir.path().display().to_string();
        let text = text.replace("@REAL@", BARGE).replace("@DIR@", &dir);
        self.fixture.install(text.as_bytes());
    }
}

#[test]
fn a_program_that_passes_the_check_and_fails_leaves_the_old_one_and_its_clients() {
    let run = |broken: &Broken| {
        let mut clients = Clients::new();
        let checked = "#!/bin/sh\n[ -z \"$BARGE_UPGRADE_CHECK\" ] || exit 0\n";
        clients.install_script(&format!("{checked}{}\n", broken.script));
        let what = broken.name;
        let error = clients.fail(what);
        assert!(error.contains(broken.message), "{what}: {error}");
        let continues = "; the old program continues";
        assert!(error.trim_end().ends_with(continues), "{what}: {error}");
        clients.upgrade_and_end(what);
    };
    std::thread::scope(|scope| {
        for broken in &BROKEN {
            scope.spawn(move || run(broken));
        }
    });
}

#[test]
fn a_program_that_fails_after_it_took_the_connections_leaves_them_to_the_old_one() {
    if !crate::served::has("python3") {
        return eprintln!("skipped: there is no python3 here");
    }
    let run = |failure: &str, message: &str| {
        let mut clients = Clients::new();
        let report = clients.fixture.at("report");
        let text = include_str!("broken_program.py");
        let text = text.replace("@FAILURE@", failure);
        let text = text.replace("@REPORT@", &report.display().to_string());
        clients.install_script(&text);
        let reported = || wait_until("a report", || report.exists());
        let error = clients.fail_while(failure, reported);
        assert!(error.contains(message), "{failure}: {error}");
        assert_eq!(fs::read_to_string(&report).expect("a report"), "\"Serves\"");
        clients.upgrade_and_end(failure);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run("crash", "(signal 11)"));
        scope.spawn(|| run("hang", "it does not serve within 30s"));
    });
}

#[test]
fn a_file_that_cannot_be_executed_or_fails_the_check_disturbs_nobody() {
    let mut clients = Clients::new();
    let serving = clients.served.serving_id();
    let mode = fs::Permissions::from_mode(0o644);
    clients.fixture.install(b"not executable");
    fs::set_permissions(clients.fixture.at("barge"), mode).expect("set");
    let error = clients.fail("not executable");
    assert!(error.contains("Permission denied"), "{error}");
    clients.fixture.install(b"\x7fELF, or not");
    clients.fail("no program");
    clients.install_script("#!/bin/sh\necho 'barge: it knows no --9p' >&2\nexit 2\n");
    let error = clients.fail("fails the check");
    assert!(error.contains("it knows no --9p"), "{error}");
    assert_eq!(clients.served.serving_id(), serving, "no process has ended");
    clients.upgrade_and_end("after programs that fail the check");
}

/// A service manager that stores descriptors: sd_notify(3), sd_pid_notify_with_fds(3).
struct Manager {
    socket: UnixDatagram,
    stored: Vec<(String, OwnedFd)>,
}

impl Manager {
    /// Receives messages until the service requests that they have been processed.
    fn receive(&mut self) {
        loop {
            let (mut message, mut file) = (vec![0; 4096], None);
            let len = recv_with_file(self.socket.as_fd(), &mut message, true, &mut file);
            let text = String::from_utf8_lossy(&message[..len.expect("a message")]).into_owned();
            let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
            match (file, value("FDSTORE="), value("FDNAME=")) {
                (Some(fd), Some("1"), Some(name)) => self.stored.push((name.to_owned(), fd)),
                (Some(_), None, None) if text == "BARRIER=1" => return,
                _ => {}
            }
        }
    }

    /// Receives messages until `is_last` returns true for one, and returns the texts of all.
    fn receive_until(&self, is_last: impl Fn(&str) -> bool) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let (mut message, mut file) = (vec![0; 4096], None);
            let len = recv_with_file(self.socket.as_fd(), &mut message, true, &mut file);
            let text = String::from_utf8_lossy(&message[..len.expect("a message")]).into_owned();
            all.push(text);
            if all.last().is_some_and(|text| is_last(text)) {
                return all;
            }
        }
    }

    /// Returns a shell command that makes `command` get the stored descriptors, and those that the
    /// shell inherits.
    fn restart(&self, command: &Command) -> (Command, Vec<OwnedFd>) {
        let mut script = String::from("exec");
        let mut names = Vec::new();
        let mut inherited = Vec::new();
        for (position, (name, fd)) in self.stored.iter().enumerate() {
            // Above those that it gets.
            let high = rustix::io::fcntl_dupfd_cloexec(fd, 200).expect("a descriptor");
            keep_on_exec(high.as_fd(), true).expect("kept");
            script += &format!(" {}<&{}", position + 3, high.as_raw_fd());
            names.push(name.as_str());
            inherited.push(high);
        }
        script += &format!(
            "\nLISTEN_PID=$$ LISTEN_FDS={} LISTEN_FDNAMES={} exec \"$@\"",
            names.len(),
            names.join(":")
        );
        let mut shell = Command::new("bash");
        shell
            .args(["-c", &script, "bash"])
            .arg(command.get_program());
        shell.args(command.get_args());
        (shell, inherited)
    }
}

#[test]
fn clients_outlive_a_restart_with_the_store_of_a_service_manager() {
    let fixture = Fixture::new();
    let notify = fixture.at("notify");
    let mut manager = Manager {
        socket: UnixDatagram::bind(&notify).expect("bound"),
        stored: Vec::new(),
    };
    let timeout = Some(Duration::from_secs(30));
    manager.socket.set_read_timeout(timeout).expect("set");
    let managed = |mut command: Command| {
        command.env("NOTIFY_SOCKET", &notify).env("FDSTORE", "100");
        ServerProcess::run(command)
    };
    let served = managed(fixture.serve(&[]));
    let mut client = Client::connect(&fixture.at("9p"), b"a");
    // The descriptors are then those of a child of the first process.
    stdout_of(&fixture.ctl(&["upgrade"]));
    let pid = Pid::from_raw(served.id() as i32).expect("a process");
    kill_process(pid, Signal::TERM).expect("sent");
    manager.receive();
    assert!(served.wait().success(), "{}", fixture.log());
    // The listener, the connection and its state, and the manifest.
    let names: Vec<_> = manager.stored.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    assert!(fixture.at("9p").exists(), "the socket stays");
    let command = fixture.serve(&[]);
    let (mut restarted, inherited) = manager.restart(&command);
    restarted.stderr(File::create(fixture.at("log")).expect("made"));
    restarted
        .env("NOTIFY_SOCKET", &notify)
        .env("FDSTORE", "100");
    let mut child = restarted.spawn().expect("starts");
    drop(inherited);
    assert_eq!(client.read(), "a", "{}", fixture.log());
    assert_eq!(Client::connect(&fixture.at("9p"), b"a").read(), "a");
    child.kill().expect("killed");
    child.wait().expect("a child");
}

#[test]
fn a_service_manager_learns_that_the_server_is_ready_after_upgrades() {
    let fixture = Fixture::new();
    let notify = fixture.at("notify");
    let manager = Manager {
        socket: UnixDatagram::bind(&notify).expect("bound"),
        stored: Vec::new(),
    };
    let timeout = Some(Duration::from_secs(60));
    manager.socket.set_read_timeout(timeout).expect("set");
    let mut command = fixture.serve(&[]);
    command.env("NOTIFY_SOCKET", &notify);
    let served = ServerProcess::run(command);
    let is_ready = |text: &str| text.starts_with("READY=1");
    manager.receive_until(is_ready);
    let mut client = Client::connect(&fixture.at("9p"), b"a");
    let good = fs::read(BARGE).expect("the program");
    let bad: &[u8] = b"#!/bin/sh\n[ -n \"$BARGE_UPGRADE_CHECK\" ]\n";
    for (program, succeeds) in [(bad, false), (&good, true), (bad, false), (&good, true)] {
        fixture.install(program);
        let upgraded = fixture.ctl(&["upgrade"]);
        assert_eq!(upgraded.status.success(), succeeds, "{}", fixture.log());
        let told = manager.receive_until(|text| text.starts_with("RELOADING=1"));
        assert!(told.len() < 3, "{told:?}");
        manager.receive_until(is_ready);
        assert_eq!(client.read(), "a", "{}", fixture.log());
    }
    assert!(served.stop().success());
}

#[test]
fn sockets_of_a_service_manager_stay_with_the_server() {
    let fixture = Fixture::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = listener.local_addr().expect("an address").port();
    let manager = Manager {
        socket: UnixDatagram::unbound().expect("a socket"),
        stored: vec![("barge.socket".into(), listener.into())],
    };
    let mut command = Command::new(fixture.at("barge"));
    command.arg("serve").arg("--control");
    command.arg(fixture.addr("control")).arg(fixture.at("a"));
    let (mut activated, inherited) = manager.restart(&command);
    activated.stderr(File::create(fixture.at("log")).expect("made"));
    let served = ServerProcess::run(activated);
    drop((inherited, manager));
    for _ in 0..2 {
        stdout_of(&fixture.ctl(&["upgrade"]));
        let client = barge_client::Client::open(&format!("9p://127.0.0.1:{port}/"));
        let client = client.expect("connected");
        assert_eq!(client.read("f").expect("read"), b"a", "{}", fixture.log());
    }
    assert!(served.stop().success());
}

#[test]
fn process_1_of_a_container_stays() {
    if !crate::served::has("unshare") || !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: expected root and unshare");
    }
    let fixture = Fixture::new();
    let pidfile = fixture.at("pid");
    let command = fixture.serve(&[&format!("--pidfile={}", pidfile.display())]);
    let mut container = Command::new("unshare");
    container
        .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
        .arg(command.get_program())
        .args(command.get_args())
        .stderr(File::create(fixture.at("log")).expect("made"));
    let served = ServerProcess::run(container);
    let mut client = Client::connect(&fixture.at("9p"), b"a");
    for _ in 0..2 {
        stdout_of(&fixture.ctl(&["upgrade"]));
        assert_eq!(client.read(), "a", "{}", fixture.log());
        let pid = fs::read_to_string(&pidfile).expect("a process id");
        assert_eq!(pid, "1\n");
    }
    let [first] = crate::served::children(served.id())[..] else {
        panic!("expected one process");
    };
    let first = Pid::from_raw(first as i32).expect("a process");
    kill_process(first, Signal::TERM).expect("sent");
    assert!(served.wait().success(), "{}", fixture.log());
}
