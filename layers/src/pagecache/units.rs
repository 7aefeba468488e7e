//! The units of cached data: blocks and pages.

use std::ops::Range;

/// Bytes of a block: the unit of allocation, and of read-around.
pub(super) const BLOCK: u64 = 64 << 10;

/// Bytes of a page: the minimum to read.
pub(super) const PAGE: u64 = 4 << 10;

/// A part of a file in memory, by its number.
#[derive(Clone, Copy)]
pub(super) enum CacheUnit {
    Block(u64),
    /// A page that was not handed out yet.
    Page(u64),
    /// A page that was handed out.
    ConsumedPage(u64),
}

/// Returns whether two ranges have bytes in common.
pub(super) fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}
