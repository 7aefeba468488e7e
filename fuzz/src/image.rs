//! The source over images, on any bytes.

use std::sync::Arc;

use image::{ImageFs, MemoryRanges, RangeSource, Trust};
use vfs_testkit::exhaust;

/// Bytes that are kept: less than one cluster may decode to.
const CACHE: u64 = 1 << 20;

/// Nodes that are asked for all they have.
const MOST: usize = 500;

/// Opens `data` as an image, if it is one, and reads everything of it.
pub fn run(data: &[u8]) {
    let source: Arc<dyn RangeSource> = Arc::new(MemoryRanges(data.to_vec()));
    if let Ok(fs) = ImageFs::with(vec![source], CACHE, &Trust::Hashes) {
        exhaust(&fs, MOST);
        assert!(fs.figures().bytes <= CACHE, "more is kept than may be");
    }
}
