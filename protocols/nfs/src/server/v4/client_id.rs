//! v4.0: SETCLIENTID, SETCLIENTID_CONFIRM, RENEW (RFC 7530 sections 16.28, 16.33, 16.34), and the
//! identity of senders.

use std::borrow::Cow;

use super::compound::{Compound, OpError, OpResult};
use super::state::{self, CallbackClient, Requester, SetClientIdError};
use crate::server::RequestContext;
use crate::v4::op::{SetClientId, SetClientIdConfirm};
use crate::v4::reply::ClientIdSet;
use crate::v4::types::NetAddr;
use crate::v4::{ClientId, StateId, Status};

impl<'a> RequestContext<'a, Compound> {
    /// Returns the RPC principal of the caller, by which the owner of a client ID is recognised.
    pub(super) fn principal(&self) -> Cow<'a, [u8]> {
        match self.authenticated {
            Some(authenticated) => Cow::Borrowed(authenticated.principal.as_bytes()),
            None => {
                let ids = u64::from(self.flavor) << 32 | u64::from(self.caller.uid);
                Cow::Owned(ids.to_be_bytes().into())
            }
        }
    }

    /// Returns the sender of the call. `principal` is the one that [`RequestContext::principal`]
    /// returns.
    pub(super) fn requester<'p>(&'p self, principal: &'p [u8]) -> Requester<'p> {
        Requester {
            peer: self.call.account(),
            principal,
            authenticated: self.authenticated.is_some(),
        }
    }

    /// v4.0: returns `STALE_CLIENTID` unless the sender may act as `client`. In v4.1 SEQUENCE
    /// checks that.
    pub(super) fn check_client(&self, client: ClientId) -> Result<(), Status> {
        let principal = self.principal();
        let by = self.requester(&principal);
        match self.compound.minor > 0 || self.server.state.is_client(client, &by) {
            true => Ok(()),
            false => Err(Status::StaleClientid),
        }
    }

    /// v4.0: returns `BAD_STATEID` unless the sender may act as the client of `stateid`.
    pub(super) fn check_holder(&self, stateid: &StateId) -> Result<(), Status> {
        let principal = self.principal();
        let by = self.requester(&principal);
        match self.compound.minor > 0 || self.server.state.is_holder(stateid, &by) {
            true => Ok(()),
            false => Err(Status::BadStateid),
        }
    }

    pub(super) fn set_client_id(&mut self, args: SetClientId<'_>) -> OpResult {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned().into_boxed_str();
        let principal = self.principal();
        let request = state::SetClientId {
            owner: args.id,
            verifier: args.verifier,
            by: self.requester(&principal),
            callback: CallbackClient {
                program: args.program,
                netid: text(args.addr.netid),
                address: text(args.addr.addr),
                ident: args.ident,
            },
        };
        match self.server.state.set_client_id(request) {
            Ok((client, confirm)) => {
                self.reply.value(&ClientIdSet { client, confirm });
                Ok(())
            }
            Err(SetClientIdError::InUse(client)) => {
                self.reply.value(&NetAddr {
                    netid: client.netid.as_bytes(),
                    addr: client.address.as_bytes(),
                });
                Err(OpError::WithBody(Status::ClidInuse))
            }
            Err(SetClientIdError::Status(status)) => Err(status.into()),
        }
    }

    pub(super) fn set_client_id_confirm(&mut self, args: SetClientIdConfirm) -> OpResult {
        let principal = self.principal();
        let state = &self.server.state;
        Ok(state.set_client_id_confirm(args.client, args.verifier, &principal)?)
    }

    pub(super) fn renew(&mut self, client: ClientId) -> OpResult {
        self.check_client(client)?;
        Ok(self.server.state.renew(client)?)
    }
}
