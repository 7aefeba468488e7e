//! A limit on log lines that a peer can cause.
//!
//! Each kind of line has its own limit, a `static` next to it:
//!
//! ```
//! use std::net::IpAddr;
//! use vfs::LogLimit;
//!
//! static REFUSED: LogLimit<Option<IpAddr>> = LogLimit::new();
//!
//! fn refuse(peer: Option<IpAddr>) {
//!     if let Some(suppressed) = REFUSED.permit(peer) {
//!         // tracing::info!(suppressed, "refused"): `None` leaves the field out.
//!         eprintln!("refused {suppressed:?}");
//!     }
//! }
//! # refuse(None);
//! ```

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A rate limit for one kind of line: each peer may cause a burst of [`LogLimit::BURST`] lines and
/// then one every ten seconds, all peers together four a second. Only the most recent
/// [`LogLimit::PEERS`] peers are distinguished, which bounds the memory.
pub struct LogLimit<K> {
    state: Mutex<State<K>>,
}

struct State<K> {
    all: Bucket,
    peers: Vec<Peer<K>>,
}

struct Peer<K> {
    key: K,
    bucket: Bucket,
    suppressed: u64,
}

/// A token bucket, stored as the time when it is full again (GCRA); `None` if it is full.
#[derive(Clone, Copy)]
struct Bucket(Option<Instant>);

impl Bucket {
    /// Returns the bucket after taking a token at `now`, if it has one.
    fn take(self, now: Instant, every: Duration, burst: u32) -> Option<Bucket> {
        let full = self.0.map_or(now, |full| full.max(now)) + every;
        (full - now <= every * burst).then_some(Bucket(Some(full)))
    }
}

impl<K: Copy + PartialEq> LogLimit<K> {
    /// The number of lines that a peer may cause at once.
    pub const BURST: u32 = 8;

    /// The number of peers that are distinguished.
    pub const PEERS: usize = 64;

    const EVERY: Duration = Duration::from_secs(10);
    const EVERY_OF_ALL: Duration = Duration::from_millis(250);
    const BURST_OF_ALL: u32 = 64;

    /// Creates a limit on one kind of line.
    #[expect(
        clippy::new_without_default,
        reason = "each is a static beside its line"
    )]
    pub const fn new() -> LogLimit<K> {
        LogLimit {
            state: Mutex::new(State {
                all: Bucket(None),
                peers: Vec::new(),
            }),
        }
    }

    /// Returns `None` if a line of `peer` is over the limit. Otherwise the line may be written, and
    /// the inner value is the number of its lines that were suppressed since the last one.
    pub fn permit(&self, peer: K) -> Option<Option<u64>> {
        self.permit_at(peer, Instant::now())
    }

    fn permit_at(&self, peer: K, now: Instant) -> Option<Option<u64>> {
        let state = &mut *self.state.lock();
        let found = state.peers.iter().position(|one| one.key == peer);
        let at = found.unwrap_or_else(|| state.add(peer));
        let peer = &mut state.peers[at];
        let of_peer = peer.bucket.take(now, Self::EVERY, Self::BURST);
        let of_all = || state.all.take(now, Self::EVERY_OF_ALL, Self::BURST_OF_ALL);
        let Some((of_peer, of_all)) = of_peer.and_then(|of_peer| Some((of_peer, of_all()?))) else {
            peer.suppressed += 1;
            return None;
        };
        (peer.bucket, state.all) = (of_peer, of_all);
        let suppressed = std::mem::take(&mut peer.suppressed);
        Some((suppressed > 0).then_some(suppressed))
    }
}

impl<K: Copy + PartialEq> State<K> {
    /// Adds an entry for `key` and returns its index. Replaces the peer that has caused no line for
    /// longest if the table is full.
    fn add(&mut self, key: K) -> usize {
        let peer = Peer {
            key,
            bucket: Bucket(None),
            suppressed: 0,
        };
        if self.peers.len() < LogLimit::<K>::PEERS {
            self.peers.push(peer);
            return self.peers.len() - 1;
        }
        let quietest = (0..self.peers.len()).min_by_key(|&at| self.peers[at].bucket.0);
        let at = quietest.unwrap_or(0);
        self.peers[at] = peer;
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_writes_a_burst_then_a_line_now_and_then_with_the_number_of_those_left_out() {
        let limit = LogLimit::new();
        let start = Instant::now();
        let burst = LogLimit::<u32>::BURST as usize;
        let written = (0..1000).filter(|_| limit.permit_at(1, start).is_some());
        assert_eq!(written.count(), burst);
        assert_eq!(limit.permit_at(2, start), Some(None), "another peer");
        let later = start + Duration::from_secs(10);
        assert_eq!(limit.permit_at(1, later), Some(Some(1000 - burst as u64)));
        assert_eq!(limit.permit_at(1, later), None);
    }

    #[test]
    fn many_peers_are_bounded_together_in_lines_and_memory() {
        let limit = LogLimit::new();
        let start = Instant::now();
        let written = (0..100_000).filter(|&peer| limit.permit_at(peer, start).is_some());
        assert_eq!(written.count(), LogLimit::<u32>::BURST_OF_ALL as usize);
        let peers = limit.state.lock().peers.len();
        assert_eq!(peers, LogLimit::<u32>::PEERS);
        let later = start + Duration::from_secs(1);
        let written = (0..1000).filter(|&peer| limit.permit_at(peer, later).is_some());
        assert_eq!(written.count(), 4);
    }
}
