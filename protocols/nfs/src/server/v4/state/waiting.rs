//! Lock owners that wait, in the order in which they came (RFC 7530 section 9.4, RFC 8881 section 9.6): which of them, for
//! what, and for how long a place is kept for one that is slow to come.
//!
//! A client is answered at once and comes again: when it is told to (RFC 8881 section 20.11), or when it likes. Its
//! place is the lock table's to keep ([`vfs::Call::polled`]); here is when it is over. While others hold the lock, keeping it
//! costs nobody anything. Once it could be used it keeps waiting all who are behind it, and then it lasts no longer than a
//! client that is told takes to come, or than one that is not was to be expected to: those of Linux ask after a second, and
//! then each time after twice as long, up to half a minute.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vfs::lock::Lock;
use vfs::{Call, Charge};

use crate::v4::ClientId;

use super::State;
use super::client::{Client, ClientRef, Minor};
use super::gone::NodeKey;
use super::table::lock;

/// A client's lock owners that wait, by file and name.
pub(super) type Waiting<N> = HashMap<(NodeKey, Arc<[u8]>), Waits<N>>;

/// How a lock owner waits: in one place for each file.
pub(super) struct Waits<N> {
    pub(super) node: N,
    /// What the lock table keeps its place by, and wakes.
    pub(super) call: Arc<Call>,
    lock: Lock,
    /// Its client is called when the lock is free.
    is_told: bool,
    /// That is to be said, and has not been yet.
    pub(super) to_be_told: bool,
    /// Nobody tells when what is in its way goes: it may ask again each second.
    unseen: bool,
    /// When it asked last, and how long after the time before.
    asked: Duration,
    gap: Duration,
    /// Since when it could have the lock.
    free: Option<Duration>,
    _charge: Charge,
}

/// A lock owner that waits.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// Whose.
    pub client: ClientId,
    /// Of which file.
    pub key: NodeKey,
    /// Its name.
    pub owner: Arc<[u8]>,
}

/// Where a lock owner stands in the lock table. A call that has no place any more is to be cancelled and taken out there.
pub struct Place {
    /// By what.
    pub call: Arc<Call>,
    /// By what it stood there for another lock, which it wants no more.
    pub before: Option<Arc<Call>>,
}

/// The most lock owners of a client that have a place.
const MOST: usize = 1024;

/// The bytes that one takes besides its owner's name.
const WAITS: usize = 768;

/// How long whoever is told of a free lock may take to ask for it.
const TOLD: Duration = Duration::from_secs(3);

/// What comes again sooner was sent twice.
const AGAIN: Duration = Duration::from_millis(100);

/// How soon Linux asks again at first, and how late at last.
const POLLS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What a client is late by.
const LATE: Duration = Duration::from_secs(1);

impl<N> Waits<N> {
    fn asks(&mut self, now: Duration, is_told: bool) {
        let gap = now.saturating_sub(self.asked);
        if gap >= AGAIN {
            self.gap = gap;
        }
        (self.asked, self.is_told) = (now, is_told);
        (self.free, self.unseen) = (None, false);
    }

    fn is_over(&self, now: Duration, lease: Duration) -> bool {
        let comes = self.asked + (2 * self.gap).clamp(POLLS.0, POLLS.1) + LATE;
        match self.free {
            Some(since) => now > since + TOLD && (self.is_told || now > comes),
            None => !self.is_told && now > comes.max(self.asked + lease),
        }
    }
}

impl<F, N: Clone> State<F, N> {
    /// Whether `client` may be told of locks: then an OPEN says so (`OPEN4_RESULT_MAY_NOTIFY_LOCK`).
    pub fn may_tell(&self, client: &ClientRef<F, N>) -> bool {
        client.0.minor == Minor::V41 && client.0.backchannels.load(Ordering::Acquire) > 0
    }

