//! Changes of attributes: permissions and effects.

use vfs::{Access, Attr, Caller, Errno, Kind, OpenFlags, Result, SetAttr, SetTime};

use crate::node::{MemNode, State};
use crate::pages::MAX_SIZE;
use crate::perm;

impl MemNode {
    /// Implements [`vfs::Node::setattr`] and, for a file opened with the flags `open`,
    /// [`vfs::File::setattr`].
    pub(crate) fn set(
        &self,
        caller: &Caller,
        set: &SetAttr,
        open: Option<OpenFlags>,
    ) -> Result<Attr> {
        let now = self.shared.now();
        let mut state = self.write();
        self.may_set(&state, caller, set, open)?;
        if let Some(size) = set.size {
            let pages = state.pages_mut().expect("may_set saw a file");
            pages.resize(size);
            state.modified(now);
            state.drop_privileges(caller);
        }
        if set.uid.is_some() || set.gid.is_some() {
            state.meta.uid = set.uid.unwrap_or(state.meta.uid);
            state.meta.gid = set.gid.unwrap_or(state.meta.gid);
            if self.kind != Kind::Directory {
                state.drop_set_id();
                state.xattrs.drop_capabilities();
            }
        }
        // As for a chown: a directory's set-gid bit is no privilege.
        if set.kill_priv && self.kind != Kind::Directory {
            state.drop_set_id();
            state.xattrs.drop_capabilities();
        }
        if let Some(mode) = set.mode {
            state.meta.mode = perm::chmod_bits(mode, state.meta.gid, caller);
        }
        let moment = |time| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        state.meta.atime = set.atime.map_or(state.meta.atime, moment);
        state.meta.mtime = set.mtime.map_or(state.meta.mtime, moment);
        if *set != SetAttr::default() {
            state.changed(now);
        }
        Ok(state.attr(self))
    }

    /// Checks permissions as Linux's `setattr_prepare` does, and before it truncate(2) and
    /// ftruncate(2).
    fn may_set(
        &self,
        state: &State,
        caller: &Caller,
        set: &SetAttr,
        open: Option<OpenFlags>,
    ) -> Result<()> {
        let meta = &state.meta;
        let owns = perm::owns(meta, caller);
        if let Some(size) = set.size {
            match (self.kind, open) {
                (Kind::File, Some(flags)) if !flags.contains(OpenFlags::WRITE) => {
                    return Err(Errno::EINVAL);
                }
                (Kind::File, Some(_)) => {}
                (Kind::File, None) => perm::check(meta, self.kind, caller, Access::WRITE)?,
                (Kind::Directory, None) => return Err(Errno::EISDIR),
                _ => return Err(Errno::EINVAL),
            }
            if size > MAX_SIZE {
                return Err(Errno::EFBIG);
            }
        }
        // Only the owner may set them, even to the same values.
        let keeps_uid = |uid| owns && uid == meta.uid;
        let keeps_gid = |gid| owns && (gid == meta.gid || perm::in_group(caller, gid));
        let keeps = set.uid.is_none_or(keeps_uid) && set.gid.is_none_or(keeps_gid);
        if !(keeps || perm::is_root(caller)) {
            return Err(Errno::EPERM);
        }
        if set.mode.is_some() {
            if self.kind == Kind::Symlink {
                return Err(Errno::EOPNOTSUPP);
            }
            if !owns {
                return Err(Errno::EPERM);
            }
        }
        for time in [set.atime, set.mtime].into_iter().flatten() {
            match time {
                _ if owns => {}
                SetTime::At(_) => return Err(Errno::EPERM),
                SetTime::Now => perm::check(meta, self.kind, caller, Access::WRITE)?,
            }
        }
        Ok(())
    }
}
