//! Trees of any source, walked through the file-system traits.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use vfs::listing::list;
use vfs::{Call, Caller, Cx, Entry, Errno, FileSystem, Node, OpenFlags, Sink, Support};
use wire::payload::SliceSink;

use crate::Contents;
use crate::TreeLimit;
use crate::contents::{unexpected_end, whole_range};
use crate::error::{Error, Result};
use crate::plan::{Attributes, Kind, MAX_DEPTH, NodeId, Plan};

/// Returns the tree below the directory `root` of `fs`, read on behalf of `caller`. Returns an
/// error if a node cannot be read, as an image must not lack files silently, or if the tree is
/// beyond `limit`.
pub fn file_system(
    fs: Arc<dyn FileSystem>,
    caller: Arc<Caller>,
    root: Entry,
    limit: &TreeLimit,
) -> Result<Plan> {
    let tree = &Tree { fs, caller };
    if root.attr.kind != vfs::Kind::Directory {
        let what = "expected a directory, an image, a tar archive or an OCI image layout";
        return Err(Error::new(what));
    }
    let mut plan = Plan::new(attributes(tree, &root).map_err(io::Error::from)?);
    let mut linked = HashMap::<(u64, u64), NodeId>::new();
    let mut pending = vec![(root, NodeId::ROOT, Vec::new(), 0)];
    while let Some((dir, node, path, level)) = pending.pop() {
        let listed = tree.with(|cx| list(cx, &*dir.node));
        for listed in listed.map_err(|errno: Errno| Error::with_errno(&path, errno))? {
            let path = [&path[..], b"/", &listed.name].concat();
            let failed = |errno: Errno| Error::with_errno(&path, errno);
            let entry = listed
                .entry
                .ok_or_else(|| Error::with_path(&path, "cannot be accessed"))?;
            let key = (entry.attr.device, entry.attr.id);
            let has_links = entry.attr.nlink > 1 && entry.attr.kind != vfs::Kind::Directory;
            if has_links && let Some(&there) = linked.get(&key) {
                plan.link(node, &listed.name, there);
                continue;
            }
            let kind = kind(tree, &entry).map_err(failed)?;
            let attributes = attributes(tree, &entry).map_err(failed)?;
            limit.take(path.len(), &attributes, Some(&kind))?;
            let child = plan.add(node, &listed.name, attributes, kind);
            if has_links {
                linked.insert(key, child);
            }
            if entry.attr.kind == vfs::Kind::Directory {
                if level == MAX_DEPTH {
                    let what = format!("more than {MAX_DEPTH} nested directories");
                    return Err(Error::with_path(&path, what));
                }
                pending.push((entry, child, path, level + 1));
            }
        }
    }
    Ok(plan)
}

/// A file system, and the user on whose behalf it is read.
#[derive(Clone)]
struct Tree {
    fs: Arc<dyn FileSystem>,
    caller: Arc<Caller>,
}

impl Tree {
    /// Runs `operation` on behalf of the caller, without a deadline.
    fn with<T>(&self, operation: impl FnOnce(&Cx<'_>) -> T) -> T {
        let call = Call::detached();
        operation(&Cx::new(&self.caller, &call))
    }
}

fn kind(tree: &Tree, entry: &Entry) -> vfs::Result<Kind> {
    let rdev = entry.attr.rdev;
    Ok(match entry.attr.kind {
        vfs::Kind::Directory => Kind::empty_directory(),
        vfs::Kind::File => Kind::File(Arc::new(TreeFile::new(tree.clone(), entry))),
        vfs::Kind::Symlink => Kind::Symlink(tree.with(|cx| entry.node.readlink(cx))?),
        vfs::Kind::Fifo => Kind::Fifo,
        vfs::Kind::Socket => Kind::Socket,
        vfs::Kind::CharDevice => Kind::CharDevice(rdev),
        vfs::Kind::BlockDevice => Kind::BlockDevice(rdev),
    })
}

fn attributes(tree: &Tree, entry: &Entry) -> vfs::Result<Attributes> {
    let attr = &entry.attr;
    Ok(Attributes {
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        mtime: attr.mtime,
        xattrs: xattrs(tree, entry)?,
    })
}

fn xattrs(tree: &Tree, entry: &Entry) -> vfs::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut all = BTreeMap::new();
    if tree.fs.capabilities().xattr == Support::None {
        return Ok(all);
    }
    let list = match tree.with(|cx| entry.node.xattrs(cx)) {
        Err(Errno::EOPNOTSUPP) => return Ok(all),
        list => list?,
    };
    let names = list.split(|&byte| byte == 0);
    for name in names.filter(|name| !name.is_empty()) {
        match tree.with(|cx| entry.node.xattr(cx, name)) {
            // Removed meanwhile, or not readable by this caller.
            Err(Errno::ENODATA | Errno::EPERM | Errno::EACCES) => {}
            value => drop(all.insert(name.to_vec(), value?)),
        }
    }
    Ok(all)
}

/// A file of a file system, opened on first read.
struct TreeFile {
    tree: Tree,
    node: Arc<dyn Node>,
    len: u64,
    /// Whether it takes less space than its size: it may have holes.
    sparse: bool,
    open: Mutex<Option<Arc<dyn vfs::File>>>,
}

impl TreeFile {
    /// Returns the contents of the file `entry` of `tree`.
    fn new(tree: Tree, entry: &Entry) -> TreeFile {
        let attr = &entry.attr;
        TreeFile {
            sparse: attr.blocks < attr.size.div_ceil(512)
                && tree.fs.capabilities().holes != Support::None,
            tree,
            node: entry.node.clone(),
            len: attr.size,
            open: Mutex::new(None),
        }
    }

    fn file(&self) -> vfs::Result<Arc<dyn vfs::File>> {
        let mut open = self.open.lock();
        if let Some(file) = &*open {
            return Ok(file.clone());
        }
        let file = self.tree.with(|cx| self.node.open(cx, OpenFlags::READ))?;
        Ok(open.insert(file).clone())
    }
}

impl Contents for TreeFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset + buffer.len() as u64;
        self.copy(offset..end, &mut SliceSink::new(buffer))
    }

    fn copy(&self, range: Range<u64>, sink: &mut dyn Sink) -> io::Result<()> {
        let file = self.file()?;
        let mut at = range.start;
        while at < range.end {
            let len = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            match self.tree.with(|cx| file.read(cx, at, len, sink))? {
                0 => return Err(unexpected_end()),
                read => at += read as u64,
            }
        }
        Ok(())
    }

    fn data_ranges(&self) -> io::Result<Vec<Range<u64>>> {
        if !self.sparse {
            return Ok(whole_range(self.len));
        }
        let file = self.file()?;
        let mut data = Vec::new();
        let result = self.tree.with(|cx| {
            file.extents(cx, 0, self.len, &mut |extent| {
                if !extent.hole {
                    let end = extent.offset.saturating_add(extent.len);
                    data.push(extent.offset..end.min(self.len));
                }
                true
            })
        });
        match result {
            Err(Errno::EOPNOTSUPP | Errno::EINVAL) => Ok(whole_range(self.len)),
            result => Ok(result.map(|()| data)?),
        }
    }

    fn close(&self) {
        *self.open.lock() = None;
    }
}
