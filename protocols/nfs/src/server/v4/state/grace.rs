//! The grace period after a restart, in which clients reclaim their state and no conflicting state
//! is granted (RFC 7530 section 9.6.2, RFC 8881 section 8.4.2).
//!
//! There is none unless the stable storage lists clients with state. v3 clients can reclaim only
//! locks (NLM, which sets the duration): until its end no version gets new locks, but files can be
//! opened.

use core::time::Duration;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::v4::Status;

use super::client::{Client, Minor, Recorded};
use super::{State, Tree};

pub(super) struct Grace {
    active: AtomicBool,
    /// Whether a thread ends the period.
    ending: AtomicBool,
    until: Duration,
    /// The latest end: reclaims extend the period, but not beyond this.
    latest_end: Duration,
    /// The time of the last reclaim, in milliseconds of the clock.
    reclaimed: AtomicU64,
    /// The end of the period for v3 clients' locks, in milliseconds of the clock.
    locks_until: AtomicU64,
    /// The records of the clients that may reclaim.
    listed: HashSet<Box<[u8]>>,
    /// The records of those clients that have not finished.
    waiting: Mutex<HashSet<Box<[u8]>>>,
}

impl Grace {
    pub(super) fn new(listed: Vec<Box<[u8]>>, now: Duration, lease: Duration) -> Grace {
        let listed: HashSet<_> = listed.into_iter().collect();
        Grace {
            active: AtomicBool::new(!listed.is_empty()),
            ending: AtomicBool::new(false),
            until: now + lease,
            latest_end: now + lease * 2,
            reclaimed: AtomicU64::new(0),
            locks_until: AtomicU64::new(0),
            waiting: Mutex::new(listed.clone()),
            listed,
        }
    }

    fn is_active(&self, now: Duration) -> bool {
        let reclaimed = Duration::from_millis(self.reclaimed.load(Ordering::Relaxed));
        now < self.until || (now < self.latest_end && now < reclaimed + RECLAIM_PAUSE)
    }
}

/// The pause between two reclaims of a client with many files that does not end the period.
const RECLAIM_PAUSE: Duration = Duration::from_secs(2);

impl<T: Tree> State<T> {
    /// Returns whether clients may still reclaim. If so, other OPENs and LOCKs fail with `GRACE`;
    /// afterwards, or once the client has sent RECLAIM_COMPLETE, reclaims fail with `NO_GRACE`.
    /// Reclaims of clients that the stable storage did not list fail with `RECLAIM_BAD`.
    pub fn in_grace(&self) -> bool {
        if !self.grace.active.load(Ordering::Acquire) {
            return false;
        }
        if self.grace.is_active(self.now()) {
            return true;
        }
        !self.end_grace()
    }

    /// Lets v3 clients reclaim their locks for at least this long from now.
    pub fn extend_lock_grace(&self, time: Duration) {
        let until = (self.now() + time).as_millis() as u64;
        self.grace.locks_until.fetch_max(until, Ordering::Relaxed);
    }

    /// Returns whether clients of any version may still reclaim locks.
    pub fn locks_in_grace(&self) -> bool {
        let until = self.grace.locks_until.load(Ordering::Relaxed);
        self.now() < Duration::from_millis(until) || self.in_grace()
    }

    /// Checks whether `client` may lock, as a reclaim or not.
    pub(super) fn may_lock(&self, client: &Client<T>, reclaim: bool) -> Result<(), Status> {
        self.may_open(client, reclaim)?;
        match !reclaim && self.locks_in_grace() {
            true => Err(Status::Grace),
            false => Ok(()),
        }
    }

    /// Checks whether `client` may open, as a reclaim or not.
    pub(super) fn may_open(&self, client: &Client<T>, reclaim: bool) -> Result<(), Status> {
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

    /// Returns whether `client` has not yet finished its reclaims.
    pub(super) fn has_to_reclaim(&self, client: &Client<T>) -> bool {
        self.grace.active.load(Ordering::Acquire)
            && !client.reclaimed.load(Ordering::Acquire)
            && self.grace.listed.contains(&client.record)
    }

    /// Records that the client of `record` has finished. Ends the grace period if all have.
    pub(super) fn has_reclaimed(&self, record: &[u8]) {
        let was_last = {
            let mut waiting = self.grace.waiting.lock();
            waiting.remove(record) && waiting.is_empty()
        };
        if was_last {
            self.end_grace();
        }
    }

    /// Removes the records of the clients that have not returned or had nothing to reclaim, and
    /// then ends the period: as long as such a client has a record, it may reclaim after the next
    /// restart, and others must not get its state. Returns whether the period has ended. It has not
    /// while another thread removes the records, or if that fails ([`super::Stable::is_required`]).
    fn end_grace(&self) -> bool {
        if self.grace.ending.swap(true, Ordering::AcqRel) {
            return !self.grace.active.load(Ordering::Acquire);
        }
        let ended = self.remove_unclaimed();
        match ended {
            true => self.grace.active.store(false, Ordering::Release),
            false => self.grace.ending.store(false, Ordering::Release),
        }
        ended
    }

    /// Removes those records. Returns whether the grace period may end.
    fn remove_unclaimed(&self) -> bool {
        let registry = self.registry.lock();
        for record in &self.grace.listed {
            let known = registry.confirmed(record);
            let recorded = known.as_ref().map(|known| known.client.recorded.lock());
            if recorded.as_deref() != Some(&Recorded::Yes) {
                // If the record stays in a file, the client may reclaim after the next restart, as
                // it could after this one.
                let removed = self.stable.remove(record);
                if removed.is_err() && self.stable.is_required() {
                    return false;
                }
            }
        }
        true
    }
}
