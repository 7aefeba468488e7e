//! SETCLIENTID, SETCLIENTID_CONFIRM and RENEW: v4.0 clients (RFC 7530 sections 16.33, 16.34,
//! 16.28).

use crate::v4::{ClientId, Status};

use super::client::{Client, ClientRef, Minor};
use super::registry::RegisteredClient;
use super::released::Released;
use super::requester::Requester;
use super::{State, Tree};

/// The callback address and identifier of a v4.0 client: `cb_client4` and `callback_ident`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallbackClient {
    /// The RPC program.
    pub program: u32,
    /// The transport, `tcp` or `tcp6`.
    pub netid: Box<str>,
    /// The universal address.
    pub address: Box<str>,
    /// The client's `callback_ident`, to be sent in callbacks.
    pub ident: u32,
}

/// The arguments of SETCLIENTID.
pub struct SetClientId<'a> {
    /// The client's name: `nfs_client_id4.id`.
    pub owner: &'a [u8],
    /// The verifier of the client's boot.
    pub verifier: [u8; 8],
    /// The sender.
    pub by: Requester<'a>,
    /// The callback address.
    pub callback: CallbackClient,
}

/// The error of a SETCLIENTID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetClientIdError {
    /// `CLID_INUSE`: the name belongs to another principal's client, with this callback address.
    InUse(CallbackClient),
    /// Any other error.
    Status(Status),
}

impl<T: Tree> State<T> {
    /// Runs SETCLIENTID. Returns the client ID and the verifier with which to confirm it.
    pub fn set_client_id(
        &self,
        args: SetClientId<'_>,
    ) -> Result<(ClientId, [u8; 8]), SetClientIdError> {
        let mut released = Released::default();
        let answer = {
            let mut registry = self.registry.lock();
            let owner = (Minor::V40, args.owner);
            let record = self.record_of(&registry, owner, &args.verifier, &args.by);
            let confirmed = registry.confirmed(&record);
            match &confirmed {
                Some(known)
                    if *known.client.principal != *args.by.principal
                        && !self.is_expired(&known.client)
                        && self.has_state(&known.client) =>
                {
                    return Err(SetClientIdError::InUse(known.callback.clone()));
                }
                _ => {}
            }
            let unguessable = self.unguessable(registry.serial());
            let (&confirm, _) = unguessable.split_first_chunk().expect("it is longer");
            let same = confirmed.filter(|known| {
                known.client.verifier == args.verifier
                    && *known.client.principal == *args.by.principal
            });
            // Case 1 is an update of the callback address; 2 to 5 are new clients.
            let client = match same {
                Some(known) => {
                    known.client.add_peer(args.by.peer);
                    Ok(known.client)
                }
                None => self.new_client(
                    &mut registry,
                    args.by.peer,
                    |id| {
                        let (now, named) = (self.now(), (Minor::V40, &*record));
                        Client::new(
                            id,
                            named,
                            args.verifier,
                            &args.by,
                            &self.quotas.state_bytes,
                            now,
                        )
                    },
                    Status::Resource,
                    &mut released,
                ),
            };
            client.map(|client| {
                let id = client.id;
                let known = RegisteredClient {
                    client,
                    confirm,
                    callback: args.callback,
                };
                self.set_unconfirmed(&mut registry, known, &mut released);
                (id, confirm)
            })
        };
        self.release(released);
        answer.map_err(SetClientIdError::Status)
    }

    /// Runs SETCLIENTID_CONFIRM. It destroys the state of the client's previous boot.
    pub fn set_client_id_confirm(
        &self,
        id: ClientId,
        confirm: [u8; 8],
        principal: &[u8],
    ) -> Result<(), Status> {
        let mut released = Released::default();
        let answer = (|| {
            let mut registry = self.registry.lock();
            let client = self.clients.get(&id).ok_or(Status::StaleClientid)?;
            if client.minor != Minor::V40 {
                return Err(Status::StaleClientid);
            }
            if *client.principal != *principal {
                return Err(Status::ClidInuse);
            }
            let is_it =
                |known: &RegisteredClient<T>| known.client.id == id && known.confirm == confirm;
            if let Some(known) = registry.unconfirmed(&client.record).filter(is_it) {
                let others = registry.confirmed(&client.record).filter(|confirmed| {
                    *confirmed.client.principal != *principal
                        && !self.is_expired(&confirmed.client)
                        && self.has_state(&confirmed.client)
                });
                if others.is_some() {
                    return Err(Status::ClidInuse);
                }
                self.set_confirmed(&mut registry, known, &mut released);
                return Ok(());
            }
            // A retransmission.
            let confirmed = registry.confirmed(&client.record).filter(is_it);
            confirmed.map(|_| ()).ok_or(Status::StaleClientid)
        })();
        self.release(released);
        answer
    }

    /// Runs RENEW.
    pub fn renew(&self, id: ClientId) -> Result<(), Status> {
        self.client(id).map(|_| ())
    }

    /// Returns the callback address of a v4.0 client.
    pub fn callback(&self, client: &ClientRef<T>) -> Option<CallbackClient> {
        let known = self.registry.lock().confirmed(&client.0.record)?;
        (known.client.id == client.0.id).then_some(known.callback)
    }
}
