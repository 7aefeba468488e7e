//! Opening files: by handle, with a delegation, by name (v4.0), or by creating them.

use std::sync::Arc;

use ::nfs::client::v4::{Claim, StateId};
use vfs::{Access, Cx, Errno, OpenFlags, Result};

use super::delegation_table::{Delegation, Delegations};
use super::open_owner::OpenArgs;
use super::open_state::{OpenState, OpenedFile};
use super::server::V4;
use crate::file::may_open;
use crate::nfs::version::{Found, Handle, ProtocolVersion, Target, complete_node};

/// Opens by handle, or shares the open of a delegation.
pub(super) fn by_handle(
    v4: &V4,
    cx: &Cx<'_>,
    target: Target<'_>,
    flags: OpenFlags,
) -> Result<Arc<OpenState>> {
    let core = &v4.core;
    let wanted = open_args(v4, Claim::Handle(target.handle), flags);
    if target.exclusive || !Delegations::covers(flags) || !core.takes_delegations() {
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC) {
            core.return_file_delegation(cx, target.handle);
        }
        return Ok(core.open_file(cx, &wanted)?.1);
    }
    if let Some(opening) = core.delegations.open(target.handle, cx.caller) {
        return Ok(opening);
    }
    let wanted = OpenArgs {
        delegation: true,
        ..wanted
    };
    let (opened, opening) = core.open_file(cx, &wanted)?;
    if let Some(granted) = opened.delegation {
        core.add_delegation(cx, Delegation::new(granted, &opening, &target));
    }
    Ok(opening)
}

/// Opens by name, as v4.0 cannot open by handle. If the name is gone, uses the anonymous stateid,
/// with which the server checks permissions on each read and write.
pub(super) fn by_name(
    v4: &V4,
    cx: &Cx<'_>,
    target: Target<'_>,
    flags: OpenFlags,
) -> Result<Arc<OpenState>> {
    if let Some((dir, name)) = target.location {
        let wanted = open_args(v4, Claim::Name(dir, name), flags);
        match v4.core.open_file(cx, &wanted) {
            Ok((opened, opening)) if opened.node.attr.is_some_and(|attr| attr.id == target.id) => {
                return Ok(opening);
            }
            // The name now belongs to another file, or to none.
            Ok(_)
            | Err(Errno::ENOENT | Errno::ESTALE | Errno::ELOOP | Errno::EISDIR)
            | Err(Errno::EINVAL | Errno::ENOTDIR) => {}
            Err(errno) => return Err(errno),
        }
    }
    let mut want = Access::empty();
    want.set(Access::READ, flags.contains(OpenFlags::READ));
    want.set(Access::WRITE, flags.contains(OpenFlags::WRITE));
    if v4.access(cx, target.handle, false, want)? != want {
        return Err(Errno::EACCES);
    }
    let file = OpenedFile {
        handle: target.handle.clone(),
        flags,
        preserves_unlinked: false,
    };
    Ok(v4.core.register_open(cx, file, StateId::ANONYMOUS, None))
}

/// Creates `name` in `dir` unless it exists, and opens it.
pub(super) fn create(
    v4: &V4,
    cx: &Cx<'_>,
    (dir, name): (&Handle, &[u8]),
    flags: OpenFlags,
    mode: u32,
) -> Result<(Found, Arc<OpenState>)> {
    v4.core.return_name_delegation(cx, dir, name);
    let wanted = open_args(v4, Claim::Create(dir, name, mode), flags);
    let (opened, opening) = match v4.core.open_file(cx, &wanted) {
        // The error of servers for files that are not regular.
        Err(errno @ (Errno::EINVAL | Errno::ELOOP)) => {
            let found = v4.lookup(cx, dir, Some(name))?;
            may_open(found.attr.kind, flags)?;
            return Err(errno);
        }
        opened => opened?,
    };
    let found = complete_node(
        opened.node,
        || Err(Errno::EIO),
        |handle| v4.attr(cx, handle),
    )?;
    Ok((found, opening))
}

/// An open without a delegation.
fn open_args<'a>(v4: &V4, claim: Claim<'a>, flags: OpenFlags) -> OpenArgs<'a> {
    OpenArgs {
        claim,
        flags,
        tree: v4.tree,
        delegation: false,
    }
}
