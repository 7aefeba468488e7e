//! Twstat: attributes and the name change together or not at all; a Twstat without changes makes
//! the file durable (stat(5)).

use vfs::{Cx, Errno, Name, RenameFlags, Result, SetAttr, SetTime, Time};

use super::create::{check_supported, mode_bits};
use crate::numbers::Dm;
use crate::server::fid::{FidState, State};
use crate::server::make::checked_name;
use crate::server::request::RequestContext;
use crate::server::step::STEP_BYTES;
use crate::{Dialect, Fid, Rmessage, Stat};

impl RequestContext<'_> {
    pub(in crate::server) fn wstat(&mut self, fid: Fid, stat: &Stat<'_>) -> Result<()> {
        let state = self.fid(fid)?;
        state.check_file()?;
        let cx = self.cx(&state.attach().caller);
        let set = self.requested_changes(&state, stat)?;
        let change = set != SetAttr::default();
        let renamed = match new_name(&state, stat)? {
            Some(name) => {
                if change {
                    // Two steps: an operation that would block must not stop between them.
                    cx.check_may_block()?;
                }
                Some(self.rename_here(&cx, &state, name)?)
            }
            None => None,
        };
        if change {
            if let Err(errno) = self.change(&state, &set) {
                if let Some(renamed) = renamed {
                    rename_back(&cx, &state, &renamed);
                }
                return Err(errno);
            }
        } else if let (None, State::Open(open)) = (&renamed, state.state()) {
            open.file.fsync(&cx, false)?;
        }
        if let Some(renamed) = renamed {
            // If the fid was replaced meanwhile, it stays as it is.
            let _ = self.connection.fids.replace(fid, &state, renamed);
        }
        self.reply(&Rmessage::Wstat {})
    }

    /// Returns the attributes to change. The other fields (type, dev, qid, muid) are ignored:
    /// clients return them as they received them.
    fn requested_changes(&self, fid: &FidState, stat: &Stat<'_>) -> Result<SetAttr> {
        let users = &self.connection.server.users;
        let mut set = SetAttr::default();
        if stat.mode != u32::MAX {
            let mode = Dm::from_bits_retain(stat.mode);
            if mode.contains(Dm::DIR) != fid.is_directory() {
                return Err(Errno::EINVAL);
            }
            check_supported(mode)?;
            set.mode = Some(mode_bits(self.dialect, mode));
        }
        let time = |sec| {
            let at = Time {
                sec: i64::from(sec),
                nsec: 0,
            };
            (sec != u32::MAX).then_some(SetTime::At(at))
        };
        set.atime = time(stat.atime);
        set.mtime = time(stat.mtime);
        set.uid = owner(stat.uid, stat.unix.n_uid, |name| users.uid(name))?;
        set.gid = owner(stat.gid, stat.unix.n_gid, |name| users.gid(name))?;
        set.size = match stat.length {
            u64::MAX => None,
            0 if fid.is_directory() => None,
            _ if fid.is_directory() => return Err(Errno::EISDIR),
            length if i64::try_from(length).is_err() => return Err(Errno::EFBIG),
            length => Some(length),
        };
        Ok(set)
    }

    fn rename_here(&self, cx: &Cx<'_>, fid: &FidState, name: Name<'_>) -> Result<FidState> {
        let location = fid.check_name_in_parent(cx)?;
        let dir = &*location.parent.node;
        let flags = match self.dialect {
            // stat(5): an error if the name exists.
            Dialect::Plan9 => RenameFlags::NOREPLACE,
            // Linux uses rename(2)'s semantics.
            Dialect::Unix | Dialect::Linux => RenameFlags::empty(),
        };
        let charge = fid.reserve_memory(STEP_BYTES)?;
        dir.rename(cx, location.name()?, dir, name, flags)?;
        let up = FidState::Walked(location.parent.clone());
        let moved = up.child(name, fid.step().node.clone(), charge);
        Ok(moved.with_state(fid.state().clone()))
    }
}

/// Returns the new name, if it differs from the fid's.
fn new_name<'a>(fid: &FidState, stat: &Stat<'a>) -> Result<Option<Name<'a>>> {
    let Some(location) = &fid.step().name_in_parent else {
        // A root keeps its name, and clients may send it back.
        return match stat.name {
            b"" | b"/" => Ok(None),
            _ => Err(Errno::EBUSY),
        };
    };
    if stat.name.is_empty() || stat.name == location.name()?.bytes() {
        return Ok(None);
    }
    checked_name(stat.name).map(Some)
}

/// Undoes a rename, unless the old name was taken meanwhile.
fn rename_back(cx: &Cx<'_>, old: &FidState, renamed: &FidState) {
    let names = (&old.step().name_in_parent, &renamed.step().name_in_parent);
    if let (Some(old), Some(new)) = names
        && let (Ok(old_name), Ok(new_name)) = (old.name(), new.name())
    {
        let dir = &*old.parent.node;
        let _ = dir.rename(cx, new_name, dir, old_name, RenameFlags::NOREPLACE);
    }
}

/// Returns an owner by number, else by name. Returns `EINVAL` for an unknown name.
fn owner(
    name: &[u8],
    number: u32,
    known: impl FnOnce(&[u8]) -> Option<u32>,
) -> Result<Option<u32>> {
    match (name, number) {
        (b"", u32::MAX) => Ok(None),
        (_, u32::MAX) => known(name).map(Some).ok_or(Errno::EINVAL),
        _ => Ok(Some(number)),
    }
}
