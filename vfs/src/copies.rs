//! A counter of payload bytes that are copied, in debug builds: tests bound the copies of each data
//! path with it.
//!
//! Code that copies what may be a payload, itself or with a system call, calls [`count_copied`]. A
//! release build counts nothing.

#[cfg(debug_assertions)]
static COPIED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Counts `bytes` that were copied.
#[inline]
pub fn count_copied(bytes: usize) {
    #[cfg(debug_assertions)]
    COPIED.fetch_add(bytes as u64, std::sync::atomic::Ordering::Relaxed);
    #[cfg(not(debug_assertions))]
    let _ = bytes;
}

/// Returns the number of bytes that this process has copied so far, counted once per copy; `None`
/// in a release build.
pub fn total_copied() -> Option<u64> {
    #[cfg(debug_assertions)]
    return Some(COPIED.load(std::sync::atomic::Ordering::Relaxed));
    #[cfg(not(debug_assertions))]
    None
}
