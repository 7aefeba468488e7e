//! Many changed images of each format: the check and the source always terminate, without a panic,
//! with a small stack and bounded memory. `BARGE_CHANGED_IMAGES=N` makes N images of each format
//! instead of some hundreds, `M..N` those with these numbers: a change depends only on its number.

mod fields;
mod images;

use std::cell::Cell;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use erofs::read::{Cluster, Error, Image, Storage};
use fastrand::Rng;
use image::{FileGuard, ImageFs, MemoryRanges, Piece, RangeSource, Trust};
use vfs::Patience;
use vfs_testkit::walk_all;

use crate::fields::Field;
use crate::images::{Format, SampleImage};

/// The default number of changed images of each format.
const SEEDS: u64 = 400;

/// Size in bytes of the source's cache: less than one cluster may decode to.
const CACHE: u64 = 1 << 20;

/// Maximum number of nodes that are read completely.
const MOST_NODES: usize = 300;

/// Stack size in bytes, an eighth of the usual one; the frames of a debug build are large.
const STACK: usize = 256 << 10;

/// Maximum memory of the process: the harness, and on each thread a few times the largest cluster
/// (1 and 12 MiB) and the cache.
const MOST_MEMORY_KIB: u64 = 256 << 10;

/// Maximum number of reads of a small image by all calls: far more than any terminating walk takes.
const MOST_READS: u64 = 5_000_000;

/// An image that counts reads.
struct CountingStorage {
    bytes: MemoryRanges,
    reads: AtomicU64,
}

impl CountingStorage {
    fn new(bytes: Vec<u8>) -> CountingStorage {
        CountingStorage {
            bytes: MemoryRanges(bytes),
            reads: AtomicU64::new(0),
        }
    }

    fn count(&self, reads: usize) {
        let before = self.reads.fetch_add(reads as u64, Ordering::Relaxed);
        assert!(before < MOST_READS, "it does not end");
    }
}

impl RangeSource for CountingStorage {
    fn len(&self) -> u64 {
        self.bytes.len()
    }

    fn patience(&self, at: u64, len: usize) -> Patience {
        self.bytes.patience(at, len)
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        self.count(pieces.len());
        self.bytes.read(pieces)
    }

    fn readahead_len(&self) -> u64 {
        self.bytes.readahead_len()
    }

    fn file(&self, at: u64, len: usize) -> Option<FileGuard<'_>> {
        self.bytes.file(at, len)
    }
}

impl Storage for CountingStorage {
    type Error = io::ErrorKind;
    type Decoded = Vec<u8>;

    fn devices(&self) -> u16 {
        1
    }

    fn read_at(&self, _device: u16, at: u64, into: &mut [u8]) -> Result<(), io::ErrorKind> {
        let piece = Piece {
            offset: at,
            buffer: into,
        };
        RangeSource::read(self, &mut [piece]).map_err(|error| error.kind())
    }

    fn decoded(&self, image: &Image, cluster: &Cluster) -> Result<Vec<u8>, Error<io::ErrorKind>> {
        cluster.decode(image, self)
    }
}

/// Calls every method that reads the image.
fn check_image(bytes: Vec<u8>, format: Format) {
    if format != Format::Rofs {
        let mut found = 0;
        erofs::check::check(&CountingStorage::new(bytes.clone()), &mut |_| found += 1);
        assert!(found <= erofs::check::MAX_FINDINGS);
    }
    let source: Arc<dyn RangeSource> = Arc::new(CountingStorage::new(bytes));
    if let Ok(fs) = ImageFs::from_devices(vec![source], CACHE, &Trust::Hashes) {
        walk_all(&fs, MOST_NODES);
        assert!(fs.cache_stats().bytes <= CACHE, "more is kept than may be");
    }
}

/// Prints which image it was, if dropped in a panic.
struct ReportSeed(Format, Cell<u64>);

impl Drop for ReportSeed {
    fn drop(&mut self) {
        if thread::panicking() {
            let number = self.1.get();
            eprintln!(
                "{:?}: BARGE_CHANGED_IMAGES={number}..{}",
                self.0,
                number + 1
            );
        }
    }
}

/// Returns the numbers of the images to make.
fn numbers() -> std::ops::Range<u64> {
    let Ok(told) = std::env::var("BARGE_CHANGED_IMAGES") else {
        return 0..SEEDS;
    };
    let number = |text: &str| text.parse().expect("a number, or two with .. between");
    match told.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => 0..number(&told),
    }
}

fn check_corrupted_images(format: Format) {
    let wholes = images::of(format);
    let fields: Vec<Vec<Field>> = wholes.iter().map(fields::of).collect();
    // The intact images are sound.
    for whole in &wholes {
        whole.assert_sound();
    }
    const THREADS: u64 = 2;
    let of_thread = |first: u64| {
        let (wholes, fields) = (&wholes, &fields);
        move || {
            let which = ReportSeed(format, Cell::new(0));
            let numbers = numbers();
            for number in (numbers.start + first..numbers.end).step_by(THREADS as usize) {
                which.1.set(number);
                let mut chance = Rng::with_seed(number);
                let at = chance.usize(..wholes.len());
                let whole: &SampleImage = &wholes[at];
                let bytes = fields::corrupted(whole, &fields[at], &mut chance);
                check_image(bytes, format);
            }
        }
    };
    thread::scope(|scope| {
        for first in 0..THREADS {
            let thread = thread::Builder::new().stack_size(STACK);
            thread
                .spawn_scoped(scope, of_thread(first))
                .expect("a thread");
        }
    });
    let status = fs::read_to_string("/proc/self/status").expect("what Linux knows of a process");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let most = most.and_then(|most| most.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let most = most.expect("the most memory");
    assert!(most <= MOST_MEMORY_KIB, "{most} KiB were held");
    println!(
        "{format:?}: {:?} of {} images, {most} KiB at most",
        numbers(),
        wholes.len()
    );
}

#[test]
fn of_erofs() {
    check_corrupted_images(Format::Erofs);
}

#[test]
fn of_erofs_with_hashes() {
    check_corrupted_images(Format::Hashes);
}

#[test]
fn of_rofs() {
    check_corrupted_images(Format::Rofs);
}
