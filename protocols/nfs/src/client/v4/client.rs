//! Client IDs of v4.0 (RFC 7530 sections 9.1, 16.33 to 16.34).

use super::compound::{Operations, Ops, Results};
use super::session::CALLBACK_PROGRAM;
use crate::client::Failure;
use crate::v4::op::{self, Op};
use crate::v4::reply::ClientIdSet;
use crate::v4::types::NetAddr;
use crate::v4::{ClientId, Verifier};

/// A SETCLIENTID.
pub struct SetClientId<'a> {
    /// The client's identifier, unique among clients.
    pub owner: &'a [u8],
    /// Identifies this incarnation of the client.
    pub verifier: Verifier,
}

impl Operations for SetClientId<'_> {
    /// The client ID and the verifier that confirms it.
    type Answer<'r> = SetClientIdConfirm;

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::SetClientId(op::SetClientId {
            verifier: self.verifier,
            id: self.owner,
            program: CALLBACK_PROGRAM,
            // The client does not accept callbacks, so the server grants no delegations.
            addr: NetAddr {
                netid: b"tcp",
                addr: b"0.0.0.0.0.0",
            },
            ident: 0,
        }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<SetClientIdConfirm, Failure> {
        const SETCLIENTID: u32 = 35;
        let ok: ClientIdSet = from.take(SETCLIENTID)?;
        Ok(SetClientIdConfirm {
            client: ok.client,
            verifier: ok.confirm,
        })
    }
}

/// A SETCLIENTID_CONFIRM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetClientIdConfirm {
    /// The client ID.
    pub client: ClientId,
    /// The verifier from SETCLIENTID.
    pub verifier: Verifier,
}

impl Operations for SetClientIdConfirm {
    type Answer<'r> = ();

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::SetClientIdConfirm(op::SetClientIdConfirm {
            client: self.client,
            verifier: self.verifier,
        }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const SETCLIENTID_CONFIRM: u32 = 36;
        from.take(SETCLIENTID_CONFIRM)
    }
}

/// A RENEW of the lease.
pub struct Renew {
    /// The client ID.
    pub client: ClientId,
}

impl Operations for Renew {
    type Answer<'r> = ();

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Renew(self.client));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const RENEW: u32 = 30;
        from.take(RENEW)
    }
}
