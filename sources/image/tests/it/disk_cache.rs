//! The disk cache: segments survive restarts, and corruption of the files never leads to wrong
//! bytes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use image::{CachedSource, DiskCacheEntry, DiskCacheOptions, Piece, RangeSource};
use proptest::prelude::*;
use vfs::Patience;

use crate::remote::Far;

const SEGMENT: usize = 16 << 10;
const CHUNK: usize = 64 * SEGMENT;

/// Makes an image of `len` bytes whose contents differ at every offset.
fn far(len: usize) -> Arc<Far> {
    let bytes = (0..len).map(|at| (at * 31 + at / 251 + at / 65_000) as u8);
    Far::new(bytes.collect())
}

fn open(dir: &Path, size: Option<u64>, name: &str, far: &Arc<Far>) -> CachedSource {
    let options = DiskCacheOptions::new(dir.to_owned(), size);
    let tier = DiskCacheEntry::open(&options, name).expect("opened");
    tier.over(far.clone(), b"etag", "image").expect("ready")
}

fn read(image: &CachedSource, far: &Far, at: usize, len: usize) {
    let mut into = vec![0; len];
    let piece = Piece {
        offset: at as u64,
        buffer: &mut into,
    };
    image.read(&mut [piece]).expect("read");
    assert!(into[..] == far.bytes.0[at..at + len], "{len} at {at}");
}

/// Returns the only file with the extension `end`.
fn file(dir: &Path, end: &str) -> PathBuf {
    let entries = fs::read_dir(dir).expect("listed");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths = paths.filter(|path| path.extension().is_some_and(|is| is == end));
    let found = paths.next().expect("one");
    assert!(paths.next().is_none());
    found
}

fn used(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).expect("listed");
    let blocks = entries.map(|entry| entry.expect("one").metadata().expect("known").blocks());
    blocks.sum::<u64>() * 512
}

#[test]
fn a_restart_fetches_nothing_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let far = far(5 * CHUNK + 777);
    let image = open(dir.path(), None, "a", &far);
    let ranges = [
        (0, 100),
        (SEGMENT - 1, 2),
        (3 * CHUNK - 5, 10),
        (5 * CHUNK, 777),
    ];
    for (at, len) in ranges {
        assert_eq!(image.patience(at as u64, len), Patience::Full);
        read(&image, &far, at, len);
        assert_eq!(image.patience(at as u64, len), Patience::Brief);
    }
    let fetched = far.fetched();
    assert_eq!(fetched, (4 * SEGMENT + 777) as u64);
    assert_eq!(image.stored(), (5 * SEGMENT) as u64);
    drop(image);
    let image = open(dir.path(), None, "a", &far);
    assert_eq!(image.stored(), (5 * SEGMENT) as u64);
    for (at, len) in ranges {
        // The segment is verified before the file is exposed.
        assert!(image.file(at as u64, len).is_none());
        read(&image, &far, at, len);
        let held = image.file(at as u64, len).expect("a file");
        let mut bytes = vec![0; len];
        let path = format!("/proc/self/fd/{}", held.file.as_raw_fd());
        let file = File::open(path).expect("opened");
        file.read_exact_at(&mut bytes, at as u64).expect("read");
        assert!(bytes[..] == far.bytes.0[at..at + len]);
    }
    assert_eq!(far.fetched(), 0);
}

#[test]
fn what_is_asked_for_at_once_is_fetched_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let far = far(CHUNK);
    let image = open(dir.path(), None, "a", &far);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (image, far) = (&image, &far);
            scope.spawn(move || {
                for step in 0..64 {
                    let at = (step * 7 + thread) % 60 * SEGMENT;
                    read(image, far, at, 4 * SEGMENT);
                }
            });
        }
    });
    assert!(far.fetched() <= (CHUNK + 60 * SEGMENT) as u64);
    read(&image, &far, 0, CHUNK);
    assert_eq!(image.stored(), CHUNK as u64);
}

