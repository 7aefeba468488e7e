//! Return of the memory of closed connections to the system.
//!
//! Concurrency: atomic counters only. The thread exists while there is memory to return.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Counts closed connections, and makes the allocator return its free memory after many.
///
/// A connection holds some 5 KiB in small allocations, which leave holes between those of others:
/// 60 MiB after 10,000 connections.
#[derive(Default)]
pub(crate) struct Trim {
    ended: AtomicUsize,
    is_due: AtomicBool,
}

impl Trim {
    /// The minimum number of closed connections that is worth the work.
    const MIN_CONNECTIONS: usize = 256;

    /// The time from the first of many closed connections until memory is returned: others close
    /// meanwhile, and a client that reconnects repeatedly costs one walk through the heaps in this
    /// time.
    const DELAY: Duration = Duration::from_secs(2);

    /// Counts a connection whose memory is free, or about to be.
    pub(crate) fn connection_ended(self: &Arc<Self>) {
        let ended = self.ended.fetch_add(1, Ordering::Relaxed) + 1;
        if ended < Trim::MIN_CONNECTIONS || self.is_due.swap(true, Ordering::Relaxed) {
            return;
        }
        let trim = self.clone();
        let spawned = std::thread::Builder::new()
            .name("barge-trim".into())
            .spawn(move || {
                while trim.ended.load(Ordering::Relaxed) >= Trim::MIN_CONNECTIONS {
                    std::thread::sleep(Trim::DELAY);
                    trim.ended.store(0, Ordering::Relaxed);
                    sys::pages::trim_heaps();
                }
                trim.is_due.store(false, Ordering::Relaxed);
            });
        if let Err(error) = spawned {
            tracing::debug!(
                "cannot start the thread that returns free memory to the system: {error}"
            );
            self.is_due.store(false, Ordering::Relaxed);
        }
    }
}
