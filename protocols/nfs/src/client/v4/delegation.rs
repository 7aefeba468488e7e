//! DELEGRETURN, TEST_STATEID, FREE_STATEID.

use super::attr::PUTFH;
use super::compound::{Operations, Ops, Results};
use crate::client::Failure;
use crate::v4::op::Op;
use crate::v4::{StateId, Status};

/// A DELEGRETURN (RFC 8881 section 18.6).
pub struct DelegReturn<'a> {
    /// The file's handle.
    pub handle: &'a [u8],
    /// The stateid of the delegation.
    pub state: StateId,
}

impl Operations for DelegReturn<'_> {
    type Answer<'r> = ();

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.handle))
            .op(&Op::DelegReturn(self.state));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const DELEGRETURN: u32 = 8;
        from.take::<()>(PUTFH)?;
        from.take(DELEGRETURN)
    }
}

/// A TEST_STATEID (RFC 8881 section 18.48).
pub struct TestStateIds<'a> {
    /// The stateids to test.
    pub states: &'a [StateId],
}

impl Operations for TestStateIds<'_> {
    /// The status of each, in order.
    type Answer<'r> = Vec<Status>;

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::TestStateId(self.states.to_vec()));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Vec<Status>, Failure> {
        const TEST_STATEID: u32 = 55;
        from.take(TEST_STATEID)
    }
}

/// A FREE_STATEID: acknowledges that a stateid was revoked (RFC 8881 section 18.38).
pub struct FreeStateId {
    /// The stateid.
    pub state: StateId,
}

impl Operations for FreeStateId {
    type Answer<'r> = ();

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::FreeStateId(self.state));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const FREE_STATEID: u32 = 45;
        from.take(FREE_STATEID)
    }
}
