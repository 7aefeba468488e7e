//! The other end of a connection, as whoever lets some in and others not has it.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};

/// A client's end of one connection: where it is, and what has been chosen for it so far. Lives as long as the
/// connection, so that a choice is made once.
#[derive(Debug)]
pub struct Peer {
    addr: Option<IpAddr>,
    /// Each choice and 1; 0 is none yet.
    choices: [AtomicU8; Peer::KEPT],
}

impl Peer {
    /// Of how many matters the choice is kept: as many exports as anybody lists. Beyond it is made each time.
    pub const KEPT: usize = 64;

    /// A peer at `addr`; at none if its socket has no such thing (a Unix socket, a pipe). IPv4 in IPv6 is IPv4.
    pub fn new(addr: Option<IpAddr>) -> Peer {
        Peer {
            addr: addr.map(|addr| addr.to_canonical()),
            choices: [const { AtomicU8::new(0) }; Peer::KEPT],
        }
    }

    /// Where it is.
    pub fn addr(&self) -> Option<IpAddr> {
        self.addr
    }

    /// What `choose` says of it in the matter `of`, as it was said the first time. At most [`u8::MAX`] - 1.
    pub fn choice(&self, of: usize, choose: impl FnOnce() -> u8) -> u8 {
        let Some(kept) = self.choices.get(of) else {
            return choose();
        };
        match kept.load(Ordering::Relaxed) {
            0 => {
                let chosen = choose();
                kept.store(chosen + 1, Ordering::Relaxed);
                chosen
            }
            chosen => chosen - 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_made_once_where_it_is_kept() {
        let peer = Peer::new(None);
        for (of, again) in [(0, 7), (1, 7), (Peer::KEPT, 8)] {
            assert_eq!(peer.choice(of, || 7), 7);
            assert_eq!(peer.choice(of, || 8), again);
        }
    }

    #[test]
    fn ipv4_is_the_same_however_it_came() {
        let mapped = "::ffff:10.0.0.1".parse().ok();
        assert_eq!(Peer::new(mapped).addr(), "10.0.0.1".parse().ok());
    }
}
