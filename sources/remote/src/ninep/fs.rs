//! The file system: attaches for each user, and its capabilities.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use p9::client::Client;
use p9::{Dialect, Fid, QidType, Tmessage, Uid};
use parking_lot::{Mutex, MutexGuard};
use transports::{Link, Payloads};
use vfs::{
    Caller, Capabilities, Cx, Errno, FileSystem, Handle, Kind, Node, OpenFlags, Result, Support,
};

use super::connection::Connection;
use super::fid::{OwnedFid, Session};
use super::file::Opened;
use super::locks;
use super::node::RemoteNode;
use super::unpinned::Unpinned;
use crate::locks::Mirrors;
use crate::{ConnectError, Timeouts};

/// The options of a 9P session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The tree to attach to (attach(5)).
    pub aname: String,
    /// The user's name in the attach. 9P2000 has no numeric IDs, so there it alone identifies the
    /// user.
    pub uname: String,
    /// The user ID that all callers act as. Without it, each caller acts as itself, with an attach
    /// of its own (v9fs's `access=user`). 9P2000 cannot do that: all callers act as `uname`.
    pub uid: Option<u32>,
    /// The msize to offer, in bytes.
    pub msize: u32,
    /// The best dialect to offer.
    pub version: Dialect,
    /// Whether payloads are received into and sent from the caller's memory, from the sizes at
    /// which that pays off, instead of being copied through message buffers.
    pub zerocopy: bool,
    /// The most bytes of payload in flight, if not the link's default ([`Payloads::in_flight`]).
    pub in_flight: Option<usize>,
    /// The timeouts for a server that does not answer.
    pub timeouts: Timeouts,
    /// Whether to request open file descriptors ([`vfs::File::backing`]), which requires 9P2000.L
    /// and a Unix socket.
    pub fd_passing: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            aname: String::new(),
            uname: String::new(),
            uid: None,
            // The most that Linux offers on streams, which servers are used to.
            msize: (1 << 20) + 24,
            version: Dialect::Linux,
            zerocopy: true,
            in_flight: None,
            timeouts: Timeouts::default(),
            fd_passing: false,
        }
    }
}

/// A tree of a 9P server.
pub struct Remote9p {
    shared: Arc<Shared>,
}

/// The state that all nodes and files of a connection share.
pub(super) struct Shared {
    pub(super) session: Arc<Session>,
    pub(super) mirrors: Mirrors<Opened>,
    pub(super) unpinned: Unpinned,
    /// The client ID in lock requests.
    pub(super) client_id: String,
    options: Options,
    /// The root fid of each user.
    roots: Mutex<HashMap<u32, Arc<OwnedFid>>>,
    root: u64,
    root_kind: Kind,
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
        let pipe = Connection::open_with(link, client, payloads, options.timeouts)?;
        pipe.set_soft(true);
        let wire = Session::new(pipe);
        let caller = Caller::new(rustix::process::geteuid().as_raw(), 0);
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
            unpinned: Unpinned::default(),
            client_id: locks::client_id(),
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
        Ok(RemoteNode::root(shared, shared.root, shared.root_kind))
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

impl Shared {
    /// The user ID that a caller acts as.
    pub(super) fn user(&self, caller: &Caller) -> u32 {
        user_of(&self.options, self.session.dialect(), caller)
    }

    pub(super) fn root_id(&self) -> u64 {
        self.root
    }

    /// The group for nodes that a caller creates: its own, unless it acts as another user.
    pub(super) fn group(&self, caller: &Caller) -> u32 {
        match self.options.uid {
            Some(uid) if uid != caller.uid => u32::MAX,
            _ => caller.gid,
        }
    }

    /// The root fid of a user, attached at first use.
    pub(super) fn root_of(&self, cx: &Cx<'_>, user: u32) -> Result<Arc<OwnedFid>> {
        if let Some(root) = self.roots().get(&user) {
            return Ok(root.clone());
        }
        cx.check_may_block()?;
        let (root, _) = attach(&self.session, &self.options, user)?;
        let root = Arc::new(root);
        let mut roots = self.roots();
        if roots.len() >= Shared::MAX_USERS {
            roots.retain(|_, root| Arc::strong_count(root) > 1);
        }
        Ok(roots.entry(user).or_insert(root).clone())
    }

    /// The number of users from which unused attaches are dropped.
    const MAX_USERS: usize = 1024;

    fn roots(&self) -> MutexGuard<'_, HashMap<u32, Arc<OwnedFid>>> {
        self.roots.lock()
    }
}

fn user_of(options: &Options, dialect: Dialect, caller: &Caller) -> u32 {
    match dialect {
        // 9P2000 identifies users by name only.
        Dialect::Plan9 => u32::MAX,
        Dialect::Unix | Dialect::Linux => options.uid.unwrap_or(caller.uid),
    }
}

/// Attaches as `user`. Returns the root's fid, and its ID and kind as far as the qid tells.
fn attach(
    wire: &Arc<Session>,
    options: &Options,
    user: u32,
) -> Result<(OwnedFid, Option<(u64, Kind)>)> {
    let fid = wire.connection.fid()?;
    let attach = Tmessage::Attach {
        fid,
        afid: Fid::NONE,
        uname: options.uname.as_bytes(),
        aname: options.aname.as_bytes(),
        n_uname: Uid(user),
    };
    let reply = match wire.connection.call(&attach) {
        Ok(reply) => reply,
        Err(errno) => {
            wire.connection.forget(fid);
            return Err(errno);
        }
    };
    let root = match reply.message()? {
        p9::Rmessage::Attach { qid } if qid.kind.contains(QidType::DIR) => {
            Some((p9::client::attr::id_of(&qid), Kind::Directory))
        }
        _ => None,
    };
    Ok((wire.own_fid(fid), root))
}
