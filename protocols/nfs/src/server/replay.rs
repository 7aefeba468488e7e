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
//! reached its share, otherwise the oldest of all. Replies expire after [`Replays::KEPT_FOR`]. A
//! reply that is longer than [`Replays::LONGEST`], or for which no room can be made, is not kept,
//! as in Linux's server.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use vfs::{Account, Charge, Patience, PeerKey, Quota};
use wire::Answer;

use super::{Server, Stop, Turn};

/// The duplicate request cache.
pub(super) struct Replays {
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
    order: BTreeMap<u64, Kept>,
    next: u64,
    /// The numbers of each peer's replies in `order`, the oldest first.
    peers: HashMap<Option<PeerKey>, VecDeque<u64>>,
}

/// A cached reply.
struct Kept {
    key: Key,
    charge: Charge,
    since: Duration,
}

impl Default for Replays {
    fn default() -> Replays {
        Replays {
            hasher: RandomState::new(),
            calls: Mutex::default(),
            quota: Quota::new(Replays::MOST, Replays::MOST_OF_A_PEER, 1),
        }
    }
}

impl Replays {
    /// The maximum length in bytes of a cached reply: that of CREATE, RENAME and the like, with
    /// attributes and an ACL.
    pub(super) const LONGEST: usize = 4 << 10;

    /// The maximum number of bytes of all replies: some 16,000 of the usual length.
    const MOST: usize = 8 << 20;

    /// The maximum number of bytes of the replies to one peer: enough for all calls that a client
    /// with many connections has in flight.
    const MOST_OF_A_PEER: usize = 1 << 20;

    /// The overhead of a cached reply, in bytes.
    const OVERHEAD: usize = 256;

    /// The lifetime of a reply: Linux's clients retransmit after a minute, and Linux's server keeps
    /// replies this long.
    const KEPT_FOR: Duration = Duration::from_secs(120);

    /// Returns the number of bytes that the replies take.
    pub(super) fn bytes(&self) -> usize {
        self.quota.in_use()
    }

    /// Drops the replies that are older than [`Replays::KEPT_FOR`].
    pub(super) fn expire(&self, now: Duration) {
        let mut calls = self.calls();
        while let Some((&number, oldest)) = calls.order.first_key_value()
            && now.saturating_sub(oldest.since) >= Replays::KEPT_FOR
        {
            calls.drop_reply(number);
        }
    }

