//! Duplicate request cache: the replies to non-idempotent calls, for v3 and v4.0, which have no
//! sessions (RFC 1813 section 4.6, RFC 7530 section 3.1.1).
//!
//! A client whose connection broke retransmits the call byte for byte over another. A call is
//! therefore identified by the client's address and all its bytes, including XID, credential and
//! arguments. The bytes of an RPCSEC_GSS call differ in each retransmission; there the unwrapped
//! arguments identify it.
//!
//! The cache is bounded in bytes, in total and for each peer, and its contents count towards the
//! memory budget. If there is no room, the oldest replies are evicted: the peer's own if it has
//! reached its share, otherwise the oldest of all. Replies expire after
//! [`DuplicateRequestCache::LIFETIME`]. A reply that is longer than
//! [`DuplicateRequestCache::MAX_REPLY`], or for which no room can be made, is not cached, as in
//! Linux's server.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use vfs::{Account, Charge, Patience, PeerKey, Quota};
use wire::ServeOutcome;

use super::{CallError, RequestContext, Server};

/// The duplicate request cache.
pub(super) struct DuplicateRequestCache {
    hasher: RandomState,
    calls: Mutex<Calls>,
    /// The bytes of the replies.
    quota: Arc<Quota>,
}

/// The key of a call: its XID and a keyed hash of the rest.
type Key = (u32, u64);

#[derive(Default)]
struct Calls {
    /// `None` while the call is running.
    replies: HashMap<Key, Option<Arc<[u8]>>>,
    /// The replies, the oldest first.
    order: BTreeMap<u64, CachedReply>,
    next: u64,
    /// The numbers of each peer's replies in `order`, the oldest first.
    peers: HashMap<Option<PeerKey>, VecDeque<u64>>,
}

/// A cached reply.
struct CachedReply {
    key: Key,
    charge: Charge,
    since: Duration,
}

impl Default for DuplicateRequestCache {
    fn default() -> DuplicateRequestCache {
        DuplicateRequestCache {
            hasher: RandomState::new(),
            calls: Mutex::default(),
            quota: Quota::new(
                DuplicateRequestCache::MAX_BYTES,
                DuplicateRequestCache::MAX_BYTES_OF_A_PEER,
                1,
            ),
        }
    }
}

impl DuplicateRequestCache {
    /// The maximum length in bytes of a cached reply: that of CREATE, RENAME and the like, with
    /// attributes and an ACL.
    pub(super) const MAX_REPLY: usize = 4 << 10;

    /// The maximum number of bytes of all replies: some 16,000 of the usual length.
    const MAX_BYTES: usize = 8 << 20;

    /// The maximum number of bytes of the replies to one peer: enough for all calls that a client
    /// with many connections has in flight.
    const MAX_BYTES_OF_A_PEER: usize = 1 << 20;

    /// The overhead of a cached reply, in bytes.
    const OVERHEAD: usize = 256;

    /// The lifetime of a reply: Linux's clients retransmit after a minute, and Linux's server keeps
    /// replies this long.
    const LIFETIME: Duration = Duration::from_secs(120);

    /// Returns the number of bytes that the replies take.
    pub(super) fn bytes(&self) -> usize {
        self.quota.in_use()
    }

    /// Drops the replies that are older than [`DuplicateRequestCache::LIFETIME`].
    pub(super) fn expire(&self, now: Duration) {
        let mut calls = self.calls();
        while let Some((&number, oldest)) = calls.order.first_key_value()
            && now.saturating_sub(oldest.since) >= DuplicateRequestCache::LIFETIME
        {
            calls.drop_reply(number);
        }
    }

    /// Ends the call `key`, and caches its reply if there is room or room can be made.
    fn end(&self, key: Key, peer: &Account, reply: Option<Arc<[u8]>>, since: Duration) {
        let mut calls = self.calls();
        let reply = reply.filter(|reply| reply.len() <= DuplicateRequestCache::MAX_REPLY);
        let Some(reply) = reply else {
            calls.replies.remove(&key);
            return;
        };
        let charge = loop {
            let full = match self
                .quota
                .take(peer, reply.len() + DuplicateRequestCache::OVERHEAD)
            {
                Ok(charge) => break charge,
                Err(full) => full,
            };
            let Some(oldest) = calls.oldest(full.is_per_client().then_some(peer)) else {
                calls.replies.remove(&key);
                return;
            };
            calls.drop_reply(oldest);
        };
        calls.insert(CachedReply { key, charge, since }, reply);
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock()
    }
}

impl Calls {
    /// Returns the number of the oldest reply to `peer`, or of all.
    fn oldest(&self, peer: Option<&Account>) -> Option<u64> {
        match peer {
            Some(peer) => self.peers.get(&peer.client())?.front().copied(),
            None => self.order.first_key_value().map(|(&number, _)| number),
        }
    }

    fn insert(&mut self, cached: CachedReply, reply: Arc<[u8]>) {
        let number = self.next;
        self.next += 1;
        self.replies.insert(cached.key, Some(reply));
        let peer = cached.charge.account().client();
        self.peers.entry(peer).or_default().push_back(number);
        self.order.insert(number, cached);
    }

    /// Drops the reply with this number, which must be its peer's oldest.
    fn drop_reply(&mut self, number: u64) {
        let Some(dropped) = self.order.remove(&number) else {
            return;
        };
        self.replies.remove(&dropped.key);
        let peer = dropped.charge.account().client();
        if let Some(numbers) = self.peers.get_mut(&peer) {
            numbers.pop_front();
            if numbers.is_empty() {
                self.peers.remove(&peer);
            }
        }
    }
}

