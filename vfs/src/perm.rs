//! Permission checks for sources that cannot delegate them: those of Linux's `fs/namei.c` and
//! `fs/posix_acl.c`.

use crate::acl::{Acl, AclSubject};
use crate::{Access, Attr, Caller, Groups, Kind};

/// Returns whether the caller is the superuser, which bypasses most checks.
pub fn is_root(caller: &Caller) -> bool {
    caller.uid == 0
}

/// Returns whether `gid` is one of the caller's groups.
pub fn in_group(caller: &Caller, gid: u32) -> bool {
    caller.gid == gid || matches!(&caller.groups, Groups::Known(groups) if groups.contains(&gid))
}

/// Returns whether the caller is the owner or the superuser.
pub fn owns(attr: &Attr, caller: &Caller) -> bool {
    is_root(caller) || caller.uid == attr.uid
}

/// Returns the accesses that the mode and the ACL, if any, permit, on a writable file system.
pub fn allowed(attr: &Attr, acl: Option<&Acl>, caller: &Caller) -> Access {
    let mode = attr.mode;
    if is_root(caller) {
        let executable = attr.kind == Kind::Directory || mode & 0o111 != 0;
        let exec = match executable {
            true => Access::EXEC,
            false => Access::empty(),
        };
        return Access::READ | Access::WRITE | exec;
    }
    let class = |shift: u32| Access::from_bits_truncate(mode >> shift);
    if caller.uid == attr.uid {
        return class(6);
    }
    match acl {
        Some(acl) => by_acl(acl, attr.gid, caller),
        None if in_group(caller, attr.gid) => class(3),
        None => class(0),
    }
}

/// Returns the accesses that an ACL permits a caller who is not the owner: those of the user's
/// entry, or else of the entries of the caller's groups.
fn by_acl(acl: &Acl, gid: u32, caller: &Caller) -> Access {
    let of = |whose: &dyn Fn(AclSubject) -> bool| {
        let found = acl.0.iter().filter(|entry| whose(entry.subject));
        found.map(|entry| entry.permissions).reduce(Access::union)
    };
    let mask = of(&|whose| whose == AclSubject::Mask).unwrap_or(Access::all());
    let user = of(&|whose| whose == AclSubject::User(caller.uid));
    let groups = of(&|whose| match whose {
        AclSubject::OwningGroup => in_group(caller, gid),
        AclSubject::Group(gid) => in_group(caller, gid),
        _ => false,
    });
    match user.or(groups) {
        Some(may) => may & mask,
        None => of(&|whose| whose == AclSubject::Others).unwrap_or(Access::empty()),
    }
}
