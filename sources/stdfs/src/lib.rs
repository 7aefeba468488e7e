//! A source: a directory of this host through [`std::fs`], for systems where `hostdir` cannot be.
//! File commands use it there; it is not for serving.
//!
//! A node is a path. Each operation resolves it anew, and fails with `ENOENT` if a directory on it
//! has become a symbolic link, or if [`std::fs::canonicalize`] reports another name, as Windows
//! does of one in another case. Links are never followed. The standard library has no openat(2): a
//! program of this host that exchanges a directory for a link at the moment of an operation can
//! lead that one operation out of the tree.
//!
//! Limits: a node does not follow renames, and is gone with its name; everything belongs to this
//! process's user; no hard links, extended attributes, locks that other programs see, special files
//! or handles. Holes are not reported. On Windows, no symbolic links are created, and the only
//! permission is that to write; names that it cannot represent are errors (`system`).
//!
//! Lock order: there is one lock, that of an open directory's listing.

#![forbid(unsafe_code)]

mod file;
mod node;
mod operations;
#[cfg_attr(windows, path = "system/windows.rs")]
mod system;

use std::any::Any;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vfs::{Capabilities, Cx, Errno, FileSystem, Handle, Node, Result};

use crate::node::StdNode;

/// A directory, or a single file.
pub struct StdFs {
    root: Arc<PathBuf>,
}

impl StdFs {
    /// Opens the directory or file `path`. A link at its end is followed.
    pub fn open(path: &Path) -> io::Result<Arc<StdFs>> {
        let root = Arc::new(fs::canonicalize(path)?);
        Ok(Arc::new(StdFs { root }))
    }
}

impl FileSystem for StdFs {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn root(&self, _cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        let (node, _) = StdNode::find(&self.root, PathBuf::new())?;
        Ok(Arc::new(node))
    }

    fn resolve(&self, _cx: &Cx<'_>, _handle: &Handle) -> Result<Arc<dyn Node>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Does nothing: the standard library can make single files durable only.
    fn sync(&self, _cx: &Cx<'_>) -> Result<()> {
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            persistent: true,
            ..Capabilities::default()
        }
    }
}
