//! Images in object stores, and signed ones, that the kernel's EROFS mounts from a local file which
//! is filled when it is read.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process, test_kill_process};
use tempfile::TempDir;
use vfs_testkit::{SetOnDrop, copy_program, wait_until, write_program};

use crate::mount::{Mounted, unmount};
use crate::objects::server::{Answer, Server};
use crate::served::{BARGE, stdout_of};
use crate::small_disk::SmallDisk;

/// Size in bytes of the large file.
const LARGE: usize = 24 << 20;

/// A directory with a tree, its image and a cache.
struct Fixture {
    dir: TempDir,
    image: Vec<u8>,
}

impl Fixture {
    /// Packs the image with these options. Returns nothing if it cannot be mounted lazily here.
    fn new(options: &[&str]) -> Option<Fixture> {
        Fixture::with(LARGE, options)
    }

    /// Does the same with a large file of this size in bytes.
    fn with(size: usize, options: &[&str]) -> Option<Fixture> {
        if !geteuid().is_root() || !Path::new("/proc/sys/fs/fanotify").exists() {
            eprintln!("skipped: only root mounts images lazily");
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("many")).expect("made");
        let word = |at: usize| ((at as u32) | 1).wrapping_mul(2_654_435_761).to_le_bytes();
        let large: Vec<u8> = (0..size / 4).flat_map(word).collect();
        fs::write(tree.join("large"), &large).expect("written");
        for number in 0..200usize {
            let text = format!("{number} ").repeat(number * 20);
            fs::write(tree.join(format!("many/{number}")), text).expect("written");
        }
        let text = |name: &str| dir.path().join(name).display().to_string();
        let (tree_text, image_text) = (text("tree"), text("image"));
        let pack = [&["pack", "-q", &tree_text, &image_text], options].concat();
        stdout_of(&Command::new(BARGE).args(pack).output().expect("runs"));
        let image = fs::read(text("image")).expect("read");
        Some(Fixture { dir, image })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Mounts `source` at a new directory with a cache in this one. The mount is the kernel's own.
    fn mount(&self, source: &str, args: &[&str]) -> (Mounted, TempDir) {
        let on = tempfile::tempdir().expect("a directory");
        let cache = format!("cache_dir={}", self.path("cache").display());
        let mounted = Mounted::new(&[&[source, "-o", &cache], args].concat(), on.path());
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let at = on.path().display().to_string();
        let line = mounts.lines().find(|line| line.contains(&at));
        assert!(line.expect("mounted").contains(" erofs "), "{line:?}");
        (mounted, on)
    }

    /// Compares the tree with the one in `dir`.
    fn compare(&self, dir: &Path) {
        let diff = Command::new("diff")
            .arg("-r")
            .arg(self.path("tree"))
            .arg(dir)
            .output();
        let diff = diff.expect("runs");
        assert!(diff.status.success(), "{diff:?}");
    }
}

/// Returns how many bytes were fetched from the server since the last call.
fn fetched(server: &Server) -> u64 {
    let ranges = server.requests().into_iter();
    let ranges = ranges.filter_map(|request| request.range);
    ranges.map(|range| range.end - range.start).sum()
}

/// Waits until a process does not exist any more.
fn await_end(process: Pid) {
    wait_until("the process ends", || test_kill_process(process).is_err());
}

/// Returns the next number of a sequence that looks random.
fn next_random(random: &mut u64) -> u64 {
    *random = random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1);
    *random >> 20
}

/// Drops the pages that the kernel has cached, so that files are read again. Its inodes stay:
/// tests beside these count the memory that mounts have for them.
fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "1").expect("dropped");
}

