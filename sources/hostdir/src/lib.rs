//! A directory of the host (or one file) as a file system.
//!
//! Nodes are held by descriptors of the objects themselves, so renames and unlinks happen to them
//! as to local files, and no path below the root is ever walked by more than one component: there
//! is no symbolic link, no `..` and no race that leads outside. What the host's kernel can decide it
//! decides: with [`Identity::Switch`] each operation runs as its caller.
//!
//! What it lacks on purpose: write-behind and caches of its own (the host's page cache is that),
//! and a lock table ([`vfs::lock::LockTable`] is that).
//!
//! | file | what |
//! |---|---|
//! | [`node`], `ops` | an object and how it is got hold of; what it does |
//! | [`mod@file`], `dir`, `open`, `copy`, `direct`, `extents` | open files and directories |
//! | `lease` | who is told when others want a file |
//! | `attr`, `xattr`, `locks` | attributes, extended attributes, locks on the host |
//! | `table`, `fds`, `unnamed` | one node per object; the budget of descriptors, and each peer's share of it |
//! | `device`, `ids`, `mounts` | file systems below the root and their number space |
//! | `resolve`, `book` | handles, the directory above; where nodes were that have no handle of the kernel's |
//! | `within` | whether an object that was opened by handle is below the root |
//! | [`identity`] | on whose behalf a thread works |
//! | [`mapped`] | owners, permissions and kinds in extended attributes |
//! | `tree` | what all of these share; the lock order |

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

/// How an export treats its directory.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// On whose behalf it works.
    pub identity: Identity,
    /// Who besides user 0 has the super-user's powers over files where callers are told apart: whom of this
    /// host the clients' super-user is, if ids are translated on the way here; otherwise 0.
    pub super_user: u32,
    /// How many descriptors it may have open, nodes and files together; nothing means three
    /// quarters of what the process may (`RLIMIT_NOFILE` as it is at [`HostDir::open`]). A program
    /// with several exports divides.
    pub descriptors: Option<usize>,
    /// The secret from which the keys that seal handles and compose numbers derive: the program's
    /// own, or better, one that the program has derived from that and the export's name. Handles
    /// outlive a restart only if it is the same again. `None` means a random one for handles, and
    /// none for numbers, which are the same after a restart then; a user who chooses inode numbers
    /// on the host can give two files one number.
    pub key: Option<HandleKey>,
    /// Goes without kernel handles, even where they are permitted.
    pub no_kernel_handles: bool,
    /// A file where it is recorded where nodes are that handles were given out of: without kernel handles, handles
    /// outlive a restart by that. It is made if there is none; nobody else may record there meanwhile.
    pub names: Option<PathBuf>,
    /// Takes the umask of the calling thread from the permissions of what it creates, as for any
    /// program's files. Otherwise the calling thread gets an umask of its own, 0, and a working
    /// directory of its own (`CLONE_FS` of unshare(2)), as suits threads that serve clients, but
    /// not threads that belong to somebody else.
    pub keep_umask: bool,
}

/// On whose behalf the host's file system is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// [`Identity::Switch`] where that is possible, otherwise [`Identity::Fixed`].
    #[default]
    Auto,
    /// As the caller of each operation: owners are as on the host, and the host's kernel checks
    /// permissions. Needs to run as user 0 with its capabilities.
    Switch,
    /// As the process: everything a client makes is its, and what it may not do nobody may.
    Fixed,
    /// As the process, with owners, permissions and kinds in extended attributes ([`mapped`]).
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
    /// Exports `path`; a symbolic link at its end is followed this once.
    ///
    /// Threads that create files there clear their own umask the first time, and keep it so, unless
    /// [`Options::keep_umask`] says otherwise: the modes that clients ask for are what they get. An
    /// error says what was missing: the path, `/proc`, the openat2 system call (Linux 5.6), or for
    /// [`Identity::Switch`] the privileges.
    pub fn open(path: impl AsRef<Path>, options: Options) -> io::Result<Arc<HostDir>> {
        let switch = match options.identity {
            Identity::Switch if !Switch::permitted() => {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "expected to run as user 0 with CAP_SETUID, CAP_SETGID, CAP_DAC_OVERRIDE, \
                     CAP_CHOWN and CAP_FOWNER, to work as each caller",
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
                "expected a file system with user.* extended attributes, to keep owners in",
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

    /// What this export cannot do because of how the process runs or what the file system is: a
    /// line each, for the program to say once.
    pub fn limits(&self) -> &[String] {
        &self.limits
    }

    /// `node` as clients see it.
    fn shown(&self, cx: &Cx<'_>, node: Arc<HostNode>) -> Result<Arc<dyn Node>> {
        if !self.mapped {
            return Ok(node);
        }
        let attr = node.attr(cx, Want::STAT)?;
        Ok(MappedNode::entry(node, attr)?.node)
    }

    /// How many descriptors it has open now.
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

    /// Of the root's file system and of those below it that are in use.
    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.root.device().long(cx.patience)?;
        cx.may_wait()?;
        for device in self.tree.devices() {
            match device.real() {
                Some(fd) => rustix::fs::syncfs(fd).map_err(sys::errno)?,
                // The server may open nothing there, but can have all of the host's written.
                None => rustix::fs::sync(),
            }
        }
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
}
