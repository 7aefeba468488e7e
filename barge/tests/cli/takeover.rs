//! A mounted directory whose serving process is killed, or replaced by another version of the
//! program, under load that verifies every result.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, XattrFlags, flock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;
use vfs_testkit::{copy_program, wait_until};

use crate::mount::{Mounted, unmount};
use crate::objects::server::Server;
use crate::served::{BARGE, has};

/// Number of kills, `KILLS` in the environment.
pub(crate) fn kills() -> u32 {
    std::env::var("KILLS").map_or(20, |kills| kills.parse().expect("a number"))
}

/// Number of upgrades, `UPGRADES` in the environment. The first three have a new program.
fn upgrades() -> u32 {
    std::env::var("UPGRADES").map_or(3, |upgrades| upgrades.parse().expect("a number"))
}

/// Returns whether another process can continue a mount here.
pub(crate) fn may_continue() -> bool {
    let may = geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !may {
        eprintln!("skipped: only a mount of root is continued");
    }
    may
}

/// A directory and its mount.
pub(crate) struct Place {
    pub(crate) dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["source", "at"] {
            fs::create_dir(dir.path().join(name)).expect("made");
        }
        Place { dir }
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.dir.path().join("source")
    }

    pub(crate) fn at(&self) -> PathBuf {
        self.dir.path().join("at")
    }

    fn mount(&self, args: &[&str]) -> Mounted {
        let source = format!("dir:{}", self.source().display());
        Mounted::new(&[&[source.as_str()], args].concat(), &self.at())
    }

    /// Mounts an image, of this host or at a URL, so that each read is a request.
    fn mount_image(&self, image: &str) -> Mounted {
        Mounted::new(&[image, "--fuse", "-o", "cache=never"], &self.at())
    }
}

/// Kills the process that serves and waits until another one does. Returns the id of that.
fn kill_server(mounted: &Mounted) -> u32 {
    kill_serving(mounted.id(), || mounted.serving_id())
}

/// Kills the process that `serving_id` returns, a child of the process `id`, once there is one, and
/// waits until there is another one. Returns the id of that.
pub(crate) fn kill_serving(id: u32, serving_id: impl Fn() -> u32) -> u32 {
    let mut server = id;
    wait_until("a process serves", || {
        server = serving_id();
        server != id
    });
    let pid = Pid::from_raw(server as i32).expect("a process");
    kill_process(pid, Signal::KILL).expect("it runs");
    let mut next = server;
    wait_until("another process serves", || {
        next = serving_id();
        next != server && next != id
    });
    next
}

/// A sequence of numbers that look random.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// An entry of the model's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Modelled {
    File(Vec<u8>),
    Dir,
    Link(String),
}

/// Compares the results of random operations in a directory with a model of it.
struct Model {
    dir: PathBuf,
    entries: BTreeMap<String, Modelled>,
    random: Random,
}

impl Model {
    fn new(dir: PathBuf, seed: u64) -> Model {
        fs::create_dir(&dir).expect("made");
        Model {
            dir,
            entries: BTreeMap::new(),
            random: Random(seed),
        }
    }

    fn name(&mut self) -> String {
        format!("n{}", self.random.below(12))
    }

    fn data(&mut self) -> Vec<u8> {
        let len = 1 + self.random.below(9000) as usize;
        let byte = self.random.below(256) as u8;
        (0..len).map(|at| byte ^ (at / 7) as u8).collect()
    }

    /// Compares a result: `expected` is the error, if there has to be one.
    fn check<T>(what: &str, got: std::io::Result<T>, expected: Option<ErrorKind>) -> Option<T> {
        match (got, expected) {
            (Ok(value), None) => Some(value),
            (Err(error), Some(kind)) if error.kind() == kind => None,
            (got, expected) => {
                panic!("{what}: expected {expected:?}, got {:?}", got.err())
            }
        }
    }

