//! The sources to serve and their options.

use std::path::PathBuf;

use layers::disk_quota::DiskLimits;
use layers::gate::AccessPolicy;
use layers::hide::Rules;
use layers::limit::Limits;
use layers::{MapIds, XattrMap};

use super::args::access::ClientList;
use crate::source::NamedSource;

/// A source and its options.
pub(super) struct Share {
    pub(super) named: NamedSource,
    /// The file to write a read trace to.
    pub(super) read_trace: Option<PathBuf>,
    /// The options of a source that is a directory of this host. The descriptor budget is set by
    /// the opener, which divides it among the shares.
    pub(super) hostdir: hostdir::Options,
    /// The directory that stores changes to the source.
    pub(super) overlay: Option<PathBuf>,
    /// Whether descriptors of open files are passed to clients of this host.
    pub(super) fd_passing: bool,
    /// Files that its options name, which a reload reads again.
    pub(super) files: Vec<PathBuf>,
    /// The rules that hide paths.
    pub(super) hidden: Rules,
    /// The limits of its disk space and number of files.
    pub(super) quota: DiskLimits,
    pub(super) ids: Vec<MapIds>,
    pub(super) xattrs: Option<XattrMap>,
    /// The terms of access without the clients, which are in [`Sources::client_lists`].
    pub(super) access: AccessPolicy,
    pub(super) limits: Limits,
}

/// All sources, and the options that they have in common.
pub(super) struct Sources {
    pub(super) shares: Vec<Share>,
    /// The clients that may use each source; a source without a list is open to all clients.
    pub(super) client_lists: Vec<ClientList>,
    /// Whether a reload may change them.
    pub(super) reloadable: bool,
    /// The group whose members may connect to Unix sockets.
    pub(super) socket_group: Option<u32>,
    /// Whether directories without kernel file handles are refused.
    pub(super) kernel_handles: bool,
    /// The file to log every call to.
    pub(super) record_calls: Option<PathBuf>,
}
