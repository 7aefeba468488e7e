//! Who a client is in v4.0 (RFC 7530 sections 9.1, 16.33 to 16.34).

use super::compound::{Ops, Results, Steps};
use super::session::CALLBACK_PROGRAM;
use crate::client::Failure;
use crate::v4::op::{self, Op};
use crate::v4::reply::ClientIdSet;
use crate::v4::types::NetAddr;
use crate::v4::{ClientId, Verifier};

/// Makes a client known, to be confirmed.
pub struct SetClientId<'a> {
    /// What no other client is called.
    pub owner: &'a [u8],
    /// Which life of it this is.
    pub verifier: Verifier,
}

impl Steps for SetClientId<'_> {
    /// Its short name, and what to confirm it with.
    type Answer<'r> = SetClientIdConfirm;

    const ONCE: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::SetClientId(op::SetClientId {
            verifier: self.verifier,
            id: self.owner,
            program: CALLBACK_PROGRAM,
            // Nobody listens, so the server gives no delegations.
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

/// Confirms a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetClientIdConfirm {
    /// Its short name.
    pub client: ClientId,
    /// What the server gave with it.
    pub verifier: Verifier,
}

impl Steps for SetClientIdConfirm {
    type Answer<'r> = ();

    const ONCE: bool = true;

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

/// A sign of life.
pub struct Renew {
    /// Whose.
    pub client: ClientId,
}

impl Steps for Renew {
    type Answer<'r> = ();

    const ONCE: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Renew(self.client));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const RENEW: u32 = 30;
        from.take(RENEW)
    }
}