    fn step(&mut self) {
        let (name, other) = (self.name(), self.name());
        let (path, other_path) = (self.dir.join(&name), self.dir.join(&other));
        let known = self.entries.get(&name).cloned();
        let exists = known.is_some().then_some(ErrorKind::AlreadyExists);
        match self.random.below(13) {
            0 | 1 => {
                let data = self.data();
                let made = File::create_new(&path);
                if let Some(mut file) = Model::check("create", made, exists) {
                    file.write_all(&data).expect("written");
                    if self.random.below(4) == 0 {
                        file.sync_all().expect("synchronized");
                    }
                    self.entries.insert(name, Modelled::File(data));
                }
            }
            2 => {
                if Model::check("mkdir", fs::create_dir(&path), exists).is_some() {
                    self.entries.insert(name, Modelled::Dir);
                }
            }
            3 => {
                if Model::check("symlink", symlink(&other, &path), exists).is_some() {
                    self.entries.insert(name, Modelled::Link(other));
                }
            }
            4 => match known {
                Some(Modelled::Dir) => {
                    fs::remove_dir(&path).expect("removed");
                    self.entries.remove(&name);
                }
                Some(_) => {
                    fs::remove_file(&path).expect("removed");
                    self.entries.remove(&name);
                }
                None => {
                    let removed = fs::remove_file(&path);
                    Model::check("unlink", removed, Some(ErrorKind::NotFound));
                }
            },
            5 => {
                let target = self.entries.get(&other);
                let kinds = (matches!(known, Some(Modelled::Dir)), target);
                let fits = match kinds {
                    (_, None) => true,
                    (dir, Some(target)) => dir == (*target == Modelled::Dir),
                };
                if let Some(entry) = known.filter(|_| fits && name != other) {
                    fs::rename(&path, &other_path).expect("renamed");
                    self.entries.remove(&name);
                    self.entries.insert(other, entry);
                }
            }
            6 => {
                if let Some(Modelled::File(mut data)) = known {
                    let more = self.data();
                    let mut file = File::options().append(true).open(&path).expect("opened");
                    file.write_all(&more).expect("appended");
                    data.extend(more);
                    data.truncate(1 << 20);
                    file.set_len(data.len() as u64).expect("truncated");
                    self.entries.insert(name, Modelled::File(data));
                }
            }
            7 => {
                if let Some(Modelled::File(mut data)) = known {
                    let (more, at) = (self.data(), self.random.below(data.len() as u64 + 1));
                    let file = File::options().write(true).read(true).open(&path);
                    let file = file.expect("opened");
                    file.write_all_at(&more, at).expect("written");
                    let at = at as usize;
                    data.resize(data.len().max(at + more.len()), 0);
                    data[at..at + more.len()].copy_from_slice(&more);
                    let mut found = vec![0; data.len()];
                    file.read_exact_at(&mut found, 0).expect("read");
                    assert!(found == data, "{name}: other bytes");
                    self.entries.insert(name, Modelled::File(data));
                }
            }
            8 => {
                if let Some(Modelled::File(_)) = known {
                    let flags = XattrFlags::CREATE;
                    let set = rustix::fs::setxattr(&path, "user.test", b"1", flags);
                    match set {
                        Ok(()) | Err(Errno::OPNOTSUPP) => {}
                        error => panic!("setxattr: {error:?}"),
                    }
                    if set.is_ok() {
                        rustix::fs::removexattr(&path, "user.test").expect("removed");
                    }
                }
            }
            9 => {
                // A second name of the file, which is removed again.
                if let Some(Modelled::File(data)) = known
                    && !self.entries.contains_key(&other)
                {
                    fs::hard_link(&path, &other_path).expect("linked");
                    assert!(fs::read(&other_path).expect("read") == data);
                    fs::remove_file(&other_path).expect("removed");
                }
            }
            10 => {
                if let Some(Modelled::File(data)) = known {
                    assert!(
                        fs::read(&path).expect("read") == data,
                        "{name}: other bytes"
                    );
                }
            }
            11 => self.compare(&self.dir.clone()),
            _ => {
                let found = fs::symlink_metadata(&path);
                let missing = known.is_none().then_some(ErrorKind::NotFound);
                let attr = Model::check("stat", found, missing);
                if let (Some(attr), Some(Modelled::File(data))) = (attr, known) {
                    assert_eq!(attr.len(), data.len() as u64, "{name}");
                }
            }
        }
    }

