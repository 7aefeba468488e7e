//! The health check: listeners accept connections and sources answer.
//!
//! A source is probed on request, on a thread of its own, which may hang with the source. There is
//! at most one probe of a source at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use vfs::cx::block_on;
use vfs::{AttrMask, Caller, FileSystem};

/// Timeout of a source to return its root.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Time for which a result is reused.
const MAX_AGE: Duration = Duration::from_secs(1);

/// A source and the result of its last probe.
pub(super) struct Probe {
    fs: Arc<dyn FileSystem>,
    state: Mutex<State>,
    finished: Condvar,
}

#[derive(Default)]
struct State {
    /// Start of the probe that is in progress.
    started: Option<Instant>,
    last: Option<(Instant, Result<(), String>)>,
}

impl Probe {
    pub(super) fn new(fs: Arc<dyn FileSystem>) -> Arc<Probe> {
        Arc::new(Probe {
            fs,
            state: Mutex::default(),
            finished: Condvar::new(),
        })
    }

    /// Starts a probe, unless the last result is fresh or a probe is in progress.
    pub(super) fn start(self: &Arc<Self>) {
        let mut state = self.state();
        let fresh = |(at, _): &(Instant, _)| at.elapsed() < MAX_AGE;
        if state.started.is_some() || state.last.as_ref().is_some_and(fresh) {
            return;
        }
        let probe = self.clone();
        let spawned = std::thread::Builder::new()
            .name("barge-health".into())
            .spawn(move || probe.run());
        match spawned {
            Ok(_) => state.started = Some(Instant::now()),
            Err(error) => state.last = Some((Instant::now(), Err(error.to_string()))),
        }
    }

    /// Waits for the end of the probe, or for its timeout, and returns the result.
    pub(super) fn result(&self) -> Result<(), String> {
        let mut state = self.state();
        while let Some(since) = state.started {
            let left = TIMEOUT.saturating_sub(since.elapsed());
            if left.is_zero() {
                let taken = since.elapsed().as_secs();
                return Err(format!("has not answered for {taken} s"));
            }
            self.finished.wait_for(&mut state, left);
        }
        state.last.as_ref().map_or(Ok(()), |(_, last)| last.clone())
    }

    fn run(&self) {
        let attr = block_on(&Caller::ROOT, |cx| {
            self.fs.root(cx)?.attr(cx, AttrMask::STAT)
        });
        let result = match attr {
            Ok(attr) if attr.nlink == 0 => Err("has been removed".to_owned()),
            Ok(_) => Ok(()),
            Err(errno) => Err(errno.to_string()),
        };
        let mut state = self.state();
        state.started = None;
        state.last = Some((Instant::now(), result));
        drop(state);
        self.finished.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