/// A call that is running. Dropping it without a reply removes its entry, as if the call had not
/// come.
struct InProgress<'a> {
    server: &'a Server,
    key: Key,
    peer: &'a Account,
    reply: Option<Arc<[u8]>>,
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        let now = (self.server.options.clock)();
        let cache = &self.server.duplicate_requests;
        cache.end(self.key, self.peer, self.reply.take(), now);
    }
}

impl RequestContext<'_> {
    /// Serves the call with `answer`, which returns a copy of the results if it can be cached; or
    /// replays that copy if the call is a retransmission.
    pub(super) fn serve_once(
        &mut self,
        answer: impl FnOnce(&mut Self) -> Result<Option<Arc<[u8]>>, CallError>,
    ) -> Result<(), CallError> {
        /// The interval of polling while the first transmission of the call is still running.
        const POLL_INTERVAL: Duration = Duration::from_millis(20);
        let server = self.server;
        let cache = &server.duplicate_requests;
        let identity = (self.call.addr(), self.identity);
        let key = (self.xid, cache.hasher.hash_one(identity));
        let mut calls = cache.calls();
        match calls.replies.get(&key) {
            Some(Some(reply)) => {
                self.reply.out.bytes(reply);
                return Ok(());
            }
            Some(None) if self.patience < Patience::Full => {
                return Err(CallError::Retry(ServeOutcome::WouldBlock));
            }
            Some(None) => {
                self.call.wake_within(POLL_INTERVAL);
                return Err(CallError::Retry(ServeOutcome::Parked));
            }
            None => calls.replies.insert(key, None),
        };
        drop(calls);
        let mut in_progress = InProgress {
            server,
            key,
            peer: self.call.account(),
            reply: None,
        };
        in_progress.reply = answer(self)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use vfs::memory::{MemoryBudget, Purpose};

    use super::*;

    fn peer(number: u32) -> PeerKey {
        PeerKey::User(number)
    }

    impl DuplicateRequestCache {
        /// Keeps the reply of `len` bytes to a call.
        fn answered(&self, key: Key, peer: &Account, len: usize, since: Duration) {
            self.calls().replies.insert(key, None);
            self.end(key, peer, Some(vec![0; len].into()), since);
        }

        fn knows(&self, key: Key) -> bool {
            self.calls().replies.contains_key(&key)
        }
    }

    #[test]
    fn replies_are_bounded_in_bytes_in_total_and_for_each_peer() {
        let (cache, zero) = (DuplicateRequestCache::default(), Duration::ZERO);
        let peer = |number| Account::of(peer(number));
        cache.answered((0, 0), &peer(1), 100, zero);
        for xid in 0..10_000 {
            cache.answered((xid, 2), &peer(2), DuplicateRequestCache::MAX_REPLY, zero);
            assert!(cache.quota.used_by(&peer(2)) <= DuplicateRequestCache::MAX_BYTES_OF_A_PEER);
        }
        assert!(cache.knows((0, 0)), "another peer's");
        assert!(cache.knows((9_999, 2)), "the newest");
        assert!(!cache.knows((0, 2)), "the oldest");
        for number in 3..100 {
            for xid in 0..300 {
                cache.answered(
                    (xid, number.into()),
                    &peer(number),
                    DuplicateRequestCache::MAX_REPLY,
                    zero,
                );
            }
        }
        assert!(cache.bytes() <= DuplicateRequestCache::MAX_BYTES);
        let calls = cache.calls();
        let counted: usize = calls
            .order
            .values()
            .map(|cached| cached.charge.amount())
            .sum();
        assert_eq!(counted, cache.bytes());
        assert_eq!(calls.order.len(), calls.replies.len());
    }

    #[test]
    fn replies_are_part_of_the_memory_budget_and_the_oldest_make_room() {
        const SMALL: usize = 128 << 10;
        let budget = MemoryBudget::new(SMALL);
        let cache = DuplicateRequestCache::default();
        let account = Account::in_budget(&budget, peer(1));
        for xid in 0..1000 {
            cache.answered(
                (xid, 0),
                &account,
                DuplicateRequestCache::MAX_REPLY,
                Duration::ZERO,
            );
            assert!(budget.state_bytes() <= SMALL / 4);
        }
        assert_eq!(budget.state_bytes(), cache.bytes());
        assert!(cache.knows((999, 0)) && !cache.knows((0, 0)));
        // The oldest replies of this peer cannot make room, because it has none: its reply is not
        // cached.
        let mut others = budget.reservation(peer(2), Purpose::State);
        others.set(SMALL);
        let stranger = Account::in_budget(&budget, peer(3));
        cache.answered((0, 3), &stranger, 100, Duration::ZERO);
        assert!(!cache.knows((0, 3)));
        cache.expire(DuplicateRequestCache::LIFETIME);
        assert_eq!((cache.bytes(), budget.state_bytes()), (0, SMALL));
    }

    #[test]
    fn replies_expire() {
        let cache = DuplicateRequestCache::default();
        let second = Duration::from_secs(1);
        for at in 0..3 {
            cache.answered((at, 0), &Account::of(peer(1)), 100, second * at);
        }
        cache.expire(DuplicateRequestCache::LIFETIME + second);
        assert_eq!(cache.calls().order.len(), 1);
        cache.expire(DuplicateRequestCache::LIFETIME + second * 2);
        assert_eq!((cache.bytes(), cache.calls().peers.len()), (0, 0));
    }
}
