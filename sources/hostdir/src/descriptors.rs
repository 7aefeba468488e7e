//! The descriptors that an export may have open.
//!
//! A [`Budget`] counts them, and asks its [`Evict`] to close one when another is to be opened
//! beyond the limit. A descriptor that cannot be closed (of an open file that cannot be opened
//! again, an unnamed object, a lock on the host) also counts towards its peer's share ([`Shares`]),
//! so that no peer takes all. Of these, objects that clients merely remember are given up when one
//! is needed for anything else.
//!
//! Lock order: the shares' mutex last.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno as Raw;
use sys::errno;
use vfs::{Account, Errno, PeerKey, Result};

/// The limit and number of open descriptors.
pub(crate) struct Budget {
    limit: usize,
    open: AtomicUsize,
    evictor: OnceLock<Weak<dyn Evict>>,
}

/// The holder of the descriptors that can be closed.
pub(crate) trait Evict: Send + Sync {
    /// Closes the descriptor of approximately the least recently used object, of at most `open`.
    /// Returns whether it found one.
    fn evict(&self, open: usize) -> bool;

    /// Closes descriptors of objects without a name that count towards the share of `peer` and that
    /// clients merely remember. Returns whether it found any.
    fn give_up(&self, peer: PeerKey) -> bool;
}

/// The number of descriptors to evict when the system has none left although the budget has.
const EVICTED_AT_ONCE: usize = 64;

/// A permit for one descriptor.
struct Permit(Arc<Budget>);

/// A descriptor counted in the budget.
pub(crate) struct Fd {
    fd: OwnedFd,
    _permit: Permit,
}

impl vfs::Backing for Fd {}

impl Budget {
    pub(crate) fn new(limit: usize) -> Arc<Budget> {
        Arc::new(Budget {
            limit,
            open: AtomicUsize::new(0),
            evictor: OnceLock::new(),
        })
    }

    fn evictor(&self) -> Option<Arc<dyn Evict>> {
        self.evictor.get().and_then(Weak::upgrade)
    }

    /// Sets the holder of the descriptors that can be closed. Called once: until then there are
    /// none.
    pub(crate) fn set_evictor(&self, evictor: Weak<dyn Evict>) {
        self.evictor.get_or_init(|| evictor);
    }

    /// Opens a descriptor within the limit, evicting others if necessary. Returns `ENFILE` if none
    /// can be evicted.
    pub(crate) fn open_within(
        self: &Arc<Budget>,
        open: impl Fn() -> rustix::io::Result<OwnedFd>,
    ) -> Result<Fd> {
        self.open.fetch_add(1, Ordering::Relaxed);
        let permit = Permit(self.clone());
        while self.open() > self.limit {
            if !self.evict() {
                return Err(Errno::ENFILE);
            }
        }
        let fd = match open() {
            Err(Raw::MFILE | Raw::NFILE) => {
                for _ in 0..EVICTED_AT_ONCE {
                    self.evict();
                }
                open()
            }
            opened => opened,
        };
        match fd {
            Ok(fd) => Ok(Fd {
                fd,
                _permit: permit,
            }),
            Err(Raw::MFILE | Raw::NFILE) => Err(Errno::ENFILE),
            Err(error) => Err(errno(error)),
        }
    }

    fn evict(&self) -> bool {
        let evictor = self.evictor();
        evictor.is_some_and(|evictor| evictor.evict(self.open()))
    }

    /// Closes all descriptors that can be opened again, and returns their number.
    pub(crate) fn evict_all(&self) -> usize {
        (0..self.open()).take_while(|_| self.evict()).count()
    }

