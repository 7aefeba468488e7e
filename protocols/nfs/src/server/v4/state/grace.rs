//! The time after a restart in which clients reclaim what they had, and nobody takes it from them (RFC
//! 7530 section 9.6.2, RFC 8881 section 8.4.2).
//!
//! There is none unless the stable store knows of clients that had something. What v3's clients may reclaim are locks
//! only (NLM, which says for how long): until then nobody gets another lock by any version, but files are opened.

use core::time::Duration;
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::v4::Status;

use super::State;
use super::client::{Client, Minor, Recorded};
use super::table::lock;

pub(super) struct Grace {
    on: AtomicBool,
    until: Duration,
    /// It goes on for as long as somebody reclaims, but not beyond this.
    at_most: Duration,
    /// When somebody reclaimed, in milliseconds of the clock.
    reclaimed: AtomicU64,
    /// Until when clients of v3 reclaim locks, in milliseconds of the clock.
    locks_until: AtomicU64,
    /// Records of those who may reclaim.
    listed: HashSet<Box<[u8]>>,
    /// Those of them who have not said that they are done.
    waiting: Mutex<HashSet<Box<[u8]>>>,
}

impl Grace {
    pub(super) fn new(listed: Vec<Box<[u8]>>, now: Duration, lease: Duration) -> Grace {
        let listed: HashSet<_> = listed.into_iter().collect();
        Grace {
            on: AtomicBool::new(!listed.is_empty()),
            until: now + lease,
            at_most: now + lease * 2,
            reclaimed: AtomicU64::new(0),
            locks_until: AtomicU64::new(0),
            waiting: Mutex::new(listed.clone()),
            listed,
        }
    }

    fn goes_on(&self, now: Duration) -> bool {
        let reclaimed = Duration::from_millis(self.reclaimed.load(Ordering::Relaxed));
        now < self.until || (now < self.at_most && now < reclaimed + PAUSE)
    }
}

/// How long a client that reclaims many files one by one may think.
const PAUSE: Duration = Duration::from_secs(2);

impl<F, N: Clone> State<F, N> {
    /// Whether clients may still reclaim. OPEN and LOCK that do not are `GRACE` then; those that do are
    /// `NO_GRACE` afterwards, or once the client has said RECLAIM_COMPLETE, and `RECLAIM_BAD` from a
    /// client that the stable store did not know.
    pub fn in_grace(&self) -> bool {
        if !self.grace.on.load(Ordering::Acquire) {
            return false;
        }
        if self.grace.goes_on(self.now()) {
            return true;
        }
        self.end_grace();
        false
    }

    /// Clients of v3 reclaim their locks for this long from now, at least.
    pub fn hold_locks(&self, time: Duration) {
        let until = (self.now() + time).as_millis() as u64;
        self.grace.locks_until.fetch_max(until, Ordering::Relaxed);
    }

    /// Whether clients of any version may still reclaim locks.
    pub fn locks_in_grace(&self) -> bool {
        let until = self.grace.locks_until.load(Ordering::Relaxed);
        self.now() < Duration::from_millis(until) || self.in_grace()
    }

    /// Whether `client` may lock, as a reclaim or not.
    pub(super) fn may_lock(&self, client: &Client<F, N>, reclaim: bool) -> Result<(), Status> {
        self.may_open(client, reclaim)?;
        match !reclaim && self.locks_in_grace() {
            true => Err(Status::Grace),
            false => Ok(()),
        }
    }

    /// Whether `client` may open, as a reclaim or not.
    pub(super) fn may_open(&self, client: &Client<F, N>, reclaim: bool) -> Result<(), Status> {
        let reclaimed = client.reclaimed.load(Ordering::Acquire);
        match (reclaim, self.in_grace()) {
            (true, false) => Err(Status::NoGrace),
            (true, true) if reclaimed => Err(Status::NoGrace),
            (true, true) if !self.grace.listed.contains(&client.record) => Err(Status::ReclaimBad),
            (true, true) => {
                let now = self.now().as_millis() as u64;
                self.grace.reclaimed.fetch_max(now, Ordering::Relaxed);
                Ok(())
            }
            (false, true) => Err(Status::Grace),
            // RFC 8881 section 18.51.3.
            (false, false) if client.minor == Minor::V41 && !reclaimed => Err(Status::Grace),
            (false, false) => Ok(()),
        }
    }

    /// Whether `client` has still to reclaim what it had.
    pub(super) fn has_to_reclaim(&self, client: &Client<F, N>) -> bool {
        self.grace.on.load(Ordering::Acquire)
            && !client.reclaimed.load(Ordering::Acquire)
            && self.grace.listed.contains(&client.record)
    }

    /// The client of `record` is done; if all are, grace ends.
    pub(super) fn has_reclaimed(&self, record: &[u8]) {
        let was_last = {
            let mut waiting = lock(&self.grace.waiting);
            waiting.remove(record) && waiting.is_empty()
        };
        if was_last {
            self.end_grace();
        }
    }

    /// Forgets those that have not come back, or had nothing to reclaim.
    fn end_grace(&self) {
        if !self.grace.on.swap(false, Ordering::AcqRel) {
            return;
        }
        let registry = lock(&self.registry);
        for record in &self.grace.listed {
            let known = registry.confirmed(record);
            let recorded = known.as_ref().map(|known| lock(&known.client.recorded));
            if recorded.as_deref() != Some(&Recorded::Yes) {
                // If it stays, it is there to reclaim after the next restart, which is no better than
                // it was.
                let _ = self.stable.remove(record);
            }
        }
    }
}
