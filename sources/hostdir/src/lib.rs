//! A directory of the host (or one file) as a file system.
//!
//! Nodes hold descriptors of the objects themselves, so renames and unlinks affect them as local
//! files, and paths below the root are resolved one component at a time: no symbolic link, `..` or
//! race leads outside. Decisions are left to the host's kernel where possible: with
//! [`Identity::Switch`] each operation runs as its caller.
//!
//! Deliberately absent: write-back and caches of its own (the host's page cache serves as these),
//! and a lock table ([`vfs::lock::LockTable`] is that).
//!
//! | file | contents |
//! |---|---|
//! | [`node`], `ops` | an object and its descriptor or handle; its operations |
//! | [`mod@file`], `dir`, `open`, `copy`, `direct`, `extents` | open files and directories |
//! | `lease` | notification of a holder when others want the file |
//! | `attr`, `xattr`, `locks` | attributes, extended attributes, locks on the host |
//! | `table`, `fds`, `unnamed` | one node per object; the descriptor budget and each peer's share |
//! | `device`, `ids`, `mounts` | file systems below the root and their number space |
//! | `resolve`, `book` | handles, parent directories; locations of nodes without kernel handles |
//! | `within` | checks that an object opened by handle is below the root |
//! | [`identity`] | the identity of a thread |
//! | [`mapped`] | owners, permissions and types in extended attributes |
//! | `tree` | the state that all of these share; the lock order |

mod attr;
mod book;
mod copy;
mod device;
mod dir;
mod direct;
mod extents;
mod fds;
pub mod file;
pub mod identity;
mod ids;
mod lease;
mod limits;
mod listings;
mod locks;
pub mod mapped;
mod mounts;
pub mod node;
mod open;
mod opened;
mod ops;
mod proc_path;
mod resolve;
mod ring;
mod table;
mod tree;
mod unnamed;
mod within;
mod xattr;

use std::any::Any;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::thread::CapabilitySet;
use vfs::{Capabilities, Cx, FileSystem, Handle, HandleKey, Level, Node, Result, Want};

use crate::identity::Switch;
use crate::mapped::MappedNode;
use crate::node::HostNode;
use crate::tree::Tree;

/// The options of an export.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The identity of operations.
    pub identity: Identity,
    /// The user with root's privileges over files, in addition to user 0, if callers are
    /// distinguished: the host's user for the clients' root, if ids are translated before this
    /// source; otherwise 0.
    pub super_user: u32,
    /// The most descriptors to have open, nodes and files together; `None` means three quarters of
    /// the process's limit (`RLIMIT_NOFILE` at [`HostDir::open`]). A program with several exports
    /// divides them.
    pub descriptors: Option<usize>,
    /// The secret from which the keys that seal handles and compose numbers derive: the program's
    /// own, or better, one derived from that and the export's name. Handles survive a restart only
    /// with the same secret. `None` means a random one for handles, and none for numbers, which are
    /// then the same after a restart; a user who chooses inode numbers on the host can then give
    /// two files one number.
    pub key: Option<HandleKey>,
    /// Does without kernel handles, even where they are permitted.
    pub no_kernel_handles: bool,
    /// A file that records the locations of nodes with handles: without kernel handles, it makes
    /// handles survive a restart. It is created if absent, and must not be shared.
    pub names: Option<PathBuf>,
    /// Applies the umask of the calling thread to new files, as for any program. Otherwise the
    /// calling thread gets a umask of its own, 0, and a working directory of its own (`CLONE_FS` of
    /// unshare(2)), which suits threads that serve clients, but not threads that belong to another
    /// part of the program.
    pub keep_umask: bool,
}

/// The identity under which the host's file system is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// [`Identity::Switch`] if that is possible, otherwise [`Identity::Fixed`].
    #[default]
    Auto,
    /// The caller of each operation: owners are as on the host, and the host's kernel checks
    /// permissions. Needs to run as user 0 with its capabilities.
    Switch,
    /// The process: it owns all new files, and its permissions apply to all clients.
    Fixed,
    /// The process, with owners, permissions and types in extended attributes ([`mapped`]).
    MappedXattr,
}