    /// Returns the limit.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the number of open descriptors.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

/// The descriptors of peers that cannot be evicted. A peer may hold as many as it leaves free: the
/// first that takes all it can gets half, the next a quarter, and so on, so that some always remain
/// for another.
pub(crate) struct Shares {
    limit: usize,
    budget: Arc<Budget>,
    usage: Mutex<Usage>,
}

#[derive(Default)]
struct Usage {
    all: usize,
    by_peer: HashMap<PeerKey, usize>,
}

/// One descriptor of a peer's share.
pub(crate) struct Share {
    shares: Arc<Shares>,
    peer: PeerKey,
}

impl Shares {
    /// Returns shares of `limit` descriptors of `budget`.
    pub(crate) fn new(limit: usize, budget: &Arc<Budget>) -> Arc<Shares> {
        Arc::new(Shares {
            limit,
            budget: budget.clone(),
            usage: Mutex::default(),
        })
    }

    /// Takes one descriptor for the client of `account`, a connection's or a guest's. If its share
    /// is used up, objects that it merely remembers are given up; returns `EMFILE` if there are
    /// none. Returns `None` for this program's own use, which only the budget limits.
    pub(crate) fn take(self: &Arc<Shares>, account: &Account) -> Result<Option<Share>> {
        let Some(peer) = account.client() else {
            return Ok(None);
        };
        let share = self.take_for(peer).or_else(|| {
            let evictor = self.budget.evictor()?;
            evictor.give_up(peer).then(|| self.take_for(peer)).flatten()
        });
        share.ok_or(Errno::EMFILE).map(Some)
    }

    fn take_for(self: &Arc<Shares>, peer: PeerKey) -> Option<Share> {
        let mut usage = self.usage();
        let own = usage.by_peer.get(&peer).copied().unwrap_or(0);
        if own >= self.limit.saturating_sub(usage.all) {
            return None;
        }
        usage.all += 1;
        usage.by_peer.insert(peer, own + 1);
        drop(usage);
        Some(Share {
            shares: self.clone(),
            peer,
        })
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock()
    }
}

impl Share {
    pub(crate) fn peer(&self) -> PeerKey {
        self.peer
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut usage = self.shares.usage();
        usage.all -= 1;
        if let Some(own) = usage.by_peer.get_mut(&self.peer) {
            *own -= 1;
            if *own == 0 {
                usage.by_peer.remove(&self.peer);
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use vfs::{LocalUsers, Origin, Peer};

    use super::*;

    fn peer(addr: &str) -> Account {
        let peer = Peer::remote(addr.parse().expect("an address"), 700);
        peer.account().clone()
    }

    /// Takes shares for a client until one is refused.
    fn fill(shares: &Arc<Shares>, client: &Account) -> Vec<Share> {
        std::iter::from_fn(|| shares.take(client).ok().flatten()).collect()
    }

    #[test]
    fn a_peer_holds_what_it_leaves_and_gives_it_back() {
        let shares = Shares::new(1000, &Budget::new(1000));
        let first = fill(&shares, &peer("10.0.0.1"));
        let second = fill(&shares, &peer("10.0.0.2"));
        let local = Peer::new(Origin::Inherited, &LocalUsers::All, 0);
        let local = fill(&shares, local.account());
        let guest = fill(&shares, &Account::of(PeerKey::Device(0)));
        let all = [first.len(), second.len(), local.len(), guest.len()];
        assert_eq!(all, [500, 250, 125, 63]);
        assert_eq!(fill(&shares, &peer("10.0.0.1")).len(), 0);
        drop(first);
        assert_eq!(fill(&shares, &peer("10.0.0.2")).len(), 156);
        drop((second, local, guest));
        assert_eq!(fill(&shares, &peer("10.0.0.2")).len(), 500);
        assert!(matches!(shares.take(&Account::INTERNAL), Ok(None)));
    }

    #[test]
    fn a_host_has_one_share_for_all_addresses_of_its_network() {
        let shares = Shares::new(8, &Budget::new(8));
        let usage = fill(&shares, &peer("2001:db8::1"));
        assert_eq!(usage.len(), 4);
        assert!(fill(&shares, &peer("2001:db8::ffff:2")).is_empty());
        assert_eq!(fill(&shares, &peer("2001:db8:0:1::1")).len(), 2);
    }
}
