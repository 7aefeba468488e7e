//! The operations of nodes.

use std::any::Any;
use std::fs::{self, File as StdFile, FileTimes, OpenOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, Attr, AttrMask, Cx, Entry, Errno, File, Handle, Kind, Mode, Name, NewNode, Node,
    NodeId, OpenFlags, RenameFlags, Result, SetAttr, SetTime, StatFs, XattrFlags, perm,
};

use crate::file::OpenFile;
use crate::node::StdNode;
use crate::system;

impl StdNode {
    fn arc(&self) -> Arc<StdNode> {
        Arc::new(StdNode {
            root: self.root.clone(),
            path: self.path.clone(),
            kind: self.kind,
        })
    }

    /// Returns an error if `flags` are not those of an open of this kind.
    fn check_open(&self, flags: OpenFlags) -> Result<()> {
        let writes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC);
        match self.kind {
            Kind::Directory if writes => Err(Errno::EISDIR),
            Kind::Directory if flags.contains(OpenFlags::EXEC) => Err(Errno::EACCES),
            Kind::File | Kind::Directory => Ok(()),
            Kind::Symlink => Err(Errno::ELOOP),
            _ => Err(Errno::ENXIO),
        }
    }

    /// Returns an error if something has the name already, be it in another case.
    fn check_free(&self, path: &Path) -> Result<()> {
        match fs::symlink_metadata(path) {
            Ok(_) => Err(Errno::EEXIST),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Does [`StdNode::check_free`] for the new name of `from`, which may have it in another case.
    fn check_free_but(&self, path: &Path, from: &Path) -> Result<()> {
        match fs::canonicalize(path) {
            Ok(found) if found == from => Ok(()),
            _ => self.check_free(path),
        }
    }

    /// Returns the node of this tree that `node` is.
    fn of_same_tree<'a>(&self, node: &'a dyn Node) -> Result<&'a StdNode> {
        let node = node.as_any().downcast_ref::<StdNode>();
        let node = node.filter(|node| Arc::ptr_eq(&node.root, &self.root));
        node.ok_or(Errno::EXDEV)
    }
}

/// Changes attributes of the file at `path`, open for writing as `file` if it is open.
pub(crate) fn set(path: &Path, attr: &Attr, set: &SetAttr, file: Option<&StdFile>) -> Result<()> {
    let other_owner = set.uid.is_some_and(|uid| uid != attr.uid);
    if other_owner || set.gid.is_some_and(|gid| gid != attr.gid) {
        return Err(Errno::EPERM);
    }
    if attr.kind == Kind::Symlink && *set != SetAttr::default() {
        return Err(Errno::EOPNOTSUPP);
    }
    if set.size.is_some_and(|size| size > i64::MAX as u64) {
        return Err(Errno::EFBIG);
    }
    if let Some(size) = set.size {
        match (attr.kind, file) {
            (Kind::Directory, _) => return Err(Errno::EISDIR),
            (Kind::File, Some(file)) => file.set_len(size)?,
            (Kind::File, None) => OpenOptions::new().write(true).open(path)?.set_len(size)?,
            _ => return Err(Errno::EINVAL),
        }
    }
    let kept = attr.kind.mode_without_set_id(attr.mode);
    let killed = (set.kill_priv && kept != attr.mode).then_some(kept);
    if let Some(mode) = set.mode.or(killed) {
        fs::set_permissions(path, system::permissions(&fs::metadata(path)?, mode))?;
    }
    let mut times = FileTimes::new();
    if let Some(time) = set.atime {
        times = times.set_accessed(time_of(time)?);
    }
    if let Some(time) = set.mtime {
        times = times.set_modified(time_of(time)?);
    }
    if set.atime.is_some() || set.mtime.is_some() {
        system::open_to_set_times(path)?.set_times(times)?;
    }
    Ok(())
}

fn time_of(time: SetTime) -> Result<SystemTime> {
    let SetTime::At(time) = time else {
        return Ok(SystemTime::now());
    };
    time.to_system_time().ok_or(Errno::EINVAL)
}

impl Node for StdNode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> NodeId {
        self.number()
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn handle(&self, _cx: &Cx<'_>) -> Result<Handle> {
        Err(Errno::EOPNOTSUPP)
    }

    fn attr(&self, _cx: &Cx<'_>, _want: AttrMask) -> Result<Attr> {
        Ok(self.checked()?.1)
    }

    fn setattr(&self, cx: &Cx<'_>, change: &SetAttr) -> Result<Attr> {
        let (path, attr) = self.checked()?;
        set(&path, &attr, change, None)?;
        self.attr(cx, AttrMask::STAT)
    }

    fn access(&self, cx: &Cx<'_>, want: Access) -> Result<Access> {
        Ok(want & perm::allowed(&self.checked()?.1, None, cx.caller))
    }

    /// The standard library reports no sizes of file systems.
    fn statfs(&self, _cx: &Cx<'_>) -> Result<StatFs> {
        self.checked()?;
        Ok(StatFs {
            bsize: 4096,
            namelen: Name::MAX as u32,
            ..StatFs::default()
        })
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        self.check_open(flags)?;
        let (path, attr) = self.checked()?;
        let may = perm::allowed(&attr, None, cx.caller);
        if flags.contains(OpenFlags::EXEC) && !may.contains(Access::EXEC) {
            return Err(Errno::EACCES);
        }
        let file = match self.kind {
            Kind::Directory => None,
            _ => {
                // The standard library refuses both at a time.
                if flags.contains(OpenFlags::APPEND | OpenFlags::TRUNC) {
                    OpenOptions::new().write(true).truncate(true).open(&path)?;
                }
                Some(options(flags).open(path)?)
            }
        };
        Ok(Arc::new(OpenFile::new(self.arc(), file, flags)))
    }

