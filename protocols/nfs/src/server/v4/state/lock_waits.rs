//! The queue of waiting lock owners, in the order of their requests (RFC 7530 section 9.4, RFC 8881
//! section 9.6): their locks, and the time for which a slow one keeps its place.
//!
//! The server answers a blocking LOCK at once, and the client retries: after a CB_NOTIFY_LOCK (RFC
//! 8881 section 20.11), or by polling. The lock table keeps its place
//! ([`vfs::Call::retried_by_client`]); this module decides when the place ends. As long as others
//! hold the lock, a place costs nothing. Once the lock is available, a place delays all later
//! waiters: then it lasts only for as long as a notified client needs to retry, or until the
//! expected time of a polling client's next retry. Linux polls after a second, and then doubles the
//! interval each time, up to half a minute.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vfs::lock::Lock;
use vfs::{Call, Charge};

use crate::v4::ClientId;

use super::client::{Client, ClientRef, Minor};
use super::released::NodeKey;
use super::{State, Tree};

/// The waiting lock owners of a client, by file and name.
pub(super) type Waiting<N> = HashMap<(NodeKey, Arc<[u8]>), LockWait<N>>;

/// A lock owner's wait for a lock of one file.
pub(super) struct LockWait<N> {
    pub(super) node: N,
    /// The call that holds the place in the lock table, which wakes it.
    pub(super) call: Arc<Call>,
    lock: Lock,
    /// Whether the client can be notified when the lock is available.
    is_notified: bool,
    /// Whether a notification is due and not yet sent.
    pub(super) notification_due: bool,
    /// Whether the release of the conflicting lock is not observable: then the owner may retry
    /// every second.
    release_unobservable: bool,
    /// The time of the last request, and the interval between the last two.
    requested: Duration,
    interval: Duration,
    /// The time from which the lock could have been granted.
    available_since: Option<Duration>,
    _charge: Charge,
}

/// The identity of a waiting lock owner.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// The client.
    pub client: ClientId,
    /// The file.
    pub key: NodeKey,
    /// The lock owner's name.
    pub owner: Arc<[u8]>,
}

/// The place of a lock owner in the lock table's queue. After a call has lost its place, the caller
/// must cancel it and remove it from the lock table.
pub struct QueuePlace {
    /// The call that holds the place.
    pub call: Arc<Call>,
    /// The call of an earlier request for a different lock, which the owner no longer waits for.
    pub before: Option<Arc<Call>>,
}

/// The maximum number of waiting lock owners of a client.
const MAX_WAITS: usize = 1024;

/// The bytes of a waiting lock owner, without its name.
const WAIT_BYTES: usize = 768;

/// The time within which a notified client must retry.
const NOTIFIED_RETRY: Duration = Duration::from_secs(3);

/// The shortest interval between two requests: a sooner one is a retransmission.
const RETRANSMISSION: Duration = Duration::from_millis(100);

/// The shortest and the longest polling interval of Linux.
const POLL_INTERVALS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The tolerance for late clients.
const LATENESS: Duration = Duration::from_secs(1);

impl<N> LockWait<N> {
    fn retried(&mut self, now: Duration, is_notified: bool) {
        let gap = now.saturating_sub(self.requested);
        if gap >= RETRANSMISSION {
            self.interval = gap;
        }
        (self.requested, self.is_notified) = (now, is_notified);
        (self.available_since, self.release_unobservable) = (None, false);
    }

    fn is_expired(&self, now: Duration, lease: Duration) -> bool {
        let comes = self.requested
            + (2 * self.interval).clamp(POLL_INTERVALS.0, POLL_INTERVALS.1)
            + LATENESS;
        match self.available_since {
            Some(since) => now > since + NOTIFIED_RETRY && (self.is_notified || now > comes),
            None => !self.is_notified && now > comes.max(self.requested + lease),
        }
    }
}

impl<T: Tree> State<T> {
    /// Returns whether `client` can be notified of available locks, which an OPEN then announces
    /// (`OPEN4_RESULT_MAY_NOTIFY_LOCK`).
    pub fn may_notify_lock(&self, client: &ClientRef<T>) -> bool {
        client.0.minor == Minor::V41 && client.0.backchannels.load(Ordering::Acquire) > 0
    }

