//! The file system: a mount and its capabilities.

use std::any::Any;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fuse::Request;
use fuse::layout::{AttrOut, GetattrIn};
use fuse::numbers::{InitFlags, ROOT_ID};
use parking_lot::Mutex;
use vfs::{Call, Caller, Capabilities, Cx, Errno, FileSystem, Handle, Node, Result, Support};

use super::channel::{Channel, Options, ReplySize};
use super::file::Opened;
use super::node::FuseNode;
use crate::ConnectError;
use crate::locks::Mirrors;

/// A tree of a virtiofs server.
pub struct RemoteFuse {
    shared: Arc<Shared>,
    root: Arc<FuseNode>,
}

/// The state that all nodes and files of a mount share.
pub(super) struct Shared {
    pub(super) channel: Arc<Channel>,
    pub(super) mirrors: Mirrors<Opened>,
    /// Whether the server does not support STATX.
    pub(super) no_statx: AtomicBool,
    /// Held during an append.
    pub(super) appending: Mutex<()>,
}

impl RemoteFuse {
    /// Mounts the device at the other end of `socket`.
    pub fn mount(
        socket: UnixStream,
        options: Options,
    ) -> std::result::Result<Arc<RemoteFuse>, ConnectError> {
        let channel = Channel::mount(socket, options)?;
        let shared = Arc::new(Shared {
            channel,
            mirrors: Mirrors::default(),
            no_statx: AtomicBool::new(false),
            appending: Mutex::new(()),
        });
        let root = root(&shared).map_err(|errno| {
            ConnectError::new(
                errno,
                format!("cannot get the attributes of the root: {errno}"),
            )
        })?;
        Ok(Arc::new(RemoteFuse { shared, root }))
    }

    /// The connection.
    pub fn channel(&self) -> &Arc<Channel> {
        &self.shared.channel
    }
}

fn root(shared: &Arc<Shared>) -> Result<Arc<FuseNode>> {
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let args = GetattrIn::default();
    let reply_size = ReplySize::Fixed(AttrOut::SIZE);
    let answer = shared
        .channel
        .call(&cx, ROOT_ID, &Request::Getattr { args }, reply_size)?;
    let answer = answer.decode(AttrOut::decode)?;
    let attr = fuse::client::attr::of(&answer.attr, 0)?;
    Ok(FuseNode::new(shared, ROOT_ID, &attr))
}

impl FileSystem for RemoteFuse {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn root(&self, _cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        Ok(self.root.clone())
    }

    fn resolve(&self, _cx: &Cx<'_>, _handle: &Handle) -> Result<Arc<dyn Node>> {
        Err(Errno::EOPNOTSUPP)
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        let sync = Request::Syncfs {};
        match self
            .shared
            .channel
            .call(cx, ROOT_ID, &sync, ReplySize::Fixed(0))
        {
            // As Linux treats it.
            Err(Errno::EOPNOTSUPP) => Ok(()),
            done => done.map(drop),
        }
    }

    fn capabilities(&self) -> Capabilities {
        let client = self.shared.channel.client();
        let native = |has| if has { Support::Native } else { Support::None };
        Capabilities {
            persistent: true,
            xattr: Support::Native,
            acl: native(client.has(InitFlags::POSIX_ACL)),
            host_locks: native(client.has(InitFlags::POSIX_LOCKS)),
            // The time in nanoseconds.
            change: Support::Emulated,
            holes: Support::Native,
            copy: Support::Native,
            tmpfile: native(client.minor() >= 37),
            devices: Support::Native,
            owners: Support::Native,
            ..Capabilities::default()
        }
    }
}
