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
//! | `host` | the core that all share: keys, descriptor budget, identity, root |
//! | `tree` | the stores of an export, and one node per object; the lock order |
//! | [`identity`] | the identity of a thread: the server's or a caller's |
//! | [`node`], `node_ops` | an object and its descriptor or handle; its operations |
//! | `resolve` | names and parents, by openat2(2) beneath the root |
//! | `create`, `rename`, `unlink`, `unlinked` | changes of names; objects without one |
//! | `open`, [`mod@file`], `open_files` | open files; closing their descriptors while idle |
//! | `copy`, `direct_io`, `extents` | operations on open files |
//! | `locks`, `lease` | locks and leases on the host |
//! | `dir_cursor`, `dir_cache` | reading a directory; cached listings |
//! | `attr`, `xattr`, `stat` | attributes, extended attributes, statx(2) |
//! | `handles`, `handle_index` | file handles; locations of nodes without kernel handles |
//! | `changes` | changes on the host, by fanotify(7) |
//! | `containment` | checks that an object opened by handle is below the root |
//! | `device`, `mounts` | the file systems below the root; those without nodes |
//! | `node_ids`, `node_table` | node numbers; the nodes by number |
//! | `descriptors`, `clock` | the descriptor budget and each peer's share; the choice to evict |
//! | `proc_fd` | reopening descriptors |
//! | [`mapped`] | owners, permissions and types in extended attributes |
//! | `capabilities` | the capabilities of an export, and its limitations |

mod attr;
mod capabilities;
mod changes;
mod clock;
mod containment;
mod copy;
mod create;
mod descriptors;
mod device;
mod dir_cache;
mod dir_cursor;
mod direct_io;
mod extents;
pub mod file;
mod handle_index;
mod handles;
mod host;
pub mod identity;
mod lease;
mod locks;
pub mod mapped;
mod mounts;
pub mod node;
mod node_ids;
mod node_ops;
mod node_table;
mod open;
mod open_files;
mod proc_fd;
mod rename;
mod resolve;
mod stat;
mod tree;
mod unlink;
mod unlinked;
mod xattr;

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::thread::CapabilitySet;
use vfs::source_stats::Evicted;
use vfs::{
    AttrMask, Capabilities, ChangeStream, Cx, FileSystem, Handle, HandleKey, Node, Result, Support,
};

use crate::descriptors::Budget;
use crate::host::HostOptions;
use crate::identity::CallerIdentity;
use crate::mapped::MappedNode;
use crate::node::HostNode;
use crate::proc_fd::ProcFds;
use crate::tree::Tree;

pub use sys::fs_changes::WriteEvents;

pub use crate::changes::FileSystemWatch;
pub use crate::identity::Identity;

/// The options of an export.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The identity of operations.
    pub identity: Identity,
    /// The user with root's privileges over files, in addition to user 0, if callers are
    /// distinguished: the host's user for the clients' root, if ids are translated before this
    /// source; otherwise 0.
    pub super_user: u32,
    /// Gives callers whose protocol does not carry their groups none beyond their own, instead of
    /// those of the host's user database, which a confined process cannot reach.
    pub no_user_database: bool,
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
    /// Without a [`Options::key`], seals handles with a key that anybody can compute, so that they
    /// survive a restart: for exports whose handles no client presents. They still resolve only to
    /// objects below the root.
    pub public_handle_key: bool,
    /// Does without kernel handles, even where they are permitted.
    pub no_kernel_handles: bool,
    /// A file that records the locations of nodes with handles: without kernel handles, it makes
    /// handles survive a restart. It is created if absent, and must not be shared.
    pub handle_index: Option<PathBuf>,
    /// Applies the umask of the calling thread to new files, as for any program. Otherwise the
    /// calling thread gets a umask of its own, 0, and a working directory of its own (`CLONE_FS` of
    /// unshare(2)), which suits threads that serve clients, but not threads that belong to another
    /// part of the program.
    pub keep_umask: bool,
    /// The path that messages have in place of the opened one, which may be that of a descriptor.
    pub shown_path: Option<PathBuf>,
    /// A watch of the root's file system that was begun when this process had the privileges, for
    /// [`FileSystem::watch`].
    pub watch: Option<Arc<FileSystemWatch>>,
}

/// A directory of the host, or a file.
pub struct HostDir {
    tree: Arc<Tree>,
    root: Arc<HostNode>,
    mapped: bool,
    capabilities: Capabilities,
    limitations: Vec<String>,
    watch: Option<Arc<FileSystemWatch>>,
}

