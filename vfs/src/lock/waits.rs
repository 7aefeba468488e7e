//! Deadlocks of POSIX locks: a search among the owners that wait for each other.
//!
//! A request that would close a cycle is refused with `EDEADLK` instead of waiting, as Linux does
//! (`posix_locks_deadlock()` in fs/locks.c); flock(2) has no such check there or here. An owner
//! stands for a process, so one of whose threads waits counts as waiting. Unlike Linux, which
//! follows one conflicting lock of each request, the search follows all of them.
//!
//! Limits:
//! - A cycle through lock tables, through several servers, or through locks outside barge is not
//!   found.
//! - FUSE does not tell open file description locks, which Linux leaves out, from those of
//!   processes. A cycle in which a process would have two owners consists of such locks, and is
//!   ignored; any other one counts.
//! - A search of more owners than [`MAX_SEARCHED`] finds nothing.
//!
//! The mutex is the innermost one of the lock table: it is held while a node is locked, and during
//! a search, which locks no node.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Owner;
use crate::{Errno, Result};

/// The most owners that a search visits. Linux stops after ten.
const MAX_SEARCHED: usize = 1024;

/// The most owners that one request is recorded to wait for; any more are not searched. It bounds
/// the memory that readers of a file cost for each writer that waits.
const MAX_BLOCKERS: usize = 64;

/// The time after which a client that polls has given up: Linux's NFS client retries at least every
/// half minute, and sends nothing when a signal ends its wait.
const POLL_INTERVAL: Duration = Duration::from_secs(32);

/// The waiting requests for POSIX locks of a table.
#[derive(Default)]
pub(super) struct Waits(Mutex<Table>);

#[derive(Default)]
struct Table {
    by_owner: HashMap<Owner, Vec<Wait>>,
    last_number: u64,
}

/// A waiting request.
struct Wait {
    number: u64,
    /// The owners of conflicting locks.
    blockers: Vec<Owner>,
    /// The time of the request, if its client polls.
    polled: Option<Instant>,
}

/// A waiting request in the table, which is removed when this is dropped.
pub(super) struct RegisteredWait {
    waits: Arc<Waits>,
    owner: Owner,
    number: u64,
}

impl Waits {
    /// Adds a request of `owner` that waits for `blockers`. Returns `EDEADLK` if one of them waits
    /// for `owner`, perhaps through others. `is_polled` is for a client that repeats the request
    /// and does not tell when it stops.
    pub(super) fn register(
        self: &Arc<Self>,
        owner: &Owner,
        mut blockers: Vec<Owner>,
        is_polled: bool,
    ) -> Result<RegisteredWait> {
        let now = Instant::now();
        let mut known = HashSet::new();
        blockers.retain(|blocker| known.insert(blocker.clone()));
        let mut table = self.0.lock();
        if is_deadlock(&table.by_owner, owner, &blockers, now) {
            return Err(Errno::EDEADLK);
        }
        blockers.truncate(MAX_BLOCKERS);
        table.last_number += 1;
        let number = table.last_number;
        let wait = Wait {
            number,
            blockers,
            polled: is_polled.then_some(now),
        };
        table.by_owner.entry(owner.clone()).or_default().push(wait);
        Ok(RegisteredWait {
            waits: self.clone(),
            owner: owner.clone(),
            number,
        })
    }
}

impl RegisteredWait {
    /// Records whether locks of `blocker` conflict with the request.
    pub(super) fn set_blocked(&self, blocker: &Owner, is_blocked: bool) {
        let mut table = self.waits.0.lock();
        let own = table.by_owner.get_mut(&self.owner).into_iter().flatten();
        for wait in own.filter(|wait| wait.number == self.number) {
            if !is_blocked {
                wait.blockers.retain(|one| one != blocker);
            } else if wait.blockers.len() < MAX_BLOCKERS && !wait.blockers.contains(blocker) {
                wait.blockers.push(blocker.clone());
            }
        }
    }
}

impl Drop for RegisteredWait {
    fn drop(&mut self) {
        let waits = &mut self.waits.0.lock().by_owner;
        let Some(own) = waits.get_mut(&self.owner) else {
            return;
        };
        own.retain(|wait| wait.number != self.number);
        if own.is_empty() {
            waits.remove(&self.owner);
        }
    }
}

