//! Nodes.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use sys::file_io::{pread_into, pwrite_all};
use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, Attr, AttrMask, Cx, Entry, Errno, File, Handle, Kind, Mode, Name, NewNode, Node,
    NodeId, OpenFlags, RenameFlags, Result, SetAttr, StatFs, XattrFlags,
};

use super::{MappedFile, permissions, stored};
use crate::attr;
use crate::file::HostFile;
use crate::identity;
use crate::node::HostNode;
use crate::xattr;

/// A node with owner, permissions and type in extended attributes. Several may share one
/// [`HostNode`].
pub struct MappedNode {
    inner: Arc<HostNode>,
    kind: Kind,
}

/// The longest target of a symbolic link (`PATH_MAX`).
const MAX_TARGET: usize = 4096;

/// The most retries of creating and looking up in turn when each fails because of a race.
const RACES: usize = 16;

impl MappedNode {
    /// Returns the entry of `inner` with the stored attributes.
    pub(crate) fn entry(inner: Arc<HostNode>, mut attr: Attr) -> Result<Entry> {
        let fd = inner.fd(vfs::Patience::Full)?;
        stored::read(fd.as_fd(), &mut attr)?;
        let kind = attr.kind;
        let node = Arc::new(MappedNode { inner, kind });
        Ok(Entry { node, attr })
    }

    fn stored_attr(&self, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        read_attr(&self.inner, self.inner.fd(cx.patience)?.as_fd(), cx, want)
    }

    fn is_directory(&self) -> Result<()> {
        if self.kind == Kind::Directory {
            Ok(())
        } else {
            Err(Errno::ENOTDIR)
        }
    }

    /// Returns the attributes, after a check that the caller has the access `want`.
    fn require_access(&self, cx: &Cx<'_>, want: Access) -> Result<Attr> {
        let attr = self.stored_attr(cx, AttrMask::STAT)?;
        permissions::require(cx.caller, &attr, want)?;
        Ok(attr)
    }

    fn child(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<(Arc<HostNode>, Attr)> {
        let (inner, mut attr) = self.inner.look_up(cx, name)?;
        let fd = inner.fd(cx.patience)?;
        stored::read(fd.as_fd(), &mut attr)?;
        Ok((inner, attr))
    }

    fn sibling<'n>(&self, node: &'n dyn Node) -> Result<&'n MappedNode> {
        node.as_any()
            .downcast_ref::<MappedNode>()
            .ok_or(Errno::EXDEV)
    }

    /// Makes the regular file on disk that represents a regular or special file.
    fn make_file(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        made: &Attr,
    ) -> Result<(Arc<HostNode>, Attr, HostFile)> {
        let mode = Mode::without_umask(stored::FILE_MODE);
        let (inner, mut attr, file) =
            self.inner
                .create_file(cx, name, flags | OpenFlags::EXCL, mode)?;
        if let Err(error) = store(file.fd(cx.patience)?.as_fd(), &mut attr, made) {
            let _ = self.inner.unlink(cx, name, false);
            return Err(error);
        }
        Ok((inner, attr, file))
    }

    /// Makes a directory, symbolic link or special file, without a check of permissions.
    fn make_other(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        what: NewNode<'_>,
        made: &mut Attr,
    ) -> Result<Entry> {
        if let NewNode::CharDevice(device) | NewNode::BlockDevice(device) = what {
            made.rdev = device;
        }
        if what == NewNode::Directory {
            let mode = Mode::without_umask(stored::DIR_MODE);
            let (inner, mut attr) = self.inner.make_child(cx, name, what, mode)?;
            let fd = inner.fd(vfs::Patience::Full)?;
            if let Err(error) = store(fd.as_fd(), &mut attr, made) {
                let _ = self.inner.unlink(cx, name, true);
                return Err(error);
            }
            return MappedNode::entry(inner, attr);
        }
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let (inner, _, file) = self.make_file(cx, name, flags, made)?;
        let fd = file.fd(cx.patience)?;
        if let NewNode::Symlink(target) = what
            && let Err(error) = pwrite_all(fd.as_fd(), 0, target)
        {
            let _ = self.inner.unlink(cx, name, false);
            return Err(error);
        }
        let attr = attr::read(inner.device(), fd.as_fd(), AttrMask::STAT)?;
        MappedNode::entry(inner, attr)
    }

    /// Opens the file if the stored attributes `attr` permit it.
    fn open_mapped(&self, cx: &Cx<'_>, flags: OpenFlags, attr: &Attr) -> Result<MappedFile> {
        match self.kind {
            Kind::File | Kind::Directory => {}
            Kind::Symlink => return Err(Errno::ELOOP),
            _ => return Err(Errno::ENXIO),
        }
        let mut want = Access::empty();
        want.set(Access::READ, flags.contains(OpenFlags::READ));
        want.set(Access::EXEC, flags.contains(OpenFlags::EXEC));
        want.set(
            Access::WRITE,
            flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC),
        );
        if self.kind == Kind::Directory && want.intersects(Access::WRITE) {
            return Err(Errno::EISDIR);
        }
        permissions::require(cx.caller, attr, want)?;
        if flags.contains(OpenFlags::NOATIME) {
            permissions::require_owner(cx.caller, attr)?;
        }
        let mut flags = flags;
        if flags.contains(OpenFlags::EXEC) {
            // Files on disk are not executable.
            flags = (flags - OpenFlags::EXEC) | OpenFlags::READ;
        }
        let file = MappedFile::new(self.inner.open_file(cx, flags)?);
        if flags.contains(OpenFlags::TRUNC) {
            file.clear_set_id(cx)?;
        }
        Ok(file)
    }
}

