//! What is served, and how: what every command line that serves comes to.

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
use super::virtio9p::Channel;
use super::virtiofs::Tag;
use crate::config::Config;
use crate::source::Named;

pub(super) struct Plan {
    pub(super) shares: Vec<Share>,
    /// The file that says all this, if one does: it is read again on SIGHUP.
    pub(super) file: Option<Config>,
    /// Directories have to have handles of the kernel's.
    pub(super) kernel_handles: bool,
    /// Where every call is written to, if it is.
    pub(super) record_calls: Option<PathBuf>,
    /// Who is let in; a source that none names is for everybody.
    pub(super) lists: Vec<ClientList>,
    /// 9P, if that is served at all.
    pub(super) nine: Option<Nine>,
    /// NFS, if that is served at all.
    pub(super) nfs: Option<Nfs>,
    pub(super) virtiofs: Virtiofs,
    pub(super) block: Block,
    pub(super) vhost: Vhost,
    /// The local users whose processes may act as any user.
    pub(super) trust: Trust,
    /// Where it is shown what is done, if it is.
    pub(super) http: Option<Http>,
    pub(super) tuning: Tuning,
    /// The command for which all this lives.
    pub(super) run: Option<String>,
}

impl Plan {
    /// Whether clients of other hosts may come, as far as the plan says: to a port of TCP, or to an
    /// inherited socket that may be one.
    pub(super) fn is_networked(&self) -> bool {
        let nine = self.nine.iter().flat_map(|nine| &nine.addrs);
        let nfs = self.nfs.iter().flat_map(|nfs| &nfs.addrs);
        let mut all = nine.chain(nfs).chain(&self.block.nbd);
        all.any(|addr| matches!(addr, Addr::Tcp { .. } | Addr::Fd(_))) || activation::is_activated()
    }
}

/// A source, and what it is served with.
pub(super) struct Share {
    pub(super) named: Named,
    /// What is read of it is written down there.
    pub(super) record: Option<PathBuf>,
    /// How it is opened, if it is a directory of this host. The budget of descriptors is this program's to divide.
    pub(super) hostdir: hostdir::Options,
    /// What is written to it is kept there.
    pub(super) overlay: Option<PathBuf>,
    /// Its open files are handed over to clients of this host.
    pub(super) hands_over: bool,
    pub(super) layers: Layers,
}

/// How it is shown what is done: where, and by which further names.
pub(super) struct Http {
    pub(super) addr: Addr,
    pub(super) names: Vec<String>,
}

/// What stands between sources and clients, from the source up.
pub(super) struct Layers {
    pub(super) ids: Vec<MapIds>,
    pub(super) xattrs: Option<XattrMap>,
    /// Without the clients, of whom [`Plan::lists`] tells.
    pub(super) terms: Terms,
}

/// How 9P is served: where (nothing means the usual place, unless something else is served), and at
/// the sockets that a service manager opened.
pub(super) struct Nine {
    pub(super) addrs: Vec<Addr>,
    /// Devices of virtual machines.
    pub(super) channels: Vec<Channel>,
    pub(super) max_msize: u32,
    /// Who waits for a lock is answered when it is granted.
    pub(super) wait_for_locks: bool,
}

/// How NFS is served: where, and how long a client of v4 may be silent.
pub(super) struct Nfs {
    pub(super) addrs: Vec<Addr>,
    /// Whether there is a portmapper, and where, if not at the usual port of the first address.
    pub(super) rpcbind: Option<Option<Addr>>,
    pub(super) lease: Duration,
    /// Whether holes are told of.
    pub(super) read_plus: bool,
    /// Whether labels of SELinux are told and set.
    pub(super) security_labels: bool,
    /// Whether clients of v4.1 and later may be given files to keep to themselves for a while.
    pub(super) delegations: bool,
    /// Where is kept what its clients need after a restart, if not in the usual place.
    pub(super) state_dir: Option<PathBuf>,
    /// With what it is secured, if that is offered.
    pub(super) tls: Option<Tls>,
    /// How callers may say who they are, if by more than ids.
    #[cfg(feature = "gss")]
    pub(super) security: Option<Security>,
}

/// How virtiofs is served.
pub(super) struct Virtiofs {
    pub(super) shares: Vec<Socket>,
    pub(super) options: fuse::server::Options,
    /// What the device's configuration says, if there is to be one.
    pub(super) tag: Option<Tag>,
}
