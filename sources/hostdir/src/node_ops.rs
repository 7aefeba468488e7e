//! The operations of a node.
//!
//! The order in each: patience, then the descriptors of all nodes involved (which may have to be
//! reopened, as the server), then switching to the caller's identity, then the system calls. An
//! operation that returns `WOULD_BLOCK` does so before the first call with an effect.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Mode as RawMode, OFlags, RenameFlags as RawRename, ResolveFlags, Statx,
};
use rustix::path::DecInt;
use sys::errno;
use vfs::lock::{HostLock, LockKind, LockRange, Outsider};
use vfs::{
    Access, Attr, Cx, Entry, Errno, File, Handle, Kind, Make, Mode, Name, Node, NodeId, OpenFlags,
    RenameFlags, Result, SetAttr, StatFs, Want, XattrFlags,
};

use crate::attr::{self, Target};
use crate::descriptors::Fd;
use crate::file::HostFile;
use crate::node::{HostNode, Record};
use crate::open_files::OpenFile;
use crate::{device, handles, identity, locks, open, tree, unlinked, xattr};

impl Node for HostNode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> NodeId {
        self.number()
    }

    fn kind(&self) -> Kind {
        self.what()
    }

    fn handle(&self, cx: &Cx<'_>) -> Result<Handle> {
        handles::handle(self, cx.patience)
    }

    fn attr(&self, cx: &Cx<'_>, want: Want) -> Result<Attr> {
        self.device().memory(cx.patience)?;
        let fd = self.fd(cx.patience)?;
        attr::read(self.device(), fd.as_fd(), want)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        self.device().brief(cx.patience)?;
        self.device().tree.leases.clear(cx, self.number(), None)?;
        let fd = self.fd(cx.patience)?;
        attr::set(self.device(), cx, Target::Path(fd.as_fd()), set)
    }

    fn access(&self, cx: &Cx<'_>, want: Access) -> Result<Access> {
        self.device().memory(cx.patience)?;
        let fd = self.fd(cx.patience)?;
        self.device().tree.act(cx)?;
        open::access(fd.as_fd(), want)
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        self.device().brief(cx.patience)?;
        let fd = self.fd(cx.patience)?;
        let figures = rustix::fs::fstatvfs(&*fd).map_err(errno)?;
        Ok(StatFs {
            kind: self.device().magic as u32,
            // The unit of the counts. Linux's own f_bsize, the preferred I/O size, is the same on
            // all relevant file systems.
            bsize: figures.f_frsize as u32,
            blocks: figures.f_blocks,
            bfree: figures.f_bfree,
            bavail: figures.f_bavail,
            files: figures.f_files,
            ffree: figures.f_ffree,
            fsid: figures.f_fsid,
            namelen: figures.f_namemax as u32,
        })
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        let opened = vfs::open_by_owner(self, cx, flags, |cx, flags| self.open_file(cx, flags));
        Ok(Arc::new(opened?))
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        if self.what() != Kind::Symlink {
            return Err(Errno::EINVAL);
        }
        self.device().brief(cx.patience)?;
        let fd = self.fd(cx.patience)?;
        let target = rustix::fs::readlinkat(&*fd, c"", Vec::with_capacity(256)).map_err(errno)?;
        Ok(target.into_bytes())
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        self.look_up(cx, name).map(entry)
    }

    fn parent(&self, cx: &Cx<'_>) -> Result<Entry> {
        handles::parent(self, cx).map(entry)
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let (node, attr, file) = self.create_file(cx, name, flags, mode)?;
        Ok((entry((node, attr)), Arc::new(file)))
    }

    fn make(&self, cx: &Cx<'_>, name: Name<'_>, what: Make<'_>, mode: Mode) -> Result<Entry> {
        self.make_child(cx, name, what, mode).map(entry)
    }

    fn tmpfile(&self, cx: &Cx<'_>, flags: OpenFlags, mode: Mode) -> Result<(Entry, Arc<dyn File>)> {
        let (node, attr, file) = self.make_tmpfile(cx, flags, mode)?;
        Ok((entry((node, attr)), Arc::new(file)))
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &dyn Node) -> Result<Entry> {
        self.link_to(cx, name, target).map(entry)
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        self.device().brief(cx.patience)?;
        let tree = &self.device().tree;
        let fd = self.fd(cx.patience)?;
        tree.leases.clear_named(cx, self.device(), &fd, name)?;
        let _kept = tree.opened.keep(self, fd.as_fd(), name)?;
        tree.act(cx)?;
        let going = unlinked::going(cx, self, fd.as_fd(), name)?;
        let flags = if dir {
            AtFlags::REMOVEDIR
        } else {
            AtFlags::empty()
        };
        rustix::fs::unlinkat(&*fd, name.bytes(), flags).map_err(errno)?;
        if let Some(going) = going {
            going.gone();
        }
        Ok(())
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &dyn Node,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let to = self.sibling(to)?;
        self.device().brief(cx.patience)?;
        let from_fd = self.fd(cx.patience)?;
        let to_fd = to.fd(cx.patience)?;
        let tree = &self.device().tree;
        let leases = &tree.leases;
        leases.clear_named(cx, self.device(), &from_fd, name)?;
        leases.clear_named(cx, to.device(), &to_fd, to_name)?;
        let kept = tree.opened.keep(to, to_fd.as_fd(), to_name)?;
        tree.act(cx)?;
        let replaces = !flags.intersects(RenameFlags::EXCHANGE | RenameFlags::NOREPLACE);
        let going = match replaces {
            true => unlinked::going(cx, to, to_fd.as_fd(), to_name)?,
            false => None,
        };
        let raw = RawRename::from_bits_retain(flags.bits());
        rustix::fs::renameat_with(&*from_fd, name.bytes(), &*to_fd, to_name.bytes(), raw)
            .map_err(errno)?;
        drop(kept);
        if let Some(going) = going {
            going.gone();
        }
        to.note_moved(&to_fd, to_name);
        if flags.contains(RenameFlags::EXCHANGE) {
            self.note_moved(&from_fd, name);
        }
        Ok(())
    }

    fn xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.device().brief(cx.patience)?;
        let fd = self.fd(cx.patience)?;
        xattr::get(&self.device().tree, cx, fd.as_fd(), name)
    }

    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.device().brief(cx.patience)?;
        let fd = self.fd(cx.patience)?;
        xattr::list(&self.device().tree, cx, fd.as_fd())
    }

    fn set_xattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.device().brief(cx.patience)?;
        self.device().tree.leases.clear(cx, self.number(), None)?;
        let fd = self.fd(cx.patience)?;
        xattr::set(&self.device().tree, cx, fd.as_fd(), name, value, flags)
    }

    fn remove_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        self.device().brief(cx.patience)?;
        self.device().tree.leases.clear(cx, self.number(), None)?;
        let fd = self.fd(cx.patience)?;
        xattr::remove(&self.device().tree, cx, fd.as_fd(), name)
    }

    fn host_lock(&self, cx: &Cx<'_>, range: LockRange, state: HostLock) -> Result<()> {
        locks::set(self, cx, range, state)
    }

    fn host_lock_holder(
        &self,
        cx: &Cx<'_>,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<Outsider>> {
        locks::holder(self, cx, range, kind)
    }
}

