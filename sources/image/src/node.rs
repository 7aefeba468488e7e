//! A node: an inode, and what is known of its contents.

use std::any::Any;
use std::sync::{Arc, OnceLock, Weak};

use erofs::layout::FileType;
use erofs::read::{Contents, Inode};
use vfs::lock::{HostLock, LockKind, Outsider, Space};
use vfs::{
    Access, Attr, Cx, Device, Entry, Errno, File, Handle, Kind, Make, Mode, Name, Node, NodeId,
    OpenFlags, Patience, RenameFlags, Result, SetAttr, StatFs, Time, Want, XattrFlags,
};

use crate::file::OpenFile;
use crate::fs::{Shared, handle_of};
use crate::perm;

/// `EROFS_SUPER_MAGIC_V1` (`linux/magic.h`): what programs that look know the file system by.
const KIND: u32 = 0xe0f5_e1e2;

/// The longest target of a symbolic link (`PATH_MAX`).
const TARGET_MAX: u64 = 4096;

/// A node.
pub(crate) struct ImageNode {
    pub(crate) shared: Arc<Shared>,
    pub(crate) inode: Inode,
    this: Weak<ImageNode>,
    /// The directory that it was found in.
    parent: u64,
    contents: OnceLock<Contents>,
}

impl ImageNode {
    pub(crate) fn new(shared: &Arc<Shared>, inode: Inode, parent: u64) -> Arc<ImageNode> {
        Arc::new_cyclic(|this| ImageNode {
            shared: shared.clone(),
            inode,
            this: this.clone(),
            parent,
            contents: OnceLock::new(),
        })
    }

    pub(crate) fn vfs_kind(&self) -> Kind {
        kind_of(self.inode.kind).expect("an inode is of some kind")
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.inode.kind == FileType::Directory
    }

    /// Where its contents are.
    pub(crate) fn contents(&self, patience: Patience) -> Result<&Contents> {
        if let Some(contents) = self.contents.get() {
            return Ok(contents);
        }
        let shared = &self.shared;
        let contents = shared.image.contents(&shared.access(patience), &self.inode);
        let contents = contents.map_err(|error| shared.told(error))?;
        Ok(self.contents.get_or_init(|| contents))
    }

    pub(crate) fn full_attr(&self) -> Attr {
        let inode = &self.inode;
        let time = Time {
            sec: inode.mtime,
            nsec: inode.mtime_nsec,
        };
        let (major, minor) = inode.device;
        Attr {
            id: self.shared.id_of(inode.nid),
            generation: self.shared.identity,
            kind: self.vfs_kind(),
            mode: inode.mode.into(),
            nlink: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            rdev: Device { major, minor },
            size: inode.size,
            blksize: self.shared.image.block_size() as u32,
            blocks: inode.sectors(&self.shared.image),
            atime: time,
            mtime: time,
            ctime: time,
            btime: None,
            change: self.shared.identity,
            device: 0,
        }
    }

    /// What the caller may do, if something could be changed.
    fn allowed(&self, cx: &Cx<'_>) -> Result<Access> {
        let acl = self.acl(cx.patience)?;
        Ok(perm::allowed(
            &self.inode,
            self.vfs_kind(),
            acl.as_ref(),
            cx.caller,
        ))
    }

    /// `EACCES` unless the caller may do all of `want`.
    pub(crate) fn check(&self, cx: &Cx<'_>, want: Access) -> Result<()> {
        match self.allowed(cx)?.contains(want) {
            true => Ok(()),
            false => Err(Errno::EACCES),
        }
    }

    pub(crate) fn entry(self: Arc<ImageNode>) -> Entry {
        let attr = self.full_attr();
        Entry { node: self, attr }
    }

    fn arc(&self) -> Arc<ImageNode> {
        self.this.upgrade().expect("a node lives in an Arc")
    }

    fn open_file(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        let writes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC);
        match self.vfs_kind() {
            Kind::File if writes => return Err(Errno::EROFS),
            Kind::File => {}
            Kind::Directory if writes => return Err(Errno::EISDIR),
            Kind::Directory if flags.contains(OpenFlags::EXEC) => return Err(Errno::EACCES),
            Kind::Directory => {}
            Kind::Symlink => return Err(Errno::ELOOP),
            _ => return Err(Errno::ENXIO),
        }
        for (flag, want) in [
            (OpenFlags::READ, Access::READ),
            (OpenFlags::EXEC, Access::EXEC),
        ] {
            if flags.contains(flag) {
                self.check(cx, want)?;
            }
        }
        if flags.contains(OpenFlags::NOATIME) && !perm::owns(&self.inode, cx.caller) {
            return Err(Errno::EPERM);
        }
        self.contents(cx.patience)?;
        Ok(Arc::new(OpenFile::new(self.arc(), flags)))
    }

    /// Why `name` is not made: because it is there, or because nothing is.
    fn refuse_to_make<T>(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<T> {
        match self.find(cx, name.bytes()) {
            Ok(_) => Err(Errno::EEXIST),
            Err(Errno::ENOENT) => Err(Errno::EROFS),
            Err(errno) => Err(errno),
        }
    }
}