#[test]
fn an_image_in_a_store_is_mounted_by_the_kernel() {
    for options in [&[][..], &["-c", "lz4"], &["--no-hashes"]] {
        let Some(place) = Fixture::new(options) else {
            return;
        };
        let server = Server::new(place.image.clone());
        let (mounted, on) = place.mount(&server.url(), &[]);
        place.compare(on.path());
        drop(mounted);
        // It is all there now, so that the store is asked once whether it has changed.
        server.requests();
        let (mounted, on) = place.mount(&server.url(), &[]);
        place.compare(on.path());
        let bytes = fetched(&server);
        assert!(bytes < 512 << 10, "{bytes}");
        // The end of the mount is the end of its processes.
        let filler = Pid::from_raw(mounted.serving_id() as i32).expect("a process");
        unmount(on.path());
        assert!(mounted.ended().success());
        await_end(filler);
    }
}

#[test]
fn a_changed_byte_is_an_error_and_all_else_is_right() {
    let Some(mut place) = Fixture::new(&[]) else {
        return;
    };
    let large = fs::read(place.path("tree/large")).expect("read");
    let middle = &large[LARGE / 2..][..64];
    let at = place.image.windows(64).position(|bytes| bytes == middle);
    place.image[at.expect("it is there")] ^= 1;
    let server = Server::new(place.image.clone());
    let (_mounted, on) = place.mount(&server.url(), &[]);
    let file = fs::File::open(on.path().join("large")).expect("opened");
    let mut bytes = vec![0; 4096];
    for (at, expected) in large.chunks(4096).enumerate() {
        let read = file.read_exact_at(&mut bytes, at as u64 * 4096);
        // The kernel reads pages together.
        let near = (at * 4096).abs_diff(LARGE / 2) < 512 << 10;
        match read {
            Ok(()) => assert!(bytes == expected, "page {at}"),
            Err(error) => assert!(
                near && error.raw_os_error() == Some(5),
                "page {at}: {error}"
            ),
        }
    }
    assert!(file.read_exact_at(&mut bytes, LARGE as u64 / 2).is_err());
    place.compare_many(on.path());
}

impl Fixture {
    /// Compares the small files with those in `dir`.
    fn compare_many(&self, dir: &Path) {
        for number in 0..200 {
            let name = format!("many/{number}");
            let expected = fs::read(self.path("tree").join(&name)).expect("read");
            assert!(
                fs::read(dir.join(&name)).expect("read") == expected,
                "{name}"
            );
        }
    }
}

#[test]
fn a_store_that_is_gone_is_an_error_until_it_is_back() {
    let Some(place) = Fixture::new(&[]) else {
        return;
    };
    let server = Server::new(place.image.clone());
    let (_mounted, on) = place.mount(&server.url(), &[]);
    server.always(Answer::Status(403, None));
    let error = fs::read(on.path().join("large")).expect_err("the store refuses");
    assert_eq!(error.raw_os_error(), Some(5));
    server.always(Answer::Good);
    place.compare(on.path());
}

#[test]
fn a_signed_image_is_verified_and_mounted_by_the_kernel() {
    let Some(place) = Fixture::new(&[]) else {
        return;
    };
    let text = |name: &str| place.path(name).display().to_string();
    let openssl = |args: &[&str]| {
        let status = Command::new("openssl").args(args).status().expect("runs");
        assert!(status.success());
    };
    let (secret, public) = (text("k.pem"), text("p.pem"));
    openssl(&["genpkey", "-algorithm", "ed25519", "-out", &secret]);
    openssl(&["pkey", "-in", &secret, "-pubout", "-out", &public]);
    let pack = [
        "pack",
        "-q",
        &text("tree"),
        &text("image"),
        "--sign",
        &secret,
    ];
    stdout_of(&Command::new(BARGE).args(pack).output().expect("runs"));
    let image = text("image");
    let (_mounted, on) = place.mount(&image, &["--verify-key", &public]);
    // A change after the mount is found as well.
    let mut bytes = fs::read(&image).expect("read");
    let large = fs::read(place.path("tree/large")).expect("read");
    let at = bytes
        .windows(64)
        .position(|bytes| bytes == &large[LARGE / 2..][..64]);
    bytes[at.expect("it is there")] ^= 1;
    fs::write(&image, &bytes).expect("written");
    place.compare_many(on.path());
    let error = fs::read(on.path().join("large")).expect_err("a byte is wrong");
    assert_eq!(error.raw_os_error(), Some(5));
}

