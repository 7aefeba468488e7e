//! Extended attributes (RFC 8276). Names are in the `user.` namespace and lack that prefix.

use vfs::XattrFlags;

use super::attr::{PUTFH, skip};
use super::compound::{Operations, Ops, Results};
use crate::client::Failure;
use crate::v4::op::{self, Op};
use crate::v4::reply::XattrNames;
use crate::v4::types::ChangeInfo;

/// A GETXATTR.
pub struct GetXattr<'a> {
    /// The node's handle.
    pub handle: &'a [u8],
    /// The attribute's name.
    pub name: &'a [u8],
}

impl Operations for GetXattr<'_> {
    type Answer<'r> = &'r [u8];

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.handle)).op(&Op::GetXattr(self.name));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<&'r [u8], Failure> {
        const GETXATTR: u32 = 72;
        from.take::<()>(PUTFH)?;
        from.take(GETXATTR)
    }
}

/// A SETXATTR.
pub struct SetXattr<'a> {
    /// The node's handle.
    pub handle: &'a [u8],
    /// The attribute's name.
    pub name: &'a [u8],
    /// The new value.
    pub value: &'a [u8],
    /// Whether the attribute may or must exist.
    pub flags: XattrFlags,
}

impl Operations for SetXattr<'_> {
    type Answer<'r> = ();

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.handle))
            .op(&Op::SetXattr(op::SetXattr {
                // The protocol's values are those of Linux.
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

/// A LISTXATTRS.
pub struct ListXattrs<'a> {
    /// The node's handle.
    pub handle: &'a [u8],
    /// The cookie to continue from.
    pub cookie: u64,
    /// The maximum length of the results in bytes.
    pub count: u32,
}

impl Operations for ListXattrs<'_> {
    /// The names, the cookie to continue from, and whether there are no more names.
    type Answer<'r> = (Vec<&'r [u8]>, u64, bool);

    const CACHE_THIS: bool = false;

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

/// A REMOVEXATTR.
pub struct RemoveXattr<'a> {
    /// The node's handle.
    pub handle: &'a [u8],
    /// The attribute's name.
    pub name: &'a [u8],
}

impl Operations for RemoveXattr<'_> {
    type Answer<'r> = ();

    const CACHE_THIS: bool = true;

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
