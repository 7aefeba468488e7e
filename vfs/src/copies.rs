//! How often payloads are copied on their way, counted in debug builds: what tests hold each way of data to.
//!
//! Whoever copies what may be a payload says so, be it himself or by a system call. In a release build nothing is counted.

#[cfg(debug_assertions)]
static COPIED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// `bytes` were copied.
#[inline]
pub fn copied(bytes: usize) {
    #[cfg(debug_assertions)]
    COPIED.fetch_add(bytes as u64, std::sync::atomic::Ordering::Relaxed);
    #[cfg(not(debug_assertions))]
    let _ = bytes;
}

/// How many bytes this process has copied so far, each as often as it was; nothing in a release build.
pub fn so_far() -> Option<u64> {
    #[cfg(debug_assertions)]
    return Some(COPIED.load(std::sync::atomic::Ordering::Relaxed));
    #[cfg(not(debug_assertions))]
    None
}
