//! `barge serve --config`, `barge config`: a complete configuration file, and its reload with
//! clients.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use barge_client::{Client, File, OpenOptions};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use vfs::{Caller, Name};
use vfs_testkit::{SetOnDrop, wait_until};

use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

fn config(what: &str, file: &Path) -> Output {
    let mut command = Command::new(BARGE);
    command.args(["config", what]).arg(file);
    command.output().expect("runs")
}

#[test]
fn a_file_is_checked_and_shown_and_stands_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("barge.toml");
    let shown = file.display();
    std::fs::write(&file, "workers = 3\n[[share]]\nsource = 'mem:'\n").expect("written");
    assert_eq!(stdout_of(&config("check", &file)), "");
    let whole = stdout_of(&config("show", &file));
    assert!(
        whole.contains("workers = \"3\"\n") && whole.contains("nfs-lease = \"90\"\n"),
        "{whole}"
    );

    std::fs::write(&file, "worker = 3\n9p-msize = 'x'\n[[share]]\n").expect("written");
    for (command, lines) in [(config("check", &file), 3), (serve(&file, &[]), 3)] {
        let told = stderr_of(&command);
        assert_eq!(command.status.code(), Some(2), "{told}");
        assert_eq!(told.lines().count(), lines, "{told}");
        let first = format!(
            "{shown}:1:1: worker: expected an option of barge serve; did you mean workers?"
        );
        assert_eq!(told.lines().next(), Some(&*first), "{told}");
    }
    let told = stderr_of(&config("check", Path::new("/no/such/file")));
    assert!(told.contains("/no/such/file: No such file"), "{told}");

    for (more, other) in [
        (["--workers", "3"], "--workers"),
        (["--log-format=json", "mem:"], "a source"),
    ] {
        let refused = serve(&file, &more);
        let told = stderr_of(&refused);
        assert!(told.contains(&format!("got {other} too")), "{told}");
        assert_eq!(refused.status.code(), Some(2), "{told}");
    }
}

fn serve(file: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(BARGE);
    command.args(["serve", "--config"]).arg(file).args(more);
    command.output().expect("runs")
}

/// Directories for shares, a configuration file, and a server that uses it.
struct Fixture {
    dir: TempDir,
    manager: UnixDatagram,
    served: ServerProcess,
}

/// Size of the files that are read continuously.
const LARGE: usize = 1 << 20;

fn byte(name: &str, at: usize) -> u8 {
    (at / 7) as u8 ^ (at >> 8) as u8 ^ name.as_bytes()[0]
}

const GLOBAL: &str = "9p = 'tcp:127.0.0.1:0'\nnfs = 'tcp:127.0.0.1:0'\nhttp = 'tcp:127.0.0.1:0'\n";

impl Fixture {
    fn new(shares: impl FnOnce(&TempDir) -> String) -> Fixture {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["a", "b", "c"] {
            std::fs::create_dir(dir.path().join(name)).expect("made");
            let bytes: Vec<u8> = (0..LARGE).map(|at| byte(name, at)).collect();
            std::fs::write(dir.path().join(name).join("f"), bytes).expect("written");
        }
        let notify = dir.path().join("notify");
        let manager = UnixDatagram::bind(&notify).expect("bound");
        let patience = Some(Duration::from_secs(60));
        manager.set_read_timeout(patience).expect("set");
        let file = dir.path().join("barge.toml");
        let shares = shares(&dir);
        write(&dir, &format!("{GLOBAL}{shares}"));
        let mut command = Command::new(BARGE);
        command.args(["serve", "--config"]).arg(&file);
        command.env("NOTIFY_SOCKET", &notify);
        command.stderr(std::fs::File::create(dir.path().join("log")).expect("made"));
        let served = ServerProcess::run(command);
        let place = Fixture {
            dir,
            manager,
            served,
        };
        let ready = place.notification();
        assert!(ready.starts_with("READY=1\nSTATUS=ready: "), "{ready}");
        place
    }

    fn notification(&self) -> String {
        let mut message = [0; 256];
        let len = self.manager.recv(&mut message).expect("told");
        String::from_utf8_lossy(&message[..len]).into_owned()
    }

