//! Extended attributes (RFC 8276). Names are those of the `user.` namespace, without that.

use vfs::XattrFlags;

use super::attr::{PUTFH, skip};
use super::compound::{Ops, Results, Steps};
use crate::client::Failure;
use crate::v4::op::{self, Op};
use crate::v4::reply::XattrNames;
use crate::v4::types::ChangeInfo;

/// An attribute's value.
pub struct GetXattr<'a> {
    /// Of what.
    pub handle: &'a [u8],
    /// Which.
    pub name: &'a [u8],
}

impl Steps for GetXattr<'_> {
    type Answer<'r> = &'r [u8];

    const ONCE: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.handle)).op(&Op::GetXattr(self.name));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<&'r [u8], Failure> {
        const GETXATTR: u32 = 72;
        from.take::<()>(PUTFH)?;
        from.take(GETXATTR)
    }
}

/// Sets an attribute.
pub struct SetXattr<'a> {
    /// Of what.
    pub handle: &'a [u8],
    /// Which.
    pub name: &'a [u8],
    /// To what.
    pub value: &'a [u8],
    /// Whether there may, or must be one.
    pub flags: XattrFlags,
}

impl Steps for SetXattr<'_> {
    type Answer<'r> = ();

    const ONCE: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.handle))
            .op(&Op::SetXattr(op::SetXattr {
                // The same numbers as Linux has.
                option: self.flags.bits(),
                name: self.name,
                value: self.value,
            }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const SETXATTR: u32 = 73;
        from.take::<()>(PUTFH)?;
        skip::<ChangeInfo>(from, SETXATTR)
    }
}

/// The names of a node's attributes, some at a time.
pub struct ListXattrs<'a> {
    /// Of what.
    pub handle: &'a [u8],
    /// Where to go on.
    pub cookie: u64,
    /// How many bytes the answer may have.
    pub count: u32,
}

impl Steps for ListXattrs<'_> {
    /// The names, where to go on behind them, and whether there are no more.
    type Answer<'r> = (Vec<&'r [u8]>, u64, bool);

    const ONCE: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.handle))
            .op(&Op::ListXattrs(op::ListXattrs {
                cookie: self.cookie,
                max_count: self.count,
            }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Self::Answer<'r>, Failure> {
        const LISTXATTRS: u32 = 74;
        from.take::<()>(PUTFH)?;
        let ok: XattrNames<'r> = from.take(LISTXATTRS)?;
        Ok((ok.names, ok.cookie, ok.eof))
    }
}

/// Removes an attribute.
pub struct RemoveXattr<'a> {
    /// Of what.
    pub handle: &'a [u8],
    /// Which.
    pub name: &'a [u8],
}

impl Steps for RemoveXattr<'_> {
    type Answer<'r> = ();

    const ONCE: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.handle))
            .op(&Op::RemoveXattr(self.name));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const REMOVEXATTR: u32 = 75;
        from.take::<()>(PUTFH)?;
        skip::<ChangeInfo>(from, REMOVEXATTR)
    }
}
