//! Upgrades in place: the installed program continues with the clients of the running one. The
//! clients here do not connect again: a lost connection is an error.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
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

/// Returns the inode number of the program that the process executes.
fn program_of(id: u32) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(format!("/proc/{id}/exe"))
        .expect("it runs")
        .ino()
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
    let mut programs = vec![program_of(served.id())];
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
        programs.push(program_of(served.id()));
    }
    assert!(programs[0] != programs[1] && programs[1] != programs[2]);
    wait_until("it can be controlled", || {
        fixture.ctl(&["list"]).status.success()
    });
    assert_eq!(stdout_of(&fixture.ctl(&["list"])), before);
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
            !crate::mount::holds_removed(served.id(), &share)
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
fn a_server_without_a_broker_or_with_a_command_takes_a_restart() {
    for (options, why) in [
        (["--sandbox", "none"], "--sandbox none"),
        (["--run", "sleep 60"], "--run"),
    ] {
        let fixture = Fixture::new();
        let _served = ServerProcess::run(fixture.serve(&options));
        let upgraded = fixture.ctl(&["upgrade"]);
        assert_eq!(upgraded.status.code(), Some(1));
        let error = stderr_of(&upgraded);
        assert!(error.contains(why), "{error}");
    }
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