    /// Replaces the file, makes the server reload it, and waits until it has. Returns the status
    /// that the server reports.
    fn reload(&self, text: &str) -> String {
        write(&self.dir, text);
        let pid = Pid::from_raw(self.served.id() as i32).expect("a process");
        kill_process(pid, Signal::HUP).expect("asked");
        let reloading = self.notification();
        let micros = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=");
        let micros: u64 = micros
            .and_then(|us| us.trim().parse().ok())
            .expect(&reloading);
        assert!(micros > 0);
        let ready = self.notification();
        let status = ready.strip_prefix("READY=1\nSTATUS=").expect(&ready);
        status.trim().to_owned()
    }

    fn shares(&self, shares: &str) {
        assert_eq!(
            self.reload(&format!("{GLOBAL}{shares}")),
            "ready",
            "{}",
            self.log()
        );
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).expect("read")
    }

    fn urls(&self) -> [String; 3] {
        let nfs = self
            .served
            .output
            .iter()
            .find(|line| line.contains("vers=4.2"));
        let (_, port) = nfs.expect("a command").split_once("port=").expect("one");
        let port = port.split(' ').next().expect("a number");
        [
            format!("9p://127.0.0.1:{}/", self.served.port()),
            format!("nfs://127.0.0.1:{port}/?vers=4.2"),
            format!("nfs://127.0.0.1:{port}/?vers=3"),
        ]
    }

    fn share(&self, name: &str, more: &str) -> String {
        share(&self.dir, name, more)
    }
}

/// Returns the table of a share.
fn share(dir: &TempDir, name: &str, more: &str) -> String {
    let source = dir.path().join(name);
    let source = source.display();
    format!("[[share]]\nname = '{name}'\nsource = '{source}'\n{more}\n")
}

fn write(dir: &TempDir, text: &str) {
    let mut file = std::fs::File::create(dir.path().join("barge.toml")).expect("made");
    file.write_all(text.as_bytes()).expect("written");
}

