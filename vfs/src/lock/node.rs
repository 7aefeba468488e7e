//! The locks of one node and the requests that wait for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use super::waits::{RegisteredWait, Waits};
use super::{HostLock, Lock, LockFamily, LockKind, LockTable, Owner, Wait};
use crate::{Account, Call, Charge, Cx, Errno, Node, Quota, Result};

#[derive(Default)]
pub(super) struct NodeLocks {
    pub(super) held: Vec<Lock>,
    /// Sorted by `position`.
    pub(super) waiting: Vec<Waiting>,
    /// The charge for the ranges of each client.
    charges: HashMap<u64, Charge>,
}

/// The further parameters of [`LockTable::lock`].
pub(super) struct LockParameters<'a> {
    pub(super) wait: Wait,
    /// The last queue position that was assigned.
    pub(super) last_position: &'a AtomicU64,
    /// The quota of ranges.
    pub(super) quota: &'a Arc<Quota>,
    /// The waiting owners of the table.
    pub(super) waits: &'a Arc<Waits>,
}

/// A waiting request.
pub(super) struct Waiting {
    position: u64,
    pub(super) lock: Lock,
    pub(super) waker: Waker,
    /// Whether it stays in the queue when woken, until it is retried or cancelled.
    keeps_position: bool,
    /// Whether it stays in the queue and was woken.
    woken: bool,
    /// Its place among the waiting owners, if it is for a POSIX lock.
    registered: Option<RegisteredWait>,
}

fn conflicting_with(held: &[Lock], waiting: &Lock) -> bool {
    held.iter().any(|held| held.conflicts(waiting))
}

impl NodeLocks {
    /// Implements [`LockTable::lock`] for this node. Adds the requests to wake to `woken`.
    pub(super) fn lock(
        &mut self,
        cx: &Cx<'_>,
        node: &dyn Node,
        lock: Lock,
        parameters: LockParameters<'_>,
        woken: &mut Vec<Waker>,
    ) -> Result<()> {
        let result = self.lock_or_park(cx, node, lock, parameters, woken);
        match result {
            Err(Errno::PARKED | Errno::WOULD_BLOCK) => {}
            // The new lock conflicts with every lock that the queue position conflicted with.
            Ok(()) => drop(self.take_waiting(cx.call)),
            Err(_) => self.cancel_wait(cx.call, woken),
        }
        result
    }

    fn lock_or_park(
        &mut self,
        cx: &Cx<'_>,
        node: &dyn Node,
        lock: Lock,
        parameters: LockParameters<'_>,
        woken: &mut Vec<Waker>,
    ) -> Result<()> {
        let wait = parameters.wait;
        cx.call.check()?;
        let is_barred = conflicting_with(&self.held, &lock)
            || wait != Wait::No
                && self
                    .next_waiter(self.before(cx.call.queue_position()), &lock)
                    .is_some();
        let retry = if is_barred {
            None
        } else {
            // The new range may split an existing one in two.
            if self.held.len() + 2 > LockTable::MAX_RANGES_PER_NODE {
                return Err(Errno::ENOLCK);
            }
            let charge = self.reserve(cx.call.account(), parameters.quota)?;
            match self.update_host(cx, node, &lock, Some(lock.kind)) {
                Ok(()) => {
                    self.apply(&lock, Some(lock.kind), woken);
                    self.update_charge(lock.owner.client, Some(charge));
                    return Ok(());
                }
                Err(Errno::EAGAIN) => Some(LockTable::FOREIGN_RETRY),
                Err(errno) => return Err(errno),
            }
        };
        if wait == Wait::Yes {
            cx.check_may_block()?;
        }
        if lock.family == LockFamily::Flock
            && self.owned(&lock).iter().any(|own| own.kind != lock.kind)
        {
            self.unlock(cx, node, &lock, woken)?;
        }
        if wait != Wait::Yes {
            return Err(Errno::EAGAIN);
        }
        let waker = cx.call.waker().ok_or(Errno::EAGAIN)?;
        cx.call.check_lock_wait()?;
        self.park(cx.call, lock, waker.clone(), &parameters)?;
        if let Some(retry) = retry {
            cx.call.wake_within(retry);
        }
        Err(Errno::PARKED)
    }

