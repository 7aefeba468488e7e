//! The barriers around the process that serves.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::thread::CapabilitySet;
use sandbox::{Confinement, VisiblePath};

use super::client::BrokerClient;
use crate::serve::args::ServeArgs;
use crate::serve::args::confinement::{Processes, Sandbox, Seccomp};
use crate::serve::modcaps::{self, Modcaps};
use crate::serve::plan::Plan;
use crate::serve::recovery;
use crate::serve::share::Share;
use crate::source::Source;
use crate::{Failure, child};

/// The confinement that options ask for.
#[derive(Clone, Copy, Debug)]
pub(in crate::serve) struct ConfinementPlan {
    /// `None` for the default.
    pub(in crate::serve) sandbox: Option<Sandbox>,
    /// `None` for the default.
    seccomp: Option<Seccomp>,
    pub(super) processes: Processes,
    /// The capabilities that the options need, whatever the sources, and changes to these.
    capabilities: CapabilitySet,
    modcaps: Modcaps,
    /// Whether Kerberos is offered. It reads keys, a replay cache and plugins where its own
    /// configuration says.
    kerberos: bool,
}

impl ConfinementPlan {
    /// The plan of a process that confines itself, or is not confined.
    pub(in crate::serve) const NONE: ConfinementPlan = ConfinementPlan {
        sandbox: Some(Sandbox::None),
        seccomp: None,
        processes: Processes::One,
        capabilities: modcaps::WITH_HANDLES,
        modcaps: Modcaps::NONE,
        kerberos: false,
    };

    /// Returns the plan of `args`.
    pub(in crate::serve) fn new(args: &ServeArgs) -> ConfinementPlan {
        #[cfg(feature = "gss")]
        let kerberos = (args.nfs.sec.plan()).is_some_and(|security| security.uses_kerberos());
        #[cfg(not(feature = "gss"))]
        let kerberos = false;
        let mut capabilities = modcaps::WITH_HANDLES;
        capabilities.set(CapabilitySet::LEASE, args.nfs.delegations);
        // security.selinux.
        capabilities.set(CapabilitySet::SYS_ADMIN, args.nfs.nfs_security_label);
        ConfinementPlan {
            sandbox: args.confinement.sandbox,
            seccomp: args.confinement.seccomp,
            processes: args.confinement.processes,
            capabilities,
            modcaps: args.confinement.modcaps.unwrap_or(Modcaps::NONE),
            kerberos,
        }
    }
}

/// Returns whether the server of `plan` connects to other hosts, or reads files of the host that no
/// option names.
pub(super) fn uses_network(plan: &Plan) -> bool {
    let connects = |share: &Share| share.named.source.connects();
    plan.confinement.kerberos || plan.sources.shares.iter().any(connects)
}

/// Returns whether the server of `plan` changes directories, or writes files: sources, state or
/// caches.
fn uses_directories(plan: &Plan, by_default: bool) -> bool {
    let changes = |share: &Share| match &share.named.source {
        Source::Tree(sources::Source::Memory | sources::Source::Image(_)) => {
            share.overlay.is_some()
        }
        // An image if it leads to a file.
        Source::Tree(sources::Source::HostDir(path)) => {
            share.leads_to_directory(path) || share.overlay.is_some()
        }
        Source::Tree(_) => true,
        Source::Referral(_) => false,
    };
    // A directory may be added.
    if plan.control.is_some() {
        return true;
    }
    // Images that are served as disks are files of directories.
    let disks = plan.endpoints.iter().any(|one| one.serves_images());
    disks || plan.sources.shares.iter().any(changes) || state_dir(plan, by_default).is_some()
}

/// Returns the capabilities that the server of `plan` keeps.
fn capabilities(plan: &Plan) -> CapabilitySet {
    let mut capabilities = plan.confinement.capabilities;
    // Attributes of overlays are in trusted.*.
    let overlay = plan.sources.shares.iter().any(|it| it.overlay.is_some());
    if overlay {
        capabilities |= CapabilitySet::SYS_ADMIN;
    }
    // Ports below 1024 of clients of other servers.
    if uses_network(plan) {
        capabilities |= CapabilitySet::NET_BIND_SERVICE;
    }
    plan.confinement.modcaps.change(capabilities)
}

/// Returns whether the server of `plan` lacks a capability that `addition` needs.
pub(super) fn lacks_capability(plan: &Plan, addition: &Plan) -> bool {
    !capabilities(plan).contains(capabilities(addition))
}

/// Returns the path of the state of the server of `plan`, if it has a directory for it.
pub(super) fn state_path(plan: &Plan, by_default: bool) -> Option<VisiblePath> {
    state_dir(plan, by_default).map(VisiblePath::writable)
}

/// Returns the state directory of the server of `plan`, if it has one.
fn state_dir(plan: &Plan, by_default: bool) -> Option<PathBuf> {
    let identity = plan.export_requirements(by_default).identity?;
    recovery::state_dir(&identity)
}

/// Confines this process, which serves `plan`, before it starts a thread.
pub(in crate::serve) fn enter(plan: &mut Plan, broker: &Arc<BrokerClient>) -> Result<(), Failure> {
    let by_default = plan.uses_default_addrs();
    if let Some(dir) = state_dir(plan, by_default) {
        // Its use says why it cannot be created.
        let _ = recovery::create_private_dir(&dir);
    }
    sys::diag::keep_sockets();
    broker.query_users();
    let network = broker.uses_network();
    let objects = broker.objects(plan).map_err(Failure::new)?;
    let kept = capabilities(plan) & sys::caps::effective();
    let confinement = Confinement {
        paths: state_path(plan, by_default).into_iter().collect(),
        objects,
        namespaces: broker.prepared_namespaces(),
        landlock: true,
        kernel_handles: network || kept.contains(CapabilitySet::DAC_READ_SEARCH),
        capabilities: kept,
        network,
        directories: uses_directories(plan, by_default),
        changes: plan.serves_agents(),
        seccomp: Seccomp::action(plan.confinement.seccomp, network),
    };
    child::confine(&confinement)
}