/// Returns the stored attributes of `fd`, which is open on `node`.
pub(super) fn read_attr(
    node: &HostNode,
    fd: BorrowedFd<'_>,
    cx: &Cx<'_>,
    want: AttrMask,
) -> Result<Attr> {
    node.device().allow_brief(cx.patience)?;
    identity::assume_server()?;
    let mut attr = attr::read(node.device(), fd, want)?;
    stored::read(fd, &mut attr)?;
    Ok(attr)
}

/// Stores owner, permissions and type of `made` with `fd`, and copies them into `attr`.
fn store(fd: BorrowedFd<'_>, attr: &mut Attr, made: &Attr) -> Result<()> {
    stored::write(fd, made)?;
    (attr.kind, attr.mode) = (made.kind, made.mode);
    (attr.uid, attr.gid, attr.rdev) = (made.uid, made.gid, made.rdev);
    Ok(())
}

/// Checks a change, applies its part on disk with `on_disk`, and stores the rest with `fd`.
pub(super) fn set_attr(
    node: &HostNode,
    fd: BorrowedFd<'_>,
    cx: &Cx<'_>,
    set: &SetAttr,
    open: bool,
    on_disk: impl FnOnce(&SetAttr) -> Result<Attr>,
) -> Result<Attr> {
    attr::validate(set)?;
    let now = read_attr(node, fd, cx, AttrMask::STAT)?;
    if set.size.is_some() && !matches!(now.kind, Kind::File | Kind::Directory) {
        return Err(Errno::EINVAL);
    }
    let then = permissions::apply_change(cx.caller, &now, set, open)?;
    let rest = SetAttr {
        mode: None,
        uid: None,
        gid: None,
        kill_priv: false,
        ..*set
    };
    if rest != SetAttr::default() {
        on_disk(&rest)?;
    }
    stored::write_owner(fd, set.uid, set.gid)?;
    if then.mode != now.mode || set.mode.is_some() {
        stored::write_mode(fd, &then)?;
    }
    read_attr(node, fd, cx, AttrMask::STAT)
}

impl Node for MappedNode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> NodeId {
        self.inner.id()
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn handle(&self, cx: &Cx<'_>) -> Result<Handle> {
        self.inner.handle(cx)
    }

    fn attr(&self, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        self.stored_attr(cx, want)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        let fd = self.inner.fd(cx.patience)?;
        set_attr(&self.inner, fd.as_fd(), cx, set, false, |set| {
            self.inner.setattr(cx, set)
        })
    }

    fn access(&self, cx: &Cx<'_>, want: Access) -> Result<Access> {
        let attr = self.stored_attr(cx, AttrMask::STAT)?;
        Ok(permissions::access(cx.caller, &attr, want))
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        self.inner.statfs(cx)
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        let opened = vfs::open_by_owner(self, cx, flags, |cx, flags| {
            self.open_mapped(cx, flags, &self.stored_attr(cx, AttrMask::STAT)?)
        });
        Ok(Arc::new(opened?))
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        if self.kind != Kind::Symlink || self.inner.kind() == Kind::Symlink {
            return self.inner.readlink(cx);
        }
        let file = self.inner.open_file(cx, OpenFlags::READ)?;
        let fd = file.fd(cx.patience)?;
        let patience = self.inner.device().read_patience(fd.as_fd(), cx.patience)?;
        let mut target = vec![0; MAX_TARGET];
        let len = pread_into(fd.as_fd(), 0, &mut target, patience)?;
        target.truncate(len);
        Ok(target)
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        self.is_directory()?;
        self.require_access(cx, Access::EXEC)?;
        let (inner, attr) = self.inner.look_up(cx, name)?;
        MappedNode::entry(inner, attr)
    }

