//! The sender of a request that names a client or a session, and the check that it is that client
//! (RFC 8881 section 2.10.8.3).
//!
//! Clients ask for no state protection (SP4_NONE), and AUTH_SYS proves nothing. So a client is
//! identified by its peers: the one of its EXCHANGE_ID or SETCLIENTID, and every other that sends
//! one with the same owner, verifier and principal, as Linux's clients do before they use another
//! address (trunking). Connections from those peers join its sessions automatically, as nconnect
//! requires. A sender that has authenticated as the client's principal (RPCSEC_GSS) may use any
//! peer.
//!
//! A request from another peer fails as if the client or session did not exist: a client whose
//! address has changed then identifies itself again.

use std::hash::BuildHasher as _;

use vfs::Account;

use crate::v4::{ClientId, StateId};

use super::client::{Client, Minor, record};
use super::registry::Registry;
use super::stateid::{Parts, client_id};
use super::{State, Tree};

/// The sender of a request.
#[derive(Clone, Copy, Debug)]
pub struct Requester<'a> {
    /// The account of its connection's peer.
    pub peer: &'a Account,
    /// The RPC principal of the caller.
    pub principal: &'a [u8],
    /// Whether the principal is authenticated (RPCSEC_GSS), not only claimed.
    pub authenticated: bool,
}

/// The maximum number of peers of a client: Linux trunks at most 16 addresses.
const MAX_PEERS: usize = 32;

impl<T: Tree> Client<T> {
    /// Returns whether `by` may act as this client.
    pub(super) fn accepts(&self, by: &Requester<'_>) -> bool {
        by.authenticated && *by.principal == *self.principal || self.peers.lock().contains(by.peer)
    }

    /// Adds `peer` to the client's peers.
    pub(super) fn add_peer(&self, peer: &Account) {
        let mut peers = self.peers.lock();
        if !peers.contains(peer) {
            if peers.len() >= MAX_PEERS {
                // The first peer stays: the client counts against its quotas.
                peers.remove(1);
            }
            peers.push(peer.clone());
        }
    }
}

impl<T: Tree> State<T> {
    /// Returns whether `by` may act as the client `id`: always if that client no longer exists.
    pub fn is_client(&self, id: ClientId, by: &Requester<'_>) -> bool {
        self.clients
            .get(&id)
            .is_none_or(|client| client.accepts(by))
    }

    /// Returns whether `by` may act as the client of `stateid`.
    pub fn is_holder(&self, stateid: &StateId, by: &Requester<'_>) -> bool {
        let parts = Parts::of(stateid);
        self.is_client(client_id(parts.boot, parts.client), by)
    }

    /// Returns the record of the client that calls itself `owner` in a request of `by`. Usually
    /// that is [`record`]. A host with the same name as a live client that it is not gets a
    /// separate record, so that neither destroys the other's state.
    pub(super) fn record_of(
        &self,
        registry: &Registry<T>,
        (minor, owner): (Minor, &[u8]),
        verifier: &[u8; 8],
        by: &Requester<'_>,
    ) -> Box<[u8]> {
        let usual = record(minor, owner);
        let known = registry.confirmed(&usual);
        let Some(known) = known.or_else(|| registry.unconfirmed(&usual)) else {
            return usual;
        };
        let client = &known.client;
        let says_the_same = client.verifier == *verifier && *client.principal == *by.principal;
        if says_the_same || client.accepts(by) || self.is_expired(client) {
            return usual;
        }
        let peer = format!("{:?}\0", by.peer);
        [b"\xff", peer.as_bytes(), &usual].concat().into()
    }
}

impl<T: Tree> State<T> {
    /// Returns 16 unguessable bytes, different for each `serial`.
    pub(super) fn unguessable(&self, serial: u64) -> [u8; 16] {
        let word = |part: u8| u128::from(self.secret.hash_one((serial, part)));
        (word(0) << 64 | word(1)).to_be_bytes()
    }
}