    /// Queues `call` for `lock`, in its previous position if it has one, or else at the end.
    ///
    /// Returns `EDEADLK`, and leaves the queue as it is, if the lock would wait for its own owner.
    fn park(
        &mut self,
        call: &Call,
        lock: Lock,
        waker: Waker,
        parameters: &LockParameters<'_>,
    ) -> Result<()> {
        let keeps_position = call.is_retried_by_client();
        let registered = match lock.family {
            LockFamily::Posix => {
                let in_the_way = self.held.iter().filter(|held| held.conflicts(&lock));
                let blockers = in_the_way.map(|held| held.owner.clone()).collect();
                let waits = parameters.waits;
                Some(waits.register(&lock.owner, blockers, keeps_position)?)
            }
            LockFamily::Flock => None,
        };
        self.take_waiting(call);
        let position = call.queue_position().unwrap_or_else(|| {
            let position = parameters.last_position.fetch_add(1, Ordering::Relaxed) + 1;
            call.set_queue_position(position);
            position
        });
        let waiting = Waiting {
            position,
            lock,
            waker,
            keeps_position,
            woken: false,
            registered,
        };
        let at = self.before(Some(position)).len();
        self.waiting.insert(at, waiting);
        Ok(())
    }

    /// Returns the requests in positions before `position`; all of them if `position` is `None`.
    fn before(&self, position: Option<u64>) -> &[Waiting] {
        let at = position.map_or(self.waiting.len(), |position| {
            self.waiting.partition_point(|one| one.position < position)
        });
        &self.waiting[..at]
    }

