//! Memory and descriptors of a server and of mounts under a mixed load: git, tar, SQLite, renames,
//! removals, connections, and programs that change other files of the same file system.
//!
//! `LOAD_SECONDS` is the duration. If it is twenty minutes or more, memory must not grow after the
//! first ten. A walk over many files takes little memory of a mount and of its server.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vfs_testkit::SetOnDrop;

use crate::mount::{Mounted, may_mount};
use crate::served::{BARGE, ServerProcess, has};

/// Returns the duration of the load.
fn load_time() -> Duration {
    let seconds = std::env::var("LOAD_SECONDS").ok();
    Duration::from_secs(seconds.map_or(5, |seconds| seconds.parse().expect("a number")))
}

/// The memory of a mount besides its cache and the files that the kernel knows, in KiB.
const MOUNT_KIB: u64 = 16 << 10;

/// The memory of each file that the kernel knows, in bytes.
const FILE_BYTES: u64 = 150;

/// More files than any round of the load has at a time.
const LOAD_FILES: u64 = 4000;

/// The cache of the mount of a server, in MiB.
const CACHE_MIB: u64 = 32;

/// The time after which memory is constant.
const WARM_UP: Duration = Duration::from_secs(600);

/// Growth that is none: buffers of requests that happen to be in flight, in KiB.
const SLACK_KIB: u64 = 4 << 10;

/// One round of work in a directory.
const ROUND: &str = r#"
set -e
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
rm -rf work; mkdir work; cd work
git init -q repo; cd repo
for commit in 1 2 3; do
    for file in 1 2 3 4 5 6 7 8 9; do echo "$commit $file $$" > "file$file"; done
    git add .; git commit -q -m "$commit"
done
git gc -q; git fsck --no-progress; cd ..
mkdir tree; for file in $(seq 200); do echo "$file" > "tree/a long name of a file $file"; done
tar -cf tree.tar tree; mkdir out; tar -xf tree.tar -C out; diff -r tree out/tree
for file in $(seq 100); do mv "tree/a long name of a file $file" "out/$file"; done
python3 - <<'PYTHON'
import sqlite3
database = sqlite3.connect("database")
database.execute("create table t (key integer primary key, value text)")
for key in range(20):
    with database:
        database.execute("insert into t values (?, ?)", (key, "value" * 100))
assert database.execute("select count(*) from t").fetchone() == (20,)
PYTHON
head -c 48M /dev/urandom > data; sha256sum data > sum; sha256sum --quiet -c sum
cd ..; rm -rf work
"#;

/// One round of a build elsewhere on the file system.
const ELSEWHERE: &str = r#"
for dir in $(seq 20); do
    mkdir -p "build/$dir"
    for file in $(seq 50); do echo "$file" > "build/$dir/$file"; done
done
rm -rf build
"#;

