//! The file system: a server's tree in one of the versions.

use std::any::Any;
use std::sync::{Arc, Mutex};

use vfs::{Capabilities, Cx, Errno, FileSystem, Node, NodeId, Result};

use super::commit::Committer;
use super::file::NfsFile;
use super::node::NfsNode;
use super::uncommitted::{Limits, Uncommitted};
use super::version::{Found, Version};
use crate::locks::Mirrors;
use crate::{Retry, Silence};

/// How a server is spoken to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Which version: 3, or 4 and the minor one; the best that the server has if none is named.
    pub version: Option<(u32, u32)>,
    /// The TCP port of MOUNT for v3; asked for if it is not named.
    pub mount_port: Option<u16>,
    /// As whom everyone acts, user and group; without it, each caller as itself.
    pub act_as: Option<(u32, u32)>,
    /// Read holes as zeros that travel: READ, not READ_PLUS.
    pub no_read_plus: bool,
    /// Take no delegations, and ask the server each time a file is opened (v4.1 and later have such).
    pub no_delegations: bool,
    /// Connect from a reserved port, as servers with `secure` in exports(5) demand.
    pub reserved_port: bool,
    /// The most bytes of one READ and of one WRITE, if less than both sides have anyway.
    pub sizes: (Option<u32>, Option<u32>),
    /// How many bytes of payload may be on their way at a time, if not as many as the link says ([`transports::Payloads::in_flight`]).
    pub in_flight: Option<usize>,
    /// What is done when it does not answer.
    pub silence: Silence,
    /// What is done when it is lost.
    pub retry: Retry,
}

/// A tree that an NFS server has.
pub(super) struct RemoteNfs<V: Version> {
    shared: Arc<Shared<V>>,
    root: Arc<NfsNode<V>>,
    _committer: Committer<V>,
}

/// What all nodes and files of a mount share.
pub(super) struct Shared<V: Version> {
    pub(super) version: V,
    pub(super) mirrors: Mirrors<V::Open>,
    pub(super) uncommitted: Arc<Uncommitted<NfsFile<V>>>,
    pub(super) root: NodeId,
    /// Held from where a file's end is looked up to where the last byte behind it is written.
    pub(super) appending: Mutex<()>,
}

impl<V: Version> RemoteNfs<V> {
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

impl<V: Version> FileSystem for RemoteNfs<V> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn root(&self, _cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        Ok(self.root.clone())
    }

    fn resolve(&self, cx: &Cx<'_>, handle: &vfs::Handle) -> Result<Arc<dyn Node>> {
        cx.may_wait()?;
        let handle = handle.bytes().into();
        let attr = match self.shared.version.attr(cx, &handle) {
            // What a server says of bytes that it never gave.
            Err(Errno::EINVAL | Errno::EIO) => return Err(Errno::ESTALE),
            // Kept by somebody who has it open.
            Ok(attr) if attr.nlink == 0 => return Err(Errno::ESTALE),
            attr => attr?,
        };
        Ok(NfsNode::new(&self.shared, &Found { handle, attr }, None))
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        cx.may_wait()?;
        self.shared.commit_all(cx)
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.version.capabilities()
    }
}
