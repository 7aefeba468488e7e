//! Creation of files, directories, other objects and links.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode as RawMode, OFlags};
use rustix::path::DecInt;
use sys::errno;
use vfs::{Attr, AttrMask, Cx, Errno, Kind, Mode, Name, NewNode, Node, OpenFlags, Result};

use crate::descriptors::Fd;
use crate::file::HostFile;
use crate::node::HostNode;
use crate::open_files::OpenFile;
use crate::{attr, identity, open, xattr};

/// The most retries of creating and looking up in turn when each fails because of a race.
const RACES: usize = 16;

impl HostNode {
    /// Creates and opens the file `name`, or opens the existing one unless `flags` has `EXCL`.
    pub(crate) fn create_file(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Arc<HostNode>, Attr, HostFile)> {
        self.device().allow_brief(cx.patience)?;
        let raw = open::raw_flags(flags)? | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let share = OpenFile::share(self.device(), Kind::File, cx)?;
        let dir = self.fd(cx.patience)?;
        self.host().identity.assume(cx)?;
        let bits = self.permission_bits(&dir, mode)?;
        let mut answer = Err(Errno::ENOENT);
        for _ in 0..RACES {
            // Never opens an existing file, so it has no effect on a FIFO or a device either.
            let created = self
                .host()
                .open(|| rustix::fs::openat(&*dir, name.bytes(), raw, bits));
            match created {
                Ok(fd) => {
                    let fd = Arc::new(fd);
                    let found = Some((self, name));
                    let (node, attr) =
                        self.tree()
                            .enter_shared(Some(self.tree_device()), &fd, found)?;
                    let file = HostFile::new(node.clone(), fd, flags, raw, share);
                    return Ok((node, attr, file));
                }
                Err(Errno::EEXIST) if !flags.contains(OpenFlags::EXCL) => {}
                Err(error) => return Err(error),
            }
            answer = self.look_up(cx, name);
            if !matches!(answer, Err(Errno::ENOENT)) {
                break;
            }
            self.host().identity.assume(cx)?;
        }
        drop(share);
        let (node, mut attr) = answer?;
        if node.kind() == Kind::Directory {
            return Err(Errno::EISDIR);
        }
        let file = node.open_file(cx, flags)?;
        if flags.contains(OpenFlags::TRUNC) {
            attr = attr::read(node.device(), file.fd(cx.patience)?.as_fd(), AttrMask::STAT)?;
        }
        Ok((node, attr, file))
    }

    /// Makes the object `name`.
    pub(crate) fn make_child(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        what: NewNode<'_>,
        mode: Mode,
    ) -> Result<(Arc<HostNode>, Attr)> {
        self.device().allow_brief(cx.patience)?;
        let dir = self.fd(cx.patience)?;
        self.host().identity.assume(cx)?;
        let bits = self.permission_bits(&dir, mode)?;
        let node = |kind, device: vfs::Device| {
            let dev = rustix::fs::makedev(device.major, device.minor);
            rustix::fs::mknodat(&*dir, name.bytes(), kind, bits, dev)
        };
        match what {
            NewNode::File => node(FileType::RegularFile, vfs::Device::default()),
            NewNode::Fifo => node(FileType::Fifo, vfs::Device::default()),
            NewNode::Socket => node(FileType::Socket, vfs::Device::default()),
            NewNode::CharDevice(device) => node(FileType::CharacterDevice, device),
            NewNode::BlockDevice(device) => node(FileType::BlockDevice, device),
            NewNode::Directory => rustix::fs::mkdirat(&*dir, name.bytes(), bits),
            NewNode::Symlink(target) => rustix::fs::symlinkat(target, &*dir, name.bytes()),
        }
        .map_err(errno)?;
        self.child(&dir, name)
    }

    /// Creates and opens a file without a name.
    pub(crate) fn make_tmpfile(
        &self,
        cx: &Cx<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Arc<HostNode>, Attr, HostFile)> {
        self.device().allow_brief(cx.patience)?;
        let mut raw = open::raw_flags(flags)? | OFlags::TMPFILE;
        if flags.contains(OpenFlags::EXCL) {
            // For an unnamed file EXCL means that it must never get a name.
            raw |= OFlags::EXCL;
        }
        // It has no name and cannot be reopened.
        let share = self.host().shares.take(cx.call.account())?;
        let dir = self.fd(cx.patience)?;
        self.host().identity.assume(cx)?;
        let bits = self.permission_bits(&dir, mode)?;
        let fd = Arc::new(
            self.host()
                .open(|| rustix::fs::openat(&*dir, c".", raw, bits))?,
        );
        let (node, attr) = self
            .tree()
            .enter_shared(Some(self.tree_device()), &fd, None)?;
        let file = HostFile::new(node.clone(), fd, flags, raw, share);
        Ok((node, attr, file))
    }

    /// Makes the hard link `name` to `target`.
    pub(crate) fn link_to(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        target: &dyn Node,
    ) -> Result<(Arc<HostNode>, Attr)> {
        let target = self.sibling(target)?;
        self.device().allow_brief(cx.patience)?;
        self.tree().leases.clear(cx, target.number(), None)?;
        let dir = self.fd(cx.patience)?;
        let target_fd = target.fd(cx.patience)?;
        self.host().identity.assume(cx)?;
        // Through /proc: linking an empty path needs a capability that the caller does not have.
        rustix::fs::linkat(
            &self.host().proc_fds,
            DecInt::from_fd(&*target_fd),
            &*dir,
            name.bytes(),
            AtFlags::SYMLINK_FOLLOW,
        )
        .map_err(errno)?;
        match target.shared() {
            Some(node) => {
                if let Some(dentry) = self.dentry_for(&node, name) {
                    node.relocate(&dentry);
                }
                let attr = attr::read(node.device(), target_fd.as_fd(), AttrMask::STAT)?;
                Ok((node, attr))
            }
            None => self.child(&dir, name),
        }
    }

    /// Returns the permission bits of the next file that the calling thread makes in `dir`: without
    /// those of the umask, unless a default ACL applies.
    fn permission_bits(&self, dir: &Fd, mode: Mode) -> Result<RawMode> {
        if !self.host().keeps_umask {
            identity::clear_umask();
        }
        let mut bits = mode.bits & 0o7777;
        if mode.umask != 0 && !xattr::has_default_acl(dir.as_fd())? {
            bits &= !mode.umask;
        }
        Ok(RawMode::from_raw_mode(bits))
    }
}