    /// Records that `waiter` of `client` requests a lock of `node`, for which it may have to wait.
    /// Returns its place, with the call of its earlier requests for the same lock, or a new one
    /// from `make`. Returns `None` if too many of the client's owners wait.
    pub fn wait_for_lock(
        &self,
        client: &ClientRef<T>,
        waiter: &Waiter,
        (node, wanted): (&T::Node, &Lock),
        make: impl FnOnce() -> Call,
    ) -> Option<QueuePlace> {
        let (now, is_notified) = (self.now(), self.may_notify_lock(client));
        let mut client_state = client.0.client_state.lock();
        let key = (waiter.key, waiter.owner.clone());
        let known = client_state.waiting.get_mut(&key);
        if let Some(wait) = known.filter(|wait| wait.lock == *wanted) {
            wait.retried(now, is_notified);
            return Some(QueuePlace {
                call: wait.call.clone(),
                before: None,
            });
        }
        let is_known = client_state.waiting.contains_key(&key);
        if client_state.destroyed || !is_known && client_state.waiting.len() >= MAX_WAITS {
            return None;
        }
        let charge = client.0.charge(WAIT_BYTES + 2 * waiter.owner.len()).ok()?;
        let call = Arc::new(make());
        let wait = LockWait {
            node: node.clone(),
            call: call.clone(),
            lock: wanted.clone(),
            is_notified,
            notification_due: false,
            release_unobservable: false,
            requested: now,
            interval: Duration::ZERO,
            available_since: None,
            _charge: charge,
        };
        let before = client_state.waiting.insert(key, wait);
        let before = before.map(|wait| wait.call);
        Some(QueuePlace { call, before })
    }

    /// Records that the release of the lock that `waiter` waits for is not observable.
    pub fn record_unseen_release(&self, waiter: &Waiter) {
        let Some(client) = self.clients.get(&waiter.client) else {
            return;
        };
        let key = (waiter.key, waiter.owner.clone());
        if let Some(wait) = client.client_state.lock().waiting.get_mut(&key) {
            (wait.release_unobservable, wait.available_since) = (true, Some(wait.requested));
        }
    }

    /// Removes `waiter` from the queue. Returns the call of its place, if it had one.
    pub fn end_wait(&self, waiter: &Waiter) -> Option<Arc<Call>> {
        let client = self.clients.get(&waiter.client)?;
        let mut client_state = client.client_state.lock();
        if client_state.waiting.is_empty() {
            return None;
        }
        let key = (waiter.key, waiter.owner.clone());
        Some(client_state.waiting.remove(&key)?.call)
    }

    /// Records that the lock table has woken `waiter`. Returns whether to call its client.
    pub fn woken(&self, waiter: &Waiter) -> bool {
        let now = self.now();
        let Some(client) = self.clients.get(&waiter.client) else {
            return false;
        };
        let client_state = &mut *client.client_state.lock();
        let key = (waiter.key, waiter.owner.clone());
        let Some(wait) = client_state.waiting.get_mut(&key) else {
            return false;
        };
        wait.available_since = Some(now);
        if !wait.is_notified || wait.notification_due || client_state.to_notify.len() >= MAX_WAITS {
            return false;
        }
        wait.notification_due = true;
        client_state.to_notify.push_back(key);
        true
    }

    /// Schedules notifications for the waiters of locks whose release is not observable. Returns
    /// whether any notifications are due.
    pub(super) fn notify_unseen(&self, client: &Client<T>) -> bool {
        let mut client_state = client.client_state.lock();
        let limit = MAX_WAITS.saturating_sub(client_state.to_notify.len());
        let all = client_state.waiting.iter_mut();
        let unseen = all.filter(|(_, wait)| {
            wait.release_unobservable && wait.is_notified && !wait.notification_due
        });
        let unseen: Vec<_> = unseen
            .take(limit)
            .map(|(key, wait)| {
                wait.notification_due = true;
                key.clone()
            })
            .collect();
        client_state.to_notify.extend(unseen);
        !client_state.to_notify.is_empty()
    }

    /// Removes the waiters that have not retried in time, and returns the calls of their places.
    /// Must be called about once a second.
    pub fn take_expired_waits(&self) -> Vec<(NodeKey, Arc<Call>)> {
        let now = self.now();
        let mut over = Vec::new();
        for client in self.clients.all() {
            let mut client_state = client.client_state.lock();
            if client_state.waiting.is_empty() {
                continue;
            }
            let those = |_: &(NodeKey, Arc<[u8]>), wait: &mut LockWait<T::Node>| {
                wait.is_expired(now, self.lease)
            };
            let those = client_state.waiting.extract_if(those);
            over.extend(those.map(|((key, _), wait)| (key, wait.call)));
        }
        over
    }
}
