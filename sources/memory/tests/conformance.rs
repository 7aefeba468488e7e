//! The shared suite over a tree in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memory::Memory;
use vfs::Time;
use vfs_testkit::{Profile, Subject};

fn subject() -> Subject {
    Subject::new(Memory::new(ticking()), Profile::posix())
}

/// A clock that goes on by a microsecond each time it is looked at.
fn ticking() -> memory::Clock {
    let micros = AtomicU64::new(0);
    Arc::new(move || {
        let now = micros.fetch_add(1, Ordering::Relaxed);
        Time {
            sec: 1_700_000_000 + (now / 1_000_000) as i64,
            nsec: (now % 1_000_000 * 1000) as u32,
        }
    })
}

vfs_testkit::conformance!(subject);
