//! FUSE passthrough of `barge mount` (Linux 6.9, root): of a directory, and of a server of this
//! host that passes file descriptors.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::mount::{Mounted, may_mount};
use crate::served::{BARGE, ServerProcess, has, stdout_of};

/// More than all else that barge reads and writes in a test.
const LARGE: usize = 4 << 20;

/// The source of a mount.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MountSource {
    Directory,
    /// A server of the directory, with this further option.
    Server(&'static str),
}

/// The sources with passthrough.
const SOURCES: [MountSource; 2] = [MountSource::Directory, FD_PASSING];

const FD_PASSING: MountSource = MountSource::Server("--9p-fd-passing");

/// A directory and its mount.
struct Fixture {
    mounted: Mounted,
    server: Option<Server>,
    share: TempDir,
    at: TempDir,
}

/// `barge serve` at a Unix socket.
struct Server {
    served: ServerProcess,
    dir: TempDir,
}

impl Server {
    fn new(share: &Path, option: &str) -> Server {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("socket");
        Server {
            served: Server::run(share, &socket, option),
            dir,
        }
    }

    fn run(share: &Path, socket: &Path, option: &str) -> ServerProcess {
        let mut command = Command::new(BARGE);
        command.arg("serve").arg(share).arg(option);
        command.arg(format!("--9p=unix:{}", socket.display()));
        ServerProcess::run(command)
    }

    fn url(&self) -> String {
        format!("9p+unix:{}", self.dir.path().join("socket").display())
    }
}

impl Fixture {
    /// Mounts with these options, or returns `None` if passthrough is not available.
    fn new(of: MountSource, options: &str) -> Option<Fixture> {
        let kernel = rustix::system::uname();
        let mut numbers = kernel.release().to_str().expect("text").split('.');
        let mut number = || numbers.next().and_then(|text| text.parse::<u32>().ok());
        let old = (number(), number()) < (Some(6), Some(9));
        if !may_mount() || !rustix::process::geteuid().is_root() || old {
            eprintln!("skipped: the kernel reads and writes by itself from 6.9 on, for root");
            return None;
        }
        // A file system that supports passthrough on every host.
        let share = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let at = tempfile::tempdir().expect("a directory");
        let (from, server) = match of {
            MountSource::Directory => (share.path().to_str().expect("text").to_owned(), None),
            MountSource::Server(option) => {
                let server = Server::new(share.path(), option);
                (server.url(), Some(server))
            }
        };
        let mounted = Mounted::new(&[&from, "-o", options], at.path());
        Some(Fixture {
            mounted,
            server,
            share,
            at,
        })
    }

    fn here(&self, name: &str) -> PathBuf {
        self.at.path().join(name)
    }

    fn host(&self, name: &str) -> PathBuf {
        self.share.path().join(name)
    }

    /// Returns the number of bytes that barge reads and writes while `what` runs.
    fn bytes_moved(&self, what: impl FnOnce()) -> usize {
        let server = self
            .server
            .as_ref()
            .map(|server| server.served.serving_id());
        let of = |id: u32| {
            let text = fs::read_to_string(format!("/proc/{id}/io")).expect("it runs");
            let of = |line: &str| line.split_once("char: ")?.1.parse::<usize>().ok();
            text.lines().filter_map(of).sum::<usize>()
        };
        let moved = || of(self.mounted.serving_id()) + server.map_or(0, of);
        let before = moved();
        what();
        moved() - before
    }
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 / 3) as u8).collect()
}

fn open(path: &Path) -> File {
    let mut how = OpenOptions::new();
    how.read(true).write(true).open(path).expect("opened")
}

#[test]
fn the_server_sees_nothing_of_reads_and_writes_in_whichever_order_a_file_is_opened() {
    for of in SOURCES {
        let Some(bed) = Fixture::new(of, "passthrough=auto") else {
            return;
        };
        let text = text(LARGE);
        let moved = bed.bytes_moved(|| {
            let made = File::create(bed.here("f")).expect("made");
            made.write_all_at(&text, 0).expect("written");
            let reading = File::open(bed.here("f")).expect("opened");
            let both = open(&bed.here("f"));
            drop(made);
            for file in [&reading, &both] {
                let mut read = vec![0; LARGE];
                file.read_exact_at(&mut read, 0).expect("read");
                assert!(read == text);
            }
            drop(both);
            assert!(fs::read(bed.here("f")).expect("read") == text);
            let mut more = OpenOptions::new();
            let mut more = more.append(true).open(bed.here("f")).expect("opened");
            more.write_all(&text).expect("written");
            assert_eq!(more.metadata().expect("there").len(), 2 * LARGE as u64);
        });
        assert!(moved < LARGE, "{moved}");
        assert!(fs::read(bed.host("f")).expect("read") == text.repeat(2));
    }
}