fn names_in(client: &Client) -> Vec<String> {
    let entries = client.read_dir("").expect("listed").into_iter();
    let mut names: Vec<_> = entries
        .map(|entry| entry.name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn write_to(file: &File) -> std::io::Result<()> {
    file.write_all_at(&[byte("a", 0)], 0)?;
    file.sync_all()
}

fn raw(done: std::io::Result<impl Sized>) -> Option<i32> {
    done.err().and_then(|error| error.raw_os_error())
}

const ESTALE: i32 = 116;
const EROFS: i32 = 30;
const EIO: i32 = 5;
const EACCES: i32 = 13;

/// Reads blocks at varying offsets until `stop`, and compares each with the contents of the share
/// `name`.
fn read_all_the_time(file: &File, name: &str, stop: &AtomicBool, reads: &AtomicU64) {
    let mut block = vec![0; 4096 + 13];
    let mut at = 1;
    while !stop.load(Ordering::Relaxed) {
        at = (at * 7919 + 31) % (LARGE - block.len());
        let len = file.read_at(&mut block, at as u64).expect("read");
        assert!(len > 0);
        assert!(
            (at..at + len)
                .zip(&block)
                .all(|(at, got)| byte(name, at) == *got),
            "{at}"
        );
        reads.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn clients_go_on_while_shares_come_and_change_and_go() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: without privileges, a new source takes a restart");
    }
    let sockets = tempfile::tempdir().expect("a directory");
    let socket = sockets.path().join("a").display().to_string();
    let device = format!("virtiofs:{socket}");
    let socket = format!("virtiofs = '{socket}'");
    let place = Fixture::new(|dir| share(dir, "a", &socket));
    let a = place.share("a", &socket);
    let clients = place.urls().map(|url| Client::open(&url).expect(&url));
    let guest = Client::open(&device).expect("connected");
    let mut both = OpenOptions::new();
    both.read(true).write(true);
    let open = |client: &Client, path: &str| client.open_with(path, &both).expect(path);
    let mut files: Vec<File> = clients.iter().map(|client| open(client, "a/f")).collect();
    files.push(open(&guest, "f"));
    let stop = AtomicBool::new(false);
    let reads: Vec<AtomicU64> = files.iter().map(|_| AtomicU64::new(0)).collect();
    let go_on = || {
        let before: Vec<u64> = reads
            .iter()
            .map(|reads| reads.load(Ordering::Relaxed))
            .collect();
        for (reads, before) in reads.iter().zip(before) {
            wait_until("each client reads on", || {
                reads.load(Ordering::Relaxed) >= before + 2 || stop.load(Ordering::Relaxed)
            });
        }
    };
    let are = |names: &[&str]| {
        for client in &clients {
            assert_eq!(names_in(client), names);
        }
    };
    std::thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        for (file, reads) in files.iter().zip(&reads) {
            let stop = &stop;
            scope.spawn(move || {
                let _stop = SetOnDrop(stop);
                read_all_the_time(file, "a", stop, reads);
            });
        }
        are(&["a"]);
        let b = place.share("b", "");
        place.shares(&(b.clone() + &a));
        are(&["a", "b"]);
        go_on();
        let of_b: Vec<File> = clients.iter().map(|client| open(client, "b/f")).collect();

        // Terms apply at once, also to open files.
        let read_only = place.share("a", &format!("{socket}\nread-only = true"));
        let others = place.share("b", "clients = '192.0.2.1(rw)'");
        place.shares(&(read_only + &others));
        for file in &files {
            assert_eq!(raw(write_to(file)), Some(EROFS));
        }
        for file in &of_b {
            assert_eq!(raw(file.read_at(&mut [0; 9], 0)), Some(EACCES));
        }
        are(&["a"]);
        go_on();
        place.shares(&(a.clone() + &b));
        files
            .iter()
            .for_each(|file| write_to(file).expect("written"));
        let first = |file: &File| {
            let mut read = [0];
            file.read_at(&mut read, 0).map(|_| read[0])
        };
        of_b.iter()
            .for_each(|file| assert_eq!(first(file).ok(), Some(byte("b", 0))));

        // A removed share is gone for clients with open files too.
        place.shares(&a);
        are(&["a"]);
        of_b.iter()
            .for_each(|file| assert_eq!(raw(first(file)), Some(ESTALE)));
        for client in &clients {
            let gone = client.metadata("b").map(drop).expect_err("it is gone");
            assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
        }
        go_on();

        // A new share may take its name.
        let c = place.share("c", "").replacen("'c'", "'b'", 1);
        place.shares(&(a.clone() + &c));
        let of_c: Vec<File> = clients.iter().map(|client| open(client, "b/f")).collect();
        of_c.iter()
            .for_each(|file| assert_eq!(first(file).ok(), Some(byte("c", 0))));
        place.shares(&(a.clone() + &b));
        let of_b: Vec<File> = clients.iter().map(|client| open(client, "b/f")).collect();
        of_b.iter()
            .for_each(|file| assert_eq!(first(file).ok(), Some(byte("b", 0))));
        go_on();

        // An invalid file changes nothing, and the error has its position.
        let status = place.reload("[[share]]\nnme = 'a'\n");
        assert_eq!(status, "invalid configuration: keeping the previous one");
        let log = place.log();
        assert!(
            log.contains("barge.toml:2:1: nme: expected a key of a share; did you mean name?"),
            "{log}"
        );
        are(&["a", "b"]);
        // A share without a source stops no other.
        let missing = place.share("d", "");
        place.shares(&(a.clone() + &b + &missing));
        are(&["a", "b", "d"]);
        for client in &clients {
            assert_eq!(raw(client.metadata("d/f").map(drop)), Some(EIO));
        }
        assert!(place.log().contains("not served: "), "{}", place.log());
        of_b.iter()
            .for_each(|file| assert_eq!(first(file).ok(), Some(byte("b", 0))));
        go_on();
        place.shares(&(a.clone() + &b));
        are(&["a", "b"]);

        // Changes outside shares have no effect, and are logged.
        assert_eq!(
            place.reload(&format!("{GLOBAL}workers = 7\n{a}{b}")),
            "ready"
        );
        let log = place.log();
        assert!(
            log.contains("workers differs in the file: restart the server to apply it"),
            "{log}"
        );
        go_on();
    });
    drop((files, guest, clients));
    let Fixture { served, .. } = place;
    assert!(served.stop().success());
}