#[test]
fn several_mounts_fetch_each_chunk_once() {
    let Some(place) = Fixture::new(&[]) else {
        return;
    };
    let server = Server::new(place.image.clone());
    let mounts: Vec<_> = (0..4).map(|_| place.mount(&server.url(), &[])).collect();
    std::thread::scope(|scope| {
        for (_, on) in &mounts {
            scope.spawn(|| place.compare(on.path()));
        }
    });
    let bytes = fetched(&server);
    // Each mount has read the head and the hashes.
    let most = place.image.len() as u64 + 4 * (256 << 10);
    assert!(bytes <= most, "{bytes} of {}", place.image.len());
}

/// Reads all of the large file again and again, and counts what it has read.
fn read_until(
    stop: &AtomicBool,
    file: &Path,
    expected: &[u8],
    reads: &AtomicU64,
    errors: &AtomicU64,
) {
    let mut seed = 7u64;
    let file = fs::File::open(file).expect("opened");
    let mut bytes = vec![0; 64 << 10];
    while !stop.load(Ordering::Relaxed) {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = (seed >> 33) as usize % (expected.len() - bytes.len());
        match file.read_exact_at(&mut bytes, at as u64) {
            Ok(()) => {
                assert!(
                    bytes == expected[at..][..bytes.len()],
                    "wrong bytes at {at}"
                );
                reads.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(5), "{error}");
                errors.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Number of kills, `KILLS` in the environment.
fn kills() -> u32 {
    std::env::var("KILLS").map_or(15, |kills| kills.parse().expect("a number"))
}

#[test]
fn no_reader_sees_missing_bytes_when_a_process_is_killed() {
    let Some(place) = Fixture::new(&[]) else {
        return;
    };
    let server = Server::new(place.image.clone());
    let large = fs::read(place.path("tree/large")).expect("read");
    let (stop, reads, errors) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut done = 0;
    while done < kills() {
        // The cache is empty again, and the file is filled while processes are killed.
        match fs::remove_dir_all(place.path("cache")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("{error}"),
            _ => {}
        }
        stop.store(false, Ordering::Relaxed);
        let (mounted, on) = place.mount(&server.url(), &[]);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let read = || read_until(&stop, &on.path().join("large"), &large, &reads, &errors);
                scope.spawn(read);
            }
            let stopped = SetOnDrop(&stop);
            let mut killed = mounted.id();
            for _ in 0..5 {
                std::thread::sleep(Duration::from_millis(40));
                let filler = mounted.serving_id();
                // None is started yet if the holder itself is named.
                if filler != mounted.id() {
                    let pid = Pid::from_raw(filler as i32).expect("a process");
                    let _ = kill_process(pid, Signal::KILL);
                    killed = filler;
                    done += 1;
                }
                drop_caches();
            }
            // Without the holder the filler answers, which a busy machine starts late.
            wait_until("another filler serves", || {
                ![killed, mounted.id()].contains(&mounted.serving_id())
            });
            std::thread::sleep(Duration::from_millis(300));
            mounted.kill();
            done += 1;
            std::thread::sleep(Duration::from_millis(100));
            drop(stopped);
        });
        place.compare(on.path());
        unmount(on.path());
        drop(mounted);
    }
    println!(
        "{done} kills: {} reads right, {} errors",
        reads.load(Ordering::Relaxed),
        errors.load(Ordering::Relaxed)
    );
    assert!(reads.load(Ordering::Relaxed) > 0);
}

