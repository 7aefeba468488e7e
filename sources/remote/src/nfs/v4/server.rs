//! A server that speaks v4, and its properties.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ::nfs::client::{Limits, Tree};
use vfs::{Errno, Result};

use super::core::Core;
use super::maintenance::Maintenance;

/// A server that speaks v4.
pub(in crate::nfs) struct V4 {
    pub(super) core: Arc<Core>,
    pub(super) tree: Tree,
    pub(super) limits: Limits,
    pub(super) xattr: bool,
    pub(super) clone: bool,
    /// Whether to use READ_PLUS.
    pub(super) read_plus: AtomicBool,
    _maintenance: Maintenance,
}

/// The attributes of the server and of its root.
pub(in crate::nfs) struct ServerCapabilities {
    pub(in crate::nfs) tree: Tree,
    pub(in crate::nfs) limits: Limits,
    pub(in crate::nfs) lease: Duration,
    pub(in crate::nfs) xattr: bool,
    pub(in crate::nfs) clone: bool,
}

impl V4 {
    pub(in crate::nfs) fn new(
        core: Arc<Core>,
        traits: ServerCapabilities,
        plus: bool,
    ) -> Result<V4> {
        let limits = core.limits(traits.limits);
        let keeper = Maintenance::start(core.clone(), traits.lease)?;
        Ok(V4 {
            tree: traits.tree,
            limits,
            xattr: traits.xattr && core.minor >= 2,
            clone: traits.clone && core.minor >= 2,
            read_plus: AtomicBool::new(plus && core.minor >= 2),
            core,
            _maintenance: keeper,
        })
    }

    pub(super) fn needs_4_2(&self) -> Result<()> {
        match self.core.minor {
            2.. => Ok(()),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}
