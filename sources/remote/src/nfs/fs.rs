//! The file system: a server's tree over one of the protocol versions.

use std::any::Any;
use std::sync::Arc;

use parking_lot::Mutex;
use vfs::{Capabilities, Cx, Errno, FileSystem, Node, NodeId, Result};

use super::commit::Committer;
use super::file::NfsFile;
use super::node::NfsNode;
use super::uncommitted::{Limits, Uncommitted};
use super::version::{Found, ProtocolVersion};
use crate::locks::Mirrors;
use crate::{Retry, Timeouts};

/// Mount options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The major and minor version; the best that the server supports if `None`.
    pub version: Option<(u32, u32)>,
    /// The TCP port of MOUNT for v3; the portmapper's answer if `None`.
    pub mount_port: Option<u16>,
    /// The user and group that all callers act as; each caller's own if `None`.
    pub act_as: Option<(u32, u32)>,
    /// Uses READ, which transfers holes as zeros, instead of READ_PLUS.
    pub no_read_plus: bool,
    /// Takes no delegations, so that every open goes to the server (v4.1 and later have
    /// delegations).
    pub no_delegations: bool,
    /// Connects from a reserved port, as servers with `secure` in exports(5) demand.
    pub reserved_port: bool,
    /// The most bytes of one READ and of one WRITE, if less than the limits of both sides.
    pub sizes: (Option<u32>, Option<u32>),
    /// The most bytes of payload in flight, if not the link's default
    /// ([`transports::Payloads::in_flight`]).
    pub in_flight: Option<usize>,
    /// The timeouts for a server that does not answer.
    pub timeouts: Timeouts,
    /// The retry limit after a lost connection.
    pub retry: Retry,
}

/// A tree of an NFS server.
pub(super) struct RemoteNfs<V: ProtocolVersion> {
    shared: Arc<Shared<V>>,
    root: Arc<NfsNode<V>>,
    _committer: Committer<V>,
}

/// The state that all nodes and files of a mount share.
pub(super) struct Shared<V: ProtocolVersion> {
    pub(super) version: V,
    pub(super) mirrors: Mirrors<V::Open>,
    pub(super) uncommitted: Arc<Uncommitted<NfsFile<V>>>,
    pub(super) root: NodeId,
    /// Held during an append, from the lookup of the file size until the data is written.
    pub(super) appending: Mutex<()>,
}

impl<V: ProtocolVersion> RemoteNfs<V> {
    pub(super) fn new(version: V, root: Found) -> Result<Arc<RemoteNfs<V>>> {
        let shared = Arc::new(Shared {
            version,
            mirrors: Mirrors::default(),
            uncommitted: Arc::new(Uncommitted::new(Limits::DEFAULT)),
            root: root.attr.id,
            appending: Mutex::new(()),
        });
        let root = NfsNode::new(&shared, &root, None);
        Ok(Arc::new(RemoteNfs {
            _committer: Committer::start(&shared)?,
            shared,
            root,
        }))
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
        Ok(NfsNode::new(&self.shared, &Found { handle, attr }, None))
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        cx.check_may_block()?;
        self.shared.commit_all(cx)
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.version.capabilities()
    }
}