impl HostDir {
    /// Exports `path`; a symbolic link at its end is followed now, once.
    ///
    /// Threads that create files there clear their own umask the first time and leave it so, unless
    /// [`Options::keep_umask`] is set: clients get the modes that they request. The error states
    /// what is missing: the path, `/proc`, the openat2 system call (Linux 5.6), or for
    /// [`Identity::Switch`] the privileges.
    pub fn open(path: impl AsRef<Path>, options: Options) -> io::Result<Arc<HostDir>> {
        let identity = CallerIdentity::new(
            options.identity,
            options.super_user,
            !options.no_user_database,
        )?;
        let by_handle =
            !options.no_kernel_handles && sys::caps::have_all(CapabilitySet::DAC_READ_SEARCH);
        let descriptors = options.descriptors.unwrap_or_else(|| {
            usize::try_from(sys::limits::descriptors() / 4 * 3).unwrap_or(usize::MAX)
        });
        let secrets = match options.key {
            Some(key) => [key.clone(), key],
            None if options.public_handle_key => [[0; 32]; 2].map(HandleKey::new),
            None => [sys::random::bytes()?, [0; 32]].map(HandleKey::new),
        };
        let host_options = HostOptions {
            secrets,
            budget: Budget::new(descriptors),
            identity,
            keeps_umask: options.keep_umask,
            by_handle,
            proc_fds: ProcFds::open()?,
        };
        identity::assume_server()?;
        let path = path.as_ref();
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let fd = host_options
            .budget
            .open_within(|| rustix::fs::open(path, flags, Mode::empty()))?;
        capabilities::require_openat2(fd.as_fd())?;
        let (tree, root) = Tree::new(host_options, fd)?;
        let mapped = options.identity == Identity::MappedXattr;
        let watch = options.watch;
        let capabilities = capabilities::capabilities(&root, mapped, watch.as_deref())?;
        if mapped && capabilities.xattr == Support::None {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "expected a file system with user.* extended attributes, to store owners",
            ));
        }
        let mut limits = Vec::new();
        if let Some(path) = options.handle_index
            && root.device().mount().is_none()
            && let Err(error) = tree.handle_index.persist_at(&path)
        {
            limits.push(format!("{}: {error}", path.display()));
        }
        limits.extend(capabilities::limitations(&tree, &root, &capabilities));
        Ok(Arc::new(HostDir {
            tree,
            root,
            mapped,
            capabilities,
            limitations: limits,
            watch,
        }))
    }

    /// Returns the limitations of this export that follow from the process's privileges or the file
    /// system, one line each, for the program to report once.
    pub fn limitations(&self) -> &[String] {
        &self.limitations
    }

    /// Returns `node` as clients see it.
    fn client_node(&self, cx: &Cx<'_>, node: Arc<HostNode>) -> Result<Arc<dyn Node>> {
        if !self.mapped {
            return Ok(node);
        }
        let attr = node.attr(cx, AttrMask::STAT)?;
        Ok(MappedNode::entry(node, attr)?.node)
    }

    /// Returns the node of `file`, which may have no name any more. Handles of such an object are
    /// found as long as the node lives.
    pub fn adopt(&self, file: BorrowedFd<'_>) -> Result<Arc<dyn Node>> {
        let fd = self
            .tree
            .host
            .open(|| rustix::io::fcntl_dupfd_cloexec(file, 0))?;
        let (node, _) = self.tree.enter(None, fd, None)?;
        Ok(node)
    }

    /// Returns the number of open descriptors.
    pub fn open_descriptors(&self) -> usize {
        self.tree.host.budget.open()
    }
}

impl FileSystem for HostDir {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn root(&self, cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        self.client_node(cx, self.root.clone())
    }

    fn resolve(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Arc<dyn Node>> {
        let node = handles::resolve(&self.tree, cx, handle)?;
        self.client_node(cx, node)
    }

    fn adopt(&self, file: BorrowedFd<'_>) -> Result<Arc<dyn Node>> {
        HostDir::adopt(self, file)
    }

    /// Syncs the root's file system and those below it that are in use.
    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.root.device().allow_disk_wait(cx.patience)?;
        cx.check_may_block()?;
        for tree_device in self.tree.devices() {
            match tree_device.device.readable() {
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

    fn evict(&self) -> Evicted {
        Evicted {
            memory: self.tree.dir_cache.clear() as u64,
            disk: 0,
            descriptors: self.tree.host.budget.evict_all() as u64,
        }
    }

    fn watch(&self, _: &Cx<'_>) -> Result<Box<dyn ChangeStream>> {
        changes::watch(&self.root, self.watch.as_deref())
    }
}
