//! Duplicate request cache: replies of calls that must not be carried out twice, for v3 and v4.0
//! have no sessions (RFC 1813 section 4.6, RFC 7530 section 3.1.1).
//!
//! A client whose connection broke sends the same call again, byte for byte, by another. So a call is known by the address
//! that it came from and all its bytes: its id, who calls, and what for. What RPCSEC_GSS makes of those differs each time:
//! there it is what was opened.
//!
//! The cache is bounded in bytes, in total and for each peer, and drops replies after
//! [`Replays::KEPT_FOR`]. A reply that is longer than [`Replays::LONGEST`] is not kept, as in
//! Linux's server.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use vfs::Patience;
use wire::Answer;

use super::peer::{self, Key as PeerKey};
use super::{Server, Stop, Turn};

/// Replies of calls.
#[derive(Default)]
pub(super) struct Replays {
    hasher: RandomState,
    calls: Mutex<Calls>,
}

/// A call: its id and a keyed hash of the rest.
type Key = (u32, u64);

#[derive(Default)]
struct Calls {
    /// `None` while the call is being carried out.
    replies: HashMap<Key, Option<Arc<[u8]>>>,
    /// The replies, the oldest first.
    order: BTreeMap<u64, Kept>,
    next: u64,
    peers: HashMap<PeerKey, Share>,
    bytes: usize,
}

/// A reply that is kept.
struct Kept {
    key: Key,
    peer: PeerKey,
    bytes: usize,
    since: Duration,
}

/// The replies to one peer.
#[derive(Default)]
struct Share {
    /// Their numbers in [`Calls::order`], the oldest first.
    order: VecDeque<u64>,
    bytes: usize,
}

impl Replays {
    /// The longest reply that is kept, in bytes: what CREATE, RENAME and their like answer, with
    /// attributes and an ACL.
    pub(super) const LONGEST: usize = 4 << 10;

    /// The most bytes of all replies: some 16,000 of the usual length.
    const MOST: usize = 8 << 20;

    /// The most bytes of the replies to one peer: all calls that a client with many connections has
    /// in flight.
    const MOST_OF_A_PEER: usize = 1 << 20;

    /// The bytes that a reply takes besides its own.
    const OVERHEAD: usize = 160;

    /// How long a reply is kept: Linux's clients retransmit after a minute, and Linux's server
    /// keeps replies this long.
    const KEPT_FOR: Duration = Duration::from_secs(120);

    /// The bytes that the replies take.
    pub(super) fn bytes(&self) -> usize {
        self.calls().bytes
    }

    /// Drops the replies that are older than [`Replays::KEPT_FOR`].
    pub(super) fn expire(&self, now: Duration) {
        let mut calls = self.calls();
        while let Some(oldest) = calls.order.first_entry()
            && now.saturating_sub(oldest.get().since) >= Replays::KEPT_FOR
        {
            let number = *oldest.key();
            calls.drop_reply(number);
        }
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().expect("no panic holds it")
    }
}

impl Calls {
    fn keep(&mut self, key: Key, peer: PeerKey, reply: Arc<[u8]>, since: Duration) {
        let bytes = reply.len() + Replays::OVERHEAD;
        let number = self.next;
        self.next += 1;
        self.replies.insert(key, Some(reply));
        let kept = Kept {
            key,
            peer,
            bytes,
            since,
        };
        self.order.insert(number, kept);
        self.bytes += bytes;
        let share = self.peers.entry(peer).or_default();
        share.order.push_back(number);
        share.bytes += bytes;
        while let Some(share) = self.peers.get(&peer)
            && share.bytes > Replays::MOST_OF_A_PEER
            && let Some(&oldest) = share.order.front()
        {
            self.drop_reply(oldest);
        }
        while self.bytes > Replays::MOST
            && let Some((&oldest, _)) = self.order.first_key_value()
        {
            self.drop_reply(oldest);
        }
    }

    /// Drops the reply with this number, which is its peer's oldest.
    fn drop_reply(&mut self, number: u64) {
        let Some(gone) = self.order.remove(&number) else {
            return;
        };
        self.replies.remove(&gone.key);
        self.bytes -= gone.bytes;
        if let Some(share) = self.peers.get_mut(&gone.peer) {
            share.bytes -= gone.bytes;
            share.order.pop_front();
            if share.order.is_empty() {
                self.peers.remove(&gone.peer);
            }
        }
    }
}

/// A call that is being carried out. Dropped without a reply, it never came.
struct Running<'a> {
    server: &'a Server,
    key: Key,
    peer: PeerKey,
    reply: Option<Arc<[u8]>>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut calls = self.server.replays.calls();
        match self.reply.take() {
            Some(reply) if reply.len() <= Replays::LONGEST => {
                let now = (self.server.options.clock)();
                calls.keep(self.key, self.peer, reply, now);
            }
            _ => drop(calls.replies.remove(&self.key)),
        }
    }
}

impl Turn<'_> {
    /// Answers by `answer`, which gives a copy of what it put into the reply if that can be kept; or by that copy when
    /// this very call came before.
    pub(super) fn once(
        &mut self,
        answer: impl FnOnce(&mut Self) -> Result<Option<Arc<[u8]>>, Stop>,
    ) -> Result<(), Stop> {
        /// How often a call is looked at again whose first coming is not answered yet.
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
            peer: peer::key(self.call),
            reply: None,
        };
        running.reply = answer(self)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(len: usize) -> Arc<[u8]> {
        vec![0; len].into()
    }

    #[test]
    fn replies_are_bounded_in_bytes_in_total_and_for_each_peer() {
        let mut calls = Calls::default();
        let peer = |number: u32| peer::of_addr([10, 0, 0, number as u8].into());
        calls.keep((0, 0), peer(1), reply(100), Duration::ZERO);
        for xid in 0..10_000 {
            calls.keep((xid, 2), peer(2), reply(Replays::LONGEST), Duration::ZERO);
            assert!(calls.peers[&peer(2)].bytes <= Replays::MOST_OF_A_PEER);
        }
        assert!(calls.replies.contains_key(&(0, 0)), "another peer's");
        assert!(calls.replies.contains_key(&(9_999, 2)), "the newest");
        assert!(!calls.replies.contains_key(&(0, 2)), "the oldest");
        for number in 3..100 {
            for xid in 0..300 {
                let key = (xid, number.into());
                calls.keep(key, peer(number), reply(Replays::LONGEST), Duration::ZERO);
            }
        }
        assert!(calls.bytes <= Replays::MOST);
        let counted: usize = calls.order.values().map(|kept| kept.bytes).sum();
        let shares: usize = calls.peers.values().map(|share| share.bytes).sum();
        assert_eq!((counted, shares), (calls.bytes, calls.bytes));
        assert_eq!(calls.order.len(), calls.replies.len());
    }

    #[test]
    fn replies_expire() {
        let replays = Replays::default();
        let second = Duration::from_secs(1);
        for at in 0..3 {
            let since = second * at;
            replays.calls().keep(
                (at, 0),
                peer::of_addr([10, 0, 0, 1].into()),
                reply(100),
                since,
            );
        }
        replays.expire(Replays::KEPT_FOR + second);
        assert_eq!(replays.calls().order.len(), 1);
        replays.expire(Replays::KEPT_FOR + second * 2);
        assert_eq!((replays.bytes(), replays.calls().peers.len()), (0, 0));
    }
}