#[test]
fn the_server_does_it_where_it_is_told_to() {
    let tells = "passthrough=off cache=always cache=metadata cache=loose".split(' ');
    let both = |options| SOURCES.map(|of| (of, options));
    let alone = [
        (MountSource::Directory, "cache=readahead"),
        (FD_PASSING, "ro"),
        (MountSource::Server("--no-zerocopy"), "passthrough=auto"),
    ];
    for (of, options) in tells.flat_map(both).chain(alone) {
        let Some(bed) = Fixture::new(of, options) else {
            return;
        };
        fs::write(bed.host("g"), text(LARGE)).expect("written");
        let moved = bed.bytes_moved(|| drop(fs::read(bed.here("g")).expect("read")));
        assert!(moved >= LARGE, "{of:?} {options}: {moved}");
        if options == "ro" {
            continue;
        }
        let moved = bed.bytes_moved(|| {
            let file = File::create(bed.here("f")).expect("made");
            (&file).write_all(&text(LARGE)).expect("written");
            file.sync_all().expect("synchronized");
        });
        assert!(moved >= LARGE, "{of:?} {options}: {moved}");
    }
    let http = tempfile::tempdir().expect("a directory");
    let http = format!("unix:{}", http.path().join("http").display());
    let Some(bed) = Fixture::new(MountSource::Directory, &format!("http={http}")) else {
        return;
    };
    fs::write(bed.here("f"), "text").expect("written");
    let seen = Command::new(BARGE)
        .args(["top", &http, "--json", "--once"])
        .output();
    let seen = String::from_utf8(seen.expect("runs").stdout).expect("text");
    assert!(seen.contains("FUSE_WRITE"), "{seen}");
}

#[test]
fn what_is_done_elsewhere_is_seen_here() {
    for of in SOURCES {
        let Some(bed) = Fixture::new(of, "cache=never") else {
            return;
        };
        let (here, host) = (bed.here("f"), bed.host("f"));
        let mut file = File::create_new(&here).expect("made");
        file.write_all(b"one").expect("written");
        assert_eq!(fs::read(&host).expect("read"), b"one");
        fs::write(&host, "three").expect("written");
        let open = open(&here);
        let mut read = String::new();
        (&open).read_to_string(&mut read).expect("read");
        assert_eq!(
            (read.as_str(), open.metadata().expect("there").len()),
            ("three", 5)
        );
        // Truncated, and written beyond its end.
        open.set_len(2).expect("cut");
        assert_eq!(fs::read(&host).expect("read"), b"th");
        file.seek(SeekFrom::End(2)).expect("there");
        file.write_all(b"x").expect("written");
        assert_eq!(fs::read(&here).expect("read"), b"th\0\0x");
        File::create(&here).expect("cut");
        assert_eq!(fs::read(&host).expect("read"), b"");
        // Under another name, and without a name.
        fs::hard_link(&here, bed.here("g")).expect("linked");
        fs::rename(&here, bed.here("h")).expect("renamed");
        open.write_all_at(b"four", 0).expect("written");
        for name in ["g", "h"] {
            assert_eq!(fs::read(bed.here(name)).expect("read"), b"four");
            fs::remove_file(bed.here(name)).expect("removed");
        }
        open.write_all_at(b"five", 4).expect("written");
        let mut read = [0; 8];
        open.read_exact_at(&mut read, 0).expect("read");
        assert_eq!(&read, b"fourfive");
        let is = open.metadata().expect("there");
        assert_eq!((is.len(), is.nlink()), (8, 0));
    }
}

#[test]
fn a_memory_map_is_the_hosts_own_pages() {
    if !has("python3") {
        eprintln!("skipped: this takes python3, which maps files");
        return;
    }
    const SCRIPT: &str = "
import mmap, os, sys
here, host = sys.argv[1:]
with open(here, 'w+b') as file, open(host, 'r+b') as other:
    file.truncate(8192)
    with mmap.mmap(file.fileno(), 8192) as pages, mmap.mmap(other.fileno(), 8192) as others:
        pages[4096:4100] = b'here'
        print(others[4096:4100].decode(), os.pread(other.fileno(), 4, 4096).decode())
        others[:4] = b'host'
        print(pages[:4].decode(), os.pread(file.fileno(), 4, 0).decode())
        os.pwrite(file.fileno(), b'last', 8188)
        print(pages[8188:].decode(), others[8188:].decode())
";
    for of in SOURCES {
        let Some(bed) = Fixture::new(of, "passthrough=auto") else {
            return;
        };
        let mut python = Command::new("python3");
        python
            .args(["-c", SCRIPT])
            .arg(bed.here("f"))
            .arg(bed.host("f"));
        let output = python.output().expect("runs");
        assert_eq!(stdout_of(&output), "here here\nhost host\nlast last\n");
    }
}

