//! The file system: a server's tree over one of the protocol versions.

use std::any::Any;
use std::sync::Arc;

use vfs::{Capabilities, Cx, Errno, FileSystem, Node, Result};

use super::commit::Committer;
use super::node::NfsNode;
use super::options::Options;
use super::shared::Shared;
use super::uncommitted::Limits;
use super::version::{Found, ProtocolVersion};

/// A tree of an NFS server.
pub(super) struct RemoteNfs<V: ProtocolVersion> {
    shared: Arc<Shared<V>>,
    root: Arc<dyn Node>,
    _committer: Committer<V>,
}

impl<V: ProtocolVersion> RemoteNfs<V> {
    pub(super) fn new(version: V, root: Found, options: &Options) -> Result<Arc<RemoteNfs<V>>> {
        let limits = Limits::of_total(options.uncommitted);
        let log = options.hidden_log.clone();
        let shared = Shared::new(version, root.attr.id, limits, log);
        shared.remove_left_names();
        let root = NfsNode::new(&shared, &root, None).compact();
        Ok(Arc::new(RemoteNfs {
            _committer: Committer::start(&shared)?,
            shared,
            root,
        }))
    }
}

impl<V: ProtocolVersion> Drop for RemoteNfs<V> {
    fn drop(&mut self) {
        self.shared.open_files.finish();
    }
}

impl<V: ProtocolVersion> FileSystem for RemoteNfs<V> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn root(&self, _cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        Ok(self.root.clone())
    }

    fn resolve(&self, cx: &Cx<'_>, handle: &vfs::Handle) -> Result<Arc<dyn Node>> {
        cx.check_may_block()?;
        let handle = handle.bytes().into();
        let attr = match self.shared.version.attr(cx, &handle) {
            // The errors of servers for malformed handles.
            Err(Errno::EINVAL | Errno::EIO) => return Err(Errno::ESTALE),
            // An unlinked file that is still open.
            Ok(attr) if attr.nlink == 0 => return Err(Errno::ESTALE),
            attr => attr?,
        };
        Ok(NfsNode::new(&self.shared, &Found { handle, attr }, None).compact())
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        cx.check_may_block()?;
        self.shared.commit_all(cx)
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.version.capabilities()
    }
}
