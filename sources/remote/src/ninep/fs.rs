//! The file system: connecting to a server, and its capabilities.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use p9::Dialect;
use p9::client::Client;
use parking_lot::Mutex;
use transports::{Link, Payloads};
use vfs::{
    Caller, Capabilities, Cx, Errno, FileSystem, Handle, Kind, Node, OpenFlags, Result, Support,
};

use super::connection::Connection;
use super::fid::Session;
use super::node::RemoteNode;
use super::options::Options;
use super::places::Places;
use super::shared::{Shared, attach, user_of};
use crate::locks::Mirrors;
use crate::{ClientOwner, ConnectError};

/// A tree of a 9P server.
pub struct Remote9p {
    shared: Arc<Shared>,
}

impl Remote9p {
    /// Begins a session over `link` and attaches as `options` say or, without a `uid`, as this
    /// process's effective user.
    pub fn connect(
        link: impl Link + 'static,
        options: Options,
    ) -> std::result::Result<Arc<Remote9p>, ConnectError> {
        let payloads = match options.zerocopy {
            true => link.payloads(),
            false => Payloads::INLINE,
        }
        .with_in_flight(options.in_flight);
        let mut client = Client::new(options.version, options.msize);
        if options.fd_passing {
            client = client.with_fd_passing();
        }
        let connection = Connection::open_with(link, client, payloads, options.timeouts)?;
        connection.set_soft(true);
        let wire = Session::new(connection);
        let caller = Caller::new(sys::process::user(), 0);
        let user = user_of(&options, wire.dialect(), &caller);
        let refused = |errno: Errno| match wire.connection.failure() {
            Some(why) => ConnectError::new(errno, why),
            None => {
                let (peer, aname) = (wire.connection.peer(), &options.aname);
                let why = format!("9P server {peer}: cannot attach to \"{aname}\": {errno}");
                ConnectError::of_attach(errno, why)
            }
        };
        let (root, kind) = attach(&wire, &options, user).map_err(refused)?;
        let call = vfs::Call::detached();
        let cx = Cx::new(&caller, &call);
        let attr = wire.attr(&cx, root.fid);
        // A root whose attributes the user may not read can still be walked from.
        let (root_id, root_kind) = match attr {
            Ok(attr) => (attr.id, attr.kind),
            Err(errno) if kind.is_none() => return Err(refused(errno)),
            Err(_) => kind.unwrap_or((1, Kind::Directory)),
        };
        wire.connection.set_soft(options.timeouts.soft);
        let shared = Arc::new(Shared {
            mirrors: Mirrors::default(),
            places: Places::default(),
            client_id: options
                .client_owner
                .clone()
                .unwrap_or_else(ClientOwner::random),
            roots: Mutex::new(HashMap::from([(user, Arc::new(root))])),
            root: root_id,
            root_kind,
            session: wire,
            options,
        });
        Ok(Arc::new(Remote9p { shared }))
    }

    /// The connection.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.shared.session.connection
    }
}

impl FileSystem for Remote9p {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn root(&self, _cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        let shared = &self.shared;
        Ok(RemoteNode::nameless(shared, shared.root, shared.root_kind))
    }

    fn resolve(&self, _cx: &Cx<'_>, _handle: &Handle) -> Result<Arc<dyn Node>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// 9P has no such request. Writes have reached the server already; files open for writing are
    /// made durable by their own fsync. This fsyncs the root directory, as far as the server can.
    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        cx.check_may_block()?;
        let root = self.root(cx)?;
        match root
            .open(cx, OpenFlags::READ)
            .and_then(|file| file.fsync(cx, false))
        {
            // Servers that cannot make a directory durable say so.
            Err(Errno::EINVAL | Errno::EBADF | Errno::EACCES | Errno::EOPNOTSUPP) => Ok(()),
            done => done,
        }
    }

    fn capabilities(&self) -> Capabilities {
        let linux = self.shared.session.is_linux();
        let native = |has| if has { Support::Native } else { Support::None };
        Capabilities {
            persistent: true,
            xattr: native(linux),
            host_locks: native(linux),
            // The change attribute is the time in nanoseconds on servers without a counter.
            change: if linux {
                Support::Emulated
            } else {
                Support::None
            },
            devices: native(self.shared.session.dialect() != Dialect::Plan9),
            owners: native(linux),
            ..Capabilities::default()
        }
    }
}
