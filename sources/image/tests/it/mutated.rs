//! Images with changed bytes: every call returns, and the cache stays within its limit.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use image::{ImageFs, MemoryRanges, RangeSource, Trust};
use proptest::prelude::*;
use tempfile::TempDir;
use vfs_testkit::walk_all;

use crate::bed::Bed;
use crate::tree::noise;

/// The cache limit in bytes: less than the clusters of a large file.
const CACHE: u64 = 1 << 20;

/// Options for one image of each layout, as small as possible so that changes hit relevant bytes.
const LAYOUTS: &[&[&str]] = &[
    &["-Enosbcrc"],
    &["-Enosbcrc", "--chunksize=4096"],
    &["-Enosbcrc,force-chunk-indexes", "--chunksize=4096"],
    &["-Enosbcrc", "-zlz4"],
    &["-Enosbcrc,legacy-compress", "-zlz4"],
    &[
        "-Enosbcrc,ztailpacking,fragments,dedupe",
        "-zlz4",
        "-C65536",
    ],
    &["-Enosbcrc,all-fragments", "-zlz4"],
];

fn plant(root: &Path) {
    fs::write(root.join("text"), "over and over again\n".repeat(3000)).expect("written");
    fs::write(root.join("more"), "and over and over again\n".repeat(700)).expect("written");
    fs::write(root.join("noise"), noise(5000, 1)).expect("written");
    symlink("text", root.join("link")).expect("linked");
    let deep = root.join("a/b");
    fs::create_dir_all(&deep).expect("made");
    for at in 0..30 {
        let file = deep.join(format!("file-{at}"));
        fs::write(&file, b"of few bytes").expect("written");
        let flags = rustix::fs::XattrFlags::empty();
        let _ = rustix::fs::setxattr(&file, "user.shared", b"alike", flags);
        let _ = rustix::fs::setxattr(&file, format!("user.{at}"), b"own", flags);
    }
}

/// Returns the images, none if mkfs.erofs is missing.
fn images() -> &'static [Vec<u8>] {
    static IMAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let tree = TempDir::new().expect("a directory");
        plant(tree.path());
        let made = LAYOUTS.iter().filter_map(|options| {
            let bed = Bed::make(options, tree.path());
            let bed = bed.inspect_err(|why| eprintln!("skipped {options:?}: {why}"));
            Some(fs::read(bed.ok()?.image()).expect("an image"))
        });
        made.collect()
    })
}

/// Returns the number of nodes in the tree, if the image can be opened.
fn walk(image: Vec<u8>) -> Option<usize> {
    let source: Arc<dyn RangeSource> = Arc::new(MemoryRanges(image));
    let fs = ImageFs::from_devices(vec![source], CACHE, &Trust::Hashes).ok()?;
    let nodes = walk_all(&fs, 2000);
    assert!(fs.cache_stats().bytes <= CACHE);
    Some(nodes)
}

#[test]
fn as_they_were_made_they_show_everything() {
    for (image, options) in images().iter().zip(LAYOUTS) {
        assert_eq!(walk(image.clone()), Some(37), "{options:?}");
    }
}

#[test]
fn cut_short_they_show_less() {
    for image in images() {
        for len in (0..image.len()).step_by(509) {
            walk(image[..len].to_vec());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_change_does_harm(
        which: prop::sample::Index,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..12),
    ) {
        if !images().is_empty() {
            let mut image = which.get(images()).clone();
            for (at, byte, how) in changes {
                // Most metadata is in the first blocks.
                let len = image.len();
                let at = match how {
                    0 => at.index(len),
                    _ => 1024 + at.index(len.min(8192) - 1024),
                };
                image[at] = byte;
            }
            walk(image);
        }
    }
}
