//! Whether a server can do its work: its listeners accept, and its sources answer.
//!
//! A source is probed when somebody asks, on a thread of its own that may hang with it; while one
//! does, there is no second.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vfs::cx::block_on;
use vfs::{Caller, FileSystem, Want};

/// How long a source may take to show its root.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long an answer of a source is good for.
const FRESH: Duration = Duration::from_secs(1);

/// A source, and how it was when it was last probed.
pub(super) struct Probe {
    fs: Arc<dyn FileSystem>,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Since when a thread has been at it.
    since: Option<Instant>,
    last: Option<(Instant, Result<(), String>)>,
}

impl Probe {
    pub(super) fn new(fs: Arc<dyn FileSystem>) -> Arc<Probe> {
        Arc::new(Probe {
            fs,
            state: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// Begins to ask the source, unless its last answer is fresh or a thread is at it.
    pub(super) fn start(self: &Arc<Self>) {
        let mut state = self.state();
        let fresh = |(at, _): &(Instant, _)| at.elapsed() < FRESH;
        if state.since.is_some() || state.last.as_ref().is_some_and(fresh) {
            return;
        }
        let probe = self.clone();
        let spawned = std::thread::Builder::new()
            .name("barge-health".into())
            .spawn(move || probe.run());
        match spawned {
            Ok(_) => state.since = Some(Instant::now()),
            Err(error) => state.last = Some((Instant::now(), Err(error.to_string()))),
        }
    }

    /// How the source is, once it has answered or taken too long.
    pub(super) fn result(&self) -> Result<(), String> {
        let mut state = self.state();
        while let Some(since) = state.since {
            let left = PATIENCE.saturating_sub(since.elapsed());
            if left.is_zero() {
                let taken = since.elapsed().as_secs();
                return Err(format!("has not answered for {taken} s"));
            }
            let waited = self.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.last.as_ref().map_or(Ok(()), |(_, last)| last.clone())
    }

    fn run(&self) {
        let attr = block_on(&Caller::ROOT, |cx| self.fs.root(cx)?.attr(cx, Want::STAT));
        let result = match attr {
            Ok(attr) if attr.nlink == 0 => Err("has been removed".to_owned()),
            Ok(_) => Ok(()),
            Err(errno) => Err(errno.to_string()),
        };
        let mut state = self.state();
        state.since = None;
        state.last = Some((Instant::now(), result));
        drop(state);
        self.ended.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
