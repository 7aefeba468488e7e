//! An EROFS image as a tree.

mod data;
mod dir;

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use erofs::layout::{FileType, SUPERBLOCK_OFFSET};
use erofs::read::{Contents, Error, Image, Inode, Location, Storage};
use parking_lot::{Mutex, MutexGuard};
use vfs::acl::{self, Acl};
use vfs::{
    Attr, Capabilities, Device, Errno, Handle, Kind, Name, NodeId, Patience, ReaddirMode, Result,
    Sink, StatFs, Support, Time,
};

use crate::format::{Format, ListedEntry, fnv1a, handle_of, parse_handle, stale};
use crate::storage::{Access, Devices, Read, errno};

/// `EROFS_SUPER_MAGIC_V1` (`linux/magic.h`), the file-system type that statfs(2) returns.
const KIND: u32 = 0xe0f5_e1e2;

/// The maximum length of a symbolic link's target (`PATH_MAX`).
const TARGET_MAX: u64 = 4096;

/// The maximum number of directories between a file handle's node and the root when a handle is
/// verified: more than a path can name.
const MAX_DEPTH: usize = 4096;

/// The maximum number of nodes remembered as reachable: 8 bytes each.
const MAX_REACHABLE: usize = 1 << 20;

/// An EROFS image.
pub(crate) struct Erofs {
    image: Image,
    devices: Arc<Devices>,
    /// Identifies the image: a hash of its superblock and, if it has hashes, their root.
    identity: u64,
    /// Inode numbers known to be in the tree, since a lookup found them.
    reachable: Mutex<HashSet<u64>>,
}

/// An inode, with a lazily computed map of its contents.
pub(crate) struct Item {
    inode: Inode,
    /// The directory it was found in.
    parent: u64,
    contents: OnceLock<Box<Contents>>,
}

impl Item {
    fn new(inode: Inode, parent: u64) -> Item {
        Item {
            inode,
            parent,
            contents: OnceLock::new(),
        }
    }

    fn is_directory(&self) -> bool {
        self.inode.kind == FileType::Directory
    }
}

impl Erofs {
    /// Opens the image; the superblock is on the first of `devices`.
    pub(crate) fn open(devices: Arc<Devices>) -> Read<Erofs> {
        let access = Access {
            devices: &devices,
            patience: Patience::Full,
        };
        let image = Image::open(&access)?;
        let mut superblock = [0; 128];
        let read = access.read_at(0, SUPERBLOCK_OFFSET as u64, &mut superblock);
        read.map_err(Error::Storage)?;
        let root = devices.root.as_ref().map_or(&[][..], |root| root);
        let identity = fnv1a(&[&superblock[..], root].concat());
        let erofs = Erofs {
            image,
            devices,
            identity,
            reachable: Mutex::default(),
        };
        // An image without a valid root directory is invalid.
        erofs.root(Patience::Full).map_err(Error::Storage)?;
        Ok(erofs)
    }

    fn access(&self, patience: Patience) -> Access<'_> {
        Access {
            devices: &self.devices,
            patience,
        }
    }

    /// Logs `error` and converts it to an errno.
    fn log_error(&self, error: Error<Errno>) -> Errno {
        if !matches!(error, Error::Storage(_)) {
            tracing::debug!("{error}");
        }
        errno(&error)
    }

    /// Returns the location of a node's contents.
    fn contents<'a>(&self, item: &'a Item, patience: Patience) -> Result<&'a Contents> {
        if let Some(contents) = item.contents.get() {
            return Ok(contents);
        }
        let contents = self.image.contents(&self.access(patience), &item.inode);
        let contents = contents.map_err(|error| self.log_error(error))?;
        Ok(item.contents.get_or_init(|| Box::new(contents)))
    }

    fn inode(&self, nid: u64, patience: Patience) -> Result<Inode> {
        let inode = self.image.inode(&self.access(patience), nid);
        inode.map_err(|error| self.log_error(error))
    }

    /// Returns the node's id: the inode number as Linux shows it, but never 0.
    fn id_of(&self, nid: u64) -> NodeId {
        /// No inode has this number: its offset would exceed 64 bits.
        const OF_ZERO: u64 = 1 << 62;
        match self.image.metabox() {
            None if nid == 0 => OF_ZERO,
            None => nid,
            // Bit 31 marks inodes in the metabox, so that the ids of small images fit in 32 bits.
            Some(_) => match nid << 1 >> 32 << 32 | nid & 0x7fff_ffff | nid >> 63 << 31 {
                0 => OF_ZERO,
                id => id,
            },
        }
    }

    /// Records that a node is in the tree.
    fn mark_reachable(&self, nid: u64) {
        let mut known = self.reachable();
        if known.len() >= MAX_REACHABLE {
            known.clear();
        }
        known.insert(nid);
    }

    /// Checks that a file handle's node is in the tree: a forged handle could name arbitrary bytes
    /// as an inode.
    fn verify(&self, nid: u64, parent: u64, patience: Patience) -> Result<()> {
        let (mut child, mut parent) = (nid, parent);
        for _ in 0..MAX_DEPTH {
            if child == self.image.root || self.reachable().contains(&child) {
                self.mark_reachable(nid);
                return Ok(());
            }
            let inode = self.inode(parent, patience).map_err(stale)?;
            let dir = Item::new(inode, parent);
            if !dir.is_directory() || !self.has(&dir, child, patience).map_err(stale)? {
                return Err(Errno::ESTALE);
            }
            child = parent;
            parent = self.parent_number(&dir, patience).map_err(stale)?;
        }
        Err(Errno::ESTALE)
    }

    fn reachable(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.reachable.lock()
    }
}

