//! The sender of a request that names a client or a session, and whether it is that client (RFC
//! 8881 section 2.10.8.3).
//!
//! Clients ask for no state protection (SP4_NONE), and AUTH_SYS proves nothing. So a client is
//! known by the peers that it came from: the one of its EXCHANGE_ID or SETCLIENTID, and each other
//! that sends one with the same owner, verifier and principal, as Linux's clients do before they
//! use another address (trunking). Connections from those peers join its sessions by themselves, as
//! nconnect needs it. A sender that has proved to be the client's principal (RPCSEC_GSS) needs no
//! peer.
//!
//! A request from elsewhere is answered as if there were no such client or session: a client whose
//! address has changed then says again who it is.

use std::hash::BuildHasher as _;

use vfs::Account;

use crate::v4::{ClientId, StateId};

use super::State;
use super::client::{Client, Minor, record};
use super::registry::Registry;
use super::stateid::{Parts, client_id};
use super::table::lock;

/// The sender of a request.
#[derive(Clone, Copy, Debug)]
pub struct Requester<'a> {
    /// The account of its connection's peer.
    pub peer: &'a Account,
    /// As whom RPC knows the caller.
    pub principal: &'a [u8],
    /// Whether the principal is proved (RPCSEC_GSS), not only claimed.
    pub proved: bool,
}

/// The most peers of a client: Linux trunks at most 16 addresses.
const MOST_PEERS: usize = 32;

impl<F, N> Client<F, N> {
    /// Whether `by` may act as this client.
    pub(super) fn is(&self, by: &Requester<'_>) -> bool {
        by.proved && *by.principal == *self.principal || lock(&self.peers).contains(by.peer)
    }

    /// The client comes from `peer`, too.
    pub(super) fn comes_from(&self, peer: &Account) {
        let mut peers = lock(&self.peers);
        if !peers.contains(peer) {
            if peers.len() >= MOST_PEERS {
                // The first is the one that it counts for.
                peers.remove(1);
            }
            peers.push(peer.clone());
        }
    }
}

impl<F, N: Clone> State<F, N> {
    /// Whether `by` may act as the client `id`; a client that is no more may be anybody.
    pub fn is_client(&self, id: ClientId, by: &Requester<'_>) -> bool {
        self.clients.get(&id).is_none_or(|client| client.is(by))
    }

    /// Whether `by` may act as the client that `stateid` is of.
    pub fn is_holder(&self, stateid: &StateId, by: &Requester<'_>) -> bool {
        let parts = Parts::of(stateid);
        self.is_client(client_id(parts.boot, parts.client), by)
    }

    /// The record of the client that calls itself `owner` in a request of `by`. Usually that is
    /// [`record`]; a host that is not the live client of this name, though it gives the same name,
    /// has a record of its own, so that neither loses its state to the other.
    pub(super) fn record_of(
        &self,
        registry: &Registry<F, N>,
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
        if says_the_same || client.is(by) || self.is_expired(client) {
            return usual;
        }
        let peer = format!("{:?}\0", by.peer);
        [b"\xff", peer.as_bytes(), &usual].concat().into()
    }
}

impl<F, N> State<F, N> {
    /// Sixteen bytes that nobody guesses and that no earlier `serial` had.
    pub(super) fn unguessable(&self, serial: u64) -> [u8; 16] {
        let half = |part: u8| u128::from(self.secret.hash_one((serial, part)));
        (half(0) << 64 | half(1)).to_be_bytes()
    }
}
