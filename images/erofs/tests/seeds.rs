//! Reads small mkfs.erofs 1.8 images, one for each layout and codec, intact and changed: the check
//! finds no errors in intact ones, and always terminates. Needs no system calls, so that Miri can
//! run it.

use erofs::check::{MAX_FINDINGS, check};
use erofs::layout::{SUPERBLOCK_OFFSET, checksum};
use erofs::read::MemoryStorage;

macro_rules! seed {
    ($name:literal) => {
        (
            $name,
            include_bytes!(concat!("../../../fuzz/seeds/erofs_image/", $name)),
        )
    };
}

/// The seeds of the fuzz target.
const SEEDS: &[(&str, &[u8])] = &[
    seed!("all-fragments"),
    seed!("chunks"),
    seed!("deflate"),
    seed!("flat"),
    seed!("legacy"),
    seed!("lz4"),
    seed!("lzma"),
    seed!("prefixes"),
    seed!("zstd"),
];

/// The number of changed images of each seed: Miri takes about a second for each.
const CHANGED: u64 = if cfg!(miri) { 4 } else { 2000 };

#[test]
fn there_is_nothing_wrong_with_them() {
    for (name, seed) in SEEDS {
        let mut found = Vec::new();
        let looked = check(&MemoryStorage(seed), &mut |finding| found.push(finding));
        assert_eq!(found, [], "{name}");
        assert_eq!(looked.inodes, 6, "{name}");
    }
}

#[test]
fn changed_ones_end() {
    let mut state = 1_u64;
    let mut below = |bound: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        (state >> 33) as usize % bound
    };
    for (name, seed) in SEEDS {
        for _ in 0..CHANGED {
            let mut image = seed.to_vec();
            for _ in 0..=below(4) {
                // The first 1024 bytes are unused.
                let at = SUPERBLOCK_OFFSET + below(image.len() - SUPERBLOCK_OFFSET);
                image[at] = below(256) as u8;
            }
            let block = SUPERBLOCK_OFFSET..SUPERBLOCK_OFFSET + 512;
            image[SUPERBLOCK_OFFSET + 4..SUPERBLOCK_OFFSET + 8].fill(0);
            let sum = checksum(&image[block]).to_le_bytes();
            image[SUPERBLOCK_OFFSET + 4..SUPERBLOCK_OFFSET + 8].copy_from_slice(&sum);
            let mut found = 0;
            check(&MemoryStorage(&image), &mut |_| found += 1);
            assert!(found <= MAX_FINDINGS, "{name}");
        }
    }
}
