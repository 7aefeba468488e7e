//! The plan of a server: all command lines and configuration files that serve are parsed into it.

use std::path::PathBuf;
use std::time::Duration;

use engine::Tuning;
use layers::gate::Terms;
use layers::{MapIds, XattrMap};
use transports::Addr;
use vfs::Trust;

use super::activation;
use super::block::Block;
use super::exports::ClientList;
#[cfg(feature = "gss")]
use super::gss::Security;
use super::secure::Tls;
use super::vhost::{Socket, Vhost};
use super::virtio9p::NinePDevice;
use super::virtiofs::Tag;
use crate::config::Config;
use crate::source::Named;

pub(super) struct Plan {
    pub(super) shares: Vec<Share>,
    /// The configuration file, if there is one; it is read again on SIGHUP.
    pub(super) file: Option<Config>,
    /// Whether directories without kernel file handles are refused.
    pub(super) kernel_handles: bool,
    /// The file to log every call to.
    pub(super) record_calls: Option<PathBuf>,
    /// The clients that may use each source; a source without a list is open to all clients.
    pub(super) client_lists: Vec<ClientList>,
    /// 9P, if it is served.
    pub(super) p9: Option<NineP>,
    /// NFS, if it is served.
    pub(super) nfs: Option<Nfs>,
    pub(super) virtiofs: Virtiofs,
    pub(super) block: Block,
    pub(super) vhost: Vhost,
    /// Local users whose processes may act as any user.
    pub(super) trust: Trust,
    /// The status page, if it is served.
    pub(super) http: Option<Http>,
    pub(super) tuning: Tuning,
    /// The command of `--run`, after which the server ends.
    pub(super) run: Option<String>,
}

impl Plan {
    /// Returns whether clients of other hosts may connect, as far as the plan says: to a TCP port,
    /// or to an inherited socket that may be one.
    pub(super) fn is_networked(&self) -> bool {
        let p9 = self.p9.iter().flat_map(|p9| &p9.addrs);
        let nfs = self.nfs.iter().flat_map(|nfs| &nfs.addrs);
        let mut all = p9.chain(nfs).chain(&self.block.nbd);
        all.any(|addr| matches!(addr, Addr::Tcp { .. } | Addr::Fd(_))) || activation::is_activated()
    }
}

/// A source and its options.
pub(super) struct Share {
    pub(super) named: Named,
    /// The file to write a read trace to.
    pub(super) record: Option<PathBuf>,
    /// The options of a source that is a directory of this host. The descriptor budget is set by
    /// the opener, which divides it among the shares.
    pub(super) hostdir: hostdir::Options,
    /// The directory that stores changes to the source.
    pub(super) overlay: Option<PathBuf>,
    /// Whether descriptors of open files are passed to clients of this host.
    pub(super) hands_over: bool,
    pub(super) layers: Layers,
}

/// The address of the status page, and further host names that it accepts.
pub(super) struct Http {
    pub(super) addr: Addr,
    pub(super) names: Vec<String>,
}

/// The layers between a source and clients, from the source up.
pub(super) struct Layers {
    pub(super) ids: Vec<MapIds>,
    pub(super) xattrs: Option<XattrMap>,
    /// Everything but the clients, which are in [`Plan::client_lists`].
    pub(super) terms: Terms,
}

/// The options of 9P. Without addresses, the sockets of a service manager and, if no other protocol
/// has addresses, the default address are used.
pub(super) struct NineP {
    pub(super) addrs: Vec<Addr>,
    /// 9P devices of virtual machines.
    pub(super) devices: Vec<NinePDevice>,
    pub(super) max_msize: u32,
    /// Whether a request for a lock that conflicts is answered only when the lock is granted.
    pub(super) wait_for_locks: bool,
}

/// The options of NFS.
pub(super) struct Nfs {
    pub(super) addrs: Vec<Addr>,
    /// Whether a portmapper is served, and its address if it is not the default port of the first
    /// address.
    pub(super) rpcbind: Option<Option<Addr>>,
    pub(super) lease: Duration,
    /// Whether READ_PLUS is offered, which reports holes.
    pub(super) read_plus: bool,
    /// Whether SELinux labels are reported and set.
    pub(super) security_labels: bool,
    /// Whether delegations are granted to clients of v4.1 and later.
    pub(super) delegations: bool,
    /// The directory of the state that clients need after a restart, if it is not the default.
    pub(super) state_dir: Option<PathBuf>,
    /// The options of TLS, if TLS is offered.
    pub(super) tls: Option<Tls>,
    /// The security flavors, if others than AUTH_SYS are configured.
    #[cfg(feature = "gss")]
    pub(super) security: Option<Security>,
}

/// The options of virtiofs.
pub(super) struct Virtiofs {
    pub(super) shares: Vec<Socket>,
    pub(super) options: fuse::server::Options,
    /// The tag in the device's configuration; without one there is no configuration.
    pub(super) tag: Option<Tag>,
}
