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
mod node;
mod pages;
mod perm;
mod rename;
mod state;
mod tree;
mod xattr;

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use concurrency::{FastRandomState, Shards};
use parking_lot::{Mutex, MutexGuard};
use vfs::{Capabilities, Cx, Errno, FileSystem, Handle, Node, NodeId, Result, Support, Time};

use budget::Budget;
use node::MemNode;

/// A clock: returns the wall-clock time since the Unix epoch.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

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

/// The state that all nodes of a tree share.
pub(crate) struct Shared {
    clock: Clock,
    pub(crate) budget: Arc<Budget>,
    pub(crate) generation: u64,
    next_id: AtomicU64,
    nodes: Shards<Nodes, SHARDS>,
    pub(crate) renames: Mutex<()>,
}

/// The nodes of a shard.
pub(crate) type Nodes = HashMap<NodeId, Weak<MemNode>, FastRandomState>;

/// The number of shards of the table of nodes: more than the processors that create and remove
/// files concurrently.
const SHARDS: usize = 32;

impl Memory {
    /// Creates an empty tree with default [`Options`].
    pub fn new(clock: Clock) -> Arc<Memory> {
        Memory::with_options(clock, Options::default())
    }

    /// Creates an empty tree.
    pub fn with_options(clock: Clock, options: Options) -> Arc<Memory> {
        let shared = Arc::new(Shared {
            budget: Arc::new(Budget::new(options.max_bytes, options.max_nodes)),
            generation: new_generation(&clock),
            clock,
            next_id: AtomicU64::new(1),
            nodes: Shards::default(),
            renames: Mutex::new(()),
        });
        Arc::new(Memory {
            root: MemNode::root(&shared, &options),
        })
    }
}

/// Returns a number unique among all trees of this process and earlier ones: node numbers are not
/// reused within a tree, so it serves as the generation of all its nodes.
fn new_generation(clock: &Clock) -> u64 {
    static TREES: AtomicU64 = AtomicU64::new(0);
    let now = clock();
    let nanos = (now.sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.nsec.into());
    nanos.wrapping_add(TREES.fetch_add(1, Ordering::Relaxed)) | 1 << 63
}

impl Shared {
    pub(crate) fn now(&self) -> Time {
        (self.clock)()
    }

    pub(crate) fn new_id(&self) -> NodeId {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn nodes(&self, id: NodeId) -> MutexGuard<'_, Nodes> {
        self.nodes.lock(&id)
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
            devices: Support::Native,
            owners: Support::Native,
            stable_cookies: true,
            no_birth_times: false,
        }
    }
}

pub(crate) fn handle_of(id: NodeId, generation: u64) -> Result<Handle> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    bytes[8..].copy_from_slice(&generation.to_le_bytes());
    Handle::new(&bytes)
}

fn parse_handle(handle: &Handle) -> Option<(NodeId, u64)> {
    let (id, rest) = handle.bytes().split_first_chunk()?;
    let generation = <[u8; 8]>::try_from(rest).ok()?;
    Some((u64::from_le_bytes(*id), u64::from_le_bytes(generation)))
}
