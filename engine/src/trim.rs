//! Memory of connections that have ended goes back to the system.
//!
//! Concurrency: counters alone. The thread exists while there is something to return.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Counts connections that end, and has the allocator return its free memory after many.
///
/// A connection holds some 5 KiB in small allocations, which leave holes between those of others:
/// 60 MiB after 10,000 connections.
#[derive(Default)]
pub(crate) struct Trim {
    ended: AtomicUsize,
    is_due: AtomicBool,
}

impl Trim {
    /// Fewer connections than this are not worth the work.
    const MANY: usize = 256;

    /// The time from the first of many that ended until memory is returned: meanwhile others end,
    /// and a client that connects again and again costs one walk through the heaps in this time.
    const PAUSE: Duration = Duration::from_secs(2);

    /// Counts a connection whose memory is free, or about to be.
    pub(crate) fn connection_ended(self: &Arc<Self>) {
        let ended = self.ended.fetch_add(1, Ordering::Relaxed) + 1;
        if ended < Trim::MANY || self.is_due.swap(true, Ordering::Relaxed) {
            return;
        }
        let trim = self.clone();
        let spawned = std::thread::Builder::new()
            .name("barge-trim".into())
            .spawn(move || {
                while trim.ended.load(Ordering::Relaxed) >= Trim::MANY {
                    std::thread::sleep(Trim::PAUSE);
                    trim.ended.store(0, Ordering::Relaxed);
                    sys::pages::trim_heaps();
                }
                trim.is_due.store(false, Ordering::Relaxed);
            });
        if let Err(error) = spawned {
            tracing::debug!("free memory is not returned to the system: {error}");
            self.is_due.store(false, Ordering::Relaxed);
        }
    }
}
