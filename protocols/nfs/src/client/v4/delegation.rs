//! DELEGRETURN, TEST_STATEID, FREE_STATEID.

use super::attr::PUTFH;
use super::compound::{Ops, Results, Steps};
use crate::client::Failure;
use crate::v4::op::Op;
use crate::v4::{StateId, Status};

/// Gives a delegation back (RFC 8881 section 18.6).
pub struct DelegReturn<'a> {
    /// Of which file.
    pub handle: &'a [u8],
    /// Which.
    pub state: StateId,
}

impl Steps for DelegReturn<'_> {
    type Answer<'r> = ();

    const ONCE: bool = true;

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

/// Asks which stateids are good (RFC 8881 section 18.48).
pub struct TestStateIds<'a> {
    /// Of these.
    pub states: &'a [StateId],
}

impl Steps for TestStateIds<'_> {
    /// Of each, in order.
    type Answer<'r> = Vec<Status>;

    const ONCE: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::TestStateId(self.states.to_vec()));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Vec<Status>, Failure> {
        const TEST_STATEID: u32 = 55;
        from.take(TEST_STATEID)
    }
}

/// Says that it is known that a stateid is of no use any more (RFC 8881 section 18.38).
pub struct FreeStateId {
    /// Which.
    pub state: StateId,
}

impl Steps for FreeStateId {
    type Answer<'r> = ();

    const ONCE: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::FreeStateId(self.state));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const FREE_STATEID: u32 = 45;
        from.take(FREE_STATEID)
    }
}
