//! `barge.Client` without its Python part: a tree by paths.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use barge_client::OpenOptions;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::fs::OFlags;

use crate::error::os_error;
use crate::open_file::OpenFile;
use crate::owned::Owned;
use crate::stat::{Stat, time};

/// The tree of a source.
#[pyclass(frozen, subclass, module = "barge._barge")]
pub(crate) struct Client {
    client: Owned<barge_client::Client>,
    source: OsString,
}

/// An entry of a directory.
#[pyclass(frozen, get_all, module = "barge")]
pub(crate) struct DirEntry {
    /// The name, without the directory.
    name: OsString,
    /// The attributes, a symbolic link's own; None if they could not be read.
    stat: Option<Stat>,
}

#[pymethods]
impl DirEntry {
    fn __repr__(&self) -> String {
        format!("<barge.DirEntry {:?}>", self.name)
    }
}

#[pymethods]
impl Client {
    #[new]
    fn new(py: Python<'_>, source: PathBuf) -> PyResult<Client> {
        let open = || {
            let text = source.to_str().ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidInput, "expected a source in UTF-8")
            })?;
            barge_client::Client::open(text)
        };
        let client = py.detach(open).map_err(|error| os_error(error, None))?;
        Ok(Client {
            client: Owned::new(client),
            source: source.into_os_string(),
        })
    }

    /// The source, as it was given.
    #[getter]
    fn source(&self) -> OsString {
        self.source.clone()
    }

    /// Whether close() was called.
    #[getter]
    fn closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Closes the connection after the last file of the client is closed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.client.close(py, |_| Ok(()))
    }

    /// Opens a file with flags of os.open.
    fn _open(&self, py: Python<'_>, path: PathBuf, flags: u32, mode: u32) -> PyResult<OpenFile> {
        let options = open_options(OFlags::from_bits_retain(flags), mode);
        self.with(py, &path, |client| {
            client.open_with(&path, &options).map(OpenFile::new)
        })
    }

    /// Returns the attributes of a file.
    #[pyo3(signature = (path, *, follow_symlinks = true))]
    fn stat(&self, py: Python<'_>, path: PathBuf, follow_symlinks: bool) -> PyResult<Stat> {
        self.with(py, &path, |client| {
            let metadata = match follow_symlinks {
                true => client.metadata(&path)?,
                false => client.symlink_metadata(&path)?,
            };
            Ok(Stat::new(&metadata))
        })
    }

    /// Returns the attributes of a file, or of a symbolic link itself.
    fn lstat(&self, py: Python<'_>, path: PathBuf) -> PyResult<Stat> {
        self.stat(py, path, false)
    }

    /// Lists the entries of a directory with their attributes, sorted by name.
    #[pyo3(signature = (path = PathBuf::from("/")))]
    fn scandir(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<DirEntry>> {
        self.with(py, &path, |client| {
            let entries = client.read_dir(&path)?;
            let entries = entries.into_iter().map(|entry| DirEntry {
                name: entry.name().to_owned(),
                stat: entry.metadata().map(Stat::new),
            });
            Ok(entries.collect())
        })
    }

    /// Lists the names in a directory, sorted.
    #[pyo3(signature = (path = PathBuf::from("/")))]
    fn listdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<OsString>> {
        let entries = self.scandir(py, path)?;
        Ok(entries.into_iter().map(|entry| entry.name).collect())
    }

    /// Creates a directory.
    fn mkdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, &path, |client| client.create_dir(&path))
    }

    /// Removes an empty directory.
    fn rmdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, &path, |client| client.remove_dir(&path))
    }

    /// Removes a file of any kind except a directory.
    fn remove(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, &path, |client| client.remove_file(&path))
    }

    /// Renames a file or directory, replacing an existing file.
    fn rename(&self, py: Python<'_>, src: PathBuf, dst: PathBuf) -> PyResult<()> {
        self.with(py, &src, |client| client.rename(&src, &dst))
    }

    /// Creates the hard link dst to the file src.
    fn link(&self, py: Python<'_>, src: PathBuf, dst: PathBuf) -> PyResult<()> {
        self.with(py, &src, |client| client.hard_link(&src, &dst))
    }

    /// Creates the symbolic link dst with the target src.
    fn symlink(&self, py: Python<'_>, src: PathBuf, dst: PathBuf) -> PyResult<()> {
        self.with(py, &dst, |client| client.symlink(&src, &dst))
    }

    /// Returns the target of a symbolic link.
    fn readlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<OsString> {
        self.with(py, &path, |client| {
            client.read_link(&path).map(PathBuf::into_os_string)
        })
    }

    /// Sets the permission bits.
    fn chmod(&self, py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<()> {
        self.with(py, &path, |client| client.set_mode(&path, mode))
    }

    /// Sets owner and group; -1 leaves one unchanged.
    fn chown(&self, py: Python<'_>, path: PathBuf, uid: i64, gid: i64) -> PyResult<()> {
        let id = |id: i64| match id {
            -1 => Ok(None),
            id => u32::try_from(id).map(Some),
        };
        let (uid, gid) = (id(uid)?, id(gid)?);
        self.with(py, &path, |client| client.set_owner(&path, uid, gid))
    }

    /// Sets the times of access and modification in nanoseconds, or both to the source's current
    /// time.
    #[pyo3(signature = (path, *, ns = None))]
    fn utime(&self, py: Python<'_>, path: PathBuf, ns: Option<(i128, i128)>) -> PyResult<()> {
        let times = ns.map(|(accessed, modified)| (time(accessed), time(modified)));
        self.with(py, &path, |client| match times {
            Some((accessed, modified)) => client.set_times(&path, Some(accessed), Some(modified)),
            None => client.touch(&path),
        })
    }

    /// Truncates a file, or extends it by a hole.
    fn truncate(&self, py: Python<'_>, path: PathBuf, length: u64) -> PyResult<()> {
        self.with(py, &path, |client| client.set_len(&path, length))
    }

    /// Returns an extended attribute, whose name includes the namespace ("user.note").
    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        attribute: OsString,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.with(py, &path, |client| client.xattr(&path, &attribute))?;
        Ok(PyBytes::new(py, &value))
    }

    /// Lists the names of extended attributes.
    fn listxattr(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<OsString>> {
        self.with(py, &path, |client| client.xattrs(&path))
    }

    /// Sets an extended attribute.
    fn setxattr(
        &self,
        py: Python<'_>,
        path: PathBuf,
        attribute: OsString,
        value: &[u8],
    ) -> PyResult<()> {
        self.with(py, &path, |client| {
            client.set_xattr(&path, &attribute, value)
        })
    }

    /// Removes an extended attribute.
    fn removexattr(&self, py: Python<'_>, path: PathBuf, attribute: OsString) -> PyResult<()> {
        self.with(py, &path, |client| client.remove_xattr(&path, &attribute))
    }

    /// Makes all written data durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let done = self.client.with(py, barge_client::Client::sync)?;
        done.map_err(|error| os_error(error, None))
    }

    fn __repr__(&self) -> String {
        format!("barge.Client({:?})", self.source)
    }
}

impl Client {
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        path: &std::path::Path,
        operation: impl FnOnce(&barge_client::Client) -> io::Result<R> + Send,
    ) -> PyResult<R> {
        let done = self.client.with(py, operation)?;
        done.map_err(|error| os_error(error, Some(path)))
    }
}

/// Translates flags of open(2). Flags about descriptors have no meaning here.
fn open_options(flags: OFlags, mode: u32) -> OpenOptions {
    let access = flags & OFlags::RWMODE;
    let mut options = OpenOptions::new();
    options
        .read(access != OFlags::WRONLY)
        .write(access != OFlags::RDONLY)
        .truncate(flags.contains(OFlags::TRUNC))
        .sync(flags.intersects(OFlags::SYNC | OFlags::DSYNC))
        .mode(mode);
    if flags.contains(OFlags::APPEND) {
        options.append(true);
    }
    if flags.contains(OFlags::CREATE | OFlags::EXCL) {
        options.create_new(true);
    } else if flags.contains(OFlags::CREATE) {
        options.create(true);
    }
    options
}
