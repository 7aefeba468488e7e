//! Permission checks against the stored owners.

use vfs::{Access, Attr, Caller, Errno, Groups, Kind, Result, SetAttr, SetTime};

/// Returns the part of `want` that `caller` has on a file with these attributes.
pub(super) fn access(caller: &Caller, attr: &Attr, want: Access) -> Access {
    if caller.uid == 0 {
        // Root may execute a file only if some user may.
        let executable = attr.kind == Kind::Directory || attr.mode & 0o111 != 0;
        return if executable {
            want
        } else {
            want - Access::EXEC
        };
    }
    let class = if caller.uid == attr.uid {
        attr.mode >> 6
    } else if is_member(caller, attr.gid) {
        attr.mode >> 3
    } else {
        attr.mode
    };
    want & Access::from_bits_truncate(class)
}

/// Returns `EACCES` unless `caller` has all of `want`.
pub(super) fn require(caller: &Caller, attr: &Attr, want: Access) -> Result<()> {
    if access(caller, attr, want) == want {
        Ok(())
    } else {
        Err(Errno::EACCES)
    }
}

/// Returns `EPERM` unless `caller` owns the file or is root.
pub(super) fn require_owner(caller: &Caller, attr: &Attr) -> Result<()> {
    if caller.uid == 0 || caller.uid == attr.uid {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Checks that `caller` may remove or replace the name of `victim` in `dir`. Returns `EACCES`
/// without write permission, and `EPERM` if the sticky bit protects it.
pub(super) fn require_removal(caller: &Caller, dir: &Attr, victim: Option<&Attr>) -> Result<()> {
    require(caller, dir, Access::WRITE | Access::EXEC)?;
    match victim {
        Some(victim) if dir.mode & 0o1000 != 0 && caller.uid != dir.uid => {
            require_owner(caller, victim)
        }
        _ => Ok(()),
    }
}

/// Sets owner, group and permissions of a file that `caller` makes in `dir` with mode `bits`.
pub(super) fn inherit(caller: &Caller, dir: &Attr, kind: Kind, bits: u32, made: &mut Attr) {
    made.kind = kind;
    made.uid = caller.uid;
    made.gid = caller.gid;
    made.mode = bits & 0o7777;
    if dir.mode & 0o2000 == 0 {
        return;
    }
    made.gid = dir.gid;
    if kind == Kind::Directory {
        made.mode |= 0o2000;
    } else if made.mode & 0o2010 == 0o2010 && !may_set_gid(caller, dir.gid) {
        made.mode &= !0o2000;
    }
}

/// Checks a change of attributes and returns the stored attributes afterwards. With `open` the file
/// is open for it, and a new size needs no permission.
pub(super) fn apply_change(caller: &Caller, now: &Attr, set: &SetAttr, open: bool) -> Result<Attr> {
    let mut then = *now;
    if set.uid.is_some_and(|uid| uid != now.uid) && caller.uid != 0 {
        return Err(Errno::EPERM);
    }
    if let Some(gid) = set.gid {
        require_owner(caller, now)?;
        if gid != now.gid && !may_set_gid(caller, gid) {
            return Err(Errno::EPERM);
        }
    }
    if set.uid.is_some() {
        require_owner(caller, now)?;
    }
    then.uid = set.uid.unwrap_or(now.uid);
    then.gid = set.gid.unwrap_or(now.gid);
    if set.uid.is_some() || set.gid.is_some() || set.kill_priv {
        then.mode = then.kind.mode_without_set_id(then.mode);
    }
    if let Some(mode) = set.mode {
        require_owner(caller, now)?;
        then.mode = mode & 0o7777;
        if !may_set_gid(caller, then.gid) {
            then.mode &= !0o2000;
        }
    }
    if set.size.is_some() {
        if !open {
            require(caller, now, Access::WRITE)?;
        }
        if caller.uid != 0 && set.mode.is_none() {
            then.mode = then.kind.mode_without_set_id(then.mode);
        }
    }
    for time in [set.atime, set.mtime] {
        match time {
            Some(SetTime::At(_)) => require_owner(caller, now)?,
            Some(SetTime::Now) if require_owner(caller, now).is_err() && set.size.is_none() => {
                require(caller, now, Access::WRITE)?;
            }
            _ => {}
        }
    }
    Ok(then)
}

fn may_set_gid(caller: &Caller, gid: u32) -> bool {
    caller.uid == 0 || is_member(caller, gid)
}

fn is_member(caller: &Caller, gid: u32) -> bool {
    caller.gid == gid
        || match &caller.groups {
            Groups::Known(groups) => groups.contains(&gid),
            Groups::Unknown => false,
        }
}
