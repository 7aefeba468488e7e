//! Extended attributes (RFC 8276), which exist only in the `user` namespace.

use ::nfs::client::v4::{GetXattr, ListXattrs, RemoveXattr, SetXattr};
use vfs::{Cx, Errno, Result, XattrFlags};

use super::server::V4;
use crate::nfs::version::Handle;
use crate::xattr::MAX_SIZE;

pub(super) fn get(v4: &V4, cx: &Cx<'_>, handle: &Handle, name: &[u8]) -> Result<Vec<u8>> {
    let name = check(v4, name)?;
    v4.core
        .call_stateless(cx, GetXattr { handle, name }, <[u8]>::to_vec)
}

/// Lists all names, each terminated by a NUL.
pub(super) fn list(v4: &V4, cx: &Cx<'_>, handle: &Handle) -> Result<Vec<u8>> {
    if !v4.xattr {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut list = Vec::new();
    let mut at = 0;
    loop {
        let operations = ListXattrs {
            handle,
            cookie: at,
            count: MAX_SIZE as u32,
        };
        let (cookie, end) = v4
            .core
            .call_stateless(cx, operations, |(names, cookie, end)| {
                for name in names {
                    list.extend_from_slice(b"user.");
                    list.extend_from_slice(name);
                    list.push(0);
                }
                (cookie, end)
            })?;
        if end {
            return Ok(list);
        }
        // The listing would never end, or exceeds Linux's limit.
        if cookie == at || list.len() > MAX_SIZE {
            return Err(Errno::E2BIG);
        }
        at = cookie;
    }
}

pub(super) fn set(
    v4: &V4,
    cx: &Cx<'_>,
    handle: &Handle,
    name: &[u8],
    (value, flags): (&[u8], XattrFlags),
) -> Result<()> {
    let name = check(v4, name)?;
    let operations = SetXattr {
        handle,
        name,
        value,
        flags,
    };
    v4.core.call_stateless(cx, operations, |()| ())
}

pub(super) fn remove(v4: &V4, cx: &Cx<'_>, handle: &Handle, name: &[u8]) -> Result<()> {
    let name = check(v4, name)?;
    v4.core
        .call_stateless(cx, RemoveXattr { handle, name }, |()| ())
}

/// Returns a name without its prefix, which is implicit in the protocol.
fn check<'n>(v4: &V4, name: &'n [u8]) -> Result<&'n [u8]> {
    match name.strip_prefix(b"user.") {
        Some(name) if v4.xattr => Ok(name),
        _ => Err(Errno::EOPNOTSUPP),
    }
}
