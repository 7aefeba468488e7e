//! GETATTR, SETATTR, ACCESS.

use vfs::Attr;
use wire::Xdr;

use super::{decode, procedure};
use crate::client::{CallArguments, ClientCall, Failure, Tree};
use crate::v3::{AccessOk, Attributes, SetAttributes, SetTime, Time, Wcc, access};

/// A GETATTR.
pub struct GetAttr<'a> {
    /// The node's handle.
    pub handle: &'a [u8],
    /// The tree that the node belongs to.
    pub tree: Tree,
}

impl CallArguments for GetAttr<'_> {
    procedure!(GetAttr);

    fn put(&self, to: &mut Vec<u8>) {
        self.handle.put(to);
    }
}

impl ClientCall for GetAttr<'_> {
    type Answer<'r> = Attr;

    fn answer(&self, results: &[u8]) -> Result<Attr, Failure> {
        decode(results).map(|attributes: Attributes| self.tree.of_v3(&attributes))
    }
}

/// A SETATTR; returns the new attributes if the server reports them.
pub struct SetAttr<'a> {
    /// The node's handle.
    pub handle: &'a [u8],
    /// The attributes to set.
    pub set: vfs::SetAttr,
    /// The tree that the node belongs to.
    pub tree: Tree,
}

impl CallArguments for SetAttr<'_> {
    procedure!(SetAttr);

    fn put(&self, to: &mut Vec<u8>) {
        self.handle.put(to);
        set_attributes(&self.set).put(to);
        // No guard.
        false.put(to);
    }
}

impl ClientCall for SetAttr<'_> {
    type Answer<'r> = Option<Attr>;

    fn answer(&self, results: &[u8]) -> Result<Option<Attr>, Failure> {
        let wcc: Wcc = decode(results)?;
        Ok(wcc.after.map(|after| self.tree.of_v3(&after)))
    }
}

pub(super) fn set_attributes(set: &vfs::SetAttr) -> SetAttributes {
    let time = |time| match time {
        None => SetTime::Keep,
        Some(vfs::SetTime::Now) => SetTime::Now,
        Some(vfs::SetTime::At(at)) => SetTime::At(Time {
            // Times out of range are clamped.
            sec: at.sec.clamp(0, u32::MAX.into()) as u32,
            nsec: at.nsec,
        }),
    };
    SetAttributes {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: time(set.atime),
        mtime: time(set.mtime),
    }
}

/// An ACCESS; returns the part of `want` that the caller is allowed.
pub struct Access<'a> {
    /// The node's handle.
    pub handle: &'a [u8],
    /// Whether the node is a directory.
    pub directory: bool,
    /// The access to check.
    pub want: vfs::Access,
}

impl Access<'_> {
    /// Returns the ACCESS bits that correspond to `want`. They are the same in v4.
    pub(in crate::client) fn bits(directory: bool, want: vfs::Access) -> u32 {
        let mut bits = 0;
        for (ours, file, dir) in Access::TABLE {
            if want.contains(ours) {
                bits |= if directory { dir } else { file };
            }
        }
        bits
    }

    /// Returns the part of `want` that the ACCESS bits `allowed` grant.
    pub(in crate::client) fn allowed(
        directory: bool,
        want: vfs::Access,
        allowed: u32,
    ) -> vfs::Access {
        let mut may = vfs::Access::empty();
        for (ours, file, dir) in Access::TABLE {
            let bits = if directory { dir } else { file };
            may.set(ours, want.contains(ours) && allowed & bits == bits);
        }
        may
    }

    const TABLE: [(vfs::Access, u32, u32); 3] = [
        (vfs::Access::READ, access::READ, access::READ),
        (
            vfs::Access::WRITE,
            access::MODIFY | access::EXTEND,
            access::MODIFY | access::EXTEND | access::DELETE,
        ),
        (vfs::Access::EXEC, access::EXECUTE, access::LOOKUP),
    ];
}

impl CallArguments for Access<'_> {
    procedure!(Access);

    fn put(&self, to: &mut Vec<u8>) {
        self.handle.put(to);
        Access::bits(self.directory, self.want).put(to);
    }
}

impl ClientCall for Access<'_> {
    type Answer<'r> = vfs::Access;

    fn answer(&self, results: &[u8]) -> Result<vfs::Access, Failure> {
        let ok: AccessOk = decode(results)?;
        Ok(Access::allowed(self.directory, self.want, ok.access))
    }
}