#[test]
fn a_share_without_a_name_is_the_whole_tree_and_its_terms_may_change() {
    let unnamed = |dir: &TempDir, more: &str| share(dir, "a", more).replace("name = 'a'\n", "");
    let place = Fixture::new(|dir| unnamed(dir, ""));
    let [nine, nfs, _] = place.urls();
    for url in [&nine, &nfs] {
        let client = Client::open(url).expect("connected");
        assert_eq!(names_in(&client), ["f"]);
    }
    let client = Client::open(&nine).expect("connected");
    place.shares(&unnamed(&place.dir, "read-only = true"));
    let refused = client.create("new").map(drop);
    assert_eq!(raw(refused), Some(EROFS));
    let another = place.share("a", "");
    assert_ne!(place.reload(&format!("{GLOBAL}{another}")), "ready");
    let log = place.log();
    assert!(
        log.contains("a share without a name cannot change while it is served"),
        "{log}"
    );
    assert_eq!(names_in(&client), ["f"]);
}

#[test]
fn a_share_that_is_gone_has_nothing_open() {
    let place = Fixture::new(|dir| share(dir, "a", "") + &share(dir, "b", ""));
    // The server names them by its own root.
    let open = |name: &str| {
        let of = |path: PathBuf| path.metadata().ok().map(|file| (file.dev(), file.ino()));
        let dir = of(place.dir.path().join(name));
        let fds = std::fs::read_dir(format!("/proc/{}/fd", place.served.serving_id()));
        let fds = fds.expect("listed").filter_map(|fd| Some(fd.ok()?.path()));
        fds.filter(|fd| of(fd.clone()) == dir).count()
    };
    assert!(open("a") > 0 && open("b") > 0);
    place.shares(&place.share("a", ""));
    assert!(open("a") > 0);
    assert_eq!(open("b"), 0);
}

/// Over 9P, to clients that request it, and not for other shares.
#[test]
fn a_share_that_says_so_hands_its_files_over() {
    for (all, of_a, of_b) in [
        ("", "9p-fd-passing = true", ""),
        ("9p-fd-passing = true", "", "9p-fd-passing = false"),
    ] {
        // A file system whose files can be passed on every host.
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        for name in ["a", "b"] {
            std::fs::create_dir(dir.path().join(name)).expect("made");
            std::fs::write(dir.path().join(name).join("f"), name).expect("written");
        }
        let socket = dir.path().join("socket").display().to_string();
        let shares = share(&dir, "a", of_a) + &share(&dir, "b", of_b);
        write(&dir, &format!("9p = 'unix:{socket}'\n{all}\n{shares}"));
        let mut command = Command::new(BARGE);
        command.args(["serve", "--config"]);
        command.arg(dir.path().join("barge.toml"));
        let _served = ServerProcess::run(command);
        for (name, asks) in [("a", true), ("b", true), ("a", false)] {
            let url = format!("9p+unix:{socket}?aname={name}");
            let mut url: remote::Url = url.parse().expect("a URL");
            *url.fd_passing().expect("of this host") = asks;
            let fs = url.open().expect("attached");
            let handed = vfs::cx::block_on(&Caller::ROOT, |cx| {
                let found = fs.root(cx)?.lookup(cx, Name::new(b"f")?)?;
                let file = found.node.open(cx, vfs::OpenFlags::READ)?;
                Ok(file.backing(cx))
            });
            let text = handed.expect("opened").map(|file| {
                let mut text = [0; 2];
                let len = rustix::io::pread(&file, &mut text, 0).expect("read");
                text[..len].to_vec()
            });
            let handed = (asks && name == "a").then(|| name.into());
            assert_eq!(text, handed, "{all} {of_a} {of_b}: {name}, asked: {asks}");
        }
    }
}

