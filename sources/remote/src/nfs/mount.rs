//! Mounting: finds a tree's root, with the best version that both sides support.

use std::sync::Arc;
use std::time::Duration;

use ::nfs::client::v3::{FsInfo, GetAttr, GetPort, Mount as AskMount};
use ::nfs::client::v4::{GetAttr as GetAttr4, GetCapabilities, Lookup, Root};
use ::nfs::client::{Limits, Tree};
use vfs::{Attr, Call, Cx, Errno, FileSystem, Result};

use super::fs::RemoteNfs;
use super::options::Options;
use super::rpc_client::{DialResult, RpcClient, process_credentials};
use super::v3::{self, V3};
use super::v4::{Core, ServerCapabilities, UNKNOWN_TREE, V4};
use super::version::{Found, Handle, ProtocolVersion};
use crate::{ClientOwner, ConnectError};

/// A tree to mount.
pub struct Mount<'a> {
    /// Connects to the server, at the given port or its default one.
    pub dial: Arc<dyn Fn(Option<u16>) -> DialResult + Send + Sync>,
    /// The path from the server's root.
    pub path: &'a str,
    /// Whether the whole path must exist. Otherwise a prefix of it is mounted, and the rest is
    /// returned.
    pub require_full_path: bool,
    /// The mount options.
    pub options: Options,
}

type MountResult = std::result::Result<(Arc<dyn FileSystem>, String), ConnectError>;

/// The error of servers that do not support a version.
const EPROTONOSUPPORT: Errno = Errno::from_raw(93);