/// The file was opened before its mode changed. The kernel would keep the bits for the super-user,
/// whose credentials its backing file has.
#[test]
fn writing_takes_set_id_bits_away() {
    if !has("setpriv") {
        eprintln!("skipped: this takes setpriv (package util-linux), to be somebody else");
        return;
    }
    for of in SOURCES {
        let Some(bed) = Fixture::new(of, "allow_other") else {
            return;
        };
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
        };
        mode(bed.at.path(), 0o755);
        fs::write(bed.here("f"), "text").expect("written");
        mode(&bed.here("f"), 0o777);
        let mut writer = Command::new("setpriv");
        writer
            .args([
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "sh",
                "-c",
            ])
            .arg("exec 3>> \"$1\"; echo open; read go; head -c \"$2\" /dev/zero >&3; echo")
            .arg("sh")
            .arg(bed.here("f"))
            .arg(LARGE.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut writer = writer.spawn().expect("starts");
        let mut lines = BufReader::new(writer.stdout.take().expect("piped")).lines();
        let mut line = || lines.next().expect("a line").expect("read");
        assert_eq!(line(), "open");
        mode(&bed.here("f"), 0o4777);
        let moved = bed.bytes_moved(|| {
            let mut go = writer.stdin.take().expect("piped");
            go.write_all(b"go\n").expect("told");
            assert_eq!(line(), "");
        });
        assert!(writer.wait().expect("ends").success());
        assert!(moved < LARGE, "{moved}");
        let is = fs::metadata(bed.host("f")).expect("there");
        assert_eq!((is.len(), is.mode() & 0o7777), (4 + LARGE as u64, 0o777));
    }
}

/// Data in the mount's own page cache is not used for files with passthrough.
#[test]
fn two_mounts_of_a_server_see_each_other_and_the_server() {
    let Some(bed) = Fixture::new(FD_PASSING, "cache=mmap") else {
        return;
    };
    let server = bed.server.as_ref().expect("one");
    let at = tempfile::tempdir().expect("a directory");
    let _other = Mounted::new(&[&server.url()], at.path());
    let there = at.path().join("f");
    let moved = bed.bytes_moved(|| {
        fs::write(bed.here("f"), text(LARGE)).expect("written");
        let mut one = open(&bed.here("f"));
        let other = open(&there);
        other.write_all_at(b"other", 1).expect("written");
        one.seek(SeekFrom::End(0)).expect("there");
        one.write_all(b"one").expect("written");
        let mut read = [0; 5];
        one.read_exact_at(&mut read, 1).expect("read");
        assert_eq!(&read, b"other");
        assert_eq!(
            one.metadata().expect("there").len(),
            LARGE as u64 + 3,
            "of what was just written"
        );
    });
    assert!(moved < LARGE, "{moved}");
    let host = fs::read(bed.host("f")).expect("read");
    assert!(host.ends_with(b"one") && host[1..].starts_with(b"other"));
    // Close-to-open consistency, also with a mount that sends requests to the server.
    let late = tempfile::tempdir().expect("a directory");
    let _late = Mounted::new(&[&server.url(), "-o", "passthrough=off"], late.path());
    for content in ["first", "second, longer", "3"] {
        fs::write(bed.here("g"), content).expect("written");
        assert_eq!(
            fs::read(late.path().join("g")).expect("read"),
            content.as_bytes()
        );
        fs::write(late.path().join("g"), content.repeat(2)).expect("written");
        assert_eq!(
            fs::read(bed.here("g")).expect("read"),
            content.repeat(2).as_bytes()
        );
    }
}

#[test]
fn a_file_is_read_and_written_while_its_server_is_away_and_when_it_is_back() {
    for option in ["--9p-fd-passing", "--no-zerocopy"] {
        let Some(mut bed) = Fixture::new(FD_PASSING, "passthrough=auto") else {
            return;
        };
        let Server { served, dir } = bed.server.take().expect("one");
        let file = File::create(bed.here("f")).expect("made");
        file.write_all_at(b"one", 0).expect("written");
        assert!(served.stop().success());
        file.write_all_at(b"two", 3).expect("written");
        let served = Server::run(bed.share.path(), &dir.path().join("socket"), option);
        bed.server = Some(Server { served, dir });
        assert_eq!(file.metadata().expect("there").len(), 6);
        file.write_all_at(b"six", 6).expect("written");
        drop(file);
        assert_eq!(fs::read(bed.here("f")).expect("read"), b"onetwosix");
        let passes = option == "--9p-fd-passing";
        let moved = bed.bytes_moved(|| fs::write(bed.here("g"), text(LARGE)).expect("written"));
        assert_eq!(moved < LARGE, passes, "{option}: {moved}");
        assert!(fs::read(bed.host("g")).expect("read") == text(LARGE));
    }
}
