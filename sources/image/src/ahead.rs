//! Reading ahead what an image says that it is used first.
//!
//! A thread asks for one stretch after the other, and ends with the list, with the image, or when half of the cache has been asked for: what is asked
//! for meanwhile is not to be driven out by what may be. Of a disk there is one, and it is told to step back (nice) where processors are short. Of what is far
//! away there are two, so that one stretch is under way while another is verified, and neither steps back: who waits for the bytes waits for them.
//!
//! Lock order: the list is held to take a stretch off it, and no other lock meanwhile.

use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};
use std::thread::{Builder, JoinHandle, scope};

use rustix::process::setpriority_process;
use rustix::thread::gettid;
use sidecar::Hot;
use vfs::{Patience, Result};

use crate::cache::Claim;
use crate::range::NEAR_RUN;
use crate::storage::{Access, Devices, Key, SEGMENT};

/// The thread's niceness: the least of claims on a processor.
const NICE: i32 = 19;

/// Threads for what is far away.
const FAR: usize = 2;

/// What is left of the list.
struct List {
    hot: Vec<Hot>,
    /// Which range is next, and how many of its segments are taken.
    at: (usize, u64),
    /// Segments that may still be asked for.
    left: u64,
}

impl List {
    /// Takes a stretch of up to `most` segments.
    fn take(&mut self, most: u64) -> Option<Range<u64>> {
        let (range, taken) = &mut self.at;
        let hot = self.hot.get(*range)?;
        let first = u64::from(hot.first) + *taken;
        let count = (u64::from(hot.count) - *taken).min(most).min(self.left);
        *taken += count;
        if *taken == u64::from(hot.count) {
            self.at = (*range + 1, 0);
        }
        self.left -= count;
        (count > 0).then_some(first..first + count)
    }
}

/// Begins to read `hot` of the first of `devices`, whose segments they are.
pub(crate) fn read_ahead(devices: &Arc<Devices>, hot: Vec<Hot>) -> Option<JoinHandle<()>> {
    if hot.is_empty() {
        return None;
    }
    let list = List {
        hot,
        at: (0, 0),
        left: devices.cache.cap() / 2 / SEGMENT,
    };
    let far = devices.each[0].run() > NEAR_RUN;
    let devices = Arc::downgrade(devices);
    let named = || Builder::new().name("image-ahead".into());
    let spawned = named().spawn(move || {
        let list = Mutex::new(list);
        if !far {
            // A thread that may not step back reads ahead nevertheless.
            let _ = setpriority_process(Some(gettid()), NICE);
            return read_all(&devices, &list);
        }
        scope(|scope| {
            for _ in 1..FAR {
                // One does it as well, though not as fast.
                let _ = named().spawn_scoped(scope, || read_all(&devices, &list));
            }
            read_all(&devices, &list);
        });
    });
    spawned
        .inspect_err(|error| tracing::warn!("nothing of an image is read ahead: {error}"))
        .ok()
}

/// Reads what is on the list; stops early where there is nobody who has use for it.
fn read_all(devices: &Weak<Devices>, list: &Mutex<List>) {
    while let Some(devices) = devices.upgrade() {
        let most = devices.each[0].run() / SEGMENT;
        let Some(stretch) = list.lock().expect("no panic holds it").take(most) else {
            return;
        };
        let mut number = stretch.start;
        while number < stretch.end {
            // What cannot be read is passed over: whoever asks for it will be told.
            let loaded = load(&devices, number, stretch.end - 1).unwrap_or(0);
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