    /// Compares the directory `dir` with the model.
    fn compare(&self, dir: &Path) {
        let mut names: Vec<String> = fs::read_dir(dir)
            .expect("opened")
            .map(|entry| {
                entry
                    .expect("listed")
                    .file_name()
                    .into_string()
                    .expect("text")
            })
            .collect();
        names.sort();
        assert!(names.iter().eq(self.entries.keys()), "{names:?}");
        for (name, entry) in &self.entries {
            let path = dir.join(name);
            let found = match entry {
                Modelled::File(_) => Modelled::File(fs::read(&path).expect("read")),
                Modelled::Dir => {
                    assert!(fs::read_dir(&path).expect("opened").next().is_none());
                    Modelled::Dir
                }
                Modelled::Link(_) => {
                    let target = fs::read_link(&path).expect("read");
                    Modelled::Link(target.into_os_string().into_string().expect("text"))
                }
            };
            assert!(found == *entry, "{name}: other contents");
        }
    }
}

/// Appends numbered lines to a file that stays open until `stop`, each synchronized, and returns
/// their number.
fn append(file: &Path, stop: &AtomicBool) -> u64 {
    let mut log = File::options().create(true).append(true).open(file);
    let log = log.as_mut().expect("opened");
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        writeln!(log, "{number:>40}").expect("appended");
        log.sync_data().expect("synchronized");
        number += 1;
    }
    number
}

/// Increments the number in a file under a lock, until `stop`. Returns how often.
fn count(file: &Path, stop: &AtomicBool) -> u64 {
    let file = File::options().read(true).write(true).open(file);
    let file = file.expect("opened");
    let mut times = 0;
    while !stop.load(Ordering::Relaxed) {
        flock(&file, FlockOperation::LockExclusive).expect("locked");
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).expect("read");
        let number = u64::from_le_bytes(bytes) + 1;
        file.write_all_at(&number.to_le_bytes(), 0)
            .expect("written");
        flock(&file, FlockOperation::Unlock).expect("unlocked");
        times += 1;
    }
    times
}

/// Ends the load when dropped, also because of a failed assertion.
struct Stopper<'a> {
    threads: &'a AtomicBool,
    file: PathBuf,
}

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.threads.store(true, Ordering::Relaxed);
        let _ = fs::write(&self.file, "");
    }
}

/// A program that commits transactions to a database, and prints their number.
const SQLITE: &str = r#"
import sqlite3, sys, os
db = sqlite3.connect(sys.argv[1], timeout=60)
db.execute("create table if not exists t (n integer primary key, s text)")
n = 0
while not os.path.exists(sys.argv[2]):
    with db:
        db.execute("insert into t values (?, ?)", (n, "x" * (n % 3000)))
    n += 1
ok = db.execute("pragma integrity_check").fetchone()[0]
rows = db.execute("select count(*), max(n) from t").fetchone()
assert ok == "ok" and rows == (n, n - 1 if n else None), (ok, rows, n)
print(n)
"#;

/// Keeps a directory in use in many ways while `disturb` is called, and verifies all results.
pub(crate) fn under_load(place: &Place, mut disturb: impl FnMut()) {
    let at = place.at();
    fs::write(at.join("counter"), 0u64.to_le_bytes()).expect("written");
    let stop = AtomicBool::new(false);
    let steps = AtomicU64::new(0);
    let sqlite = has("python3").then(|| {
        let mut python = Command::new("python3");
        python.args(["-c", SQLITE]).arg(at.join("db"));
        let python = python.arg(place.dir.path().join("stop"));
        python.stdout(Stdio::piped()).spawn().expect("starts")
    });
    std::thread::scope(|scope| {
        let stopper = Stopper {
            threads: &stop,
            file: place.dir.path().join("stop"),
        };
        let models: Vec<_> = (0..3)
            .map(|number| {
                let (stop, steps, at) = (&stop, &steps, &at);
                scope.spawn(move || {
                    let mut model = Model::new(at.join(format!("d{number}")), number);
                    while !stop.load(Ordering::Relaxed) {
                        model.step();
                        steps.fetch_add(1, Ordering::Relaxed);
                    }
                    model
                })
            })
            .collect();
        let log = scope.spawn(|| append(&at.join("log"), &stop));
        let counts: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| count(&at.join("counter"), &stop)))
            .collect();
        disturb();
        drop(stopper);
        for (number, model) in models.into_iter().enumerate() {
            let model = model.join().expect("as the model");
            model.compare(&at.join(format!("d{number}")));
            model.compare(&place.source().join(format!("d{number}")));
        }
        let lines = log.join().expect("appended");
        let text = fs::read_to_string(place.source().join("log")).expect("read");
        let expected: String = (0..lines).map(|number| format!("{number:>40}\n")).collect();
        assert!(text == expected, "lines are lost or doubled");
        let times: u64 = counts
            .into_iter()
            .map(|one| one.join().expect("counted"))
            .sum();
        let counted = fs::read(place.source().join("counter")).expect("read");
        assert_eq!(counted, times.to_le_bytes(), "increments are lost");
        let rows = sqlite.map(|mut sqlite| {
            let mut rows = String::new();
            let out = sqlite.stdout.as_mut().expect("piped");
            out.read_to_string(&mut rows).expect("read");
            assert!(sqlite.wait().expect("a child").success());
            rows
        });
        println!(
            "{} operations as the model, {lines} lines, {times} locks, {} transactions",
            steps.load(Ordering::Relaxed),
            rows.as_deref().map_or("no", str::trim)
        );
    });
}