#[test]
fn a_cache_is_listed_warmed_verified_and_emptied() {
    let Some(place) = Fixture::new(&[]) else {
        return;
    };
    let server = Server::new(place.image.clone());
    let dir = place.path("cache").display().to_string();
    let cache = |args: &[&str]| {
        let args = [&["cache", "--dir", &dir], args].concat();
        Command::new(BARGE).args(args).output().expect("runs")
    };
    stdout_of(&cache(&["warm", &server.url()]));
    server.requests();
    let (mounted, on) = place.mount(&server.url(), &[]);
    place.compare(on.path());
    let bytes = fetched(&server);
    assert!(bytes < 512 << 10, "{bytes}");
    let list = stdout_of(&cache(&["ls"]));
    let line = list.lines().nth(1).expect("an image");
    assert!(
        line.contains(" yes ") && line.ends_with(&server.url()),
        "{list}"
    );
    // An image in use stays, also its file while it is fetched again.
    stdout_of(&cache(&["gc", "--size", "0"]));
    stdout_of(&cache(&["warm", &server.url()]));
    stdout_of(&cache(&["verify"]));
    place.compare(on.path());
    unmount(on.path());
    assert!(mounted.ended().success());
    // Damage is found, and fetched again.
    let name = line.split(' ').next().expect("a name");
    let data = place.path("cache").join(format!("{name}.data"));
    let file = fs::File::options().write(true).open(data);
    let file = file.expect("opened");
    file.write_all_at(b"damage", 5 << 20).expect("written");
    let damaged = cache(&["verify"]);
    assert_eq!(damaged.status.code(), Some(1));
    let told = String::from_utf8_lossy(&damaged.stdout).into_owned();
    assert!(told.contains(", 1 are damaged"), "{told}");
    stdout_of(&cache(&["verify"]));
    let (mounted, on) = place.mount(&server.url(), &[]);
    place.compare(on.path());
    unmount(on.path());
    assert!(mounted.ended().success());
    wait_until("the image is not in use", || {
        !stdout_of(&cache(&["gc", "--size", "0"])).contains("MiB left")
    });
    assert_eq!(stdout_of(&cache(&["ls"])).lines().count(), 1);
}

#[test]
fn what_two_images_have_is_fetched_and_stored_once() {
    for (mkfs, shares_blocks) in [("mkfs.xfs", true), ("mkfs.ext4", false)] {
        let (Some(first), Some(second)) = (Fixture::new(&[]), Fixture::new(&[])) else {
            return;
        };
        // The large file is elsewhere in the second image.
        fs::write(second.path("tree/another"), vec![7; 100_000]).expect("written");
        let text = |name: &str| second.path(name).display().to_string();
        let pack = ["pack", "-q", &text("tree"), &text("image")];
        stdout_of(&Command::new(BARGE).args(pack).output().expect("runs"));
        let disk = SmallDisk::new(&[mkfs, "-q"], 512 << 20);
        let cache = disk.path();
        for place in [&first, &second] {
            std::os::unix::fs::symlink(&cache, place.path("cache")).expect("made");
        }
        let server = Server::new(first.image.clone());
        let (_mounted, on) = first.mount(&server.url(), &[]);
        first.compare(on.path());
        let used = || {
            rustix::fs::sync();
            let stat = rustix::fs::statvfs(&cache).expect("mounted");
            (stat.f_blocks - stat.f_bfree) * stat.f_frsize
        };
        let before = used();
        // Both are mounted at once.
        let server = Server::new(fs::read(second.path("image")).expect("read"));
        let (_second_mounted, second_on) = second.mount(&server.url(), &[]);
        second.compare(second_on.path());
        let fetched = fetched(&server);
        assert!(fetched < 4 << 20, "{mkfs}: {fetched}");
        if shares_blocks {
            let more = used().saturating_sub(before);
            assert!(more < 8 << 20, "{more}");
        }
    }
}

