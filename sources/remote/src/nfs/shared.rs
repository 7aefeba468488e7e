//! The state that all nodes and files of a mount share. `commit` makes written data durable.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use vfs::NodeId;

use super::hidden::OpenFiles;
use super::hidden_log::HiddenLog;
use super::uncommitted::{Limits, Uncommitted};
use super::version::ProtocolVersion;
use crate::locks::Mirrors;

/// The state that all nodes and files of a mount share.
pub(super) struct Shared<V: ProtocolVersion> {
    pub(super) this: Weak<Shared<V>>,
    pub(super) version: V,
    pub(super) mirrors: Mirrors<Arc<V::Open>>,
    pub(super) uncommitted: Arc<Uncommitted<V::Open>>,
    pub(super) open_files: OpenFiles,
    pub(super) root: NodeId,
    /// Held during an append, from the lookup of the file size until the data is written.
    pub(super) appending: Mutex<()>,
}

impl<V: ProtocolVersion> Shared<V> {
    /// Creates the state of a mount whose root has the ID `root`, with these limits for uncommitted
    /// data.
    pub(super) fn new(
        version: V,
        root: NodeId,
        limits: Limits,
        log: Option<HiddenLog>,
    ) -> Arc<Shared<V>> {
        Arc::new_cyclic(|this| Shared {
            this: this.clone(),
            version,
            mirrors: Mirrors::default(),
            uncommitted: Arc::new(Uncommitted::new(limits)),
            open_files: OpenFiles::with_log(log),
            root,
            appending: Mutex::new(()),
        })
    }
}