fn killed_under_load(options: &[&str]) {
    if !may_continue() {
        return;
    }
    let place = Place::new();
    let mounted = place.mount(options);
    let mut random = Random(7);
    let mut longest = Duration::ZERO;
    under_load(&place, || {
        for _ in 0..kills() {
            std::thread::sleep(Duration::from_millis(110 + random.below(150)));
            kill_server(&mounted);
            let start = Instant::now();
            fs::metadata(place.at().join("counter")).expect("there");
            longest = longest.max(start.elapsed());
        }
    });
    println!(
        "{} kills; a file was there again after {longest:?} at most",
        kills()
    );
    unmount(&place.at());
    assert!(mounted.ended().success());
}

#[test]
fn programs_notice_only_a_pause_when_the_server_is_killed() {
    killed_under_load(&[]);
}

#[test]
fn all_requests_are_carried_out_once_when_the_server_is_killed() {
    // The kernel reads and writes no file itself.
    killed_under_load(&["-o", "passthrough=off"]);
}

#[test]
fn pages_in_the_write_back_cache_are_kept_when_the_server_is_killed() {
    killed_under_load(&["-o", "writeback"]);
}

/// Writes and reads files that were removed and replaced while they were open, before and after
/// `disturb`.
pub(crate) fn write_removed(place: &Place, mut disturb: impl FnMut()) {
    let open = |name: &str| {
        let path = place.at().join(name);
        let file = File::options()
            .create(true)
            .append(true)
            .read(true)
            .open(path);
        let mut file = file.expect("opened");
        write!(file, "{name}").expect("written");
        file
    };
    let (mut removed, mut replaced) = (open("removed"), open("replaced"));
    fs::remove_file(place.at().join("removed")).expect("removed");
    fs::write(place.at().join("other"), "other").expect("written");
    fs::rename(place.at().join("other"), place.at().join("replaced")).expect("renamed");
    for _ in 0..2 {
        disturb();
        for (file, name) in [(&mut removed, "removed"), (&mut replaced, "replaced")] {
            write!(file, "+").expect("appended");
            let mut bytes = vec![0; name.len()];
            file.read_exact_at(&mut bytes, 0).expect("read");
            assert_eq!(bytes, name.as_bytes());
        }
    }
    assert_eq!(removed.metadata().expect("there").len(), 9);
    let text = fs::read_to_string(place.at().join("replaced")).expect("read");
    assert_eq!(text, "other");
    drop((removed, replaced));
}

#[test]
fn a_file_without_a_name_stays_open_when_the_server_is_killed() {
    if !may_continue() {
        return;
    }
    for option in ["passthrough=auto", "passthrough=off"] {
        let place = Place::new();
        let mounted = place.mount(&["-o", option]);
        write_removed(&place, || _ = kill_server(&mounted));
        // They are kept open no longer.
        let dir = place.source();
        wait_until("the files are gone", || {
            [mounted.id(), mounted.serving_id()]
                .iter()
                .all(|&process| !crate::mount::holds_removed(process, &dir))
        });
        unmount(&place.at());
        assert!(mounted.ended().success());
    }
}

/// Returns whether images can be mounted here, as any user.
fn has_fuse() -> bool {
    let has = Path::new("/dev/fuse").exists();
    if !has {
        eprintln!("skipped: there is no /dev/fuse");
    }
    has
}