#[test]
fn an_image_belongs_to_one_at_a_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = DiskCacheOptions::new(dir.path().to_owned(), None);
    let first = DiskCacheEntry::open(&options, "a").expect("opened");
    let second = DiskCacheEntry::open(&options, "a")
        .err()
        .expect("it is taken");
    assert_eq!(second.kind(), io::ErrorKind::ResourceBusy);
    DiskCacheEntry::open(&options, "b").expect("another one");
    drop(first);
    DiskCacheEntry::open(&options, "a").expect("opened again");
}

#[test]
fn another_identity_or_length_is_another_image() {
    let dir = tempfile::tempdir().expect("a directory");
    let far = far(3 * SEGMENT);
    let options = DiskCacheOptions::new(dir.path().to_owned(), None);
    let open = |identity: &[u8], far: &Arc<Far>| {
        let tier = DiskCacheEntry::open(&options, "a").expect("opened");
        tier.over(far.clone(), identity, "image").expect("ready")
    };
    read(&open(b"first", &far), &far, 0, 3 * SEGMENT);
    assert_eq!(open(b"first", &far).stored(), (3 * SEGMENT) as u64);
    assert_eq!(open(b"second", &far).stored(), 0);
    read(&open(b"second", &far), &far, 0, 3 * SEGMENT);
    let longer = self::far(4 * SEGMENT);
    assert_eq!(open(b"second", &longer).stored(), 0);
    read(&open(b"second", &longer), &longer, 0, 4 * SEGMENT);
}

#[test]
fn what_is_broken_is_fetched_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let far = far(3 * CHUNK);
    read(&open(dir.path(), None, "a", &far), &far, 0, 3 * CHUNK);
    let (data, map) = (file(dir.path(), "data"), file(dir.path(), "map"));
    far.fetched();
    let again = |segments: usize, what: &str| {
        let image = open(dir.path(), None, "a", &far);
        read(&image, &far, 0, 3 * CHUNK);
        assert_eq!(far.fetched(), (segments * SEGMENT) as u64, "{what}");
        // After that, the segment is cached again.
        assert_eq!(image.stored(), (3 * CHUNK) as u64, "{what}");
    };
    let write = |path: &Path, at: u64, bytes: &[u8]| {
        let file = OpenOptions::new().write(true).open(path).expect("opened");
        file.write_all_at(bytes, at).expect("written");
    };
    again(0, "whole");
    write(&data, 5 * SEGMENT as u64 + 100, b"x");
    again(1, "a byte of a segment");
    // Two segments swapped.
    let bytes = fs::read(&data).expect("read");
    write(&data, 0, &bytes[SEGMENT..2 * SEGMENT]);
    write(&data, SEGMENT as u64, &bytes[..SEGMENT]);
    again(2, "in each other's place");
    // The map was written to disk, the segment was not.
    write(&data, 9 * SEGMENT as u64, &vec![0; SEGMENT]);
    again(1, "zeros");
    write(&map, 4096 + 16 * 7 + 3, b"torn");
    again(1, "a torn tag");
    write(&map, 4096 + 16 * 7, &[0; 32]);
    again(2, "tags that are gone");
    let cut = OpenOptions::new().write(true).open(&map).expect("opened");
    cut.set_len(4096 + 16 * 10 + 5).expect("cut");
    again(182, "a map that ends too soon");
    write(&map, 100, b"x");
    again(192, "a torn head");
    let cut = OpenOptions::new().write(true).open(&data).expect("opened");
    cut.set_len(CHUNK as u64).expect("cut");
    again(192, "data that end too soon");
    fs::remove_file(&data).expect("removed");
    again(192, "no data");
    fs::remove_file(&map).expect("removed");
    again(192, "no map");
}

