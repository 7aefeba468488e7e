//! Changing attributes, in every dialect, and the access that they grant.

use std::sync::Arc;

use p9::Fid;
use p9::client::request;
use vfs::{Access, Attr, Caller, Cx, Groups, Kind, Result, SetAttr};

use super::fid::Session;
use super::legacy;

/// Changes attributes of a fid, whose file has kind `kind`.
pub(super) fn set_attr(
    wire: &Arc<Session>,
    cx: &Cx<'_>,
    fid: Fid,
    kind: Kind,
    set: &SetAttr,
) -> Result<Attr> {
    let mut set = *set;
    if set.kill_priv {
        set.kill_priv = false;
        if set.mode.is_none() && kind == Kind::File {
            let mode = wire.attr(cx, fid)?.mode;
            let less = Kind::File.mode_without_set_id(mode);
            set.mode = (less != mode).then_some(less);
        }
    }
    if set == SetAttr::default() {
        return wire.attr(cx, fid);
    }
    if wire.is_linux() {
        wire.call(cx, &request::setattr(fid, &set))?;
    } else {
        legacy::setattr(wire, cx, fid, kind, &set)?;
    }
    wire.attr(cx, fid)
}

/// Returns the access that the permission bits grant a caller, as Linux decides it; unknown
/// supplementary groups do not count.
pub(super) fn allowed(attr: &Attr, caller: &Caller) -> Access {
    if caller.uid == 0 {
        let exec = attr.kind == Kind::Directory || attr.mode & 0o111 != 0;
        let mut all = Access::READ | Access::WRITE;
        all.set(Access::EXEC, exec);
        return all;
    }
    let in_group = caller.gid == attr.gid
        || matches!(&caller.groups, Groups::Known(groups) if groups.contains(&attr.gid));
    let shift = match () {
        () if caller.uid == attr.uid => 6,
        () if in_group => 3,
        () => 0,
    };
    Access::from_bits_truncate(attr.mode >> shift & 7)
}
