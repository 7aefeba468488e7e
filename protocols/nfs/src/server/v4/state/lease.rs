//! Leases: their expiry, and the courtesy after it (RFC 7530 section 9.5, RFC 8881 section 8.3).
//!
//! An expired client keeps its state until it conflicts with another client's request, or there is
//! no room. Then a v4.0 client is destroyed; a v4.1 client loses all of its state, as the errors of
//! its stateids and the flags of SEQUENCE show.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vfs::Account;

use crate::v4::ClientId;

use super::Tree;
use super::client::{Client, Minor, Recorded};
use super::released::{NodeKey, Released};
use super::{State, status_flags};

/// Clears the flag after the client has sent FREE_STATEID for all revoked state.
pub(super) fn clear_revoked_flag<T: Tree>(client: &Client<T>) {
    client
        .flags
        .fetch_and(!status_flags::EXPIRED_ALL_STATE_REVOKED, Ordering::AcqRel);
}

impl<T: Tree> State<T> {
    pub(super) fn is_expired(&self, client: &Client<T>) -> bool {
        client.idle_time(self.now()) > self.lease
    }

    /// Revokes the state of an expired client whose lock conflicts: the one with this number in the
    /// lock table. Returns `true` if it did, so that the caller may try again.
    pub fn revoke_expired_holder(&self, number: u64) -> bool {
        let client = self
            .client_of_lock(number)
            .and_then(|id| self.clients.get(&id));
        client.is_some_and(|client| self.expire(&client))
    }

    /// Revokes the state of `client`, which has `key` open in a conflicting mode, if it has
    /// expired. Returns whether the conflict is gone.
    pub(super) fn revoke_if_expired(&self, client: ClientId, key: NodeKey) -> bool {
        match self.clients.get(&client) {
            Some(client) => self.expire(&client),
            None => {
                self.shares.forget(key, client);
                true
            }
        }
    }

    /// Revokes the state of the client, of `peer` or of all, that has been silent for longest, if
    /// there is one that has expired and has state.
    pub(super) fn expire_oldest(&self, peer: Option<&Account>) -> bool {
        let now = self.now();
        let all = self.clients.all().into_iter();
        let all = all.filter(|client| peer.is_none_or(|peer| client.peer == *peer));
        let expired = all.filter(|client| self.is_expired(client) && self.has_state(client));
        let oldest = expired.max_by_key(|client| client.idle_time(now));
        oldest.is_some_and(|client| self.expire(&client))
    }

    /// Revokes the state of a client, if it has expired.
    fn expire(&self, client: &Arc<Client<T>>) -> bool {
        let mut released = Released::default();
        {
            let mut registry = self.registry.lock();
            let mut recorded = client.recorded.lock();
            if !self.is_expired(client) {
                return false;
            }
            // The client must not reclaim state that conflicts with what others are about to get.
            if *recorded == Recorded::Yes && self.stable.remove(&client.record).is_err() {
                // It keeps its state, and so its record.
                let _ = self.stable.put(&client.record);
                return false;
            }
            match client.minor {
                Minor::V40 => {
                    *recorded = Recorded::Never;
                    self.remove_client(&mut registry, client, &mut released);
                }
                Minor::V41 => {
                    if *recorded == Recorded::Yes {
                        *recorded = Recorded::No;
                    }
                    self.revoke(client, &mut released);
                }
            }
        }
        self.release(released);
        true
    }

    fn revoke(&self, client: &Client<T>, released: &mut Released<T>) {
        let mut client_state = client.client_state.lock();
        client_state.clear(client, true, &self.shares, &self.delegations, released);
        if client_state.revoked > 0 {
            let flag = status_flags::EXPIRED_ALL_STATE_REVOKED;
            client.flags.fetch_or(flag, Ordering::AcqRel);
        }
    }

    /// Removes obsolete state: expired clients without state or beyond the courtesy period; clients
    /// never confirmed; v4.0 owners without opens for a lease time. Ends the grace period. Must be
    /// called a few times per lease time.
    pub fn reap(&self) {
        self.in_grace();
        let now = self.now();
        let mut released = Released::default();
        for client in self.clients.all() {
            let silent = client.idle_time(now);
            if silent > self.lease {
                let mut registry = self.registry.lock();
                // It may have renewed its lease meanwhile.
                let silent = client.idle_time(now);
                if silent > self.lease
                    && (!client.is_confirmed()
                        || !self.has_state(&client)
                        || silent > self.lease * self.limits.courtesy)
                {
                    self.destroy(&mut registry, &client, &mut released);
                }
            } else if client.minor == Minor::V40 {
                let before = now.saturating_sub(self.lease);
                client.client_state.lock().forget_idle_owners(before);
            }
        }
        self.release(released);
    }
}
