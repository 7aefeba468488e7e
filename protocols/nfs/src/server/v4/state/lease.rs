//! Leases: clients that are silent for too long, the courtesy they are shown, and its end (RFC 7530
//! section 9.5, RFC 8881 section 8.3).
//!
//! An expired client keeps what it has until somebody else wants it, or there is no room. Then a v4.0
//! client is forgotten; a v4.1 client loses all it has, and is told so by its stateids and by
//! SEQUENCE.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vfs::Account;

use crate::v4::ClientId;

use super::client::{Client, Minor, Recorded};
use super::gone::{Gone, NodeKey};
use super::table::lock;
use super::{State, status_flags};

/// A client has said FREE_STATEID of all that it has lost.
pub(super) fn nothing_revoked<F, N>(client: &Client<F, N>) {
    client
        .flags
        .fetch_and(!status_flags::EXPIRED_ALL_STATE_REVOKED, Ordering::AcqRel);
}

impl<F, N: Clone> State<F, N> {
    pub(super) fn is_expired(&self, client: &Client<F, N>) -> bool {
        client.silent(self.now()) > self.lease
    }

    /// A lock of the client that the lock table knows by `number` is in the way. If that is an expired
    /// client of ours, it loses all it has, and the caller may try again.
    pub fn expire_courteous_holder(&self, number: u64) -> bool {
        let client = self
            .client_of_lock(number)
            .and_then(|id| self.clients.get(&id));
        client.is_some_and(|client| self.expire(&client))
    }

    /// `client` has `key` open in a way that conflicts. Whether it no longer has: it was expired.
    pub(super) fn expire_if_courteous(&self, client: ClientId, key: NodeKey) -> bool {
        match self.clients.get(&client) {
            Some(client) => self.expire(&client),
            None => {
                self.shares.forget(key, client);
                true
            }
        }
    }

    /// Takes all it has from the client that has been silent for longest, of those that count for
    /// `peer` or of all, if it has expired and has anything.
    pub(super) fn expire_oldest(&self, peer: Option<&Account>) -> bool {
        let now = self.now();
        let all = self.clients.all().into_iter();
        let all = all.filter(|client| peer.is_none_or(|peer| client.peer == *peer));
        let expired = all.filter(|client| self.is_expired(client) && self.has_state(client));
        let oldest = expired.max_by_key(|client| client.silent(now));
        oldest.is_some_and(|client| self.expire(&client))
    }

    /// Takes all it has from an expired client.
    fn expire(&self, client: &Arc<Client<F, N>>) -> bool {
        let mut gone = Gone::default();
        {
            let mut registry = lock(&self.registry);
            let mut recorded = lock(&client.recorded);
            if !self.is_expired(client) {
                return false;
            }
            // It must not reclaim what others are about to get.
            if *recorded == Recorded::Yes && self.stable.remove(&client.record).is_err() {
                return false;
            }
            match client.minor {
                Minor::V40 => {
                    *recorded = Recorded::Never;
                    self.dismantle(&mut registry, client, &mut gone);
                }
                Minor::V41 => {
                    if *recorded == Recorded::Yes {
                        *recorded = Recorded::No;
                    }
                    self.revoke(client, &mut gone);
                }
            }
        }
        self.release(gone);
        true
    }

    fn revoke(&self, client: &Client<F, N>, gone: &mut Gone<F, N>) {
        let mut holdings = lock(&client.holdings);
        holdings.clear(client, true, &self.shares, &self.delegations, gone);
        if holdings.revoked > 0 {
            let flag = status_flags::EXPIRED_ALL_STATE_REVOKED;
            client.flags.fetch_or(flag, Ordering::AcqRel);
        }
    }

    /// Forgets what time has made useless: expired clients that have nothing, or for too long; clients
    /// that were never confirmed; v4.0 owners that have had nothing open for a lease. Ends grace. To
    /// be called now and then: a few times in a lease.
    pub fn reap(&self) {
        self.in_grace();
        let now = self.now();
        let mut gone = Gone::default();
        for client in self.clients.all() {
            let silent = client.silent(now);
            if silent > self.lease {
                let mut registry = lock(&self.registry);
                // It may have spoken meanwhile.
                let silent = client.silent(now);
                if silent > self.lease
                    && (!client.is_confirmed()
                        || !self.has_state(&client)
                        || silent > self.lease * self.limits.courtesy)
                {
                    self.destroy(&mut registry, &client, &mut gone);
                }
            } else if client.minor == Minor::V40 {
                let before = now.saturating_sub(self.lease);
                lock(&client.holdings).forget_idle_owners(before);
            }
        }
        self.release(gone);
    }
}