/// The most retries of creating and looking up in turn when each fails because of a race.
const RACES: usize = 16;

impl HostNode {
    /// Looks up the child `name` with openat2(2) and statx(2), or with statx(2) alone if the
    /// children being looked up are in the table already.
    pub(crate) fn look_up(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<(Arc<HostNode>, Attr)> {
        let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        if self.device().cached_names(cx.patience)? {
            resolve |= ResolveFlags::CACHED;
        }
        let tree = &self.device().tree;
        let dir = self.fd(cx.patience)?;
        tree.act(cx)?;
        if self.expects_known() && !resolve.contains(ResolveFlags::CACHED) {
            let stx = tree::stat_child(dir.as_fd(), name)?;
            if let Some(known) = self.known_child(&stx, name) {
                return Ok(known);
            }
        }
        let child = self.open_child(dir.as_fd(), name, resolve);
        match child {
            Err(Errno::EAGAIN) if resolve.contains(ResolveFlags::CACHED) => Err(Errno::WOULD_BLOCK),
            child => tree.enter(Some(self.device()), child?, Some((self, name))),
        }
    }

    /// Returns the live node of `name`, which has these attributes. A node that is not open may be
    /// of another incarnation of the number and is not returned.
    fn known_child(&self, stx: &Statx, name: Name<'_>) -> Option<(Arc<HostNode>, Attr)> {
        if device::dev_of(stx) != self.device().dev {
            return None;
        }
        let attr = attr::of(self.device(), stx);
        let node = self.device().tree.table.get(attr.id)?;
        if node.what() != attr.kind || !node.is_open() {
            return None;
        }
        if let Some(record) = self.record_for(&node, name) {
            node.relocate(&record);
        }
        Some((node, attr))
    }

    /// Looks up the child `name` with full patience, after a completed change.
    fn child(&self, dir: &Fd, name: Name<'_>) -> Result<(Arc<HostNode>, Attr)> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let fd = self.open_child(dir.as_fd(), name, resolve)?;
        self.device()
            .tree
            .enter(Some(self.device()), fd, Some((self, name)))
    }

    fn open_child(&self, dir: BorrowedFd<'_>, name: Name<'_>, resolve: ResolveFlags) -> Result<Fd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.device()
            .tree
            .open(|| rustix::fs::openat2(dir, name.bytes(), flags, RawMode::empty(), resolve))
    }

