//! The operations of nodes: `vfs::Node`.

use std::any::Any;
use std::sync::Arc;

use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, Attr, AttrMask, Cx, Entry, Errno, File, Kind, Mode, Name, NewNode, Node, NodeId,
    OpenFlags, RenameFlags, Result, SetAttr, StatFs, XattrFlags,
};

use super::file::NfsFile;
use super::hidden::OpenGuard;
use super::node::NfsNode;
use super::version::{Found, ProtocolVersion};
use crate::file::may_open;
use crate::xattr::{MAX_SIZE, check_name};

impl<V: ProtocolVersion> Node for NfsNode<V> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> NodeId {
        self.id
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn handle(&self, _cx: &Cx<'_>) -> Result<vfs::Handle> {
        vfs::Handle::new(self.handle()).map_err(|_| Errno::EOPNOTSUPP)
    }

    fn attr(&self, cx: &Cx<'_>, _want: AttrMask) -> Result<Attr> {
        self.get_attr(cx)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        self.set_attr_with(cx, None, set)
    }

    fn access(&self, cx: &Cx<'_>, want: Access) -> Result<Access> {
        self.allowed_access(cx, want)
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        cx.check_may_block()?;
        self.shared.version.statfs(cx, self.handle())
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        may_open(self.kind, flags)?;
        cx.check_may_block()?;
        vfs::open_by_owner(self, cx, flags, |cx, flags| {
            NfsFile::open(Arc::new(self.clone()), cx, flags)
        })
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        if self.kind != Kind::Symlink {
            return Err(Errno::EINVAL);
        }
        cx.check_may_block()?;
        self.shared.version.readlink(cx, self.handle())
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        self.find(cx, name)
    }

    fn parent(&self, cx: &Cx<'_>) -> Result<Entry> {
        self.check_directory()?;
        cx.check_may_block()?;
        // Directories above the export's root are not part of this tree.
        if self.id == self.shared.root {
            let attr = self.attr(cx, AttrMask::STAT)?;
            let node = self.compact();
            return Ok(Entry { node, attr });
        }
        let found = self.shared.version.lookup(cx, self.handle(), None)?;
        let node = NfsNode::new(&self.shared, &found, None).compact();
        let attr = found.attr;
        Ok(Entry { node, attr })
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        self.check_directory()?;
        cx.check_may_block()?;
        let version = &self.shared.version;
        let (dir, bits) = (self.handle(), permission_bits(mode));
        let (found, open) = version.create(cx, dir, name.bytes(), flags, bits)?;
        if flags.contains(OpenFlags::TRUNC) {
            self.shared.change(cx, &found.handle)?.replaced(0, u64::MAX);
        }
        let node = NfsNode::new(&self.shared, &found, Some((self, name)));
        let guard = OpenGuard::new(&self.shared, node.id);
        let file = NfsFile::new(Arc::new(node.clone()), flags, Some((open, guard)));
        let attr = found.attr;
        let node = node.compact();
        Ok((Entry { node, attr }, file))
    }

    fn make(&self, cx: &Cx<'_>, name: Name<'_>, what: NewNode<'_>, mode: Mode) -> Result<Entry> {
        self.check_directory()?;
        if let NewNode::Symlink(target) = what {
            check_target(target)?;
        }
        cx.check_may_block()?;
        let version = &self.shared.version;
        let (dir, bits) = (self.handle(), permission_bits(mode));
        let found = version.make(cx, dir, name.bytes(), what, bits)?;
        Ok(self.child_entry(name, found))
    }

    fn tmpfile(
        &self,
        _cx: &Cx<'_>,
        _flags: OpenFlags,
        _mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        Err(Errno::EOPNOTSUPP)
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &dyn Node) -> Result<Entry> {
        self.check_directory()?;
        let target = self.of_same(target)?;
        cx.check_may_block()?;
        if self.shared.open_files.has_hidden(target.id) && target.get_attr(cx)?.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        let version = &self.shared.version;
        let attr = match version.link(cx, target.handle(), self.handle(), name.bytes()) {
            // Linux's error for a link to a directory.
            Err(Errno::EISDIR) => return Err(Errno::EPERM),
            attr => attr?,
        };
        let handle = target.handle().clone();
        Ok(self.child_entry(name, Found { handle, attr }))
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        self.check_directory()?;
        cx.check_may_block()?;
        if dir {
            return self.shared.rmdir(cx, self.handle(), name.bytes());
        }
        self.shared.unlink(cx, self.handle(), name.bytes())
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &dyn Node,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.check_directory()?;
        let to = self.of_same(to)?;
        to.check_directory()?;
        if !flags.is_empty() {
            return Err(Errno::EINVAL);
        }
        cx.check_may_block()?;
        let version = &self.shared.version;
        let from = (self.handle(), name.bytes());
        let to = (to.handle(), to_name.bytes());
        match self.shared.replace(cx, from, to) {
            // NFS has one status for several errors (RFC 8881 section 18.26).
            Err(Errno::EEXIST) => {
                let kind = |(dir, name)| version.lookup(cx, dir, Some(name)).map(|it| it.attr.kind);
                Err(match (kind(from)?, kind(to)?) {
                    (Kind::Directory, Kind::Directory) => Errno::ENOTEMPTY,
                    (Kind::Directory, _) => Errno::ENOTDIR,
                    (_, Kind::Directory) => Errno::EISDIR,
                    _ => Errno::EEXIST,
                })
            }
            done => done,
        }
    }

    fn xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        cx.check_may_block()?;
        self.shared.version.xattr(cx, self.handle(), name)
    }

    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        cx.check_may_block()?;
        self.shared.version.xattrs(cx, self.handle())
    }

    fn set_xattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        check_name(name)?;
        if value.len() > MAX_SIZE {
            return Err(Errno::E2BIG);
        }
        cx.check_may_block()?;
        let version = &self.shared.version;
        version.set_xattr(cx, self.handle(), name, value, flags)
    }

    fn remove_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        check_name(name)?;
        cx.check_may_block()?;
        self.shared.version.remove_xattr(cx, self.handle(), name)
    }

    fn host_lock(&self, cx: &Cx<'_>, range: LockRange, state: HostLock) -> Result<()> {
        self.shared.mirrors.lock(self, cx, range, state)
    }

    fn host_lock_holder(
        &self,
        cx: &Cx<'_>,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<ForeignLock>> {
        self.shared.mirrors.holder(self, cx, range, kind)
    }
}

/// Checks a symbolic link's target as symlink(2) does.
fn check_target(target: &[u8]) -> Result<()> {
    /// Linux's `PATH_MAX` without its NUL.
    const MOST: usize = 4095;
    match target {
        b"" => Err(Errno::ENOENT),
        _ if target.len() > MOST => Err(Errno::ENAMETOOLONG),
        _ => Ok(()),
    }
}

/// The permission bits after applying the umask; the directory's default ACL, if any, is unknown.
fn permission_bits(mode: Mode) -> u32 {
    mode.bits & !mode.umask & 0o7777
}