/// Runs `script` in `dir` again and again until `ended`.
fn rounds(script: &str, dir: &Path, ended: &AtomicBool, count: &AtomicU64) {
    while !ended.load(Ordering::Relaxed) {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", script]).current_dir(dir);
        let output = shell.stdin(Stdio::null()).output().expect("runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {errors}", dir.display());
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the anonymous memory of a process in KiB (proc_pid_status(5)).
fn anonymous_kib(id: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.expect("a number").parse().expect("a number")
}

/// A process, and its memory over time.
struct Process {
    name: &'static str,
    id: u32,
    /// Time, memory in KiB.
    samples: Vec<(Duration, u64)>,
    most_kib: u64,
}

impl Process {
    fn new(name: &'static str, id: u32, most_kib: u64) -> Process {
        Process {
            name,
            id,
            samples: Vec::new(),
            most_kib,
        }
    }

    fn sample(&mut self, at: Duration) {
        let kib = anonymous_kib(self.id);
        self.samples.push((at, kib));
        let (name, most) = (self.name, self.most_kib);
        assert!(kib <= most, "{name}: {kib} KiB of {most} after {at:?}");
    }

    /// Returns the largest sample of a part of the time.
    fn most(&self, part: std::ops::Range<Duration>) -> u64 {
        let samples = self.samples.iter().filter(|(at, _)| part.contains(at));
        samples.map(|(_, kib)| *kib).max().unwrap_or_default()
    }

    /// Compares the two halves of the time after the warm-up, if it is as long as that.
    fn check_growth(&self, end: Duration) {
        if end < 2 * WARM_UP {
            return;
        }
        let middle = WARM_UP + (end - WARM_UP) / 2;
        let (early, late) = (self.most(WARM_UP..middle), self.most(middle..end));
        let name = self.name;
        eprintln!("{name}: at most {early} KiB until {middle:?}, {late} KiB later");
        assert!(late <= early + SLACK_KIB, "{name} grows");
    }
}

#[test]
fn the_memory_of_mounts_and_of_their_server_is_bounded_under_a_mixed_load() {
    if !may_mount() || !["git", "tar", "python3"].into_iter().all(has) {
        return eprintln!("skipped: it takes FUSE, git, tar and python3");
    }
    let temp = tempfile::tempdir().expect("a directory");
    let dir = |name: &str| {
        let dir = temp.path().join(name);
        fs::create_dir(&dir).expect("created");
        dir
    };
    let [tree, local] = ["tree", "local"].map(dir);
    let [at_9p, at_local, elsewhere] = ["9p", "at", "elsewhere"].map(dir);
    let socket = temp.path().join("socket");
    let mut command = Command::new(BARGE);
    command
        .args(["serve", "--memory", "64M", "--9p"])
        .arg(format!("unix:{}", socket.display()))
        .arg(&tree);
    let server = ServerProcess::run(command);
    let url = format!("9p+unix:{}", socket.display());
    let cache = format!("cache_size={CACHE_MIB}M");
    let remote = Mounted::new(&["-o", &cache, &url], &at_9p);
    let source = local.to_str().expect("UTF-8");
    let directory = Mounted::new(&[source], &at_local);
    let files_kib = LOAD_FILES * FILE_BYTES / 1024;
    let mut processes = [
        Process::new("server", server.serving_id(), 64 << 10),
        Process::new(
            "9P mount",
            remote.serving_id(),
            (CACHE_MIB << 10) + MOUNT_KIB + files_kib,
        ),
        Process::new(
            "directory mount",
            directory.serving_id(),
            MOUNT_KIB + files_kib,
        ),
    ];
    let (ended, end) = (AtomicBool::new(false), load_time());
    let counts: [AtomicU64; 4] = Default::default();
    std::thread::scope(|scope| {
        // Ends the others if the samples of this thread fail.
        let _end = SetOnDrop(&ended);
        let work = [(ROUND, &at_9p), (ROUND, &at_local), (ELSEWHERE, &elsewhere)];
        for ((script, dir), count) in work.into_iter().zip(&counts) {
            let ended = &ended;
            scope.spawn(move || {
                let _end = SetOnDrop(ended);
                rounds(script, dir, ended, count);
            });
        }
        let begin = Instant::now();
        while begin.elapsed() < end && !ended.load(Ordering::Relaxed) {
            drop(UnixStream::connect(&socket).expect("connects"));
            counts[3].fetch_add(1, Ordering::Relaxed);
            processes
                .iter_mut()
                .for_each(|process| process.sample(begin.elapsed()));
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    eprintln!("rounds over 9P, local, elsewhere, connections: {counts:?}");
    processes
        .iter()
        .for_each(|process| process.check_growth(end));
}

/// Makes `count` files in directories of a thousand.
fn make_files(dir: &Path, count: u32) {
    make_named_files(dir, "file", count);
}

/// Makes `count` files whose names begin with `prefix` in directories of a thousand.
fn make_named_files(dir: &Path, prefix: &str, count: u32) {
    for number in 0..count {
        let dir = dir.join(format!("{}", number / 1000));
        if number % 1000 == 0 {
            fs::create_dir(&dir).expect("created");
        }
        fs::File::create(dir.join(format!("{prefix}{number}"))).expect("created");
    }
}

/// Makes the kernel look up all files below `dir`.
fn du(dir: &Path) {
    let mut du = Command::new("du");
    let du = du.arg("-s").arg(dir).stdout(Stdio::null()).status();
    assert!(du.expect("runs").success());
}

#[test]
fn a_file_that_the_kernel_knows_takes_little_memory_of_a_mount() {
    if !may_mount() {
        return eprintln!("skipped: it takes FUSE");
    }
    /// Those whose memory is counted, after as many that fill what a mount keeps for any files,
    /// such as 8,192 idle fids.
    const FILES: u32 = 24_000;
    let temp = tempfile::tempdir().expect("a directory");
    let [tree, at] = ["tree", "at"].map(|name| temp.path().join(name));
    // Names of up to 15 bytes have no memory of their own in a node.
    let dirs = [
        ("first", "file", FILES),
        ("short", "file", FILES),
        ("long", "a name of many files ", FILES),
    ];
    for dir in [&tree, &at] {
        fs::create_dir(dir).expect("created");
    }
    for (dir, prefix, count) in dirs {
        fs::create_dir(tree.join(dir)).expect("created");
        make_named_files(&tree.join(dir), prefix, count);
    }
    let socket = |name: &str| temp.path().join(name).display().to_string();
    let mut command = Command::new(BARGE);
    command
        .args(["serve", "--9p", &format!("unix:{}", socket("9p"))])
        .args(["--nfs", &format!("unix:{}", socket("nfs"))])
        .arg(&tree);
    let _server = ServerProcess::run(command);
    let nfs = |version| format!("nfs+unix:{}?vers={version}", socket("nfs"));
    // Buffers of requests, and the tables, which grow by doubling.
    const SLACK: u64 = 20;
    // The memory with short and with long names. NFS nodes have none, except those of v4.0, which
    // opens files by name.
    let kinds = [
        (format!("9p+unix:{}", socket("9p")), [FILE_BYTES, 210]),
        (nfs("3"), [FILE_BYTES, FILE_BYTES]),
        (nfs("4.0"), [160, 180]),
        (nfs("4.1"), [FILE_BYTES, FILE_BYTES]),
        (nfs("4.2"), [FILE_BYTES, FILE_BYTES]),
    ];
    let measure = |url: &str, dir: &str| {
        let mounted = Mounted::new(&[url], &at);
        du(&at.join("first"));
        let before = anonymous_kib(mounted.serving_id());
        du(&at.join(dir));
        let grown = anonymous_kib(mounted.serving_id()).saturating_sub(before);
        let bytes = (grown << 10) / u64::from(FILES);
        eprintln!("{url}, {dir} names: {bytes} bytes each");
        bytes
    };
    let mut over = Vec::new();
    for (url, most) in &kinds {
        for (dir, most) in ["short", "long"].into_iter().zip(most) {
            // A busy machine has more requests in flight at a time, and so more buffers.
            let mut tries = (0..3).map(|_| measure(url, dir));
            if tries.all(|bytes| bytes > most + SLACK) {
                over.push(format!("{url}, {dir} names"));
            }
        }
    }
    assert!(over.is_empty(), "{over:?}");
}

#[test]
fn du_over_a_mount_of_many_more_files_than_the_server_has_memory_for_has_no_errors() {
    if !may_mount() {
        return eprintln!("skipped: it takes FUSE");
    }
    /// A client may have a quarter of the memory for fids, of 203 bytes.
    const FILES: u32 = 12_000;
    let temp = tempfile::tempdir().expect("a directory");
    let tree = temp.path().join("tree");
    let at = temp.path().join("at");
    fs::create_dir(&tree).expect("created");
    fs::create_dir(&at).expect("created");
    make_files(&tree, FILES);
    let socket = |name: &str| temp.path().join(name).display().to_string();
    let mut command = Command::new(BARGE);
    command
        .args(["serve", "--memory", "8M"])
        .args(["--9p", &format!("unix:{}", socket("9p"))])
        .args(["--nfs", &format!("unix:{}", socket("nfs"))])
        .args(["--virtiofs", &socket("virtiofs")])
        .arg(&tree);
    let _server = ServerProcess::run(command);
    let urls = [
        format!("9p+unix:{}", socket("9p")),
        format!("nfs+unix:{}?vers=3", socket("nfs")),
        format!("nfs+unix:{}?vers=4.0", socket("nfs")),
        format!("nfs+unix:{}?vers=4.2", socket("nfs")),
        format!("virtiofs:{}", socket("virtiofs")),
    ];
    for url in &urls {
        let _mounted = Mounted::new(&[url], &at);
        // The second one uses nodes that the mount has, and the file is a new one.
        for _ in 0..2 {
            let du = Command::new("du")
                .args(["-s", "--inodes"])
                .arg(&at)
                .output();
            let du = du.expect("runs");
            let errors = String::from_utf8_lossy(&du.stderr);
            assert!(du.status.success(), "{url}: {errors}");
            let count = String::from_utf8_lossy(&du.stdout);
            let expected = format!("{}\t", FILES + FILES / 1000 + 1);
            assert!(count.starts_with(&expected), "{url}: {count}");
            fs::write(at.join("new"), "text").expect("written");
            fs::remove_file(at.join("new")).expect("removed");
        }
        let many = (0..FILES).step_by(7).map(|number| {
            let path = at.join(format!("{}/file{number}", number / 1000));
            fs::File::open(path).map(|file| file.metadata().is_ok())
        });
        assert!(
            many.into_iter().all(|is_open| is_open.expect("opens")),
            "{url}"
        );
    }
}

#[test]
fn files_that_a_mount_knows_and_another_one_removes_do_not_use_up_the_descriptors() {
    if !may_mount() || !has("flock") {
        return eprintln!("skipped: it takes FUSE and flock");
    }
    /// More than the share of a user of 512 descriptors.
    const FILES: u32 = 700;
    let temp = tempfile::tempdir().expect("a directory");
    let [tree, one, other] = ["tree", "one", "other"].map(|name| temp.path().join(name));
    for dir in [&tree, &one, &other] {
        fs::create_dir(dir).expect("created");
    }
    make_files(&tree, FILES);
    let socket = temp.path().join("socket").display().to_string();
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "ulimit -n 512; exec \"$0\" serve --9p \"unix:$1\" \"$2\"",
            BARGE,
        ])
        .arg(&socket)
        .arg(&tree);
    let _server = ServerProcess::run(command);
    let url = format!("9p+unix:{socket}");
    let _mounted = [Mounted::new(&[&url], &one), Mounted::new(&[&url], &other)];
    let file = |at: &Path, number: u32| at.join(format!("0/file{number}"));
    for number in 0..FILES {
        fs::read(file(&one, number)).expect("read");
    }
    for number in 0..FILES {
        fs::remove_file(file(&other, number)).expect("removed");
    }
    for mount in [&one, &other] {
        let new = mount.join("new");
        fs::write(&new, "text").expect("written");
        let locked = Command::new("flock")
            .arg("-n")
            .arg(&new)
            .arg("true")
            .status();
        assert!(locked.expect("runs").success());
    }
}
