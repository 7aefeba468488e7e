//! Access to a tree by paths.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use sources::{Source, Tree};
use vfs::{Cx, Errno, Mode, Name, NewNode, Node, RenameFlags, SetAttr, SetTime, XattrFlags};

use crate::ticket::CallPool;
use crate::{DirEntry, File, Metadata, OpenOptions, Space, Ticket, Walk};

/// An open tree. Clones share it; it is closed when the last clone and the last of its files are
/// dropped.
///
/// All calls act as this process's effective user. They may be made by several threads at once.
#[derive(Clone)]
pub struct Client {
    tree: Tree,
    calls: Arc<CallPool>,
}

impl Client {
    /// Opens a source: a path or a URL, as in [the table of sources](crate#sources). Errors have a
    /// message of one line, and [an errno](crate::errno()).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// let here = barge_client::Client::open(".")?;
    /// assert!(here.metadata("Cargo.toml")?.is_file());
    /// assert!(barge_client::Client::open("gopher://host").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(source: &str) -> io::Result<Client> {
        let source: Source = source
            .parse()
            .map_err(|bad| io::Error::new(io::ErrorKind::InvalidInput, bad))?;
        let fs = source.open(sources::local_options())?;
        Ok(Client {
            tree: Tree::new(fs),
            calls: Arc::default(),
        })
    }

    /// Begins a call in another thread, and returns a ticket for its result.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let client = barge_client::Client::open("mem:")?;
    /// let made = client.submit(|client| client.create_dir("notes"));
    /// made.wait()?;
    /// assert!(client.metadata("notes")?.is_dir());
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Client) -> io::Result<T> + Send + 'static,
    ) -> Ticket<T> {
        let client = self.clone();
        self.calls.submit(move || call(&client))
    }

    /// Returns the attributes of a file, following symbolic links.
    pub fn metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        let entry = self.tree.resolve(path_bytes(path.as_ref()), true)?;
        Ok(Metadata::new(entry.attr))
    }

    /// Returns the attributes of a file, or of a symbolic link itself.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        let entry = self.tree.resolve(path_bytes(path.as_ref()), false)?;
        Ok(Metadata::new(entry.attr))
    }

    /// Sets the permission bits, `0o7777`. This and the following functions follow symbolic links.
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        let set = SetAttr {
            mode: Some(mode & 0o7777),
            ..SetAttr::default()
        };
        self.set_attr(path.as_ref(), &set)
    }

    /// Sets the owner and the group of a file; `None` leaves one unchanged.
    pub fn set_owner(
        &self,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> io::Result<()> {
        let set = SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        };
        self.set_attr(path.as_ref(), &set)
    }

    /// Sets the times of the last access and modification; `None` leaves one unchanged.
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        accessed: Option<SystemTime>,
        modified: Option<SystemTime>,
    ) -> io::Result<()> {
        let set = SetAttr {
            atime: accessed.map(|at| SetTime::At(at.into())),
            mtime: modified.map(|at| SetTime::At(at.into())),
            ..SetAttr::default()
        };
        self.set_attr(path.as_ref(), &set)
    }

    /// Sets the times of the last access and modification to the source's current time, which is
    /// permitted to all who may write to the file.
    pub fn touch(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let set = SetAttr {
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        self.set_attr(path.as_ref(), &set)
    }

    /// Truncates a file, or extends it by a hole.
    pub fn set_len(&self, path: impl AsRef<Path>, len: u64) -> io::Result<()> {
        let set = SetAttr {
            size: Some(len),
            ..SetAttr::default()
        };
        self.set_attr(path.as_ref(), &set)
    }

    /// Lists a directory, sorted by name, without `.` and `..`.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<Vec<DirEntry>> {
        let dir = self.tree.resolve(path_bytes(path.as_ref()), true)?;
        let listed = self.tree.list(&*dir.node)?;
        let entries = listed.into_iter().map(|listed| DirEntry {
            name: OsString::from_vec(listed.name),
            metadata: listed.entry.map(|entry| Metadata::new(entry.attr)),
        });
        Ok(entries.collect())
    }

    /// Walks everything below a directory, each directory before its entries. Symbolic links are
    /// not followed.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let client = barge_client::Client::open("mem:")?;
    /// client.create_dir("a")?;
    /// client.create_dir("a/b")?;
    /// client.write("a/b/c", "deep")?;
    /// let found: Result<Vec<_>, _> = client.walk("a").map(|found| found.map(|(path, _)| path)).collect();
    /// assert_eq!(found?, [std::path::Path::new("a/b"), std::path::Path::new("a/b/c")]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn walk(&self, path: impl AsRef<Path>) -> Walk {
        Walk::new(self.clone(), path.as_ref().to_owned())
    }

    /// Opens a file for reading.
    pub fn open_file(&self, path: impl AsRef<Path>) -> io::Result<File> {
        self.open_with(path, OpenOptions::new().read(true))
    }

    /// Opens a file for reading and writing, creating or truncating it.
    pub fn create(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let mut options = OpenOptions::new();
        self.open_with(
            path,
            options.read(true).write(true).create(true).truncate(true),
        )
    }

    /// Opens a file as `options` say.
    pub fn open_with(&self, path: impl AsRef<Path>, options: &OpenOptions) -> io::Result<File> {
        let file = options.open(&self.tree, path_bytes(path.as_ref()))?;
        Ok(File::new(self.tree.clone(), file, &self.calls))
    }

    /// Reads the whole content of a file.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let mut contents = Vec::new();
        io::Read::read_to_end(&mut self.open_file(path)?, &mut contents)?;
        Ok(contents)
    }

    /// Writes a file with this content, replacing an existing one's.
    pub fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
        self.create(path)?.write_all_at(contents.as_ref(), 0)
    }

    /// Creates a directory.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.make(path.as_ref(), NewNode::Directory, 0o777)
    }

    /// Creates a symbolic link at `path`.
    pub fn symlink(&self, target: impl AsRef<OsStr>, path: impl AsRef<Path>) -> io::Result<()> {
        let target = NewNode::Symlink(target.as_ref().as_bytes());
        self.make(path.as_ref(), target, 0o777)
    }

    /// Reads the target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let target = self.with_node(path.as_ref(), false, |cx, node| node.readlink(cx))?;
        Ok(OsString::from_vec(target).into())
    }

    /// Creates the hard link `new` to the file `old`.
    pub fn hard_link(&self, old: impl AsRef<Path>, new: impl AsRef<Path>) -> io::Result<()> {
        let target = self.tree.resolve(path_bytes(old.as_ref()), false)?.node;
        self.with_parent(new.as_ref(), |cx, dir, name| dir.link(cx, name, &*target))
            .map(drop)
    }

    /// Renames `from` to `to`, replacing an existing file.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let (to_dir, to_name) = self.tree.parent_of(path_bytes(to.as_ref()))?;
        let to_name = Name::new(&to_name)?;
        self.with_parent(from.as_ref(), |cx, dir, name| {
            dir.rename(cx, name, &*to_dir.node, to_name, RenameFlags::empty())
        })
    }

    /// Removes a file of any kind except a directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.with_parent(path.as_ref(), |cx, dir, name| dir.unlink(cx, name, false))
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.with_parent(path.as_ref(), |cx, dir, name| dir.unlink(cx, name, true))
    }

    /// Returns an extended attribute, whose name includes the namespace (`user.note`).
    pub fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> io::Result<Vec<u8>> {
        let name = name.as_ref().as_bytes();
        self.with_node(path.as_ref(), true, |cx, node| node.xattr(cx, name))
    }

    /// Lists the names of extended attributes.
    pub fn xattrs(&self, path: impl AsRef<Path>) -> io::Result<Vec<OsString>> {
        let list = self.with_node(path.as_ref(), true, |cx, node| node.xattrs(cx))?;
        let names = list
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty());
        Ok(names
            .map(|name| OsString::from_vec(name.to_vec()))
            .collect())
    }

    /// Sets an extended attribute.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: &[u8],
    ) -> io::Result<()> {
        let name = name.as_ref().as_bytes();
        self.with_node(path.as_ref(), true, |cx, node| {
            node.set_xattr(cx, name, value, XattrFlags::empty())
        })
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = name.as_ref().as_bytes();
        self.with_node(path.as_ref(), true, |cx, node| node.remove_xattr(cx, name))
    }

    /// Returns the space of the file system that `path` is on.
    pub fn space(&self, path: impl AsRef<Path>) -> io::Result<Space> {
        self.with_node(path.as_ref(), true, |cx, node| node.statfs(cx))
            .map(Space::new)
    }

    /// Makes all written data durable.
    pub fn sync(&self) -> io::Result<()> {
        Ok(self.tree.with(|cx| self.tree.fs.sync(cx))?)
    }

    fn set_attr(&self, path: &Path, set: &SetAttr) -> io::Result<()> {
        self.with_node(path, true, |cx, node| node.setattr(cx, set))
            .map(drop)
    }

    fn make(&self, path: &Path, what: NewNode<'_>, bits: u32) -> io::Result<()> {
        let mode = Mode {
            bits,
            umask: OpenOptions::UMASK,
        };
        self.with_parent(path, |cx, dir, name| dir.make(cx, name, what, mode))
            .map(drop)
    }

    fn with_node<T>(
        &self,
        path: &Path,
        follow: bool,
        what: impl FnOnce(&Cx<'_>, &dyn Node) -> vfs::Result<T>,
    ) -> io::Result<T> {
        let entry = self.tree.resolve(path_bytes(path), follow)?;
        Ok(self.tree.with(|cx| what(cx, &*entry.node))?)
    }

    fn with_parent<T>(
        &self,
        path: &Path,
        what: impl FnOnce(&Cx<'_>, &dyn Node, Name<'_>) -> vfs::Result<T>,
    ) -> io::Result<T> {
        let (dir, name) = self.tree.parent_of(path_bytes(path))?;
        if dir.node.kind() != vfs::Kind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        let name = Name::new(&name)?;
        Ok(self.tree.with(|cx| what(cx, &*dir.node, name))?)
    }
}

fn path_bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