/// Mounts a tree, and returns the rest of the path in it.
pub fn mount(mount: &Mount<'_>) -> MountResult {
    const BEST_FIRST: [(u32, u32); 4] = [(4, 2), (4, 1), (4, 0), (3, 0)];
    let versions = match &mount.options.version {
        Some(version) => std::slice::from_ref(version),
        None => &BEST_FIRST,
    };
    let mut why = None;
    for &version in versions {
        match mount.mount_version(version) {
            Ok(mounted) => return Ok(mounted),
            Err(error) if error.errno() == EPROTONOSUPPORT => {
                why.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    Err(why.unwrap_or_else(|| ConnectError::new(EPROTONOSUPPORT, "no version")))
}

impl Mount<'_> {
    fn mount_version(&self, (major, minor): (u32, u32)) -> MountResult {
        let machine = sys::process::host_name();
        let conn = |port: Option<u16>| {
            let dial = self.dial.clone();
            let dial = Box::new(move || dial(port));
            RpcClient::open(
                dial,
                &machine,
                Core::MAX_MESSAGE as usize,
                self.options.clone(),
            )
        };
        let first = conn(None)?;
        let peer = first.peer();
        let refused = |errno: Errno| {
            let version = match major {
                4 => format!("v4.{minor}"),
                _ => format!("v{major}"),
            };
            let why = format!(
                "NFS server {peer}: cannot mount \"{}\" by {version}: {errno}",
                self.path
            );
            ConnectError::new(errno, why)
        };
        let call = Call::detached();
        let caller = process_credentials();
        let cx = Cx::new(&caller, &call);
        if major == 4 {
            return self.mount_v4(&cx, first, minor).map_err(refused);
        }
        let (root, rest) = match self.mount_point(&cx, &first) {
            // MOUNT listens on another port.
            Err(EPROTONOSUPPORT) => {
                let mount_port = match self.options.mount_port {
                    Some(port) => port,
                    None => portmapper(&cx, conn(Some(::nfs::portmap::PORT))?).map_err(refused)?,
                };
                self.mount_point(&cx, &conn(Some(mount_port))?)
            }
            found => found,
        }
        .map_err(refused)?;
        self.mount_v3(&cx, first, root, &rest).map_err(refused)
    }

    fn clamp_to_options(&self, reported: Limits) -> Limits {
        let (read, write) = self.options.sizes;
        clamp_to_client_limits(Limits {
            read: reported.read.min(read.unwrap_or(u32::MAX)),
            write: reported.write.min(write.unwrap_or(u32::MAX)),
        })
    }

    fn names(&self) -> Vec<&str> {
        self.path
            .split('/')
            .filter(|name| !name.is_empty())
            .collect()
    }

    /// Gets the root handle of the longest mountable prefix of the path with MOUNT, and the rest of
    /// the path.
    fn mount_point(&self, cx: &Cx<'_>, conn: &RpcClient) -> Result<(Handle, Vec<String>)> {
        let names = self.names();
        let mut first = None;
        for len in (0..=names.len()).rev() {
            let path = format!("/{}", names[..len].join("/"));
            let path = path.as_bytes();
            match v3::call(conn, cx, &AskMount { path }, |root| root) {
                Ok(root) => {
                    let rest = names[len..].iter().map(|&name| name.to_owned());
                    return Ok((root.into(), rest.collect()));
                }
                Err(errno) => {
                    let first = *first.get_or_insert(errno);
                    let above = [Errno::ENOENT, Errno::ENOTDIR, Errno::EACCES, Errno::EINVAL];
                    if len == 0 || !above.contains(&errno) {
                        return Err(first);
                    }
                }
            }
        }
        Err(Errno::ENOENT)
    }

    fn mount_v3(
        &self,
        cx: &Cx<'_>,
        conn: RpcClient,
        root: Handle,
        rest: &[String],
    ) -> Result<MountedTree> {
        let limits = v3::call(&conn, cx, &FsInfo { handle: &root }, |reported| {
            self.clamp_to_options(reported)
        })?;
        let get = GetAttr {
            handle: &root,
            tree: Tree::default(),
        };
        let attr = v3::call(&conn, cx, &get, |attr| attr)?;
        let tree = tree_of(&attr, limits);
        let version = V3::new(conn, tree, limits);
        let attr = version.attr(cx, &root)?;
        self.create_tree(cx, version, Found { handle: root, attr }, rest)
    }

    fn mount_v4(&self, cx: &Cx<'_>, conn: RpcClient, minor: u32) -> Result<MountedTree> {
        let owner = self.options.client_owner.clone();
        let owner = owner.unwrap_or_else(ClientOwner::random);
        let core = Core::open(conn, minor, owner, !self.options.no_delegations)?;
        let root = core.call_stateless(cx, Root, |made| made)?;
        let mut handle: Handle = root.handle.ok_or(Errno::EIO)?.into();
        let names = self.names();
        let (inside, rest) = names.split_at(if self.require_full_path {
            names.len()
        } else {
            0
        });
        for name in inside {
            let lookup = Lookup {
                dir: &handle,
                name: Some(name.as_bytes()),
                tree: UNKNOWN_TREE,
            };
            let found = core.call_stateless(cx, lookup, |made| made)?;
            handle = found.handle.ok_or(Errno::EIO)?.into();
        }
        let operations = GetCapabilities { handle: &handle };
        let can = core.call_stateless(cx, operations, |can| can)?;
        let limits = self.clamp_to_options(can.limits);
        let get = GetAttr4 {
            handle: &handle,
            tree: UNKNOWN_TREE,
        };
        let attr = core.call_stateless(cx, get, |attr| attr)?;
        let traits = ServerCapabilities {
            tree: tree_of(&attr, limits),
            limits,
            lease: Duration::from_secs(can.lease.into()),
            xattr: can.xattr,
            clone: can.clone,
        };
        let version = V4::new(core, traits, !self.options.no_read_plus)?;
        let attr = version.attr(cx, &handle)?;
        let fs = RemoteNfs::new(version, Found { handle, attr }, &self.options)?;
        Ok((fs, rest.join("/")))
    }

    /// Creates the tree at `root`, or at the rest of the path if the whole path must exist.
    fn create_tree<V: ProtocolVersion>(
        &self,
        cx: &Cx<'_>,
        version: V,
        mut root: Found,
        rest: &[String],
    ) -> Result<MountedTree> {
        if !self.require_full_path {
            let fs = RemoteNfs::new(version, root, &self.options)?;
            return Ok((fs, rest.join("/")));
        }
        for name in rest {
            root = version.lookup(cx, &root.handle, Some(name.as_bytes()))?;
        }
        let fs = RemoteNfs::new(version, root, &self.options)?;
        Ok((fs, String::new()))
    }
}

type MountedTree = (Arc<dyn FileSystem>, String);

/// The sizes to use: at most those of Linux's client.
pub(super) fn clamp_to_client_limits(reported: Limits) -> Limits {
    const MOST_IO: u32 = 1 << 20;
    Limits {
        read: reported.read.clamp(512, MOST_IO),
        write: reported.write.clamp(512, MOST_IO),
    }
}

fn tree_of(root: &Attr, limits: Limits) -> Tree {
    Tree {
        fsid: root.device,
        blksize: limits.read.min(limits.write),
    }
}

fn portmapper(cx: &Cx<'_>, conn: RpcClient) -> Result<u16> {
    match v3::call(&conn, cx, &GetPort::MOUNT, |port| port)? {
        0 => Err(EPROTONOSUPPORT),
        port => Ok(port),
    }
}