    /// Ends the call `key`, and caches its reply if there is room or room can be made.
    fn end(&self, key: Key, peer: &Account, reply: Option<Arc<[u8]>>, since: Duration) {
        let mut calls = self.calls();
        let reply = reply.filter(|reply| reply.len() <= Replays::LONGEST);
        let Some(reply) = reply else {
            calls.replies.remove(&key);
            return;
        };
        let charge = loop {
            let full = match self.quota.take(peer, reply.len() + Replays::OVERHEAD) {
                Ok(charge) => break charge,
                Err(full) => full,
            };
            let Some(oldest) = calls.oldest(full.is_peers().then_some(peer)) else {
                calls.replies.remove(&key);
                return;
            };
            calls.drop_reply(oldest);
        };
        calls.keep(Kept { key, charge, since }, reply);
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

    fn keep(&mut self, kept: Kept, reply: Arc<[u8]>) {
        let number = self.next;
        self.next += 1;
        self.replies.insert(kept.key, Some(reply));
        let peer = kept.charge.account().client();
        self.peers.entry(peer).or_default().push_back(number);
        self.order.insert(number, kept);
    }

    /// Drops the reply with this number, which must be its peer's oldest.
    fn drop_reply(&mut self, number: u64) {
        let Some(gone) = self.order.remove(&number) else {
            return;
        };
        self.replies.remove(&gone.key);
        let peer = gone.charge.account().client();
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
struct Running<'a> {
    server: &'a Server,
    key: Key,
    peer: &'a Account,
    reply: Option<Arc<[u8]>>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let now = (self.server.options.clock)();
        let replays = &self.server.replays;
        replays.end(self.key, self.peer, self.reply.take(), now);
    }
}

impl Turn<'_> {
    /// Serves the call with `answer`, which returns a copy of the results if it can be cached; or
    /// replays that copy if the call is a retransmission.
    pub(super) fn once(
        &mut self,
        answer: impl FnOnce(&mut Self) -> Result<Option<Arc<[u8]>>, Stop>,
    ) -> Result<(), Stop> {
        /// The interval of polling while the first transmission of the call is still running.
        const AGAIN: Duration = Duration::from_millis(20);
        let server = self.server.clone();
        let replays = &server.replays;
        let known_by = (self.call.addr(), self.same);
        let key = (self.xid, replays.hasher.hash_one(known_by));
        let mut calls = replays.calls();
        match calls.replies.get(&key) {
            Some(Some(reply)) => {
                self.out.bytes(reply);
                return Ok(());
            }
            Some(None) if self.patience < Patience::Full => {
                return Err(Stop::Later(Answer::WouldBlock));
            }
            Some(None) => {
                self.call.wake_within(AGAIN);
                return Err(Stop::Later(Answer::Parked));
            }
            None => calls.replies.insert(key, None),
        };
        drop(calls);
        let mut running = Running {
            server: &server,
            key,
            peer: self.call.account(),
            reply: None,
        };
        running.reply = answer(self)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use vfs::memory::{MemoryBudget, Use};

    use super::*;

    fn peer(number: u32) -> PeerKey {
        PeerKey::User(number)
    }

    impl Replays {
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
        let (replays, zero) = (Replays::default(), Duration::ZERO);
        let peer = |number| Account::of(peer(number));
        replays.answered((0, 0), &peer(1), 100, zero);
        for xid in 0..10_000 {
            replays.answered((xid, 2), &peer(2), Replays::LONGEST, zero);
            assert!(replays.quota.used_by(&peer(2)) <= Replays::MOST_OF_A_PEER);
        }
        assert!(replays.knows((0, 0)), "another peer's");
        assert!(replays.knows((9_999, 2)), "the newest");
        assert!(!replays.knows((0, 2)), "the oldest");
        for number in 3..100 {
            for xid in 0..300 {
                replays.answered((xid, number.into()), &peer(number), Replays::LONGEST, zero);
            }
        }
        assert!(replays.bytes() <= Replays::MOST);
        let calls = replays.calls();
        let counted: usize = calls.order.values().map(|kept| kept.charge.amount()).sum();
        assert_eq!(counted, replays.bytes());
        assert_eq!(calls.order.len(), calls.replies.len());
    }

    #[test]
    fn replies_are_part_of_the_memory_budget_and_the_oldest_make_room() {
        const SMALL: usize = 128 << 10;
        let budget = MemoryBudget::new(SMALL);
        let replays = Replays::default();
        let account = Account::at(&budget, peer(1));
        for xid in 0..1000 {
            replays.answered((xid, 0), &account, Replays::LONGEST, Duration::ZERO);
            assert!(budget.kept() <= SMALL / 4);
        }
        assert_eq!(budget.kept(), replays.bytes());
        assert!(replays.knows((999, 0)) && !replays.knows((0, 0)));
        // The oldest replies of this peer cannot make room, because it has none: its reply is not
        // kept.
        let mut others = budget.reservation(peer(2), Use::State);
        others.set(SMALL);
        let stranger = Account::at(&budget, peer(3));
        replays.answered((0, 3), &stranger, 100, Duration::ZERO);
        assert!(!replays.knows((0, 3)));
        replays.expire(Replays::KEPT_FOR);
        assert_eq!((replays.bytes(), budget.kept()), (0, SMALL));
    }

    #[test]
    fn replies_expire() {
        let replays = Replays::default();
        let second = Duration::from_secs(1);
        for at in 0..3 {
            replays.answered((at, 0), &Account::of(peer(1)), 100, second * at);
        }
        replays.expire(Replays::KEPT_FOR + second);
        assert_eq!(replays.calls().order.len(), 1);
        replays.expire(Replays::KEPT_FOR + second * 2);
        assert_eq!((replays.bytes(), replays.calls().peers.len()), (0, 0));
    }
}
