//! Names in directories: create, link, rename and remove.

use vfs::{Device, Errno, Kind, Mode, Name, NewNode, RenameFlags, Result};

use super::fid::FidState;
use super::qid::qid_of;
use super::request::RequestContext;
use super::step::{Attach, STEP_BYTES};
use crate::numbers::AT_REMOVEDIR;
use crate::{Fid, Qid, Rmessage};

impl RequestContext<'_> {
    pub(super) fn symlink(&mut self, fid: Fid, name: &[u8], target: &[u8], gid: u32) -> Result<()> {
        check_target(target)?;
        let qid = self.make(fid, name, NewNode::Symlink(target), 0o777, gid)?;
        self.reply(&Rmessage::Symlink { qid })
    }

    pub(super) fn mkdir(&mut self, dfid: Fid, name: &[u8], mode: u32, gid: u32) -> Result<()> {
        let qid = self.make(dfid, name, NewNode::Directory, mode, gid)?;
        self.reply(&Rmessage::Mkdir { qid })
    }

    pub(super) fn mknod(
        &mut self,
        dfid: Fid,
        name: &[u8],
        mode: u32,
        device: Device,
        gid: u32,
    ) -> Result<()> {
        let kind = match mode & S_IFMT {
            // As in mknod(2), a mode without a type makes a regular file.
            0 => Some(Kind::File),
            _ => Kind::from_mode(mode),
        };
        let what = match kind {
            Some(Kind::File) => NewNode::File,
            Some(Kind::Fifo) => NewNode::Fifo,
            Some(Kind::Socket) => NewNode::Socket,
            Some(Kind::CharDevice) => NewNode::CharDevice(device),
            Some(Kind::BlockDevice) => NewNode::BlockDevice(device),
            Some(Kind::Directory) => return Err(Errno::EPERM),
            Some(Kind::Symlink) | None => return Err(Errno::EINVAL),
        };
        let qid = self.make(dfid, name, what, mode, gid)?;
        self.reply(&Rmessage::Mknod { qid })
    }

    fn make(&self, dfid: Fid, name: &[u8], what: NewNode<'_>, mode: u32, gid: u32) -> Result<Qid> {
        let dir = self.fid(dfid)?;
        check_directory(&dir)?;
        let caller = dir.attach().caller_in(self.call, gid);
        let mode = Mode::without_umask(mode & 0o7777);
        let name = Name::new(name)?;
        let entry = dir.node().make(&self.cx(&caller), name, what, mode)?;
        Ok(qid_of(&entry.attr))
    }

    pub(super) fn link(&mut self, dfid: Fid, fid: Fid, name: &[u8]) -> Result<()> {
        let (dir, target) = (self.fid(dfid)?, self.fid(fid)?);
        target.check_file()?;
        check_directory(&dir)?;
        check_same(dir.attach(), target.attach())?;
        let cx = self.cx(&dir.attach().caller);
        dir.node().link(&cx, Name::new(name)?, target.node())?;
        self.reply(&Rmessage::Link {})
    }

    pub(super) fn renameat(
        &mut self,
        olddirfid: Fid,
        oldname: &[u8],
        newdirfid: Fid,
        newname: &[u8],
    ) -> Result<()> {
        let (from, to) = (self.fid(olddirfid)?, self.fid(newdirfid)?);
        check_directory(&from)?;
        check_directory(&to)?;
        check_same(from.attach(), to.attach())?;
        let cx = self.cx(&from.attach().caller);
        from.node().rename(
            &cx,
            checked_name(oldname)?,
            to.node(),
            checked_name(newname)?,
            RenameFlags::empty(),
        )?;
        self.reply(&Rmessage::Renameat {})
    }

    /// Renames the file of a fid, and updates the fid. Other fids of the file keep the name that
    /// they were walked by, and detect that it is stale.
    pub(super) fn rename(&mut self, fid: Fid, dfid: Fid, name: &[u8]) -> Result<()> {
        let (file, dir) = (self.fid(fid)?, self.fid(dfid)?);
        file.check_file()?;
        check_directory(&dir)?;
        check_same(file.attach(), dir.attach())?;
        let name = checked_name(name)?;
        let cx = self.cx(&file.attach().caller);
        let location = file.check_name_in_parent(&cx)?;
        let charge = dir.reserve_memory(STEP_BYTES)?;
        location.parent.node.rename(
            &cx,
            location.name()?,
            dir.node(),
            name,
            RenameFlags::empty(),
        )?;
        let moved = dir.child(name, file.step().node.clone(), charge);
        // If the fid was replaced meanwhile, it stays as it is.
        let _ = self
            .connection
            .fids
            .replace(fid, &file, moved.with_state(file.state().clone()));
        self.reply(&Rmessage::Rename {})
    }

    pub(super) fn unlinkat(&mut self, dirfid: Fid, name: &[u8], flags: u32) -> Result<()> {
        let dir = self.fid(dirfid)?;
        check_directory(&dir)?;
        if flags & !AT_REMOVEDIR != 0 {
            return Err(Errno::EINVAL);
        }
        let cx = self.cx(&dir.attach().caller);
        let name = checked_name(name)?;
        dir.node().unlink(&cx, name, flags & AT_REMOVEDIR != 0)?;
        self.reply(&Rmessage::Unlinkat {})
    }

    /// Removes a file and its fid; the fid is removed even if the file cannot be.
    pub(super) fn remove(&mut self, fid: Fid) -> Result<()> {
        let state = self.fid(fid)?;
        let cx = self.cx(&state.attach().caller);
        let done = state.check_file().and_then(|()| state.unlink(&cx));
        if let Err(errno) = done
            && errno.is_signal()
        {
            return Err(errno);
        }
        self.connection.fids.remove(fid, &state);
        done?;
        self.reply(&Rmessage::Remove {})
    }
}

const S_IFMT: u32 = 0o170000;

/// Returns `ENOTDIR` for another file, or `EINVAL` for a fid of an extended attribute.
fn check_directory(dir: &FidState) -> Result<()> {
    dir.check_file()?;
    if dir.is_directory() {
        Ok(())
    } else {
        Err(Errno::ENOTDIR)
    }
}

/// Returns `EXDEV` unless both belong to one export.
fn check_same(one: &Attach, other: &Attach) -> Result<()> {
    if std::sync::Arc::ptr_eq(&one.export, &other.export) {
        Ok(())
    } else {
        Err(Errno::EXDEV)
    }
}

/// Checks a symbolic link's target as symlink(2) does, and for what Rreadlink can carry.
pub(super) fn check_target(target: &[u8]) -> Result<()> {
    /// Linux's `PATH_MAX` without the NUL.
    const MOST: usize = 4095;
    match target {
        b"" => Err(Errno::ENOENT),
        _ if target.len() > MOST => Err(Errno::ENAMETOOLONG),
        _ if target.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// Checks a name that exists already or is the target of a rename. `.` and `..` return `EINVAL`, as
/// they cannot be renamed or removed.
pub(super) fn checked_name(name: &[u8]) -> Result<Name<'_>> {
    Name::new(name).map_err(|errno| match errno {
        Errno::EEXIST => Errno::EINVAL,
        other => other,
    })
}