    fn parent(&self, cx: &Cx<'_>) -> Result<Entry> {
        self.is_directory()?;
        self.require_access(cx, Access::EXEC)?;
        let (inner, attr) = self.inner.parent_directory(cx)?;
        MappedNode::entry(inner, attr)
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        self.is_directory()?;
        let dir = self.require_access(cx, Access::EXEC)?;
        let mut made = dir;
        permissions::inherit(
            cx.caller,
            &dir,
            Kind::File,
            mode.bits & !mode.umask,
            &mut made,
        );
        let mut answer = Err(Errno::ENOENT);
        for _ in 0..RACES {
            match self.child(cx, name) {
                Ok(_) if flags.contains(OpenFlags::EXCL) => return Err(Errno::EEXIST),
                Err(Errno::ENOENT) => {}
                found => {
                    answer = found;
                    break;
                }
            }
            permissions::require(cx.caller, &dir, Access::WRITE)?;
            match self.make_file(cx, name, flags - OpenFlags::TRUNC, &made) {
                Err(Errno::EEXIST) if !flags.contains(OpenFlags::EXCL) => {}
                new => {
                    let (inner, attr, file) = new?;
                    let kind = attr.kind;
                    let node = Arc::new(MappedNode { inner, kind });
                    return Ok((Entry { node, attr }, Arc::new(MappedFile::new(file))));
                }
            }
        }
        let (inner, mut attr) = answer?;
        if attr.kind == Kind::Directory {
            return Err(Errno::EISDIR);
        }
        let kind = attr.kind;
        let node = MappedNode { inner, kind };
        let file = node.open_mapped(cx, flags, &attr)?;
        if flags.contains(OpenFlags::TRUNC) {
            attr = file.attr(cx, AttrMask::STAT)?;
        }
        let node = Arc::new(node);
        Ok((Entry { node, attr }, Arc::new(file)))
    }

