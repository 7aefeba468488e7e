//! File systems, what they can do, and what is served of them.

use core::any::Any;
use std::sync::Arc;

use crate::lock::LockTable;
use crate::{Cx, Errno, Node, Result};

/// A tree: what a source is, and what a layer makes of another.
pub trait FileSystem: Send + Sync {
    /// The concrete file system.
    fn as_any(&self) -> &dyn Any;

    /// The root directory (or the one file, where a file is exported).
    fn root(&self, cx: &Cx<'_>) -> Result<Arc<dyn Node>>;

    /// The node that [`Node::handle`] gave `handle` of, perhaps before a restart; `ESTALE` if it
    /// is no more, and for a forged handle.
    fn resolve(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Arc<dyn Node>>;

    /// Makes everything durable: syncfs(2).
    fn sync(&self, cx: &Cx<'_>) -> Result<()>;

    /// What it can do. Asked once per attach.
    fn capabilities(&self) -> Capabilities;
}

/// How far a feature goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// It answers `EOPNOTSUPP`.
    #[default]
    None,
    /// It works, at the cost of doing it by other means.
    Emulated,
    /// It works as well as it can.
    Native,
}

/// What a file system can do, resolved from the source up: a layer may take away or add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Nothing can be changed.
    pub read_only: bool,
    /// Extended attributes.
    pub xattr: Level,
    /// POSIX ACLs, as `system.posix_acl_*` attributes that are enforced.
    pub acl: Level,
    /// Locks that those outside barge see.
    pub host_locks: Level,
    /// Handles that outlive the process.
    pub handles: Level,
    /// A change counter finer than a clock tick.
    pub change: Level,
    /// Holes: seek, extents, punching.
    pub holes: Level,
    /// copy_file_range.
    pub copy: Level,
    /// Cloning by sharing blocks.
    pub clone: Level,
    /// Files without a name.
    pub tmpfile: Level,
    /// Device nodes.
    pub devices: Level,
    /// The owner that a caller asks for is kept (else everything belongs to one).
    pub owners: Level,
    /// Directory cookies stay valid across opens.
    pub stable_cookies: bool,
    /// No node has a time of birth, nor will have: who asked for one need not ask again.
    pub no_births: bool,
}

/// A name of a node that outlives the process: up to [`Handle::MAX`] opaque bytes, which with the
/// one byte that NFS puts in front are v3's 64.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    len: u8,
    bytes: [u8; Handle::MAX],
}

impl Handle {
    /// The most bytes that a source may take, so that [`Handle::MAX`] leaves 8 to whatever tells
    /// several sources apart.
    pub const MAX_OF_SOURCE: usize = Handle::MAX - 8;

    /// The most bytes of a handle.
    pub const MAX: usize = 63;

    /// A handle of `bytes`, `EOVERFLOW` beyond [`Handle::MAX`].
    pub fn new(bytes: &[u8]) -> Result<Handle> {
        let mut handle = Handle {
            len: bytes.len() as u8,
            bytes: [0; Handle::MAX],
        };
        handle
            .bytes
            .get_mut(..bytes.len())
            .ok_or(Errno::EOVERFLOW)?
            .copy_from_slice(bytes);
        Ok(handle)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl core::fmt::Debug for Handle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Handle(")?;
        self.bytes()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// A file system as it is served: under a name, with the one lock table that the clients of all
/// protocols share.
pub struct Export {
    /// What clients ask for it by (9P's aname, NFS's pseudo path, virtiofs's tag); empty for the
    /// only one.
    pub name: String,
    /// The tree.
    pub fs: Arc<dyn FileSystem>,
    /// Who holds which lock.
    pub locks: LockTable,
    /// Whether clients of this host may have the open files themselves ([`crate::File::backing`]).
    pub hands_over: bool,
}

impl Export {
    /// Serves `fs` as `name`.
    pub fn new(name: impl Into<String>, fs: Arc<dyn FileSystem>) -> Export {
        Export {
            name: name.into(),
            fs,
            locks: LockTable::default(),
            hands_over: false,
        }
    }

    /// The same, whose open files clients of this host may have themselves, if `hands_over`.
    pub fn handing_over(self, hands_over: bool) -> Export {
        Export { hands_over, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_keeps_its_bytes_and_its_bound() {
        assert_eq!(
            Handle::new(&[7; 63]).map(|h| h.bytes().to_vec()),
            Ok(vec![7; 63])
        );
        assert_eq!(Handle::new(&[7; 64]), Err(Errno::EOVERFLOW));
        assert_eq!(
            format!("{:?}", Handle::new(&[1, 0xab]).expect("short")),
            "Handle(01ab)"
        );
    }
}