#[test]
fn an_image_stays_in_use_while_no_process_fills_it() {
    let Some(place) = Fixture::new(&[]) else {
        return;
    };
    let server = Server::new(place.image.clone());
    let (mounted, on) = place.mount(&server.url(), &[]);
    place.compare(on.path());
    // Another filler cannot start without the store.
    drop(server);
    let filler = Pid::from_raw(mounted.serving_id() as i32).expect("a process");
    kill_process(filler, Signal::KILL).expect("it runs");
    await_end(filler);
    let cache = place.path("cache").display().to_string();
    let cache = |args: &[&str]| {
        let args = [&["cache", "--dir", &cache], args].concat();
        stdout_of(&Command::new(BARGE).args(args).output().expect("runs"))
    };
    for _ in 0..20 {
        cache(&["gc", "--size", "0"]);
        let listed = cache(&["ls"]);
        assert!(
            listed
                .lines()
                .nth(1)
                .is_some_and(|line| line.contains("yes")),
            "{listed}"
        );
    }
    drop_caches();
    place.compare(on.path());
}

#[test]
fn images_with_the_same_contents_are_evicted_and_read_at_once() {
    let (Some(first), Some(second)) = (Fixture::new(&[]), Fixture::new(&[])) else {
        return;
    };
    // Blocks are shared, and given up again, all the time.
    let disk = SmallDisk::new(&["mkfs.xfs", "-q"], 512 << 20);
    let large = fs::read(first.path("tree/large")).expect("read");
    let servers = [&first, &second].map(|place| Server::new(place.image.clone()));
    let cache = disk.path().display().to_string();
    let options = format!("cache_dir={cache},cache_dir_size=16M");
    let mounts = servers.each_ref().map(|server| {
        let url = server.url();
        let on = tempfile::tempdir().expect("a directory");
        let mounted = Mounted::new(&[&url, "-o", &options], on.path());
        (mounted, on)
    });
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stopped = SetOnDrop(&stop);
        for (seed, (_, on)) in mounts.iter().chain(&mounts).enumerate() {
            let (stop, reads, large) = (&stop, &reads, &large);
            let path = on.path().join("large");
            scope.spawn(move || read_uncached_until(stop, seed as u64, &path, large, reads));
        }
        wait_until("the readers go on", || reads.load(Ordering::Relaxed) > 500);
    });
    for (_, on) in &mounts {
        first.compare(on.path());
    }
}

#[test]
fn a_full_disk_is_an_error_until_there_is_space() {
    let Some(place) = Fixture::new(&[]) else {
        return;
    };
    let disk = SmallDisk::new(&["mkfs.ext4", "-q", "-m", "0"], 64 << 20);
    let cache = disk.path();
    fs::write(cache.join("ballast"), vec![1; 40 << 20]).expect("written");
    std::os::unix::fs::symlink(&cache, place.path("cache")).expect("made");
    let server = Server::new(place.image.clone());
    let (mounted, on) = place.mount(&server.url(), &[]);
    let large = fs::read(place.path("tree/large")).expect("read");
    let file = fs::File::open(on.path().join("large")).expect("opened");
    let mut bytes = vec![0; 64 << 10];
    let mut failed = 0;
    for (at, expected) in large.chunks(bytes.len()).enumerate() {
        match file.read_exact_at(&mut bytes, (at * expected.len()) as u64) {
            Ok(()) => assert!(bytes == expected, "piece {at}"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(5), "{error}");
                failed += 1;
            }
        }
    }
    assert!(failed > 0, "it was not full");
    drop(file);
    fs::remove_file(cache.join("ballast")).expect("removed");
    place.compare(on.path());
    unmount(on.path());
    assert!(mounted.ended().success());
}

#[test]
fn a_cache_torn_by_a_loss_of_power_is_fetched_again_where_it_is_torn() {
    let Some(place) = Fixture::new(&["-c", "lz4"]) else {
        return;
    };
    let server = Server::new(place.image.clone());
    let mut random = 1u64;
    let mut below = |most: u64| (next_random(&mut random) >> 13) % most;
    for turn in 0..8 {
        let (mounted, on) = place.mount(&server.url(), &[]);
        place.compare(on.path());
        unmount(on.path());
        assert!(mounted.ended().success());
        drop_caches();
        let files = fs::read_dir(place.path("cache")).expect("a cache");
        for path in files.map(|file| file.expect("a file").path()) {
            let file = fs::File::options().read(true).write(true).open(&path);
            let file = file.expect("opened");
            let len = file.metadata().expect("there").len();
            // Pages that were not written yet, and the end of a file that was cut.
            for _ in 0..5 {
                let at = below(len / 4096 + 1) * 4096;
                let torn = vec![0; (len - at.min(len)).min(4096) as usize];
                file.write_all_at(&torn, at).expect("written");
            }
            if turn % 2 == 1 && path.extension().is_some_and(|end| end == "map") {
                file.set_len(below(len)).expect("cut");
            }
        }
    }
}