    /// `waiter` of `client` asks for a lock of `node`, and waits if it has to: by the call that it waits by already, or
    /// by what `make` makes. Nothing if too many of the client's wait.
    pub fn wait_for_lock(
        &self,
        client: &ClientRef<F, N>,
        waiter: &Waiter,
        (node, wanted): (&N, &Lock),
        make: impl FnOnce() -> Call,
    ) -> Option<Place> {
        let (now, is_told) = (self.now(), self.may_tell(client));
        let mut holdings = lock(&client.0.holdings);
        let place = (waiter.key, waiter.owner.clone());
        let known = holdings.waiting.get_mut(&place);
        if let Some(waits) = known.filter(|waits| waits.lock == *wanted) {
            waits.asks(now, is_told);
            return Some(Place {
                call: waits.call.clone(),
                before: None,
            });
        }
        let is_known = holdings.waiting.contains_key(&place);
        if holdings.gone || !is_known && holdings.waiting.len() >= MOST {
            return None;
        }
        let charge = client.0.charge(WAITS + 2 * waiter.owner.len()).ok()?;
        let call = Arc::new(make());
        let waits = Waits {
            node: node.clone(),
            call: call.clone(),
            lock: wanted.clone(),
            is_told,
            to_be_told: false,
            unseen: false,
            asked: now,
            gap: Duration::ZERO,
            free: None,
            _charge: charge,
        };
        let before = holdings.waiting.insert(place, waits);
        let before = before.map(|waits| waits.call);
        Some(Place { call, before })
    }

    /// Nobody will tell when what is in the way of `waiter` goes.
    pub fn waits_unseen(&self, waiter: &Waiter) {
        let Some(client) = self.clients.get(&waiter.client) else {
            return;
        };
        let place = (waiter.key, waiter.owner.clone());
        if let Some(waits) = lock(&client.holdings).waiting.get_mut(&place) {
            (waits.unseen, waits.free) = (true, Some(waits.asked));
        }
    }

    /// `waiter` waits no longer: by what it stood in the lock table, if it did wait.
    pub fn waits_no_longer(&self, waiter: &Waiter) -> Option<Arc<Call>> {
        let client = self.clients.get(&waiter.client)?;
        let mut holdings = lock(&client.holdings);
        if holdings.waiting.is_empty() {
            return None;
        }
        let place = (waiter.key, waiter.owner.clone());
        Some(holdings.waiting.remove(&place)?.call)
    }

    /// The lock table has woken `waiter`. Whether its client is to be called for that.
    pub fn woken(&self, waiter: &Waiter) -> bool {
        let now = self.now();
        let Some(client) = self.clients.get(&waiter.client) else {
            return false;
        };
        let holdings = &mut *lock(&client.holdings);
        let place = (waiter.key, waiter.owner.clone());
        let Some(waits) = holdings.waiting.get_mut(&place) else {
            return false;
        };
        waits.free = Some(now);
        if !waits.is_told || waits.to_be_told || holdings.to_tell.len() >= MOST {
            return false;
        }
        waits.to_be_told = true;
        holdings.to_tell.push_back(place);
        true
    }

    /// Has those told that wait for what nobody sees go. Whether there is anybody to tell.
    pub(super) fn tell_unseen(&self, client: &Client<F, N>) -> bool {
        let mut holdings = lock(&client.holdings);
        let room = MOST.saturating_sub(holdings.to_tell.len());
        let all = holdings.waiting.iter_mut();
        let unseen = all.filter(|(_, waits)| waits.unseen && waits.is_told && !waits.to_be_told);
        let unseen: Vec<_> = unseen
            .take(room)
            .map(|(place, waits)| {
                waits.to_be_told = true;
                place.clone()
            })
            .collect();
        holdings.to_tell.extend(unseen);
        !holdings.to_tell.is_empty()
    }

    /// Ends what places nobody has come for in time: by what they stood in the lock table. To be called about once a
    /// second.
    pub fn places_over(&self) -> Vec<(NodeKey, Arc<Call>)> {
        let now = self.now();
        let mut over = Vec::new();
        for client in self.clients.all() {
            let mut holdings = lock(&client.holdings);
            if holdings.waiting.is_empty() {
                continue;
            }
            let those =
                |_: &(NodeKey, Arc<[u8]>), waits: &mut Waits<N>| waits.is_over(now, self.lease);
            let those = holdings.waiting.extract_if(those);
            over.extend(those.map(|((key, _), waits)| (key, waits.call)));
        }
        over
    }
}