/// The kind, as the file-system traits have it.
pub(crate) fn kind_of(kind: FileType) -> Option<Kind> {
    Some(match kind {
        FileType::Unknown => return None,
        FileType::File => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::CharDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::Symlink => Kind::Symlink,
    })
}

impl Node for ImageNode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> NodeId {
        self.shared.id_of(self.inode.nid)
    }

    fn kind(&self) -> Kind {
        self.vfs_kind()
    }

    fn handle(&self, _cx: &Cx<'_>) -> Result<Handle> {
        handle_of(self.shared.identity, self.inode.nid, self.parent)
    }

    fn attr(&self, _cx: &Cx<'_>, _want: Want) -> Result<Attr> {
        Ok(self.full_attr())
    }

    fn setattr(&self, _cx: &Cx<'_>, _set: &SetAttr) -> Result<Attr> {
        Err(Errno::EROFS)
    }

    fn access(&self, cx: &Cx<'_>, want: Access) -> Result<Access> {
        let contained = matches!(
            self.vfs_kind(),
            Kind::File | Kind::Directory | Kind::Symlink
        );
        let refused = match contained {
            true => Access::WRITE,
            false => Access::empty(),
        };
        Ok(self.allowed(cx)? & (want - refused))
    }

    fn statfs(&self, _cx: &Cx<'_>) -> Result<StatFs> {
        let image = &self.shared.image;
        Ok(StatFs {
            kind: KIND,
            bsize: image.block_size() as u32,
            blocks: image.blocks,
            bfree: 0,
            bavail: 0,
            files: image.inodes,
            ffree: 0,
            fsid: self.shared.identity,
            namelen: Name::MAX as u32,
        })
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        vfs::open_by_owner(self, cx, flags, |cx, flags| self.open_file(cx, flags))
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        if self.inode.kind != FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        if self.inode.size > TARGET_MAX {
            return Err(Errno::EIO);
        }
        let shared = &self.shared;
        let contents = self.contents(cx.patience)?;
        let mut target = vec![0; self.inode.size as usize];
        let read = shared
            .image
            .read(&shared.access(cx.patience), contents, 0, &mut target);
        read.map_err(|error| shared.told(error))?;
        match target.contains(&0) {
            false => Ok(target),
            true => Err(Errno::EIO),
        }
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        Ok(self.find(cx, name.bytes())?.entry())
    }

    fn parent(&self, cx: &Cx<'_>) -> Result<Entry> {
        Ok(self.find_parent(cx)?.entry())
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        _mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        if flags.contains(OpenFlags::EXCL) {
            return self.refuse_to_make(cx, name);
        }
        let node = match self.find(cx, name.bytes()) {
            Err(Errno::ENOENT) => return Err(Errno::EROFS),
            found => found?,
        };
        if node.is_directory() {
            return Err(Errno::EISDIR);
        }
        let file = node.open(cx, flags)?;
        Ok((node.entry(), file))
    }

    fn make(&self, cx: &Cx<'_>, name: Name<'_>, _what: Make<'_>, _mode: Mode) -> Result<Entry> {
        self.refuse_to_make(cx, name)
    }

    fn tmpfile(&self, _: &Cx<'_>, _: OpenFlags, _: Mode) -> Result<(Entry, Arc<dyn File>)> {
        Err(Errno::EROFS)
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, _target: &dyn Node) -> Result<Entry> {
        self.refuse_to_make(cx, name)
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>, _dir: bool) -> Result<()> {
        self.find(cx, name.bytes())?;
        Err(Errno::EROFS)
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        _to: &dyn Node,
        _to_name: Name<'_>,
        _flags: RenameFlags,
    ) -> Result<()> {
        self.find(cx, name.bytes())?;
        Err(Errno::EROFS)
    }

    fn xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.get_xattr(cx, name)
    }

    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.list_xattrs(cx)
    }

    fn set_xattr(&self, _: &Cx<'_>, _: &[u8], _: &[u8], _: XattrFlags) -> Result<()> {
        Err(Errno::EROFS)
    }

    fn remove_xattr(&self, _: &Cx<'_>, _: &[u8]) -> Result<()> {
        Err(Errno::EROFS)
    }

    /// Nobody is outside.
    fn host_lock(&self, _: &Cx<'_>, _: Space, _: u64, _: u64, _: HostLock) -> Result<()> {
        Ok(())
    }

    fn host_lock_holder(
        &self,
        _: &Cx<'_>,
        _: Space,
        _: u64,
        _: u64,
        _: LockKind,
    ) -> Result<Option<Outsider>> {
        Ok(None)
    }
}
