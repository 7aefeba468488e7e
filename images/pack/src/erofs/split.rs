//! Division of files: into segments for worker threads, and of sparse files into chunks.

use std::ops::Range;

use ::erofs::write::BLOCK;

/// Size in bytes of a segment, the unit of work of a thread, and the maximum that a physical
/// cluster decodes to.
pub(super) const SEGMENT_SIZE: u64 = 1 << 20;

/// Maximum chunk size in bytes: each thread holds a whole chunk in memory.
pub(super) const MAX_CHUNK: u64 = 4 << 20;

/// Returns the number of chunks of a file.
pub(super) fn chunk_count(size: u64, chunk: u64) -> usize {
    size.div_ceil(chunk) as usize
}

/// Divides a range into pieces of `size` bytes.
pub(super) fn split_range(range: Range<u64>, size: u64) -> Vec<Range<u64>> {
    let end = range.end;
    let starts = range.step_by(size as usize);
    starts.map(|start| start..end.min(start + size)).collect()
}

/// Returns the chunks that contain data, adjacent ones merged up to a segment.
pub(super) fn data_chunks(size: u64, chunk: u64, data: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for data in data {
        let run = data.start / chunk * chunk..data.end.next_multiple_of(chunk).min(size);
        match runs.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => runs.push(run),
        }
    }
    let cut = |run| split_range(run, chunk.max(SEGMENT_SIZE));
    runs.into_iter().flat_map(cut).collect()
}

/// Returns the chunk size that minimises the size of map and data of a sparse file, the larger of
/// two equally good ones.
pub(super) fn best_chunk(size: u64, data: &[Range<u64>]) -> u64 {
    let sizes = (BLOCK.ilog2()..=MAX_CHUNK.ilog2()).rev();
    let cost = |chunk: &u64| {
        let data = data_chunks(size, *chunk, data);
        let bytes: u64 = data.iter().map(|run| run.end - run.start).sum();
        bytes + size.div_ceil(*chunk) * 4
    };
    let best = sizes.map(|bits| 1 << bits).min_by_key(cost);
    best.unwrap_or(BLOCK)
}