    fn readlink(&self, _cx: &Cx<'_>) -> Result<Vec<u8>> {
        if self.kind != Kind::Symlink {
            return Err(Errno::EINVAL);
        }
        let (path, _) = self.checked()?;
        Ok(system::link_target(&fs::read_link(path)?))
    }

    fn lookup(&self, _cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        self.child(name)
    }

    fn parent(&self, _cx: &Cx<'_>) -> Result<Entry> {
        if self.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let parent = self.path.parent().unwrap_or(Path::new(""));
        let (node, attr) = StdNode::find(&self.root, parent.to_owned())?;
        let node = Arc::new(node);
        Ok(Entry { node, attr })
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let path = self.child_path(name)?;
        let found = match self.child(name) {
            Err(Errno::ENOENT) => None,
            Ok(_) if flags.contains(OpenFlags::EXCL) => return Err(Errno::EEXIST),
            found => Some(found?),
        };
        if let Some(entry) = found {
            if entry.attr.kind == Kind::Directory {
                return Err(Errno::EISDIR);
            }
            let file = entry.node.open(cx, flags)?;
            let attr = entry.node.attr(cx, AttrMask::STAT)?;
            let node = entry.node;
            return Ok((Entry { node, attr }, file));
        }
        self.check_free(&path)?;
        let file = options(flags | OpenFlags::WRITE)
            .create_new(true)
            .open(&path)?;
        let bits = mode.bits & !mode.umask;
        fs::set_permissions(&path, system::permissions(&file.metadata()?, bits))?;
        let path = self.path.join(system::name(name.bytes())?);
        let (node, attr) = StdNode::find(&self.root, path)?;
        let node = Arc::new(node);
        let file = Arc::new(OpenFile::new(node.clone(), Some(file), flags));
        Ok((Entry { node, attr }, file))
    }

    fn make(&self, cx: &Cx<'_>, name: Name<'_>, what: NewNode<'_>, mode: Mode) -> Result<Entry> {
        let path = self.child_path(name)?;
        self.check_free(&path)?;
        match what {
            NewNode::File => {
                let flags = OpenFlags::WRITE | OpenFlags::EXCL;
                return self.create(cx, name, flags, mode).map(|(entry, _)| entry);
            }
            NewNode::Directory => fs::create_dir(&path)?,
            NewNode::Symlink(b"") => return Err(Errno::ENOENT),
            NewNode::Symlink(target) => {
                system::symlink(target, &path)?;
                return self.child(name);
            }
            _ => return Err(Errno::EOPNOTSUPP),
        }
        let bits = mode.bits & !mode.umask;
        fs::set_permissions(&path, system::permissions(&fs::metadata(&path)?, bits))?;
        self.child(name)
    }

    fn tmpfile(&self, _: &Cx<'_>, _: OpenFlags, _: Mode) -> Result<(Entry, Arc<dyn File>)> {
        Err(Errno::EOPNOTSUPP)
    }

    fn link(&self, _cx: &Cx<'_>, _name: Name<'_>, target: &dyn Node) -> Result<Entry> {
        self.of_same_tree(target)?;
        match self.kind {
            Kind::Directory => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn unlink(&self, _cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        let path = self.child_path(name)?;
        let is_dir = self.child(name)?.attr.kind == Kind::Directory;
        match (dir, is_dir) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            (true, true) => Ok(fs::remove_dir(path)?),
            (false, false) => Ok(fs::remove_file(path)?),
        }
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &dyn Node,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let to = self.of_same_tree(to)?;
        if !flags.is_empty() {
            return Err(Errno::EINVAL);
        }
        let (from_path, to_path) = (self.child_path(name)?, to.child_path(to_name)?);
        let moved = self.child(name)?.attr.kind;
        if from_path == to_path {
            return Ok(());
        }
        if to_path.starts_with(&from_path) {
            return Err(Errno::EINVAL);
        }
        if from_path.starts_with(&to_path) {
            return Err(Errno::ENOTEMPTY);
        }
        let replaced = match to.child(to_name) {
            Ok(entry) => Some(entry.attr.kind),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(errno),
        };
        match (moved, replaced) {
            // Not every system replaces an empty directory.
            (Kind::Directory, Some(Kind::Directory)) => to.unlink(cx, to_name, true)?,
            (Kind::Directory, Some(_)) => return Err(Errno::ENOTDIR),
            (_, Some(Kind::Directory)) => return Err(Errno::EISDIR),
            (_, Some(_)) => {}
            (_, None) => self.check_free_but(&to_path, &from_path)?,
        }
        Ok(fs::rename(from_path, to_path)?)
    }

    fn xattr(&self, _: &Cx<'_>, _: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::EOPNOTSUPP)
    }

    fn xattrs(&self, _: &Cx<'_>) -> Result<Vec<u8>> {
        Err(Errno::EOPNOTSUPP)
    }

    fn set_xattr(&self, _: &Cx<'_>, _: &[u8], _: &[u8], _: XattrFlags) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn remove_xattr(&self, _: &Cx<'_>, _: &[u8]) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Programs outside barge see no locks.
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

/// Returns the options of an open. One for appending truncates nothing.
fn options(flags: OpenFlags) -> OpenOptions {
    let appends = writes(flags) && flags.contains(OpenFlags::APPEND);
    let mut options = OpenOptions::new();
    options
        .read(flags.intersects(OpenFlags::READ | OpenFlags::EXEC) || !writes(flags))
        .write(writes(flags))
        .append(appends)
        .truncate(flags.contains(OpenFlags::TRUNC) && !appends);
    options
}

fn writes(flags: OpenFlags) -> bool {
    flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC)
}