/// An owner that the search has reached, and the place of the one that waits for it.
struct Reached<'a> {
    owner: &'a Owner,
    from: Option<usize>,
}

/// Returns whether one of `blockers` waits for `owner`, perhaps through others.
fn is_deadlock(
    waits: &HashMap<Owner, Vec<Wait>>,
    owner: &Owner,
    blockers: &[Owner],
    now: Instant,
) -> bool {
    if waits.is_empty() {
        return false;
    }
    let first = |owner| Reached { owner, from: None };
    let mut reached: Vec<Reached<'_>> = blockers.iter().map(first).collect();
    let mut known: HashSet<&Owner> = blockers.iter().collect();
    let mut at = 0;
    while at < reached.len().min(MAX_SEARCHED) {
        let its = waits.get(reached[at].owner).into_iter().flatten();
        let current = its.filter(|wait| {
            let age = wait
                .polled
                .map(|polled| now.saturating_duration_since(polled));
            age.is_none_or(|age| age < POLL_INTERVAL)
        });
        for blocker in current.flat_map(|wait| &wait.blockers) {
            if blocker == owner {
                if is_of_processes(owner, &reached, at) {
                    return true;
                }
            } else if reached.len() < MAX_SEARCHED && known.insert(blocker) {
                reached.push(Reached {
                    owner: blocker,
                    from: Some(at),
                });
            }
        }
        at += 1;
    }
    false
}

/// Returns whether the owners of a cycle, from `owner` to the one at `last`, can be processes: no
/// two of a client have the same process id.
fn is_of_processes(owner: &Owner, reached: &[Reached<'_>], last: usize) -> bool {
    let mut processes = HashSet::from([(owner.client, owner.pid)]);
    let mut at = Some(last);
    while let Some(one) = at.and_then(|at| reached.get(at)) {
        // A client may send no process ids.
        if one.owner.pid != 0 && !processes.insert((one.owner.client, one.owner.pid)) {
            return false;
        }
        at = one.from;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(id: u8) -> Owner {
        Owner {
            client: 1,
            id: Arc::from([id]),
            pid: 0,
        }
    }

    /// A client that has stopped polling may hold what others wait for.
    #[test]
    fn a_client_that_stopped_polling_does_not_wait() {
        let waits = Arc::new(Waits::default());
        let polled = waits.register(&owner(1), vec![owner(2)], true);
        let _polled = polled.expect("nobody else waits");
        let waiting = &waits.0.lock().by_owner;
        let since = waiting[&owner(1)][0].polled.expect("it polls");
        let is_deadlock = |now| is_deadlock(waiting, &owner(2), &[owner(1)], now);
        assert!(is_deadlock(since + POLL_INTERVAL / 2));
        assert!(!is_deadlock(since + POLL_INTERVAL));
    }

    #[test]
    fn a_wait_that_ends_is_not_kept() {
        let waits = Arc::new(Waits::default());
        let register = || waits.register(&owner(1), vec![owner(2)], false).ok();
        let (first, second) = (register(), register());
        assert_eq!(waits.0.lock().by_owner[&owner(1)].len(), 2);
        drop(first);
        assert_eq!(waits.0.lock().by_owner[&owner(1)].len(), 1);
        drop(second);
        assert!(waits.0.lock().by_owner.is_empty());
    }

    #[test]
    fn a_request_is_recorded_with_a_bounded_number_of_owners() {
        let waits = Arc::new(Waits::default());
        let many = [2, 2].into_iter().chain(2..=255).map(owner).collect();
        let wait = waits.register(&owner(1), many, false).expect("no cycle");
        wait.set_blocked(&owner(9), false);
        wait.set_blocked(&owner(255), true);
        wait.set_blocked(&owner(254), true);
        let waiting = &waits.0.lock().by_owner;
        let blockers = &waiting[&owner(1)][0].blockers;
        assert_eq!(blockers.len(), MAX_BLOCKERS);
        assert!(blockers.contains(&owner(255)) && !blockers.contains(&owner(9)));
    }
}