#[test]
fn no_more_than_the_bound_is_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let far = far(16 * CHUNK);
    let bound = (4 * CHUNK) as u64;
    let image = open(dir.path(), Some(bound), "a", &far);
    for round in 0..2 {
        for at in (0..16 * CHUNK).step_by(SEGMENT) {
            read(&image, &far, at, SEGMENT);
            // A chunk in use is not evicted.
            read(&image, &far, 3 * SEGMENT, 10);
        }
        assert!(image.stored() <= bound, "{round}");
        // The maps take a little space.
        assert!(used(dir.path()) <= bound + (64 << 10), "{round}");
    }
    assert_eq!(image.patience(3 * SEGMENT as u64, 10), Patience::Brief);
    // While the file is borrowed, none of its bytes are evicted.
    let at = (3 * SEGMENT) as u64;
    let held = image.file(at, SEGMENT).expect("a file");
    for at in (CHUNK..9 * CHUNK).step_by(SEGMENT) {
        read(&image, &far, at, SEGMENT);
    }
    drop(held);
    drop(image);
    let image = open(dir.path(), Some(bound), "a", &far);
    read(&image, &far, 0, 16 * CHUNK);
}

/// A small file system in memory, which is unmounted when it is dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> SmallDisk {
        let disk = SmallDisk(tempfile::tempdir().expect("a directory"));
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4M", "none"]);
        let mounted = mount.arg(disk.0.path()).status();
        assert!(mounted.expect("runs").success());
        disk
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn segments_are_stored_again_once_the_disk_has_space() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: a file system of its own takes root");
    }
    let disk = SmallDisk::new();
    let far = far(2 * CHUNK);
    let image = open(disk.0.path(), None, "a", &far);
    let filler = disk.0.path().join("filler");
    let mut full = File::create(&filler).expect("made");
    while full.write_all(&[7; 4096]).is_ok() {}
    read(&image, &far, 0, CHUNK);
    assert_eq!(image.stored(), 0);
    fs::remove_file(&filler).expect("removed");
    drop(full);
    let until = Instant::now() + Duration::from_secs(20);
    while image.stored() < CHUNK as u64 {
        assert!(Instant::now() < until, "{} bytes", image.stored());
        read(&image, &far, 0, CHUNK);
    }
}

#[test]
fn the_image_that_was_used_least_lately_goes_first() {
    let dir = tempfile::tempdir().expect("a directory");
    let far = far(2 * CHUNK);
    let bound = Some((5 * CHUNK) as u64);
    let year = std::time::Duration::from_secs(365 * 24 * 3600);
    let mut ages = 3;
    for name in ["old", "open", "new"] {
        read(&open(dir.path(), bound, name, &far), &far, 0, CHUNK);
        for entry in fs::read_dir(dir.path()).expect("listed") {
            let file = File::open(entry.expect("an entry").path()).expect("opened");
            let modified = file.metadata().expect("known").modified().expect("known");
            file.set_modified(modified - year).expect("set");
        }
        ages -= 1;
    }
    assert_eq!(ages, 0);
    let held = open(dir.path(), bound, "open", &far);
    far.fetched();
    let image = open(dir.path(), bound, "next", &far);
    read(&image, &far, 0, 2 * CHUNK);
    read(&held, &far, 0, CHUNK);
    assert_eq!(far.fetched(), (2 * CHUNK) as u64);
    for (name, stored) in [("new", CHUNK), ("old", 0)] {
        let image = open(dir.path(), bound, name, &far);
        assert_eq!(image.stored(), stored as u64, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With arbitrary initial files and any size limit.
    #[test]
    fn the_right_bytes_come_from_any_files(
        changes in prop::collection::vec((any::<bool>(), 0u64..70_000, any::<u8>(), 1usize..300), 0..8),
        reads in prop::collection::vec((0usize..CHUNK, 1usize..100_000), 1..6),
        bound in 0u64..3 * CHUNK as u64,
    ) {
        let dir = tempfile::tempdir().expect("a directory");
        let far = far(2 * CHUNK);
        read(&open(dir.path(), None, "a", &far), &far, 0, 4 * SEGMENT);
        for (of_map, at, byte, len) in changes {
            let path = file(dir.path(), if of_map { "map" } else { "data" });
            let file = OpenOptions::new().write(true).open(path).expect("opened");
            let at = if of_map { at % 5000 } else { at };
            file.write_all_at(&vec![byte; len], at).expect("written");
        }
        let image = open(dir.path(), Some(bound), "a", &far);
        for (at, len) in reads {
            read(&image, &far, at, len);
            read(&image, &far, at, len);
        }
    }
}
