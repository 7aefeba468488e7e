//! Names in directories: create, link, rename and remove.

use vfs::{Errno, Kind, Mode, Name, NewNode, RenameFlags, Result};

use super::RequestContext;
use crate::convert::decode_device;
use crate::layout::{EntryOut, MkdirIn, MknodIn};

impl RequestContext<'_> {
    pub(super) fn symlink(&mut self, name: &[u8], target: &[u8]) -> Result<()> {
        /// Linux's `PATH_MAX` without the NUL.
        const MOST: usize = 4095;
        match target {
            b"" => Err(Errno::ENOENT),
            _ if target.len() > MOST => Err(Errno::ENAMETOOLONG),
            _ => self.make(name, NewNode::Symlink(target), Mode::without_umask(0o777)),
        }
    }

    pub(super) fn mkdir(&mut self, args: &MkdirIn, name: &[u8]) -> Result<()> {
        let mode = self.mode(args.mode, args.umask);
        self.make(name, NewNode::Directory, mode)
    }

    pub(super) fn mknod(&mut self, args: &MknodIn, name: &[u8]) -> Result<()> {
        let device = decode_device(args.rdev);
        let kind = match args.mode & S_IFMT {
            // As in mknod(2), a mode without a type makes a regular file.
            0 => Some(Kind::File),
            _ => Kind::from_mode(args.mode),
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
        let mode = self.mode(args.mode, args.umask);
        self.make(name, what, mode)
    }

    fn make(&mut self, name: &[u8], what: NewNode<'_>, mode: Mode) -> Result<()> {
        self.check_room(EntryOut::SIZE)?;
        let up = self.directory()?;
        let name = Name::new(name)?;
        self.session.nodes.check_room()?;
        self.check_may_label()?;
        let entry = match up.node.make(&self.cx, name, what, mode) {
            Err(Errno::EEXIST) => self.own_entry(&*up.node, name, &what)?,
            made => made?,
        };
        if !self.cx.call.is_existing() {
            let nodes = &self.session.nodes;
            nodes.record_created(self.incarnation, &*entry.node);
        }
        let entry = self.label(&*up.node, Some(name), entry)?;
        self.reply_entry(&up, &entry)
    }

    pub(super) fn link(&mut self, target: u64, name: &[u8]) -> Result<()> {
        self.check_room(EntryOut::SIZE)?;
        let up = self.directory()?;
        let target = self.session.nodes.get(self.incarnation, target)?.node;
        let name = Name::new(name)?;
        let entry = match up.node.link(&self.cx, name, &*target) {
            Err(Errno::EEXIST) => self.own_link(&*up.node, name, &*target)?,
            linked => linked?,
        };
        self.reply_entry(&up, &entry)
    }

    pub(super) fn unlink(&mut self, name: &[u8], dir: bool) -> Result<()> {
        let up = self.directory()?;
        let name = checked_name(name)?;
        if !dir {
            self.keep_open_file(&*up.node, name)?;
        }
        match up.node.unlink(&self.cx, name, dir) {
            // It was removed before the reply was lost.
            Err(Errno::ENOENT) if self.attempt.is_some() => {}
            removed => removed?,
        }
        self.reply(&[])
    }

    pub(super) fn rename(
        &mut self,
        name: &[u8],
        newdir: u64,
        newname: &[u8],
        flags: u32,
    ) -> Result<()> {
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
        let from = self.directory()?;
        let to = self.session.nodes.get(self.incarnation, newdir)?.node;
        if to.kind() != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let (name, newname) = (checked_name(name)?, checked_name(newname)?);
        if self.is_renamed((&*from.node, name), (&*to, newname), flags)? {
            return self.reply(&[]);
        }
        if flags.is_empty() {
            self.keep_open_file(&*to, newname)?;
        }
        from.node.rename(&self.cx, name, &*to, newname, flags)?;
        self.reply(&[])
    }
}

const S_IFMT: u32 = 0o170000;

/// Checks a name that exists already or is the target of a rename. `.` and `..` return `EINVAL`, as
/// they cannot be renamed or removed.
fn checked_name(name: &[u8]) -> Result<Name<'_>> {
    Name::new(name).map_err(|errno| match errno {
        Errno::EEXIST => Errno::EINVAL,
        other => other,
    })
}