/// Packs a directory with a file `f` of a MiB of `byte`.
fn packed(dir: &Path, byte: u8) -> PathBuf {
    let (tree, image) = (dir.join("tree"), dir.join(format!("{byte}.erofs")));
    fs::create_dir_all(&tree).expect("made");
    fs::write(tree.join("f"), vec![byte; 1 << 20]).expect("written");
    let mut pack = Command::new(env!("CARGO_BIN_EXE_barge"));
    let packed = pack.arg("pack").args([&tree, &image]).status();
    assert!(packed.expect("runs").success());
    image
}

#[test]
fn an_image_is_read_on_when_the_server_is_killed() {
    if !has_fuse() {
        return;
    }
    let place = Place::new();
    let image = packed(place.dir.path(), 1);
    is_read_on(&place, image.to_str().expect("UTF-8"));
}

#[test]
fn an_image_over_http_is_read_on_when_the_server_is_killed() {
    if !has_fuse() {
        return;
    }
    let place = Place::new();
    let image = fs::read(packed(place.dir.path(), 1)).expect("read");
    let server = Server::new(image);
    is_read_on(&place, &server.url());
}

/// Mounts an image of [`packed`] with ones, and reads it while the process that serves is killed
/// again and again.
fn is_read_on(place: &Place, image: &str) {
    let mounted = place.mount_image(image);
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let read = || {
            let file = File::open(place.at().join("f")).expect("opened");
            let mut random = Random(7);
            while !stop.load(Ordering::Relaxed) {
                let mut bytes = vec![0; 1 << 16];
                let at = random.below((1 << 20) - (1 << 16));
                file.read_exact_at(&mut bytes, at).expect("read");
                assert!(bytes.iter().all(|&byte| byte == 1));
                let names = fs::read_dir(place.at()).expect("listed");
                let names: Vec<_> = names.map(|name| name.expect("one").file_name()).collect();
                assert_eq!(names, ["f"]);
                reads.fetch_add(1, Ordering::Relaxed);
            }
        };
        scope.spawn(read);
        scope.spawn(read);
        for _ in 0..kills() {
            // The mount ends with a server that dies again and again at once.
            std::thread::sleep(Duration::from_millis(120));
            let before = reads.load(Ordering::Relaxed);
            kill_server(&mounted);
            wait_until("the image is read again", || {
                reads.load(Ordering::Relaxed) > before + 10
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    unmount(&place.at());
    assert!(mounted.ended().success());
}

#[test]
fn another_image_does_not_take_the_place_of_one_that_is_mounted() {
    if !has_fuse() {
        return;
    }
    let place = Place::new();
    let (image, other) = (packed(place.dir.path(), 1), packed(place.dir.path(), 2));
    let mounted = place.mount_image(image.to_str().expect("UTF-8"));
    let file = File::open(place.at().join("f")).expect("opened");
    fs::rename(&other, &image).expect("replaced");
    let server = Pid::from_raw(mounted.serving_id() as i32).expect("a process");
    kill_process(server, Signal::KILL).expect("it runs");
    let mut byte = [0];
    wait_until("requests fail", || {
        file.read_exact_at(&mut byte, 0).is_err()
    });
    assert!(fs::read_dir(place.at()).is_err());
    assert!(!mounted.ended().success());
    drop(file);
    unmount(&place.at());
}

#[test]
fn locks_are_held_after_the_server_is_killed() {
    if !may_continue() {
        return;
    }
    let place = Place::new();
    let mounted = place.mount(&[]);
    fs::write(place.at().join("f"), "").expect("written");
    let open = |dir: &Path| {
        File::options()
            .write(true)
            .open(dir.join("f"))
            .expect("opened")
    };
    let (first, second, host) = (open(&place.at()), open(&place.at()), open(&place.source()));
    flock(&first, FlockOperation::LockExclusive).expect("locked");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| flock(&second, FlockOperation::LockExclusive));
        for _ in 0..2 {
            kill_server(&mounted);
            for other in [&open(&place.at()), &host] {
                let locked = flock(other, FlockOperation::NonBlockingLockShared);
                assert_eq!(locked, Err(Errno::WOULDBLOCK));
            }
        }
        assert!(!waiter.is_finished());
        flock(&first, FlockOperation::Unlock).expect("unlocked");
        waiter.join().expect("no panic").expect("locked");
    });
    drop((first, second));
    unmount(&place.at());
    assert!(mounted.ended().success());
    flock(&host, FlockOperation::NonBlockingLockExclusive).expect("free");
}