/// A directory of the host, or a file.
pub struct HostDir {
    tree: Arc<Tree>,
    root: Arc<HostNode>,
    mapped: bool,
    capabilities: Capabilities,
    limits: Vec<String>,
}

impl HostDir {
    /// Exports `path`; a symbolic link at its end is followed now, once.
    ///
    /// Threads that create files there clear their own umask the first time and leave it so, unless
    /// [`Options::keep_umask`] is set: clients get the modes that they request. The error states
    /// what is missing: the path, `/proc`, the openat2 system call (Linux 5.6), or for
    /// [`Identity::Switch`] the privileges.
    pub fn open(path: impl AsRef<Path>, options: Options) -> io::Result<Arc<HostDir>> {
        let switch = match options.identity {
            Identity::Switch if !Switch::permitted() => {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "expected to run as user 0 with CAP_SETUID, CAP_SETGID, CAP_DAC_OVERRIDE, \
                     CAP_CHOWN and CAP_FOWNER, to act as each caller",
                ));
            }
            Identity::Auto => Switch::permitted(),
            Identity::Switch => true,
            Identity::Fixed | Identity::MappedXattr => false,
        };
        let by_handle =
            !options.no_kernel_handles && sys::caps::have(CapabilitySet::DAC_READ_SEARCH);
        let budget = options.descriptors.unwrap_or_else(|| {
            usize::try_from(sys::limits::descriptors() / 4 * 3).unwrap_or(usize::MAX)
        });
        let secrets = match options.key {
            Some(key) => [key.clone(), key],
            None => [sys::random::bytes()?, [0; 32]].map(HandleKey::new),
        };
        let tree = Tree::new(
            secrets,
            by_handle,
            budget,
            switch.then(|| Switch::new(options.super_user)),
        )?;
        let tree = Arc::new(tree.keeping_umask(options.keep_umask));
        tree.act_as_server()?;
        let path = path.as_ref();
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let fd = tree.open(|| rustix::fs::open(path, flags, Mode::empty()))?;
        limits::require_openat2(fd.as_fd())?;
        tree.set_root(fd.as_fd())?;
        let (root, _) = tree.enter(None, fd, None)?;
        root.pin();
        tree.set_root_node(&root);
        let mapped = options.identity == Identity::MappedXattr;
        let capabilities = limits::capabilities(&tree, &root, mapped)?;
        if mapped && capabilities.xattr == Level::None {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "expected a file system with user.* extended attributes, to store owners",
            ));
        }
        let mut limits = Vec::new();
        if let Some(names) = options.names.filter(|_| root.device().mount().is_none())
            && let Err(error) = tree.book.record_at(&names)
        {
            limits.push(format!("{}: {error}", names.display()));
        }
        limits.extend(limits::lines(&root, &capabilities));
        Ok(Arc::new(HostDir {
            tree,
            root,
            mapped,
            capabilities,
            limits,
        }))
    }

    /// Returns the limitations of this export that follow from the process's privileges or the file
    /// system, one line each, for the program to report once.
    pub fn limits(&self) -> &[String] {
        &self.limits
    }

    /// Returns `node` as clients see it.
    fn shown(&self, cx: &Cx<'_>, node: Arc<HostNode>) -> Result<Arc<dyn Node>> {
        if !self.mapped {
            return Ok(node);
        }
        let attr = node.attr(cx, Want::STAT)?;
        Ok(MappedNode::entry(node, attr)?.node)
    }

    /// Returns the number of open descriptors.
    pub fn open_descriptors(&self) -> usize {
        self.tree.open_descriptors()
    }
}

impl FileSystem for HostDir {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn root(&self, cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        self.shown(cx, self.root.clone())
    }

    fn resolve(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Arc<dyn Node>> {
        let node = resolve::resolve(&self.tree, cx, handle)?;
        self.shown(cx, node)
    }

    /// Syncs the root's file system and those below it that are in use.
    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.root.device().long(cx.patience)?;
        cx.may_wait()?;
        for device in self.tree.devices() {
            match device.real() {
                Some(fd) => rustix::fs::syncfs(fd).map_err(sys::errno)?,
                // The server may not open a file there, but can sync the whole host.
                None => rustix::fs::sync(),
            }
        }
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
}
