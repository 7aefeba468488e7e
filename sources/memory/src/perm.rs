//! Permission checks of Linux's `fs/namei.c` and `fs/attr.c`, without ACLs.

use vfs::{Access, Caller, Errno, Groups, Kind, Result};

use crate::meta::Meta;

/// Returns whether the caller is the super-user.
pub(crate) fn is_root(caller: &Caller) -> bool {
    caller.uid == 0
}

/// Returns whether `gid` is one of the caller's groups.
pub(crate) fn in_group(caller: &Caller, gid: u32) -> bool {
    caller.gid == gid || matches!(&caller.groups, Groups::Known(groups) if groups.contains(&gid))
}

/// Returns whether the caller is the owner or the super-user.
pub(crate) fn owns(meta: &Meta, caller: &Caller) -> bool {
    is_root(caller) || caller.uid == meta.uid
}

/// Returns the access that the permission bits grant the caller.
pub(crate) fn allowed(meta: &Meta, kind: Kind, caller: &Caller) -> Access {
    if is_root(caller) {
        let executable = kind == Kind::Directory || meta.mode & 0o111 != 0;
        let exec = if executable {
            Access::EXEC
        } else {
            Access::empty()
        };
        return Access::READ | Access::WRITE | exec;
    }
    let shift = if caller.uid == meta.uid {
        6
    } else if in_group(caller, meta.gid) {
        3
    } else {
        0
    };
    Access::from_bits_truncate(meta.mode >> shift)
}

/// Returns `EACCES` unless the caller has all of `want`.
pub(crate) fn check(meta: &Meta, kind: Kind, caller: &Caller, want: Access) -> Result<()> {
    if allowed(meta, kind, caller).contains(want) {
        Ok(())
    } else {
        Err(Errno::EACCES)
    }
}

/// Returns `EPERM` if `dir`'s sticky bit prevents the caller from removing `victim`'s name.
pub(crate) fn check_sticky(dir: &Meta, victim: &Meta, caller: &Caller) -> Result<()> {
    if dir.mode & 0o1000 != 0 && !owns(dir, caller) && caller.uid != victim.uid {
        return Err(Errno::EPERM);
    }
    Ok(())
}

/// Returns the mode after a chmod to `mode` by `caller` on a file of group `gid`: set-gid is
/// cleared unless the caller is a member of the group.
pub(crate) fn chmod_bits(mode: u32, gid: u32, caller: &Caller) -> u32 {
    let keeps = is_root(caller) || in_group(caller, gid);
    mode & 0o7777 & !if keeps { 0 } else { 0o2000 }
}

/// Returns the permission bits of a new node in the directory `dir`.
pub(crate) fn new_mode(kind: Kind, bits: u32, dir: &Meta, caller: &Caller) -> u32 {
    let inherits = dir.mode & 0o2000 != 0;
    match kind {
        Kind::Symlink => 0o777,
        Kind::Directory => bits & 0o1777 | if inherits { 0o2000 } else { 0 },
        // Only members of the directory's group may create set-gid programs of it.
        _ if inherits
            && bits & 0o2010 == 0o2010
            && !is_root(caller)
            && !in_group(caller, dir.gid) =>
        {
            bits & 0o5777
        }
        _ => bits & 0o7777,
    }
}