#[test]
fn a_server_that_does_not_start_ends_the_mount() {
    if !may_continue() {
        return;
    }
    let place = Place::new();
    let mounted = place.mount(&[]);
    fs::write(place.at().join("f"), "").expect("written");
    // No server can open its source any more.
    fs::rename(place.source(), place.dir.path().join("moved")).expect("renamed");
    let pid = Pid::from_raw(mounted.serving_id() as i32).expect("a process");
    kill_process(pid, Signal::KILL).expect("it runs");
    let error = fs::metadata(place.at().join("g")).expect_err("no server");
    let errnos = [Errno::NOTCONN, Errno::CONNABORTED].map(|errno| Some(errno.raw_os_error()));
    assert!(errnos.contains(&error.raw_os_error()), "{error}");
    assert_eq!(mounted.ended().code(), Some(1));
    // The mount is still there, so that nothing is written into the directory below it.
    let error = fs::write(place.at().join("g"), "").expect_err("no server");
    assert_eq!(error.raw_os_error(), Some(Errno::NOTCONN.raw_os_error()));
    unmount(&place.at());
    // A signal to stop unmounts even so.
    fs::rename(place.dir.path().join("moved"), place.source()).expect("renamed");
    let mounted = place.mount(&[]);
    fs::rename(place.source(), place.dir.path().join("moved")).expect("renamed");
    let server = mounted.serving_id();
    let pid = Pid::from_raw(server as i32).expect("a process");
    kill_process(pid, Signal::KILL).expect("it runs");
    wait_until("the server has ended", || mounted.serving_id() != server);
    mounted.signal();
    assert_eq!(mounted.ended().code(), Some(1));
    assert_eq!(fs::read_dir(place.at()).expect("listed").count(), 0);
}

#[test]
fn a_mount_without_a_server_is_unmounted() {
    if !may_continue() {
        return;
    }
    let place = Place::new();
    let mounted = place.mount(&[]);
    fs::write(place.at().join("f"), "").expect("written");
    let pid = Pid::from_raw(mounted.serving_id() as i32).expect("a process");
    kill_process(pid, Signal::KILL).expect("it runs");
    unmount(&place.at());
    assert!(mounted.ended().success());
    let mounted = place.mount(&[]);
    let pid = Pid::from_raw(mounted.serving_id() as i32).expect("a process");
    kill_process(pid, Signal::KILL).expect("it runs");
    mounted.signal();
    // The signal may precede the discovery that the server has ended, which is an error then.
    mounted.ended();
    assert_eq!(fs::read_dir(place.at()).expect("listed").count(), 0);
}

/// A mount in the background, made by a program at a path of its own.
struct Installed {
    place: Place,
    program: PathBuf,
    holder: Pid,
}

impl Installed {
    fn new() -> Installed {
        let place = Place::new();
        let paths = [place.source(), place.at()].map(|path| path.display().to_string());
        Installed::run(place, &paths.each_ref().map(String::as_str))
    }

    /// Mounts with `args` in the directory of `place`.
    fn run(place: Place, args: &[&str]) -> Installed {
        let program = place.dir.path().join("barge");
        copy_program(BARGE, &program);
        let mut command = Command::new(&program);
        command.args(["mount", "--json"]).args(args);
        command
            .current_dir(place.dir.path())
            .env("DOCKER_CONFIG", "docker");
        let output = command.output().expect("runs");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let holder = report["pid"].as_i64().expect("a process") as i32;
        Installed {
            place,
            program,
            holder: Pid::from_raw(holder).expect("a process"),
        }
    }

    fn serving_id(&self) -> u32 {
        crate::served::serving_id(self.holder.as_raw_nonzero().get() as u32)
    }

