//! The image source, on any bytes.

use std::sync::Arc;

use image::{ImageFs, MemoryRanges, RangeSource, Trust};
use vfs_testkit::walk_all;

/// The cache size in bytes: less than the decoded size of some clusters.
const CACHE: u64 = 1 << 20;

/// The maximum number of nodes to visit.
const MOST: usize = 500;

/// Opens `data` as an image, and if that succeeds reads all of it.
pub fn run(data: &[u8]) {
    let source: Arc<dyn RangeSource> = Arc::new(MemoryRanges(data.to_vec()));
    if let Ok(fs) = ImageFs::from_devices(vec![source], CACHE, &Trust::Hashes) {
        walk_all(&fs, MOST);
        assert!(fs.cache_stats().bytes <= CACHE, "more is kept than may be");
    }
}