/// Returns the processes of the mount in the background at `on`: the holder, then its child,
/// whatever their numbers are.
fn processes_of(on: &Path) -> Vec<i32> {
    let parent = |id: &i32| {
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        parent.and_then(|parent| parent.trim().parse::<i32>().ok())
    };
    let pattern = format!("mount -o .*{}", on.display());
    let found = Command::new("pgrep").args(["-f", &pattern]).output();
    let found = String::from_utf8(found.expect("runs").stdout).expect("numbers");
    let found = found.split_whitespace();
    let mut found: Vec<i32> = found.map(|id| id.parse().expect("a number")).collect();
    let all = found.clone();
    found.sort_by_key(|id| parent(id).is_some_and(|parent| all.contains(&parent)));
    found
}

#[test]
fn a_mount_in_the_background_continues_as_another_program() {
    let Some(place) = Fixture::new(&[]) else {
        return;
    };
    let server = Server::new(place.image.clone());
    let large = fs::read(place.path("tree/large")).expect("read");
    let program = place.path("barge");
    copy_program(BARGE, &program);
    let on = tempfile::tempdir().expect("a directory");
    let cache = format!("cache_dir={},seccomp=kill", place.path("cache").display());
    let mut mount = Command::new(&program);
    mount
        .args(["mount", "-o", &cache, &server.url()])
        .arg(on.path());
    assert!(mount.status().expect("runs").success());
    let processes = || processes_of(on.path());
    let [holder, first] = processes()[..] else {
        panic!("{:?}", processes());
    };
    let (stop, reads, errors) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut fillers = vec![first];
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let read = || read_until(&stop, &on.path().join("large"), &large, &reads, &errors);
            scope.spawn(read);
        }
        let stopped = SetOnDrop(&stop);
        for _ in 0..6 {
            // Another file at the same path, as a package manager installs one.
            let next = place.path("next");
            copy_program(BARGE, &next);
            fs::rename(&next, &program).expect("renamed");
            let id = Pid::from_raw(holder).expect("a process");
            kill_process(id, Signal::HUP).expect("it runs");
            let until = Instant::now() + Duration::from_secs(20);
            loop {
                let last = *fillers.last().expect("one");
                match processes()[..] {
                    [one, other] if one == holder && other != last => {
                        fillers.push(other);
                        break;
                    }
                    _ => assert!(Instant::now() < until, "no other filler: {:?}", processes()),
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            drop_caches();
        }
        drop(stopped);
    });
    assert_eq!(errors.load(Ordering::Relaxed), 0);
    assert!(reads.load(Ordering::Relaxed) > 0);
    // A program that cannot take over: the last filler answers alone.
    let broken = place.path("broken");
    write_program(&broken, "#!/bin/sh\nexit 1\n");
    fs::rename(&broken, &program).expect("renamed");
    let id = Pid::from_raw(holder).expect("a process");
    kill_process(id, Signal::HUP).expect("it runs");
    await_end(id);
    drop_caches();
    place.compare(on.path());
    unmount(on.path());
    wait_until("the processes end", || processes().is_empty());
}

/// Size in bytes of a file that is several times as large as the cache.
const EXCESSIVE: usize = 6 * CACHE;

/// Size in bytes of a small cache.
const CACHE: usize = 16 << 20;

