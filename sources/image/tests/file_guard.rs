//! Memory bound: reading an image larger than its cache, sequentially and at random with several
//! threads, takes no more memory than the cache limit plus a constant. A separate test program, so
//! that other tests do not allocate meanwhile.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use image::{FileRanges, ImageFs, Trust};
use sidecar::Builder;
use tempfile::TempDir;
use vfs::{Caller, FileSystem, OpenFlags};
use vfs_testkit::{TestNode, run};

#[allow(dead_code, reason = "other tests ask for more")]
#[path = "it/bed.rs"]
mod bed;

/// The cache limit in bytes.
const CAP: u64 = 8 << 20;

/// Size in bytes of a file: all files together are several times the cache.
const FILE: u64 = 16 << 20;

/// The number of files and of threads, each reading one file.
const FILES: u64 = 4;

/// Other memory in bytes: per thread, a run being read into the cache (1 MiB) and the reader's
/// buffer, which grows by doubling (up to 3 MiB); the hashes (4 MiB); and free memory that the
/// allocator retains.
const REST: u64 = FILES * (4 << 20) + (4 << 20) + (8 << 20);

#[test]
fn a_scan_holds_no_more_than_the_cache_may() {
    for options in [&[][..], &["-zlz4", "-C65536"]] {
        let tree = TempDir::new().expect("a directory");
        for file in 0..FILES {
            let lines = (0..FILE / 32).map(|line| format!("{file} {:>29}\n", line * line));
            fs::write(
                tree.path().join(file.to_string()),
                lines.collect::<String>(),
            )
            .expect("written");
        }
        let bed = match bed::Bed::make(options, tree.path()) {
            Ok(bed) => bed,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        // An image with hashes is always read through the cache.
        let image = hashed(fs::read(bed.image()).expect("an image"));
        let path = tree.path().join("image");
        fs::write(&path, image).expect("written");
        let source = Arc::new(FileRanges::open(&path).expect("opened"));
        let fs = ImageFs::from_devices(vec![source], CAP, &Trust::Hashes).expect("an image");
        let (before, most) = (held(), AtomicU64::new(0));
        let together = Barrier::new(FILES as usize);
        std::thread::scope(|scope| {
            for file in 0..FILES {
                let (fs, most, together) = (&fs, &most, &together);
                scope.spawn(move || {
                    together.wait();
                    scan(fs, file, most);
                });
            }
        });
        let most = most.into_inner().saturating_sub(before);
        assert!(most <= CAP + REST, "{options:?}: {} KiB", most >> 10);
        assert!(
            fs.cache_stats().misses > FILES * FILE / (1 << 20),
            "{:?}",
            fs.cache_stats()
        );
    }
}

/// Reads a file sequentially and then at random; records the maximum memory use in `most`.
fn scan(fs: &ImageFs, file: u64, most: &AtomicU64) {
    let open = root(fs)
        .lookup(&file.to_string())
        .expect("there")
        .open(OpenFlags::READ);
    let open = open.expect("opened");
    let row = (0..FILE).step_by(1 << 20).map(|at| (at, 1 << 20));
    let mut random = file + 1;
    let anywhere = (0..200).map(move |_| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
        ((random >> 20) % (FILE - 5000), 5000)
    });
    for (at, len) in row.chain(anywhere) {
        let bytes = open.read(at, len).expect("read");
        assert_eq!(bytes.len(), len);
        assert!(fs.cache_stats().bytes <= CAP);
        most.fetch_max(held(), Ordering::Relaxed);
    }
}

fn root(fs: &ImageFs) -> TestNode {
    let who = Caller::ROOT;
    let node = run(&who, |cx| fs.root(cx)).expect("a root");
    TestNode { node, caller: who }
}

/// Returns the image with hashes added.
fn hashed(image: Vec<u8>) -> Vec<u8> {
    let mut builder = Builder::default();
    builder.append(&image);
    let first = &image[..builder.first_chunk()];
    let (behind, header) = builder.finish(first, &[]).expect("there is room");
    let mut image = [image, behind].concat();
    image[..1024].copy_from_slice(&header.encode());
    image
}

/// Returns the anonymous memory of this process in bytes.
fn held() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("read");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("a number") << 10
}