    pub(crate) fn open_file(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<HostFile> {
        match self.what() {
            Kind::File | Kind::Directory => {}
            Kind::Symlink => return Err(Errno::ELOOP),
            _ => return Err(Errno::ENXIO),
        }
        self.device().brief(cx.patience)?;
        let node = self.shared().ok_or(Errno::ESTALE)?;
        let share = OpenFile::share(self.device(), self.what(), cx)?;
        let fd = self.fd(cx.patience)?;
        self.device().tree.act(cx)?;
        let (file, raw) = open::file(&self.device().tree, self.what(), fd.as_fd(), flags, cx)?;
        Ok(HostFile::new(node, Arc::new(file), flags, raw, share))
    }

    pub(crate) fn create_file(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Arc<HostNode>, Attr, HostFile)> {
        let tree = &self.device().tree;
        self.device().brief(cx.patience)?;
        let raw = open::raw_flags(flags)? | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let share = OpenFile::share(self.device(), Kind::File, cx)?;
        let dir = self.fd(cx.patience)?;
        tree.act(cx)?;
        let bits = self.bits(&dir, mode)?;
        let mut answer = Err(Errno::ENOENT);
        for _ in 0..RACES {
            // Never opens an existing file, so it has no effect on a FIFO or a device either.
            let created = tree.open(|| rustix::fs::openat(&*dir, name.bytes(), raw, bits));
            match created {
                Ok(fd) => {
                    let fd = Arc::new(fd);
                    let found = Some((self, name));
                    let (node, attr) = tree.enter_shared(Some(self.device()), &fd, found)?;
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
            tree.act(cx)?;
        }
        drop(share);
        let (node, mut attr) = answer?;
        if node.what() == Kind::Directory {
            return Err(Errno::EISDIR);
        }
        let file = node.open_file(cx, flags)?;
        if flags.contains(OpenFlags::TRUNC) {
            attr = attr::read(node.device(), file.fd(cx.patience)?.as_fd(), Want::STAT)?;
        }
        Ok((node, attr, file))
    }

    pub(crate) fn make_child(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        what: Make<'_>,
        mode: Mode,
    ) -> Result<(Arc<HostNode>, Attr)> {
        let tree = &self.device().tree;
        self.device().brief(cx.patience)?;
        let dir = self.fd(cx.patience)?;
        tree.act(cx)?;
        let bits = self.bits(&dir, mode)?;
        let node = |kind, device: vfs::Device| {
            let dev = rustix::fs::makedev(device.major, device.minor);
            rustix::fs::mknodat(&*dir, name.bytes(), kind, bits, dev)
        };
        match what {
            Make::File => node(FileType::RegularFile, vfs::Device::default()),
            Make::Fifo => node(FileType::Fifo, vfs::Device::default()),
            Make::Socket => node(FileType::Socket, vfs::Device::default()),
            Make::CharDevice(device) => node(FileType::CharacterDevice, device),
            Make::BlockDevice(device) => node(FileType::BlockDevice, device),
            Make::Directory => rustix::fs::mkdirat(&*dir, name.bytes(), bits),
            Make::Symlink(target) => rustix::fs::symlinkat(target, &*dir, name.bytes()),
        }
        .map_err(errno)?;
        self.child(&dir, name)
    }

    pub(crate) fn make_tmpfile(
        &self,
        cx: &Cx<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Arc<HostNode>, Attr, HostFile)> {
        let tree = &self.device().tree;
        self.device().brief(cx.patience)?;
        let mut raw = open::raw_flags(flags)? | OFlags::TMPFILE;
        if flags.contains(OpenFlags::EXCL) {
            // For an unnamed file EXCL means that it must never get a name.
            raw |= OFlags::EXCL;
        }
        // It has no name and cannot be reopened.
        let share = tree.shares.take(cx.call.account())?;
        let dir = self.fd(cx.patience)?;
        tree.act(cx)?;
        let bits = self.bits(&dir, mode)?;
        let fd = Arc::new(tree.open(|| rustix::fs::openat(&*dir, c".", raw, bits))?);
        let (node, attr) = tree.enter_shared(Some(self.device()), &fd, None)?;
        let file = HostFile::new(node.clone(), fd, flags, raw, share);
        Ok((node, attr, file))
    }

    pub(crate) fn link_to(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        target: &dyn Node,
    ) -> Result<(Arc<HostNode>, Attr)> {
        let target = self.sibling(target)?;
        let tree = &self.device().tree;
        self.device().brief(cx.patience)?;
        tree.leases.clear(cx, target.number(), None)?;
        let dir = self.fd(cx.patience)?;
        let target_fd = target.fd(cx.patience)?;
        tree.act(cx)?;
        // Through /proc: linking an empty path needs a capability that the caller does not have.
        rustix::fs::linkat(
            tree.proc_fds(),
            DecInt::from_fd(&*target_fd),
            &*dir,
            name.bytes(),
            AtFlags::SYMLINK_FOLLOW,
        )
        .map_err(errno)?;
        match target.shared() {
            Some(node) => {
                if let Some(record) = self.record_for(&node, name) {
                    node.relocate(&record);
                }
                let attr = attr::read(node.device(), target_fd.as_fd(), Want::STAT)?;
                Ok((node, attr))
            }
            None => self.child(&dir, name),
        }
    }

    /// Returns `node` as one of this export's, or `EXDEV`.
    pub(crate) fn sibling<'n>(&self, node: &'n dyn Node) -> Result<&'n HostNode> {
        let node = node.as_any().downcast_ref::<HostNode>();
        node.filter(|node| Arc::ptr_eq(&node.device().tree, &self.device().tree))
            .ok_or(Errno::EXDEV)
    }

    /// Records the new name `name` here, if it belongs to a node that is found by name.
    fn note_moved(&self, dir: &Fd, name: Name<'_>) {
        if self.device().mount().is_some() {
            return;
        }
        let Ok(stx) = tree::stat_child(dir.as_fd(), name) else {
            return;
        };
        if device::dev_of(&stx) != self.device().dev {
            return;
        }
        let (tree, id) = (&self.device().tree, self.device().id(stx.stx_ino));
        if let Some(node) = tree.table.get(id)
            && let Some(record) = self.record_for(&node, name)
        {
            node.relocate(&record);
        }
        tree.book.moved(id, self, name.bytes());
    }

    fn record_for(&self, node: &HostNode, name: Name<'_>) -> Option<Box<Record>> {
        match node.device().mount() {
            Some(_) => None,
            None => Record::new(self, name),
        }
    }

    /// Returns the permission bits of the next file that the calling thread makes in `dir`: without
    /// those of the umask, unless a default ACL applies.
    fn bits(&self, dir: &Fd, mode: Mode) -> Result<RawMode> {
        if !self.device().tree.keeps_umask {
            identity::clear_umask();
        }
        let mut bits = mode.bits & 0o7777;
        if mode.umask != 0 && !xattr::has_default_acl(dir.as_fd())? {
            bits &= !mode.umask;
        }
        Ok(RawMode::from_raw_mode(bits))
    }
}

fn entry((node, attr): (Arc<HostNode>, Attr)) -> Entry {
    Entry { node, attr }
}