/// Reads pieces of a file at random, each from the image's file, until `stop`.
fn read_uncached_until(
    stop: &AtomicBool,
    seed: u64,
    path: &Path,
    expected: &[u8],
    reads: &AtomicU64,
) {
    let mut random = seed;
    let file = fs::File::open(path).expect("opened");
    let mut bytes = vec![0; 256 << 10];
    while !stop.load(Ordering::Relaxed) {
        let next = next_random(&mut random) as usize;
        let len = 1 + next % bytes.len();
        let at = (next >> 13) % (expected.len() - len);
        let read = file.read_exact_at(&mut bytes[..len], at as u64);
        read.unwrap_or_else(|error| panic!("{len} bytes at {at}: {error}"));
        let first = bytes[..len]
            .iter()
            .zip(&expected[at..])
            .position(|(a, b)| a != b);
        assert_eq!(first, None, "wrong bytes in {len} at {at}");
        reads.fetch_add(1, Ordering::Relaxed);
        let all = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        all.expect("it is a file");
    }
}

#[test]
fn a_mounted_image_that_is_larger_than_the_cache_is_evicted_where_nobody_reads() {
    for options in [&[][..], &["-c", "lz4"]] {
        let Some(place) = Fixture::with(EXCESSIVE, options) else {
            return;
        };
        let size = match options {
            [] => CACHE,
            // Compression leaves less.
            _ => CACHE.min(place.image.len() / 4),
        };
        let server = Server::new(place.image.clone());
        let large = fs::read(place.path("tree/large")).expect("read");
        let on = tempfile::tempdir().expect("a directory");
        let cache = place.path("cache");
        let text = cache.display();
        let text = format!("cache_dir={text},cache_dir_size={size},seccomp=kill");
        let mut mount = Command::new(BARGE);
        mount
            .args(["mount", "-o", &text, &server.url()])
            .arg(on.path());
        assert!(mount.status().expect("runs").success());
        let holder = processes_of(on.path())[0];
        let signal = |id, signal| kill_process(Pid::from_raw(id).expect("a process"), signal);
        let stored = || {
            let files = fs::read_dir(&cache).expect("a cache");
            let blocks = files.map(|file| {
                let metadata = file.expect("a file").metadata().expect("there");
                std::os::unix::fs::MetadataExt::blocks(&metadata)
            });
            blocks.sum::<u64>() * 512
        };
        let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        let (mut most, mut fetched_in_all) = (0, 0);
        std::thread::scope(|scope| {
            let path = on.path().join("large");
            let threads: Vec<_> = (0..8)
                .map(|seed| {
                    let (stop, reads, large, path) = (&stop, &reads, &large, path.clone());
                    scope.spawn(move || read_uncached_until(stop, seed, &path, large, reads))
                })
                .collect();
            let stopped = SetOnDrop(&stop);
            for turn in 0..4 * kills() {
                let before = reads.load(Ordering::Relaxed);
                wait_until("the readers go on", || {
                    reads.load(Ordering::Relaxed) > before + 100
                        || threads.iter().any(|thread| thread.is_finished())
                });
                drop_caches();
                if threads.iter().any(|thread| thread.is_finished()) {
                    break;
                }
                match turn % 4 {
                    1 => {
                        for id in processes_of(on.path()) {
                            if id != holder {
                                let _ = signal(id, Signal::KILL);
                            }
                        }
                    }
                    3 => signal(holder, Signal::HUP).expect("it runs"),
                    _ => {}
                }
                most = most.max(stored());
                fetched_in_all += fetched(&server);
            }
            drop(stopped);
        });
        let reads = reads.load(Ordering::Relaxed);
        println!(
            "{reads} reads right of an image of {} MiB; {} MiB fetched, at most {} MiB on disk",
            place.image.len() >> 20,
            fetched_in_all >> 20,
            most >> 20
        );
        assert!(
            fetched_in_all > 2 * place.image.len() as u64,
            "{fetched_in_all}"
        );
        // Metadata, reads in progress and what is fetched with them.
        assert!(most < (size + (12 << 20)) as u64, "{most}");
        place.compare(on.path());
        unmount(on.path());
        wait_until("the processes end", || processes_of(on.path()).is_empty());
    }
}
