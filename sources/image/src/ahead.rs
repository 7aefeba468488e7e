//! Reading ahead what an image says that it is used first.
//!
//! One thread asks for one stretch after the other, and ends with the list, with the image, or when it has filled half of the cache: what is asked
//! for meanwhile is not to be driven out by what may be. It is told to step back (nice) where processors are short.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use rustix::process::setpriority_process;
use rustix::thread::gettid;
use sidecar::Hot;
use vfs::{Patience, Result};

use crate::cache::Claim;
use crate::storage::{Access, Devices, Key, SEGMENT};

/// The thread's niceness: the least of claims on a processor.
const NICE: i32 = 19;

/// Begins to read `hot` of the first of `devices`, whose segments they are.
pub(crate) fn read_ahead(devices: &Arc<Devices>, hot: Vec<Hot>) -> Option<JoinHandle<()>> {
    if hot.is_empty() {
        return None;
    }
    let devices = Arc::downgrade(devices);
    let thread = std::thread::Builder::new().name("image-ahead".into());
    let spawned = thread.spawn(move || {
        // A thread that may not step back reads ahead nevertheless.
        let _ = setpriority_process(Some(gettid()), NICE);
        read_all(&devices, &hot);
    });
    spawned
        .inspect_err(|error| tracing::warn!("nothing of an image is read ahead: {error}"))
        .ok()
}

/// Does it; stops early where there is no more room, or nobody who has use for it.
fn read_all(devices: &Weak<Devices>, hot: &[Hot]) {
    let mut read = 0;
    for hot in hot {
        let first = u64::from(hot.first);
        let (mut number, end) = (first, first + u64::from(hot.count));
        while number < end {
            let Some(devices) = devices.upgrade() else {
                return;
            };
            let left = (devices.cache.cap() / 2).saturating_sub(read) / SEGMENT;
            if left == 0 {
                return;
            }
            // What cannot be read is passed over: whoever asks for it will be told.
            let loaded = load(&devices, number, end.min(number + left) - 1).unwrap_or(0);
            read += loaded * SEGMENT;
            number += loaded.max(1);
        }
    }
}

/// Loads segments up to `last`, if the first one is missing, and says how many.
fn load(devices: &Devices, number: u64, last: u64) -> Result<u64> {
    let key = Key::Segment(0, number);
    if devices.cache.has(key) {
        return Ok(0);
    }
    let Claim::Ours(load) = devices.cache.claim(key) else {
        return Ok(0);
    };
    let access = Access {
        devices,
        patience: Patience::Full,
    };
    let source = access.source(0, number * SEGMENT, 1)?;
    Ok(access.load(source, load, last)?.len() as u64)
}
