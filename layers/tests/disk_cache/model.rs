//! Mounts that share a cache directory, compared with a model; and concurrent readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use layers::disk_cache::{DiskCache, Options};
use layers::fault::{Fault, FaultKind, Trigger};
use layers::stack;
use vfs::{Errno, File, Op};
use vfs_testkit::context::{Random, pattern};

use crate::{Bed, LEN, Mount, put, read, rest};

/// The number of files that the model changes: each version repeats one byte, and every other
/// version has the same size.
const FILES: usize = 3;

/// An open file.
struct Open {
    file: Arc<dyn File>,
    number: usize,
    /// The oldest version that it may show: that of the open, or the last one its own mount has
    /// written.
    since: u64,
    by: Arc<DiskCache>,
}

fn version(number: u64) -> Vec<u8> {
    vec![number as u8; [150_001, 60_003][number as usize % 2]]
}

/// Checks that the data read at `at` is of a version between `since` and `newest`.
fn check(read: &[u8], at: u64, len: usize, since: u64, newest: u64) {
    let fits = (since..=newest).any(|number| {
        let whole = version(number);
        let from = (at as usize).min(whole.len());
        let to = (from + len).min(whole.len());
        read == &whole[from..to]
    });
    assert!(
        fits,
        "{} bytes at {at} of a version before {since}",
        read.len()
    );
}

#[test]
fn mounts_that_share_a_directory_never_show_what_was_before_the_open() {
    for seed in 0..24 {
        let mut bed = Bed::new();
        bed.size = 700_000;
        let mut random = Random::new(seed);
        let fault = Arc::new(Fault::new(seed, Arc::new(|| Duration::ZERO)));
        for (op, errno) in [(None, Errno::EIO), (Some(Op::Write), Errno::ENOSPC)] {
            fault.add(op, Trigger::Chance(0.02), FaultKind::Fail(errno));
        }
        let dir = stack(bed.dir.clone(), fault.clone());
        let mount = || loop {
            // Opening the root may fail, too.
            let now = bed.now;
            let options = Options {
                dir: dir.clone(),
                size: bed.size,
                source: [7; 32],
                process: random_process(),
                now: Arc::new(move || now),
            };
            if let Ok(kept) = DiskCache::new(options) {
                let kept = Arc::new(kept);
                let fs = stack(bed.source.clone(), kept.clone());
                return Mount { fs, kept };
            }
        };
        let mut mounts: Vec<_> = (0..3).map(|_| mount()).collect();
        let mut newest = [0; FILES];
        for file in 0..FILES {
            bed.file(&file.to_string(), &version(0));
        }
        let mut opens: Vec<Open> = Vec::new();
        for _ in 0..600 {
            let file = random.below(FILES as u64) as usize;
            let at = random.below(mounts.len() as u64) as usize;
            let name = file.to_string();
            match random.below(20) {
                0 => {
                    newest[file] += 1;
                    bed.file(&name, &version(newest[file]));
                }
                1 => {
                    newest[file] += 1;
                    let mount = &mounts[at];
                    put(&*mount.fs, &name, &version(newest[file]));
                    let seeing = opens
                        .iter_mut()
                        .filter(|open| open.number == file && Arc::ptr_eq(&open.by, &mount.kept));
                    seeing.for_each(|open| open.since = newest[file]);
                }
                2 => mounts[at] = mount(),
                3..=8 => opens.push(Open {
                    file: mounts[at].open(&name),
                    number: file,
                    since: newest[file],
                    by: mounts[at].kept.clone(),
                }),
                9..=10 => mounts[at].kept.wait(),
                11..=13 if !opens.is_empty() => {
                    opens.swap_remove(random.below(opens.len() as u64) as usize);
                }
                _ if !opens.is_empty() => {
                    let one = random.below(opens.len() as u64) as usize;
                    let open = &opens[one];
                    let from = random.below(3) * random.below(100_000);
                    let len = 1 + random.below(200_000) as usize;
                    let read = read(&*open.file, from, len);
                    check(&read, from, len, open.since, newest[open.number]);
                }
                _ => {}
            }
        }
    }
}

/// Returns a distinct number, as processes have.
fn random_process() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[test]
fn readers_at_the_same_time_read_what_is_there() {
    let bed = Bed::new();
    let contents = pattern(LEN, 10);
    bed.file("f", &contents);
    for _ in 0..3 {
        let mounts = [bed.mount(), bed.mount()];
        std::thread::scope(|scope| {
            for reader in 0..4 {
                let (mount, contents) = (&mounts[reader % 2], &contents);
                scope.spawn(move || {
                    let file = mount.open("f");
                    assert!(rest(&*file, 10_000 + 70_000 * reader) == *contents);
                });
            }
        });
    }
    bed.reads();
    assert!(bed.mount().read("f") == contents);
    assert_eq!(bed.reads(), 0);
}