    /// Continues with the installed program, and returns the program of the process that serves
    /// then.
    fn upgrade(&self) -> PathBuf {
        let server = self.serving_id();
        kill_process(self.holder, Signal::HUP).expect("it runs");
        let mut program = PathBuf::new();
        wait_until("another process serves", || {
            let next = self.serving_id();
            fs::write(self.place.at().join("probe"), "").expect("written");
            program = fs::read_link(format!("/proc/{next}/exe")).unwrap_or_default();
            // It was there before the write, and so has served it.
            next != server && next == self.serving_id()
        });
        program
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = kill_process(self.holder, Signal::TERM);
        wait_until("the mount has ended", || {
            rustix::process::test_kill_process(self.holder).is_err()
        });
    }
}

#[test]
fn the_installed_program_continues_a_mount() {
    if !may_continue() {
        return;
    }
    let installed = Installed::new();
    let replace = |program: &str| {
        let new = installed.place.dir.path().join("new");
        copy_program(program, &new);
        fs::rename(new, &installed.program).expect("installed");
    };
    under_load(&installed.place, || {
        for number in 0..upgrades() {
            if number < 3 {
                replace(BARGE);
            }
            assert_eq!(installed.upgrade(), installed.program);
        }
        // One that does not work leaves the mount as it is.
        replace("/bin/false");
        let program = installed.upgrade();
        assert_ne!(program, installed.program, "the old one");
    });
}

#[test]
fn a_mount_of_a_relative_path_outlives_its_process_and_program() {
    if !may_continue() {
        return;
    }
    for (source, at) in [("source", "./at"), ("./source", "at"), ("dir:source", "at")] {
        let place = Place::new();
        fs::write(place.source().join("f"), "text").expect("written");
        let installed = Installed::run(place, &[source, at]);
        let read = || fs::read_to_string(installed.place.at().join("f")).expect("read");
        for _ in 0..2 {
            let holder = installed.holder.as_raw_nonzero().get() as u32;
            let serving = kill_serving(holder, || installed.serving_id());
            assert_eq!(read(), "text");
            let variables = fs::read(format!("/proc/{serving}/environ")).expect("read");
            let docker = format!("={}/docker\0", installed.place.dir.path().display());
            assert!(String::from_utf8_lossy(&variables).contains(&docker));
            assert_eq!(installed.upgrade(), installed.program);
            assert_eq!(read(), "text");
        }
    }
}

#[test]
fn a_relative_disk_cache_and_socket_outlive_the_process_of_a_mount() {
    if !may_continue() {
        return;
    }
    let place = Place::new();
    let image = packed(place.dir.path(), 1);
    let expected = fs::read(place.dir.path().join("tree/f")).ok();
    let server = Server::new(fs::read(image).expect("read"));
    let name = "barge-cache-of-a-test";
    let options = format!("cache=never,cache_dir={name},http=unix:page");
    let url = server.url();
    let installed = Installed::run(place, &["--fuse", "-o", &options, &url, "at"]);
    let dir = installed.place.dir.path();
    assert!(
        fs::read_dir(dir.join(name))
            .expect("a cache")
            .next()
            .is_some()
    );
    fs::remove_dir_all(dir.join(name)).expect("removed");
    let holder = installed.holder.as_raw_nonzero().get() as u32;
    kill_serving(holder, || installed.serving_id());
    assert!(fs::read_dir(installed.place.at()).expect("listed").count() > 0);
    assert_eq!(fs::read(installed.place.at().join("f")).ok(), expected);
    assert!(
        fs::read_dir(dir.join(name))
            .expect("a cache")
            .next()
            .is_some()
    );
    assert!(!Path::new("/").join(name).exists(), "in another directory");
    let page = format!("unix:{}", dir.join("page").display());
    let mut top = Command::new(BARGE);
    let shown = top.args(["top", &page, "--json", "--once"]).output();
    assert!(shown.expect("runs").status.success());
}

#[test]
fn a_relative_read_trace_is_written_where_the_mount_was_made() {
    if !may_continue() {
        return;
    }
    let place = Place::new();
    fs::write(place.source().join("f"), "text").expect("written");
    let trace = place.dir.path().join("trace");
    let installed = Installed::run(place, &["--record-trace", "trace", "./source", "at"]);
    fs::read(installed.place.at().join("f")).expect("read");
    unmount(&installed.place.at());
    wait_until("the trace is written", || {
        fs::read_to_string(&trace).is_ok_and(|text| text.contains('f'))
    });
}
