//! A ROFS image as a tree: everything but file contents is in memory.
//!
//! Attributes that the format lacks are as in OSv: every file belongs to root and is readable and
//! executable by all; all times are the epoch.

use std::collections::HashMap;
use std::sync::Arc;

use erofs::read::{Error, Storage};
use rofs::{BLOCK, Inode, InodeKind, Superblock, Tables, blocks};
use vfs::acl::Acl;
use vfs::{
    Attr, Capabilities, Device, Errno, Handle, Kind, Name, NodeId, Patience, ReaddirMode, Result,
    Sink, StatFs, Support, Time,
};

use crate::format::{Format, ListedEntry, fnv1a, handle_of, parse_handle};
use crate::storage::{Access, Devices, Read};

/// The file-system type that statfs(2) returns: the format's own magic number, since Linux defines
/// none.
const KIND: u32 = rofs::MAGIC as u32;

/// A ROFS image.
pub(crate) struct Rofs {
    tables: Tables,
    devices: Arc<Devices>,
    /// Identifies the image: a hash of its superblock and tables.
    identity: u64,
    /// Each directory's children sorted by name: the tables may list them in any order.
    sorted: HashMap<u64, Box<[u32]>>,
    /// The number of names of each inode.
    names: Vec<u32>,
}

impl Rofs {
    /// Opens the image on the only one of `devices`.
    pub(crate) fn open(devices: Arc<Devices>) -> Read<Rofs> {
        let access = Access {
            devices: &devices,
            patience: Patience::Full,
        };
        let corrupt = |broken: rofs::Corrupt| Error::Corrupt(broken.message);
        let mut block = [0; BLOCK as usize];
        access.read_at(0, 0, &mut block).map_err(Error::Storage)?;
        let size = devices.sources[0].len();
        let superblock = Superblock::parse(&block, size).map_err(corrupt)?;
        let (at, len) = superblock.tables();
        let mut bytes = vec![0; len as usize];
        access.read_at(0, at, &mut bytes).map_err(Error::Storage)?;
        let identity = fnv1a(&block) ^ fnv1a(&bytes).rotate_left(1);
        let tables = Tables::parse(&superblock, bytes).map_err(corrupt)?;
        let (mut sorted, mut names) = (HashMap::new(), vec![0; tables.len() as usize + 1]);
        names[tables.root().number as usize] = 1;
        for number in 1..=tables.len() {
            let children: Vec<_> = tables.children(number, 0).collect();
            for child in &children {
                names[child.inode.number as usize] += 1;
            }
            let mut order: Box<[u32]> = (0..children.len() as u32).collect();
            order.sort_by_key(|&index| children[index as usize].name);
            if !order.is_empty() {
                sorted.insert(number, order);
            }
        }
        Ok(Rofs {
            tables,
            devices,
            identity,
            sorted,
            names,
        })
    }

    fn inode(&self, number: u64) -> Result<Inode> {
        self.tables.inode(number).ok_or(Errno::ESTALE)
    }
}

fn kind_of(inode: Inode) -> Kind {
    match inode.kind {
        InodeKind::Directory { .. } => Kind::Directory,
        InodeKind::File { .. } => Kind::File,
        InodeKind::Symlink { .. } => Kind::Symlink,
    }
}

impl Format for Rofs {
    type Item = Inode;

    fn root(&self, _: Patience) -> Result<Inode> {
        Ok(self.tables.root())
    }

    fn resolve(&self, handle: &Handle, _: Patience) -> Result<Inode> {
        match parse_handle(handle)? {
            [identity, number, 0] if identity == self.identity => self.inode(number),
            _ => Err(Errno::ESTALE),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            read_only: true,
            handles: Support::Native,
            change: Support::Native,
            persistent: true,
            stable_cookies: true,
            no_birth_times: true,
            ..Capabilities::default()
        }
    }

