//! EXCHANGE_ID, DESTROY_CLIENTID and RECLAIM_COMPLETE: clients of v4.1 and v4.2 (RFC 8881 sections
//! 18.35, 18.50, 18.51).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::v4::{ClientId, Status};

use super::client::{Client, ClientRef, Minor};
use super::registry::{RegisteredClient, Registry};
use super::released::Released;
use super::requester::Requester;
use super::setclientid::CallbackClient;
use super::{State, Tree};

/// The arguments of EXCHANGE_ID.
pub struct ExchangeId<'a> {
    /// The client's name: `co_ownerid`.
    pub owner: &'a [u8],
    /// The verifier of the client's boot.
    pub verifier: [u8; 8],
    /// The sender.
    pub by: Requester<'a>,
    /// `EXCHGID4_FLAG_UPD_CONFIRMED_REC_A`.
    pub update: bool,
}

/// The result of EXCHANGE_ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangedId {
    /// The client ID.
    pub client: ClientId,
    /// The sequence number of the next CREATE_SESSION.
    pub sequence: u32,
    /// `EXCHGID4_FLAG_CONFIRMED_R`.
    pub confirmed: bool,
}

impl<T: Tree> State<T> {
    /// Runs EXCHANGE_ID, with the nine cases of RFC 8881 section 18.35.4.
    pub fn exchange_id(&self, args: &ExchangeId<'_>) -> Result<ExchangedId, Status> {
        let mut released = Released::default();
        let client = self.exchange(&mut self.registry.lock(), args, &mut released);
        self.release(released);
        let client = client?;
        let sequence = client.creation.lock().next();
        Ok(ExchangedId {
            client: client.id,
            sequence,
            confirmed: client.is_confirmed(),
        })
    }

    fn exchange(
        &self,
        registry: &mut Registry<T>,
        args: &ExchangeId<'_>,
        released: &mut Released<T>,
    ) -> Result<Arc<Client<T>>, Status> {
        let owner = (Minor::V41, args.owner);
        let record = self.record_of(registry, owner, &args.verifier, &args.by);
        let confirmed = registry.confirmed(&record);
        if let Some(RegisteredClient { client, .. }) = confirmed {
            let same_principal = *client.principal == *args.by.principal;
            let same_verifier = client.verifier == args.verifier;
            match (args.update, same_principal, same_verifier) {
                // Cases 2 and 6: nothing changes, except perhaps the address.
                (_, true, true) => {
                    client.add_peer(args.by.peer);
                    return Ok(client);
                }
                // Case 9.
                (true, false, _) => return Err(Status::Perm),
                // Case 8.
                (true, true, false) => return Err(Status::NotSame),
                // Case 3.
                (false, false, _) if !self.is_expired(&client) && self.has_state(&client) => {
                    return Err(Status::ClidInuse);
                }
                (false, false, _) => self.destroy(registry, &client, released),
                // Case 5: the client was restarted. Its old state is destroyed when the new client
                // is confirmed.
                (false, true, false) => {}
            }
        } else if args.update {
            // Case 7.
            return Err(Status::Noent);
        }
        // Cases 1 and 4.
        let now = self.now();
        let named = (Minor::V41, &*record);
        let make = |id| {
            Client::new(
                id,
                named,
                args.verifier,
                &args.by,
                &self.quotas.state_bytes,
                now,
            )
        };
        let client = self.new_client(registry, args.by.peer, make, Status::Delay, released)?;
        let known = RegisteredClient {
            client: client.clone(),
            confirm: [0; 8],
            callback: CallbackClient::default(),
        };
        self.set_unconfirmed(registry, known, released);
        Ok(client)
    }

    /// Runs DESTROY_CLIENTID. Returns `CLIENTID_BUSY` while the client has sessions or state,
    /// `STALE_CLIENTID` if it is not the requester's.
    pub fn destroy_client_id(&self, id: ClientId, by: &Requester<'_>) -> Result<(), Status> {
        let mut released = Released::default();
        let destroyed = {
            let mut registry = self.registry.lock();
            let client = self
                .clients
                .get(&id)
                .filter(|client| client.minor == Minor::V41 && client.accepts(by));
            let client = client.ok_or(Status::StaleClientid)?;
            let has_sessions = !client.client_state.lock().sessions.is_empty();
            if has_sessions || self.has_state(&client) {
                Err(Status::ClientidBusy)
            } else {
                self.destroy(&mut registry, &client, &mut released);
                Ok(())
            }
        };
        self.release(released);
        destroyed
    }

    /// Runs RECLAIM_COMPLETE for all file systems. For one file system (`rca_one_fs`) there is
    /// nothing to do.
    pub fn reclaim_complete(&self, client: &ClientRef<T>) -> Result<(), Status> {
        if client.0.reclaimed.swap(true, Ordering::AcqRel) {
            return Err(Status::CompleteAlready);
        }
        self.has_reclaimed(&client.0.record);
        Ok(())
    }
}
