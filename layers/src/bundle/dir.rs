//! The bundle's own directories: owned by the super-user, readable for all, immutable.

use std::any::Any;
use std::sync::Arc;

use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, AllocateMode, Attr, AttrMask, BreakCallback, CopyMode, Cx, Device, DirEntry, DirSink,
    Entry, Errno, Extent, File, Handle, Kind, Lease, LeaseKind, Mode, Name, NewNode, Node, NodeId,
    OpenFlags, Payload, ReaddirMode, RenameFlags, Result, SetAttr, Sink, StatFs, Whence,
    XattrFlags,
};

use super::{CurrentTree, Directory, Position, Tree, numbers};
use crate::refuse_create;

/// One of them, as a node or an open file.
#[derive(Clone)]
pub(super) struct Dir {
    current: Arc<CurrentTree>,
    number: NodeId,
}

impl Dir {
    /// Returns the directory with this number.
    pub(super) fn node(places: &Arc<CurrentTree>, number: NodeId) -> Arc<dyn Node> {
        let places = places.clone();
        Arc::new(Dir {
            current: places,
            number,
        })
    }

    /// Returns [`Dir::node`] with its attributes.
    pub(super) fn entry(places: &Arc<CurrentTree>, number: NodeId) -> Result<Entry> {
        let places = places.clone();
        let dir = Dir {
            current: places,
            number,
        };
        Ok(Entry {
            attr: dir.attributes()?,
            node: Arc::new(dir),
        })
    }

    /// Returns the current tree, and this directory's index in it.
    fn snapshot(&self) -> Result<DirSnapshot> {
        let tree = self.current.tree();
        match tree.positions.get(&self.number) {
            Some(&Position::Directory(at)) => Ok(DirSnapshot { tree, index: at }),
            _ => Err(Errno::ESTALE),
        }
    }

    fn entry_at(&self, cx: &Cx<'_>, now: &DirSnapshot, position: Position) -> Result<Entry> {
        match position {
            Position::Directory(at) => Dir::entry(&self.current, now.tree.dirs[at].number),
            Position::Member(at) => {
                let member = &now.tree.members[at];
                let node = member.fs.root(cx)?;
                member.export.note_client();
                let attr = node.attr(cx, AttrMask::STAT)?;
                Ok(Entry { node, attr })
            }
        }
    }

    /// Returns attributes as those of an untouched directory in memory.
    fn attributes(&self) -> Result<Attr> {
        let now = self.snapshot()?;
        let made = now.tree.change_time;
        Ok(Attr {
            id: self.number,
            generation: 0,
            kind: Kind::Directory,
            mode: 0o755,
            nlink: 2 + now.directory().children.len() as u32,
            uid: 0,
            gid: 0,
            rdev: Device::default(),
            size: 0,
            blksize: 4096,
            blocks: 0,
            atime: made,
            mtime: made,
            ctime: made,
            btime: Some(made),
            // The change counter: after a restart the members may differ.
            change: (made.sec as u64)
                .wrapping_mul(1_000_000_000)
                .wrapping_add(made.nsec.into()),
            device: 0,
        })
    }
}

/// A directory in a snapshot of the tree.
struct DirSnapshot {
    tree: Arc<Tree>,
    index: usize,
}

impl DirSnapshot {
    fn directory(&self) -> &Directory {
        &self.tree.dirs[self.index]
    }

    fn child(&self, name: Name<'_>) -> Result<Position> {
        let children = &self.directory().children;
        let at = children.binary_search_by(|(child, _)| (**child).cmp(name.bytes()));
        Ok(children[at.map_err(|_| Errno::ENOENT)?].1)
    }

    fn kind_of(&self, cx: &Cx<'_>, position: Position) -> Result<Kind> {
        match position {
            Position::Directory(_) => Ok(Kind::Directory),
            Position::Member(at) => Ok(self.tree.members[at].fs.root(cx)?.kind()),
        }
    }
}

impl Node for Dir {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> NodeId {
        self.number
    }

    fn kind(&self) -> Kind {
        Kind::Directory
    }

    fn handle(&self, _: &Cx<'_>) -> Result<Handle> {
        numbers::handle(self.number, &[])
    }

    fn attr(&self, _: &Cx<'_>, _: AttrMask) -> Result<Attr> {
        self.attributes()
    }

    fn setattr(&self, _: &Cx<'_>, _: &SetAttr) -> Result<Attr> {
        Err(Errno::EROFS)
    }

    fn access(&self, _: &Cx<'_>, want: Access) -> Result<Access> {
        Ok(want - Access::WRITE)
    }

    fn statfs(&self, _: &Cx<'_>) -> Result<StatFs> {
        /// `RAMFS_MAGIC`
        const KIND: u32 = 0x8584_58f6;
        Ok(StatFs {
            magic: KIND,
            bsize: 4096,
            namelen: Name::MAX as u32,
            ..StatFs::default()
        })
    }

