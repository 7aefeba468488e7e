//! Read-ahead of the segments that an image lists as used first.
//!
//! Threads read one stretch of segments after another until the list ends, the image is dropped, or
//! a limit is reached: half of a cache in memory, so that read-ahead evicts no segments in use.
//! A local image has one thread, which lowers its priority (nice). A remote image has several, so
//! that requests are in flight while another stretch is verified; these keep their priority, since
//! a reader may wait for the same bytes.
//!
//! Lock order: the list's lock is held only to take a stretch, with no other lock.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle, scope};

use parking_lot::Mutex;
use sidecar::ReadaheadRange;
use vfs::{Patience, Result};

use crate::cache::Claim;
use crate::priority::lower_priority;
use crate::range::LOCAL_READAHEAD;
use crate::storage::{Access, Devices, Key, SEGMENT};

/// The number of threads for a remote image: enough to keep a link of 20 ms and 1 Gbit/s busy, with
/// 16 MiB in flight.
const REMOTE_THREADS: usize = 4;

/// The rest of the read-ahead list.
struct ReadaheadQueue {
    ranges: Vec<ReadaheadRange>,
    /// Index of the next range, and how many of its segments have been taken.
    position: (usize, u64),
    /// Segments that may still be requested.
    remaining: u64,
}

impl ReadaheadQueue {
    /// Takes a stretch of up to `most` segments.
    fn take(&mut self, most: u64) -> Option<Range<u64>> {
        let (range, taken) = &mut self.position;
        let readahead = self.ranges.get(*range)?;
        let first = u64::from(readahead.first) + *taken;
        let count = (u64::from(readahead.count) - *taken)
            .min(most)
            .min(self.remaining);
        *taken += count;
        if *taken == u64::from(readahead.count) {
            self.position = (*range + 1, 0);
        }
        self.remaining -= count;
        (count > 0).then_some(first..first + count)
    }
}

/// A reader of an image that keeps what it reads.
pub(crate) trait ReadAhead: Send + Sync + 'static {
    /// Returns the maximum number of bytes to read.
    fn limit(&self) -> u64;

    /// Returns how many bytes to read at a time.
    fn stretch_len(&self) -> u64;

    /// Reads segments, as far as that succeeds: the error is reported when they are requested.
    fn read_ahead(&self, segments: Range<u64>);
}

/// Starts to read the segments `hot` with `reader`.
pub(crate) fn read_ahead(
    reader: &Arc<impl ReadAhead>,
    hot: Vec<ReadaheadRange>,
) -> Option<JoinHandle<()>> {
    if hot.is_empty() {
        return None;
    }
    let list = ReadaheadQueue {
        ranges: hot,
        position: (0, 0),
        remaining: reader.limit() / SEGMENT,
    };
    let far = reader.stretch_len() > LOCAL_READAHEAD;
    let reader = Arc::downgrade(reader);
    let named = || Builder::new().name("image-ahead".into());
    let spawned = named().spawn(move || {
        let list = Mutex::new(list);
        if !far {
            lower_priority();
            return read_all(&reader, &list);
        }
        scope(|scope| {
            for _ in 1..REMOTE_THREADS {
                // The remaining threads suffice, more slowly.
                let _ = named().spawn_scoped(scope, || read_all(&reader, &list));
            }
            read_all(&reader, &list);
        });
    });
    spawned
        .inspect_err(|error| tracing::warn!("no readahead of an image: {error}"))
        .ok()
}

/// Reads the list's segments; stops early when the image is dropped.
fn read_all(reader: &Weak<impl ReadAhead>, list: &Mutex<ReadaheadQueue>) {
    while let Some(reader) = reader.upgrade() {
        let most = reader.stretch_len() / SEGMENT;
        let Some(stretch) = list.lock().take(most) else {
            return;
        };
        reader.read_ahead(stretch);
    }
}

impl ReadAhead for Devices {
    fn limit(&self) -> u64 {
        self.cache.cap() / 2
    }

    fn stretch_len(&self) -> u64 {
        self.sources[0].readahead_len()
    }

    fn read_ahead(&self, segments: Range<u64>) {
        let mut number = segments.start;
        while number < segments.end {
            let loaded = load(self, number, segments.end - 1).unwrap_or(0);
            number += loaded.max(1);
        }
    }
}

/// Loads segments up to `last`, if the first one is missing, and returns how many.
fn load(devices: &Devices, number: u64, last: u64) -> Result<u64> {
    let key = Key::Segment(0, number);
    if devices.cache.has(key) {
        return Ok(0);
    }
    let Claim::Load(load) = devices.cache.claim(key) else {
        return Ok(0);
    };
    let access = Access {
        devices,
        patience: Patience::Full,
    };
    let source = access.source(0, number * SEGMENT, 1)?;
    Ok(access.load(source, load, last)?.len() as u64)
}
