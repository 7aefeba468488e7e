//! The bundle's own directories: owned by the super-user, readable for all, immutable.

use std::any::Any;
use std::sync::Arc;

use vfs::lock::{HostLock, LockKind, LockRange, Outsider};
use vfs::{
    Access, Allocate, Attr, Broken, CopyHow, Cx, Device, DirEntry, DirSink, Entry, Errno, Extent,
    File, Handle, Kind, Lease, LeaseKind, Make, Mode, Name, Node, NodeId, OpenFlags, Payload, Plus,
    RenameFlags, Result, Seek, SetAttr, Sink, StatFs, Want, XattrFlags,
};

use super::{Directory, Place, Places, Tree, numbers};
use crate::existing;

/// One of them, as a node or an open file.
#[derive(Clone)]
pub(super) struct Dir {
    places: Arc<Places>,
    number: NodeId,
}

impl Dir {
    /// Returns the directory with this number.
    pub(super) fn node(places: &Arc<Places>, number: NodeId) -> Arc<dyn Node> {
        let places = places.clone();
        Arc::new(Dir { places, number })
    }

    /// Returns [`Dir::node`] with its attributes.
    pub(super) fn entry(places: &Arc<Places>, number: NodeId) -> Result<Entry> {
        let places = places.clone();
        let dir = Dir { places, number };
        Ok(Entry {
            attr: dir.attributes()?,
            node: Arc::new(dir),
        })
    }

    /// Returns the current tree, and this directory's index in it.
    fn now(&self) -> Result<Now> {
        let tree = self.places.tree();
        match tree.places.get(&self.number) {
            Some(&Place::Directory(at)) => Ok(Now { tree, at }),
            _ => Err(Errno::ESTALE),
        }
    }

    fn found(&self, cx: &Cx<'_>, now: &Now, place: Place) -> Result<Entry> {
        match place {
            Place::Directory(at) => Dir::entry(&self.places, now.tree.dirs[at].number),
            Place::Member(at) => {
                let node = now.tree.members[at].fs.root(cx)?;
                let attr = node.attr(cx, Want::STAT)?;
                Ok(Entry { node, attr })
            }
        }
    }

    /// Returns attributes as those of an untouched directory in memory.
    fn attributes(&self) -> Result<Attr> {
        let now = self.now()?;
        let made = now.tree.made;
        Ok(Attr {
            id: self.number,
            generation: 0,
            kind: Kind::Directory,
            mode: 0o755,
            nlink: 2 + now.this().children.len() as u32,
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
struct Now {
    tree: Arc<Tree>,
    at: usize,
}

impl Now {
    fn this(&self) -> &Directory {
        &self.tree.dirs[self.at]
    }

    fn child(&self, name: Name<'_>) -> Result<Place> {
        let children = &self.this().children;
        let at = children.binary_search_by(|(child, _)| (**child).cmp(name.bytes()));
        Ok(children[at.map_err(|_| Errno::ENOENT)?].1)
    }

    fn kind_of(&self, cx: &Cx<'_>, place: Place) -> Result<Kind> {
        match place {
            Place::Directory(_) => Ok(Kind::Directory),
            Place::Member(at) => Ok(self.tree.members[at].fs.root(cx)?.kind()),
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

    fn attr(&self, _: &Cx<'_>, _: Want) -> Result<Attr> {
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
            kind: KIND,
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
        let now = self.now()?;
        self.found(cx, &now, now.child(name)?)
    }

    fn parent(&self, _: &Cx<'_>) -> Result<Entry> {
        Dir::entry(&self.places, self.now()?.this().up)
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        _: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let entry = existing::find(self, cx, name, flags, Errno::EROFS)?;
        let file = entry.node.open(cx, flags)?;
        Ok((entry, file))
    }

    fn make(&self, cx: &Cx<'_>, name: Name<'_>, _: Make<'_>, _: Mode) -> Result<Entry> {
        Err(existing::refuse(self, cx, name, Errno::EROFS))
    }

    fn tmpfile(&self, _: &Cx<'_>, _: OpenFlags, _: Mode) -> Result<(Entry, Arc<dyn File>)> {
        Err(Errno::EROFS)
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, _: &dyn Node) -> Result<Entry> {
        Err(existing::refuse(self, cx, name, Errno::EROFS))
    }

    /// Every entry is a mount point, or leads to one.
    fn unlink(&self, _: &Cx<'_>, name: Name<'_>, _: bool) -> Result<()> {
        self.now()?.child(name)?;
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
        to.filter(|to| Arc::ptr_eq(&to.places, &self.places))
            .ok_or(Errno::EXDEV)?;
        self.now()?.child(name)?;
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

    fn host_lock_holder(&self, _: &Cx<'_>, _: LockRange, _: LockKind) -> Result<Option<Outsider>> {
        Ok(None)
    }
}

impl File for Dir {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attr(&self, _: &Cx<'_>, _: Want) -> Result<Attr> {
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
    fn readdir(&self, cx: &Cx<'_>, cookie: u64, plus: Plus, sink: &mut dyn DirSink) -> Result<()> {
        let now = self.now()?;
        let children = now.this().children.iter().zip(1..);
        for ((name, place), next) in children.skip_while(|(_, next)| *next <= cookie) {
            let told = match plus {
                Plus::Names => now.kind_of(cx, *place).map(|kind| (kind, None)),
                Plus::Entries => self
                    .found(cx, &now, *place)
                    .map(|entry| (entry.node.kind(), Some(entry))),
            };
            let (kind, entry) = match told {
                Ok((kind, entry)) => (Some(kind), entry),
                Err(errno) if errno.is_signal() || errno == Errno::EINTR => return Err(errno),
                Err(Errno::EACCES) => continue,
                Err(_) => (None, None),
            };
            let taken = sink.entry(DirEntry {
                name,
                id: now.tree.number(*place),
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

    fn allocate(&self, _: &Cx<'_>, _: Allocate, _: u64, _: u64) -> Result<()> {
        Err(Errno::EBADF)
    }

    fn seek(&self, _: &Cx<'_>, _: u64, _: Seek) -> Result<u64> {
        Err(Errno::EISDIR)
    }

    fn extents(&self, _: &Cx<'_>, _: u64, _: u64, _: &mut dyn FnMut(Extent) -> bool) -> Result<()> {
        Err(Errno::EISDIR)
    }

    fn copy(&self, _: &Cx<'_>, _: u64, _: &dyn File, _: u64, _: u64, _: CopyHow) -> Result<u64> {
        Err(Errno::EISDIR)
    }

    fn lease(&self, _: &Cx<'_>, _: LeaseKind, _: &Broken) -> Result<Box<dyn Lease>> {
        Err(Errno::EISDIR)
    }
}
