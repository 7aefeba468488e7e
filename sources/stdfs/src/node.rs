//! A node: its path, and what is there.

use std::fs::{self, FileType, Metadata};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use vfs::siphash;
use vfs::{Attr, Device, Entry, Errno, Kind, Name, NodeId, Result, Time};

use crate::system;

/// A path in the tree. Cheap to make.
pub(crate) struct StdNode {
    pub(crate) root: Arc<PathBuf>,
    /// The path from the root, empty for the root itself.
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
}

impl StdNode {
    /// Finds the node at `path`, without following links.
    pub(crate) fn find(root: &Arc<PathBuf>, path: PathBuf) -> Result<(StdNode, Attr)> {
        let full = match path.as_os_str().is_empty() {
            true => root.to_path_buf(),
            false => root.join(&path),
        };
        let metadata = fs::symlink_metadata(&full)?;
        // Canonical paths have no links, and the case of the disk.
        let (checked, is_root) = match metadata.is_symlink() {
            true => (full.parent().unwrap_or(&full), full == **root),
            false => (&*full, false),
        };
        if is_root || fs::canonicalize(checked)? != checked {
            return Err(Errno::ENOENT);
        }
        let node = StdNode {
            root: root.clone(),
            path,
            kind: kind(metadata.file_type()),
        };
        let attr = node.attr_of(&metadata);
        Ok((node, attr))
    }

    /// Returns the path, now that nothing on it is a link, and the attributes.
    pub(crate) fn checked(&self) -> Result<(PathBuf, Attr)> {
        let (node, attr) = StdNode::find(&self.root, self.path.clone())?;
        match node.kind == self.kind {
            true => Ok((node.full_path(), attr)),
            false => Err(Errno::ENOENT),
        }
    }

    fn full_path(&self) -> PathBuf {
        match self.path.as_os_str().is_empty() {
            true => self.root.to_path_buf(),
            false => self.root.join(&self.path),
        }
    }

    /// Returns the path of a child that may not exist. The directory does.
    pub(crate) fn child_path(&self, name: Name<'_>) -> Result<PathBuf> {
        if self.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let (dir, _) = self.checked()?;
        Ok(dir.join(system::name(name.bytes())?))
    }

    /// Finds a child.
    pub(crate) fn child(&self, name: Name<'_>) -> Result<Entry> {
        if self.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let path = self.path.join(system::name(name.bytes())?);
        let (node, attr) = StdNode::find(&self.root, path)?;
        let node = Arc::new(node);
        Ok(Entry { node, attr })
    }

    /// Returns the number of the node: a hash of its path.
    pub(crate) fn number(&self) -> NodeId {
        number(&self.path)
    }

    /// Returns attributes of the file at this path.
    pub(crate) fn attr_of(&self, metadata: &Metadata) -> Attr {
        let time = |time: std::io::Result<SystemTime>| time.map(Time::from).unwrap_or_default();
        let size = match self.kind {
            Kind::Directory => 0,
            _ => metadata.len(),
        };
        let mtime = time(metadata.modified());
        Attr {
            id: self.number(),
            generation: 0,
            kind: self.kind,
            mode: system::mode(metadata),
            nlink: if self.kind == Kind::Directory { 2 } else { 1 },
            uid: sys::process::user(),
            gid: sys::process::group(),
            rdev: Device::default(),
            size,
            blksize: 4096,
            blocks: size.div_ceil(512),
            atime: time(metadata.accessed()),
            mtime,
            ctime: mtime,
            btime: metadata.created().ok().map(Time::from),
            change: mtime.sec as u64 ^ u64::from(mtime.nsec) << 32 ^ size,
            device: 0,
        }
    }
}

/// Returns the number of the node at a path from the root; never 0.
pub(crate) fn number(path: &Path) -> NodeId {
    siphash::hash(&[0; 16], path.as_os_str().as_encoded_bytes()).max(1)
}

/// Returns the kind of a file. Special files, which cannot be opened, count as pipes.
pub(crate) fn kind(kind: FileType) -> Kind {
    match kind {
        _ if kind.is_dir() => Kind::Directory,
        _ if kind.is_symlink() => Kind::Symlink,
        _ if kind.is_file() => Kind::File,
        _ => Kind::Fifo,
    }
}