#[test]
fn after_a_crash_is_served_what_was_loaded_whatever_is_in_the_files() {
    let list = |dir: &TempDir| dir.path().join("list");
    type Change = fn(&TempDir);
    let changes: [(&str, Change); 5] = [
        ("half a table", |dir| {
            write(dir, &format!("{GLOBAL}{}[[share", share(dir, "a", "")));
        }),
        ("no file", |dir| {
            std::fs::remove_file(dir.path().join("barge.toml")).expect("removed");
        }),
        ("another share and address", |dir| {
            let shares = share(dir, "a", "") + &share(dir, "b", "");
            write(dir, &format!("9p = 'tcp:127.0.0.1:1'\n{shares}"));
        }),
        ("another list of paths", |dir| {
            std::fs::write(dir.path().join("list"), "g\n").expect("written");
        }),
        ("no list of paths", |dir| {
            std::fs::remove_file(dir.path().join("list")).expect("removed");
        }),
    ];
    for (change, make) in changes {
        let place = Fixture::new(|dir| {
            std::fs::write(list(dir), "f\n").expect("written");
            std::fs::write(dir.path().join("a/g"), "hidden").expect("written");
            let only = format!("only = '{}'", list(dir).display());
            share(dir, "a", &only)
        });
        make(&place.dir);
        place.served.crash();
        for url in place.urls() {
            let client = Client::open(&url).expect(change);
            assert_eq!(names_in(&client), ["a"], "{change}");
            let files = client.read_dir("a").expect(change).into_iter();
            let files: Vec<_> = files.map(|it| it.name().to_owned()).collect();
            assert_eq!(files, ["f"], "{change}");
        }
        assert!(place.served.stop().success(), "{change}");
    }
}

#[test]
fn guests_go_on_when_their_processes_crash_while_the_file_is_half_edited() {
    let sockets = tempfile::tempdir().expect("a directory");
    let socket = |name: &str| sockets.path().join(name).display().to_string();
    let device = |name: &str| format!("virtiofs = '{}'", socket(name));
    let tables = |dir: &TempDir| {
        let shares = share(dir, "a", &device("a")) + &share(dir, "b", &device("b"));
        shares + &share(dir, "c", &device("c"))
    };
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["a", "b", "c"] {
        std::fs::create_dir(dir.path().join(name)).expect("made");
        std::fs::write(dir.path().join(name).join("f"), name).expect("written");
    }
    write(&dir, &tables(&dir));
    let mut command = Command::new(BARGE);
    let file = dir.path().join("barge.toml");
    command.args(["serve", "--config"]).arg(&file);
    let served = ServerProcess::run(command);
    let guests = ["a", "b", "c"].map(|name| {
        let guest = Client::open(&format!("virtiofs:{}", socket(name))).expect("connected");
        (name, guest)
    });
    write(&dir, &format!("{}[[share", tables(&dir)));
    for _ in 0..3 {
        served.crash();
        for (name, guest) in &guests {
            assert_eq!(guest.read("f").expect("read"), name.as_bytes());
        }
    }
    // A share that is gone ends its own process's service alone.
    write(&dir, &share(&dir, "a", &device("a")));
    let pid = Pid::from_raw(served.id() as i32).expect("a process");
    kill_process(pid, Signal::HUP).expect("asked");
    wait_until("devices of removed shares are closed", || {
        !sockets.path().join("b").exists()
    });
    assert_eq!(guests[0].1.read("f").expect("read"), b"a");
    drop(guests);
    assert!(served.stop().success());
}

#[test]
fn a_process_that_serves_has_no_options_in_its_command_line() {
    let mut command = Command::new(BARGE);
    let dir = tempfile::tempdir().expect("a directory");
    command.args(["serve", "-v", "--9p=tcp:127.0.0.1:0"]);
    let source = dir.path().display();
    command.args([format!("a={source}"), format!("b={source}")]);
    let served = ServerProcess::run(command);
    let id = served.serving_id();
    assert_ne!(id, served.id());
    let line = std::fs::read(format!("/proc/{id}/cmdline")).expect("it runs");
    let line = String::from_utf8_lossy(&line);
    let arguments: Vec<_> = line.split_terminator('\0').skip(1).collect();
    assert_eq!(arguments, ["serve", "-v", "--log-format=text"]);
    let client = Client::open(&format!("9p://127.0.0.1:{}/", served.port())).expect("connected");
    assert_eq!(names_in(&client), ["a", "b"]);
}
