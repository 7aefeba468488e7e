//! How files are cut: into segments that threads work on, and those with holes into chunks.

use std::ops::Range;

use ::erofs::write::BLOCK;

/// Bytes of a file that a thread works on at a time, and the most that one physical cluster decodes to.
pub(super) const SEGMENT: u64 = 1 << 20;

/// The largest chunk: one is in memory as a whole, for each thread.
pub(super) const LARGEST_CHUNK: u64 = 4 << 20;

/// How many chunks a file has.
pub(super) fn chunks(size: u64, chunk: u64) -> usize {
    size.div_ceil(chunk) as usize
}

/// Cuts a range into pieces of `size`.
pub(super) fn pieces(range: Range<u64>, size: u64) -> Vec<Range<u64>> {
    let end = range.end;
    let starts = range.step_by(size as usize);
    starts.map(|start| start..end.min(start + size)).collect()
}

/// The chunks that have data, those that follow each other put together up to a segment.
pub(super) fn with_data(size: u64, chunk: u64, data: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for data in data {
        let run = data.start / chunk * chunk..data.end.next_multiple_of(chunk).min(size);
        match runs.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => runs.push(run),
        }
    }
    let cut = |run| pieces(run, chunk.max(SEGMENT));
    runs.into_iter().flat_map(cut).collect()
}

/// The chunk size with which map and data of a file with holes take the least, the larger of two.
pub(super) fn best_chunk(size: u64, data: &[Range<u64>]) -> u64 {
    let sizes = (BLOCK.ilog2()..=LARGEST_CHUNK.ilog2()).rev();
    let cost = |chunk: &u64| {
        let data = with_data(size, *chunk, data);
        let bytes: u64 = data.iter().map(|run| run.end - run.start).sum();
        bytes + size.div_ceil(*chunk) * 4
    };
    let best = sizes.map(|bits| 1 << bits).min_by_key(cost);
    best.unwrap_or(BLOCK)
}