    fn open(&self, _: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC) {
            return Err(Errno::EISDIR);
        }
        Ok(Arc::new(self.clone()))
    }

    fn readlink(&self, _: &Cx<'_>) -> Result<Vec<u8>> {
        Err(Errno::EINVAL)
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        let now = self.snapshot()?;
        self.entry_at(cx, &now, now.child(name)?)
    }

    fn parent(&self, _: &Cx<'_>) -> Result<Entry> {
        Dir::entry(&self.current, self.snapshot()?.directory().parent)
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        _: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let entry = refuse_create::find_existing(self, cx, name, flags, Errno::EROFS)?;
        let file = entry.node.open(cx, flags)?;
        Ok((entry, file))
    }

    fn make(&self, cx: &Cx<'_>, name: Name<'_>, _: NewNode<'_>, _: Mode) -> Result<Entry> {
        Err(refuse_create::creation_error(self, cx, name, Errno::EROFS))
    }

    fn tmpfile(&self, _: &Cx<'_>, _: OpenFlags, _: Mode) -> Result<(Entry, Arc<dyn File>)> {
        Err(Errno::EROFS)
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, _: &dyn Node) -> Result<Entry> {
        Err(refuse_create::creation_error(self, cx, name, Errno::EROFS))
    }

    /// Every entry is a mount point, or leads to one.
    fn unlink(&self, _: &Cx<'_>, name: Name<'_>, _: bool) -> Result<()> {
        self.snapshot()?.child(name)?;
        Err(Errno::EBUSY)
    }

    fn rename(
        &self,
        _: &Cx<'_>,
        name: Name<'_>,
        to: &dyn Node,
        _: Name<'_>,
        _: RenameFlags,
    ) -> Result<()> {
        let to = to.as_any().downcast_ref::<Dir>();
        to.filter(|to| Arc::ptr_eq(&to.current, &self.current))
            .ok_or(Errno::EXDEV)?;
        self.snapshot()?.child(name)?;
        Err(Errno::EBUSY)
    }

    fn xattr(&self, _: &Cx<'_>, _: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::ENODATA)
    }

    fn xattrs(&self, _: &Cx<'_>) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn set_xattr(&self, _: &Cx<'_>, _: &[u8], _: &[u8], _: XattrFlags) -> Result<()> {
        Err(Errno::EROFS)
    }

    fn remove_xattr(&self, _: &Cx<'_>, _: &[u8]) -> Result<()> {
        Err(Errno::EROFS)
    }

    /// Succeeds: the host has no such directory.
    fn host_lock(&self, _: &Cx<'_>, _: LockRange, _: HostLock) -> Result<()> {
        Ok(())
    }

    fn host_lock_holder(
        &self,
        _: &Cx<'_>,
        _: LockRange,
        _: LockKind,
    ) -> Result<Option<ForeignLock>> {
        Ok(None)
    }
}

impl File for Dir {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attr(&self, _: &Cx<'_>, _: AttrMask) -> Result<Attr> {
        self.attributes()
    }

    fn setattr(&self, _: &Cx<'_>, _: &SetAttr) -> Result<Attr> {
        Err(Errno::EROFS)
    }

    fn read(&self, _: &Cx<'_>, _: u64, _: usize, _: &mut dyn Sink) -> Result<usize> {
        Err(Errno::EISDIR)
    }

    fn write(&self, _: &Cx<'_>, _: u64, _: &mut dyn Payload) -> Result<usize> {
        Err(Errno::EBADF)
    }

    /// A member's entry has the number of its place, as a mount point's entry has that of the
    /// directory beneath. A member that refuses the caller is omitted; one that is unreachable has
    /// no kind.
    fn readdir(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let now = self.snapshot()?;
        let children = now.directory().children.iter().zip(1..);
        for ((name, position), next) in children.skip_while(|(_, next)| *next <= cookie) {
            let found = match plus {
                ReaddirMode::Names => now.kind_of(cx, *position).map(|kind| (kind, None)),
                ReaddirMode::Entries => self
                    .entry_at(cx, &now, *position)
                    .map(|entry| (entry.node.kind(), Some(entry))),
            };
            let (kind, entry) = match found {
                Ok((kind, entry)) => (Some(kind), entry),
                Err(errno) if errno.is_signal() || errno == Errno::EINTR => return Err(errno),
                Err(Errno::EACCES) => continue,
                // NFS v4 has no entry without a kind, and one member must not fail the listing.
                Err(_) => (Some(Kind::Directory), None),
            };
            let taken = sink.entry(DirEntry {
                name,
                id: now.tree.number(*position),
                kind,
                cookie: next,
                entry,
            });
            if !taken {
                return Ok(());
            }
        }
        Ok(())
    }

    fn fsync(&self, _: &Cx<'_>, _: bool) -> Result<()> {
        Ok(())
    }

    fn flush(&self, _: &Cx<'_>) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, _: &Cx<'_>, _: AllocateMode, _: u64, _: u64) -> Result<()> {
        Err(Errno::EBADF)
    }

    fn seek(&self, _: &Cx<'_>, _: u64, _: Whence) -> Result<u64> {
        Err(Errno::EISDIR)
    }

    fn extents(&self, _: &Cx<'_>, _: u64, _: u64, _: &mut dyn FnMut(Extent) -> bool) -> Result<()> {
        Err(Errno::EISDIR)
    }

    fn copy(&self, _: &Cx<'_>, _: u64, _: &dyn File, _: u64, _: u64, _: CopyMode) -> Result<u64> {
        Err(Errno::EISDIR)
    }

    fn lease(&self, _: &Cx<'_>, _: LeaseKind, _: &BreakCallback) -> Result<Box<dyn Lease>> {
        Err(Errno::EISDIR)
    }
}