    /// Returns the first request in `before` that conflicts with `lock` and could be granted. Only
    /// requests that stay in the queue count: any other that could be granted has been woken and
    /// left the queue.
    pub(super) fn next_waiter<'a>(
        &self,
        before: &'a [Waiting],
        lock: &Lock,
    ) -> Option<&'a Waiting> {
        before.iter().find(|one| {
            one.keeps_position
                && one.lock.conflicts(lock)
                && !conflicting_with(&self.held, &one.lock)
        })
    }

    fn take_waiting(&mut self, call: &Call) -> Option<Waiting> {
        let position = call.queue_position()?;
        let at = self
            .waiting
            .binary_search_by_key(&position, |one| one.position);
        Some(self.waiting.remove(at.ok()?))
    }

    /// Implements [`LockTable::cancel_wait`] for this node.
    pub(super) fn cancel_wait(&mut self, call: &Call, woken: &mut Vec<Waker>) {
        if let Some(own) = self.take_waiting(call) {
            self.wake(&[own.lock], woken);
        }
    }

    /// Implements [`LockTable::unlock`] for this node. Adds the requests to wake to `woken`.
    pub(super) fn unlock(
        &mut self,
        cx: &Cx<'_>,
        node: &dyn Node,
        range: &Lock,
        woken: &mut Vec<Waker>,
    ) -> Result<()> {
        let splits = self.held.iter().any(|held| {
            held.family == range.family
                && held.owner == range.owner
                && held.start < range.start
                && held.end > range.end
        });
        if splits && self.held.len() + 1 > LockTable::MAX_RANGES_PER_NODE {
            return Err(Errno::ENOLCK);
        }
        self.update_host(cx, node, range, None)?;
        self.apply(range, None, woken);
        self.update_charge(range.owner.client, None);
        Ok(())
    }

    /// Reserves two more ranges on `account`. Returns `ENOLCK` if its share of this node or of the
    /// table is exhausted. An account without a client is barge itself, which has no share.
    fn reserve(&self, account: &Account, quota: &Arc<Quota>) -> Result<Charge> {
        if account.client().is_some() {
            let its = self.charges.values().filter(|one| one.account() == account);
            let own: usize = its.map(Charge::amount).sum();
            let others = self.held.len().saturating_sub(own);
            if own + 2
                > LockTable::MAX_RANGES_PER_NODE
                    .saturating_sub(others)
                    .div_ceil(2)
            {
                return Err(Errno::ENOLCK);
            }
        }
        quota.take(account, 2).map_err(|_| Errno::ENOLCK)
    }

    /// Adjusts the charge of a client to the number of ranges that it holds. A client without a
    /// charge gets `new`.
    pub(super) fn update_charge(&mut self, client: u64, new: Option<Charge>) {
        let own = self.held.iter().filter(|held| held.owner.client == client);
        let count = own.count();
        if count == 0 {
            self.charges.remove(&client);
            return;
        }
        if let Some(new) = new {
            self.charges.entry(client).or_insert(new);
        }
        if let Some(charge) = self.charges.get_mut(&client) {
            charge.set(count);
        }
    }

    /// Implements [`LockTable::mirror`] for this node. Adds the requests to wake to `woken`.
    pub(super) fn mirror(
        &mut self,
        cx: &Cx<'_>,
        node: &dyn Node,
        range: &Lock,
        kind: Option<LockKind>,
        woken: &mut Vec<Waker>,
    ) -> Result<()> {
        if kind.is_some() && self.held.iter().any(|held| held.conflicts(range)) {
            return Err(Errno::EAGAIN);
        }
        // The other table has a bound, too, so an unlock always fits here.
        if kind.is_some() && self.held.len() + 2 > LockTable::MAX_RANGES_PER_NODE {
            return Err(Errno::ENOLCK);
        }
        let result = self.update_host(cx, node, range, kind);
        match result {
            Err(errno) if kind.is_some() || errno.is_signal() => return Err(errno),
            _ => self.apply(range, kind, woken),
        }
        result
    }

    /// Sets the lock of `range`'s owner to `kind`. Adds the requests that this unblocks to `woken`.
    fn apply(&mut self, range: &Lock, kind: Option<LockKind>, woken: &mut Vec<Waker>) {
        let mut weakened = self.owned(range);
        weakened.retain(|held| kind.is_none_or(|kind| held.kind > kind));
        self.replace(range, kind);
        let mut removed = weakened;
        if let Some(kind) = kind {
            // Requests queued after a position that can no longer be granted may proceed.
            let taken = Lock {
                kind,
                ..range.clone()
            };
            let positions = self.waiting.iter().filter(|one| one.keeps_position);
            let barred = positions.filter(|one| one.lock.conflicts(&taken));
            removed.extend(barred.map(|one| one.lock.clone()));
        }
        self.wake(&removed, woken);
    }

    /// Returns the locks of `range`'s owner within the range.
    fn owned(&self, range: &Lock) -> Vec<Lock> {
        let own = self.held.iter().filter(|held| {
            held.family == range.family
                && held.owner == range.owner
                && held.overlaps(range.start, range.end)
        });
        own.map(|held| Lock {
            start: held.start.max(range.start),
            end: held.end.min(range.end),
            ..held.clone()
        })
        .collect()
    }

    /// Moves to `woken` the requests that conflicted with one of `removed`, as a lock or a queue
    /// position, and now conflict with nothing: each is retried, and waits again if necessary.
    pub(super) fn wake(&mut self, removed: &[Lock], woken: &mut Vec<Waker>) {
        let mut at = 0;
        while at < self.waiting.len() {
            let one = &self.waiting[at];
            let is_free = conflicting_with(removed, &one.lock)
                && !conflicting_with(&self.held, &one.lock)
                && self.next_waiter(&self.waiting[..at], &one.lock).is_none();
            match is_free {
                true if one.keeps_position => {
                    let one = &mut self.waiting[at];
                    if !std::mem::replace(&mut one.woken, true) {
                        woken.push(one.waker.clone());
                    }
                    at += 1;
                }
                true => woken.push(self.waiting.remove(at).waker),
                false => at += 1,
            }
        }
    }

    /// Reports to the host the state of the range if `change`'s owner held it as `kind`, for each
    /// subrange where the combined state of barge's clients would change. Reverts all of it if one
    /// part fails.
    pub(super) fn update_host(
        &self,
        cx: &Cx<'_>,
        node: &dyn Node,
        change: &Lock,
        kind: Option<LockKind>,
    ) -> Result<()> {
        let mut behind: Vec<&Lock> = self
            .held
            .iter()
            .filter(|held| held.family == change.family && held.overlaps(change.start, change.end))
            .collect();
        behind.sort_unstable_by_key(|held| core::cmp::Reverse(held.start));
        let mut here: Vec<&Lock> = Vec::new();
        let mut applied = Vec::new();
        for (start, end) in self.subranges(change) {
            here.retain(|held| held.end >= start);
            while let Some(held) = behind.pop_if(|held| held.start <= start) {
                here.push(held);
            }
            let before = combined_state(&here, None);
            let others = combined_state(&here, Some(&change.owner));
            let after = others.max(kind.map_or(HostLock::Unlocked, HostLock::from));
            if before == after {
                continue;
            }
            let range = change.family.range(start, end);
            if let Err(errno) = node.host_lock(cx, range, after) {
                for (range, before) in applied {
                    let _ = node.host_lock(cx, range, before);
                }
                return Err(errno);
            }
            applied.push((range, before));
        }
        Ok(())
    }

    /// Splits `change`'s range at the boundaries of held locks.
    fn subranges(&self, change: &Lock) -> Vec<(u64, u64)> {
        let mut starts = vec![change.start];
        for held in self.held.iter().filter(|held| held.family == change.family) {
            starts.extend(
                [Some(held.start), held.end.checked_add(1)]
                    .into_iter()
                    .flatten(),
            );
        }
        starts.retain(|at| (change.start..=change.end).contains(at));
        starts.sort_unstable();
        starts.dedup();
        let ends = starts
            .iter()
            .skip(1)
            .map(|next| next - 1)
            .chain([change.end]);
        starts.iter().copied().zip(ends).collect()
    }

    /// Sets the lock of `range`'s owner in the range to `kind` alone, and merges adjacent ranges.
    pub(super) fn replace(&mut self, range: &Lock, kind: Option<LockKind>) {
        let mut new = kind.map(|kind| Lock {
            kind,
            ..range.clone()
        });
        let mut pieces = Vec::new();
        self.held.retain(|held| {
            if held.owner != range.owner || held.family != range.family {
                return true;
            }
            let touches = held.start <= range.end.saturating_add(1)
                && range.start <= held.end.saturating_add(1);
            match &mut new {
                Some(new) if touches && held.kind == new.kind => {
                    new.start = new.start.min(held.start);
                    new.end = new.end.max(held.end);
                    return false;
                }
                _ if !held.overlaps(range.start, range.end) => return true,
                _ => {}
            }
            if held.start < range.start {
                pieces.push(Lock {
                    end: range.start - 1,
                    ..held.clone()
                });
            }
            if held.end > range.end {
                pieces.push(Lock {
                    start: range.end + 1,
                    ..held.clone()
                });
            }
            false
        });
        self.held.extend(pieces);
        self.held.extend(new);
        self.update_waits(range);
    }

    /// Records which waiting requests the locks of `changed`'s owner are in the way of now.
    fn update_waits(&self, changed: &Lock) {
        for one in &self.waiting {
            let Some(registered) = &one.registered else {
                continue;
            };
            if one.lock.owner == changed.owner || !one.lock.overlaps(changed.start, changed.end) {
                continue;
            }
            let mut own = self.held.iter().filter(|held| held.owner == changed.owner);
            let is_blocked = own.any(|held| held.conflicts(&one.lock));
            registered.set_blocked(&changed.owner, is_blocked);
        }
    }
}

/// Returns the combined state of the locks in `held`, without those of `except`.
fn combined_state(held: &[&Lock], except: Option<&Owner>) -> HostLock {
    held.iter()
        .filter(|held| except != Some(&held.owner))
        .map(|held| HostLock::from(held.kind))
        .max()
        .unwrap_or(HostLock::Unlocked)
}