    fn statfs(&self) -> StatFs {
        StatFs {
            magic: KIND,
            bsize: BLOCK as u32,
            blocks: blocks(self.devices.sources[0].len()),
            bfree: 0,
            bavail: 0,
            files: self.tables.len(),
            ffree: 0,
            fsid: self.identity,
            namelen: Name::MAX as u32,
            ..StatFs::default()
        }
    }

    fn attr(&self, inode: &Inode) -> Attr {
        let size = match inode.kind {
            InodeKind::Directory { count, .. } => count,
            InodeKind::File { size, .. } => size,
            InodeKind::Symlink { .. } => {
                self.tables.target(inode.number).map_or(0, <[u8]>::len) as u64
            }
        };
        let kind = kind_of(*inode);
        let epoch = Time { sec: 0, nsec: 0 };
        Attr {
            id: inode.number,
            generation: self.identity,
            kind,
            mode: if kind == Kind::Symlink { 0o777 } else { 0o555 },
            // 1 for a directory: subdirectories are not counted.
            nlink: self.names[inode.number as usize],
            uid: 0,
            gid: 0,
            rdev: Device { major: 0, minor: 0 },
            size,
            blksize: BLOCK as u32,
            blocks: if kind == Kind::File { blocks(size) } else { 0 },
            atime: epoch,
            mtime: epoch,
            ctime: epoch,
            btime: None,
            change: self.identity,
            device: 0,
        }
    }

    fn handle(&self, inode: &Inode) -> Result<Handle> {
        handle_of([self.identity, inode.number, 0])
    }

    fn find(&self, dir: &Inode, name: &[u8], _: Patience) -> Result<Inode> {
        let order = self.sorted.get(&dir.number).ok_or(Errno::ENOENT)?;
        let child = |index: u32| self.tables.children(dir.number, index.into()).next();
        let found =
            order.binary_search_by_key(&Some(name), |&index| child(index).map(|child| child.name));
        let index = order[found.map_err(|_| Errno::ENOENT)?];
        Ok(child(index).ok_or(Errno::EIO)?.inode)
    }

    fn parent(&self, dir: &Inode, _: Patience) -> Result<Inode> {
        self.tables.parent(dir.number).ok_or(Errno::EIO)
    }

    fn list(
        &self,
        dir: &Inode,
        cookie: u64,
        plus: ReaddirMode,
        _: Patience,
        each: &mut dyn FnMut(ListedEntry<'_, Inode>) -> bool,
    ) -> Result<()> {
        for (child, next) in self.tables.children(dir.number, cookie).zip(cookie + 1..) {
            let goes_on = each(ListedEntry {
                name: child.name,
                id: NodeId::from(child.inode.number),
                kind: Some(kind_of(child.inode)),
                cookie: next,
                item: (plus == ReaddirMode::Entries).then_some(child.inode),
            });
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    fn target(&self, inode: &Inode, _: Patience) -> Result<Vec<u8>> {
        let target = self.tables.target(inode.number);
        target.map(<[u8]>::to_vec).ok_or(Errno::EINVAL)
    }

    fn acl(&self, _: &Inode, _: Patience) -> Result<Option<Acl>> {
        Ok(None)
    }

    fn xattr(&self, _: &Inode, _: &[u8], _: Patience) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn xattrs(&self, _: &Inode, _: Patience, _: &mut dyn FnMut(&[u8])) -> Result<()> {
        Ok(())
    }

    fn load_extents(&self, _: &Inode, _: Patience) -> Result<()> {
        Ok(())
    }

    fn extent(&self, inode: &Inode, _: u64, _: Patience) -> Result<(u64, bool)> {
        Ok((self.attr(inode).size, false))
    }

    fn put(
        &self,
        inode: &Inode,
        offset: u64,
        len: u64,
        patience: Patience,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let InodeKind::File { block, .. } = inode.kind else {
            return Err(Errno::EINVAL);
        };
        let position = block
            .checked_mul(BLOCK)
            .and_then(|at| at.checked_add(offset));
        let position = position.ok_or(Errno::EIO)?;
        let access = Access {
            devices: &self.devices,
            patience,
        };
        access.put(0, position, len as usize, sink)
    }
}