/// Converts the file type to that of the file-system traits.
fn kind_of(kind: FileType) -> Option<Kind> {
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

impl Format for Erofs {
    type Item = Item;

    fn root(&self, patience: Patience) -> Result<Item> {
        let item = Item::new(self.inode(self.image.root, patience)?, self.image.root);
        match item.is_directory() {
            true => Ok(item),
            false => Err(Errno::ENOTDIR),
        }
    }

    fn resolve(&self, handle: &Handle, patience: Patience) -> Result<Item> {
        let [identity, nid, parent] = parse_handle(handle)?;
        if identity != self.identity {
            return Err(Errno::ESTALE);
        }
        self.verify(nid, parent, patience)?;
        Ok(Item::new(self.inode(nid, patience)?, parent))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            read_only: true,
            xattr: Support::Native,
            acl: Support::Native,
            host_locks: Support::None,
            handles: Support::Native,
            change: Support::Native,
            holes: Support::Native,
            copy: Support::None,
            clone: Support::None,
            tmpfile: Support::None,
            changes: Support::None,
            devices: Support::Native,
            owners: Support::Native,
            persistent: true,
            stable_cookies: true,
            no_birth_times: true,
        }
    }

    fn statfs(&self) -> StatFs {
        let image = &self.image;
        StatFs {
            magic: KIND,
            bsize: image.block_size() as u32,
            blocks: image.blocks,
            bfree: 0,
            bavail: 0,
            files: image.inodes,
            ffree: 0,
            fsid: self.identity,
            namelen: Name::MAX as u32,
            ..StatFs::default()
        }
    }

    fn attr(&self, item: &Item) -> Attr {
        let inode = &item.inode;
        let time = Time {
            sec: inode.mtime,
            nsec: inode.mtime_nsec,
        };
        let (major, minor) = inode.device;
        Attr {
            id: self.id_of(inode.nid),
            generation: self.identity,
            kind: kind_of(inode.kind).expect("an inode is of some kind"),
            mode: inode.mode.into(),
            nlink: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            rdev: Device { major, minor },
            size: inode.size,
            blksize: self.image.block_size() as u32,
            blocks: inode.sectors(&self.image),
            atime: time,
            mtime: time,
            ctime: time,
            btime: None,
            change: self.identity,
            device: 0,
        }
    }

    fn handle(&self, item: &Item) -> Result<Handle> {
        handle_of([self.identity, item.inode.nid, item.parent])
    }

    fn find(&self, dir: &Item, name: &[u8], patience: Patience) -> Result<Item> {
        let nid = self.number_of(dir, name, patience)?;
        self.child(dir, nid, patience)
    }

    fn parent(&self, dir: &Item, patience: Patience) -> Result<Item> {
        let nid = self.parent_number(dir, patience)?;
        let item = Item::new(self.inode(nid, patience)?, nid);
        if !item.is_directory() {
            return Err(Errno::EIO);
        }
        let above = self.parent_number(&item, patience)?;
        Ok(Item {
            parent: above,
            ..item
        })
    }

    fn list(
        &self,
        dir: &Item,
        cookie: u64,
        plus: ReaddirMode,
        patience: Patience,
        each: &mut dyn FnMut(ListedEntry<'_, Item>) -> bool,
    ) -> Result<()> {
        self.children(dir, cookie, plus, patience, each)
    }

    fn target(&self, item: &Item, patience: Patience) -> Result<Vec<u8>> {
        if item.inode.size > TARGET_MAX {
            return Err(Errno::EIO);
        }
        let contents = self.contents(item, patience)?;
        let mut target = vec![0; item.inode.size as usize];
        let read = self
            .image
            .read(&self.access(patience), contents, 0, &mut target);
        read.map_err(|error| self.log_error(error))?;
        match target.contains(&0) {
            false => Ok(target),
            true => Err(Errno::EIO),
        }
    }

    fn acl(&self, item: &Item, patience: Patience) -> Result<Option<Acl>> {
        match self.xattr(item, acl::ACCESS, patience)? {
            Some(value) => Acl::read(&value).map(Some).map_err(|_| Errno::EIO),
            None => Ok(None),
        }
    }

    fn xattr(&self, item: &Item, name: &[u8], patience: Patience) -> Result<Option<Vec<u8>>> {
        let value = self.image.xattr(&self.access(patience), &item.inode, name);
        value.map_err(|error| self.log_error(error))
    }

    fn xattrs(&self, item: &Item, patience: Patience, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        let access = self.access(patience);
        let result = self
            .image
            .for_each_xattr(&access, &item.inode, &mut |name, _| {
                each(name);
                Ok(true)
            });
        result.map_err(|error| self.log_error(error))
    }

    fn load_extents(&self, item: &Item, patience: Patience) -> Result<()> {
        self.contents(item, patience).map(drop)
    }

    fn extent(&self, item: &Item, offset: u64, patience: Patience) -> Result<(u64, bool)> {
        let contents = self.contents(item, patience)?;
        if contents.has_no_holes() {
            return Ok((contents.size(), false));
        }
        let run = self.image.map(&self.access(patience), contents, offset);
        let run = run.map_err(|error| self.log_error(error))?;
        Ok((run.start + run.len, run.location == Location::Hole))
    }

    fn put(
        &self,
        item: &Item,
        offset: u64,
        len: u64,
        patience: Patience,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        self.put_contents(self.contents(item, patience)?, offset, len, patience, sink)
    }
}
