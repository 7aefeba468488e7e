//! A source: a complete POSIX file system in memory.
//!
//! For tests, scratch space and measurements of the layers above a source: it never waits, so every
//! operation completes at [`vfs::Patience::None`]. Permissions are those of the caller, checked as
//! Linux does; the clock is injected.
//!
//! Deliberately absent: persistence, POSIX ACLs (`EOPNOTSUPP`, so that nobody takes them to be
//! enforced), quotas, a user database (a caller with [`vfs::Groups::Unknown`] has its `gid` only),
//! and locks held outside barge.
//!
//! Lock order, outermost first:
//! 1. the lock of renames, held while a directory moves to another one, so that concurrent moves
//!    cannot form a loop;
//! 2. states of directories: an ancestor before its descendants, others by number;
//! 3. states of other nodes, by number;
//! 4. a directory's parent link, and the table of nodes: each held for one look-up.
//!
//! No callback of a caller runs while a directory's state is locked; a file's state is locked while
//! its bytes move into a sink or out of a payload. There is no lock that all operations share.

#![forbid(unsafe_code)]

mod budget;
mod dir;
mod file;
mod handle;
mod meta;
mod node;
mod operations;
mod pages;
mod perm;
mod rename;
mod setattr;
mod shared;
mod tree;
mod xattr;

use std::any::Any;
use std::sync::{Arc, Weak};

use vfs::{Capabilities, Cx, Errno, FileSystem, Handle, Node, Result, Support};

use budget::Budget;
use handle::parse_handle;
use node::MemNode;
use shared::Shared;

pub use shared::Clock;

/// The limits of a tree, and the attributes of its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The maximum size of contents, names, attributes and bookkeeping in bytes; beyond it
    /// `ENOSPC`.
    pub max_bytes: u64,
    /// The maximum number of nodes; beyond it `ENOSPC`.
    pub max_nodes: u64,
    /// Permission bits of the root.
    pub mode: u32,
    /// Owner of the root.
    pub uid: u32,
    /// Group of the root.
    pub gid: u32,
}

impl Default for Options {
    /// Returns limits of 1 GiB, which every machine that runs barge can spare, and 2^20 nodes; a
    /// root like that of a new local file system.
    fn default() -> Options {
        Options {
            max_bytes: 1 << 30,
            max_nodes: 1 << 20,
            mode: 0o755,
            uid: 0,
            gid: 0,
        }
    }
}

/// A file system in memory. It lives as long as this or one of its nodes.
pub struct Memory {
    root: Arc<MemNode>,
}

impl Memory {
    /// Creates an empty tree with default [`Options`].
    pub fn new(clock: Clock) -> Arc<Memory> {
        Memory::with_options(clock, Options::default())
    }

    /// Creates an empty tree.
    pub fn with_options(clock: Clock, options: Options) -> Arc<Memory> {
        let shared = Shared::new(clock, Budget::new(options.max_bytes, options.max_nodes));
        Arc::new(Memory {
            root: MemNode::root(&shared, options.mode, (options.uid, options.gid)),
        })
    }
}

impl FileSystem for Memory {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn root(&self, _cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        Ok(self.root.clone())
    }

    fn resolve(&self, _cx: &Cx<'_>, handle: &Handle) -> Result<Arc<dyn Node>> {
        let (id, generation) = parse_handle(handle).ok_or(Errno::ESTALE)?;
        let shared = &self.root.shared;
        if generation != shared.generation {
            return Err(Errno::ESTALE);
        }
        let node = shared.nodes(id).get(&id).and_then(Weak::upgrade);
        Ok(node.ok_or(Errno::ESTALE)?)
    }

    fn sync(&self, _cx: &Cx<'_>) -> Result<()> {
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            read_only: false,
            xattr: Support::Native,
            acl: Support::None,
            host_locks: Support::None,
            handles: Support::Native,
            change: Support::Native,
            holes: Support::Native,
            copy: Support::Native,
            clone: Support::Native,
            tmpfile: Support::Native,
            changes: Support::None,
            devices: Support::Native,
            owners: Support::Native,
            persistent: false,
            stable_cookies: true,
            no_birth_times: false,
        }
    }
}