    fn make(&self, cx: &Cx<'_>, name: Name<'_>, what: NewNode<'_>, mode: Mode) -> Result<Entry> {
        self.is_directory()?;
        let dir = self.require_access(cx, Access::EXEC)?;
        match self.child(cx, name) {
            Ok(_) => return Err(Errno::EEXIST),
            Err(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
        permissions::require(cx.caller, &dir, Access::WRITE)?;
        let (kind, bits) = match what {
            NewNode::File => (Kind::File, mode.bits),
            NewNode::Directory => (Kind::Directory, mode.bits),
            NewNode::Symlink(b"") => return Err(Errno::ENOENT),
            NewNode::Symlink(target) if target.len() >= MAX_TARGET => {
                return Err(Errno::ENAMETOOLONG);
            }
            NewNode::Symlink(_) => (Kind::Symlink, 0o777),
            NewNode::Fifo => (Kind::Fifo, mode.bits),
            NewNode::Socket => (Kind::Socket, mode.bits),
            NewNode::CharDevice(_) => (Kind::CharDevice, mode.bits),
            NewNode::BlockDevice(_) => (Kind::BlockDevice, mode.bits),
        };
        if matches!(kind, Kind::CharDevice | Kind::BlockDevice) && cx.caller.uid != 0 {
            return Err(Errno::EPERM);
        }
        let umask = match kind {
            Kind::Symlink => 0,
            _ => mode.umask,
        };
        let mut made = dir;
        permissions::inherit(cx.caller, &dir, kind, bits & !umask, &mut made);
        self.make_other(cx, name, what, &mut made)
    }

    fn tmpfile(&self, cx: &Cx<'_>, flags: OpenFlags, mode: Mode) -> Result<(Entry, Arc<dyn File>)> {
        self.is_directory()?;
        let dir = self.require_access(cx, Access::WRITE | Access::EXEC)?;
        let mut made = dir;
        permissions::inherit(
            cx.caller,
            &dir,
            Kind::File,
            mode.bits & !mode.umask,
            &mut made,
        );
        let on_disk = Mode::without_umask(stored::FILE_MODE);
        let (inner, mut attr, file) = self.inner.make_tmpfile(cx, flags, on_disk)?;
        store(file.fd(cx.patience)?.as_fd(), &mut attr, &made)?;
        let node = Arc::new(MappedNode {
            inner,
            kind: Kind::File,
        });
        Ok((Entry { node, attr }, Arc::new(MappedFile::new(file))))
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &dyn Node) -> Result<Entry> {
        let target = self.sibling(target)?;
        self.is_directory()?;
        self.require_access(cx, Access::WRITE | Access::EXEC)?;
        let (inner, attr) = self.inner.link_to(cx, name, &*target.inner)?;
        MappedNode::entry(inner, attr)
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        self.is_directory()?;
        let own = self.require_access(cx, Access::EXEC)?;
        let (_, victim) = self.child(cx, name)?;
        permissions::require_removal(cx.caller, &own, Some(&victim))?;
        self.inner.unlink(cx, name, dir)
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
        self.is_directory().and_then(|()| to.is_directory())?;
        let from_dir = self.require_access(cx, Access::EXEC)?;
        let to_dir = to.require_access(cx, Access::EXEC)?;
        let (_, moved) = self.child(cx, name)?;
        let replaced = match to.child(cx, to_name) {
            Ok((_, attr)) => Some(attr),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(error),
        };
        permissions::require_removal(cx.caller, &from_dir, Some(&moved))?;
        permissions::require_removal(cx.caller, &to_dir, replaced.as_ref())?;
        // A moved directory's `..` entry changes.
        let swapped = replaced
            .as_ref()
            .filter(|_| flags.contains(RenameFlags::EXCHANGE));
        for moving in [Some(&moved), swapped].into_iter().flatten() {
            if moving.kind == Kind::Directory && from_dir.id != to_dir.id {
                permissions::require(cx.caller, moving, Access::WRITE)?;
            }
        }
        let plain = flags - RenameFlags::WHITEOUT;
        self.inner.rename(cx, name, &*to.inner, to_name, plain)?;
        if flags.contains(RenameFlags::WHITEOUT) {
            // Device 0, which every user may make.
            let mut made = from_dir;
            permissions::inherit(cx.caller, &from_dir, Kind::CharDevice, 0, &mut made);
            self.make_other(
                cx,
                name,
                NewNode::CharDevice(vfs::Device::default()),
                &mut made,
            )?;
        }
        Ok(())
    }

    fn xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        stored::check_name(name, Errno::ENODATA)?;
        if name.starts_with(b"trusted.") && cx.caller.uid != 0 {
            return Err(Errno::ENODATA);
        }
        if name.starts_with(b"user.") {
            if !matches!(self.kind, Kind::File | Kind::Directory) {
                return Err(Errno::ENODATA);
            }
            self.require_access(cx, Access::READ)?;
        }
        self.inner.xattr(cx, name)
    }

    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        let names = self.inner.xattrs(cx)?;
        let shown = |name: &&[u8]| {
            !name.starts_with(stored::PREFIX)
                && !name.starts_with(b"system.")
                && (cx.caller.uid == 0 || !name.starts_with(b"trusted."))
        };
        let names = names.split_inclusive(|&byte| byte == 0).filter(shown);
        Ok(names.flatten().copied().collect())
    }

    fn set_xattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.may_change_xattr(cx, name)?;
        let fd = self.inner.fd(cx.patience)?;
        identity::assume_server()?;
        xattr::write(fd.as_fd(), name, value, flags)
    }

    fn remove_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        self.may_change_xattr(cx, name)?;
        let fd = self.inner.fd(cx.patience)?;
        identity::assume_server()?;
        xattr::erase(fd.as_fd(), name)
    }

    fn host_lock(&self, cx: &Cx<'_>, range: LockRange, state: HostLock) -> Result<()> {
        self.inner.host_lock(cx, range, state)
    }

    fn host_lock_holder(
        &self,
        cx: &Cx<'_>,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<ForeignLock>> {
        self.inner.host_lock_holder(cx, range, kind)
    }
}

impl MappedNode {
    fn may_change_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        // The error that QEMU returns.
        stored::check_name(name, Errno::EACCES)?;
        self.inner.device().allow_brief(cx.patience)?;
        if xattr::is_privileged(name) && cx.caller.uid != 0 {
            return Err(Errno::EPERM);
        }
        if !name.starts_with(b"user.") {
            return Ok(());
        }
        if !matches!(self.kind, Kind::File | Kind::Directory) {
            return Err(Errno::EPERM);
        }
        let attr = self.require_access(cx, Access::WRITE)?;
        // In a sticky directory, which everyone may write to, only the owner may change them.
        if attr.kind == Kind::Directory && attr.mode & 0o1000 != 0 {
            permissions::require_owner(cx.caller, &attr)?;
        }
        Ok(())
    }
}
