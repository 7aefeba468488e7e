//! `--sandbox` and `--seccomp`: the confinement of the process that serves.

use clap::{Args, ValueEnum};
use sandbox::seccomp::Action;

use crate::serve::modcaps::Modcaps;

#[derive(Args)]
#[command(next_help_heading = "Confinement")]
pub(crate) struct ConfinementArgs {
    /// How to confine the processes that serve [default: namespace as root, else landlock]
    ///
    /// The first process holds the sockets, reads configuration and certificates, and starts those
    /// that serve, again if they crash. If namespaces cannot be had, Landlock confines alone unless
    /// `namespace` is explicit.
    #[arg(long, value_name = "MODE")]
    pub(in crate::serve) sandbox: Option<Sandbox>,
    /// Changes to the capabilities that are kept as root, such as +sys_admin:-chown
    ///
    /// Those for files and users are kept, and CAP_SYS_ADMIN with --overlay. Clients and guests
    /// change attributes in trusted.* only with +sys_admin; overlayfs in a guest needs them for an
    /// upper directory in the share. It has no effect with --sandbox none.
    #[arg(long, value_name = "CHANGES", allow_hyphen_values = true)]
    pub(in crate::serve) modcaps: Option<Modcaps>,
    /// Processes that serve: one for each share of virtual machines, or one
    ///
    /// Shares that 9P, NFS or NBD serve at an address are together in one process in any case.
    #[arg(long, value_name = "WHICH", default_value = "share")]
    pub(in crate::serve) processes: Processes,
    /// Reaction to a system call that serving does not use [default: kill, or errno]
    ///
    /// The default is errno for a process with a source on another server: it loads libraries to
    /// look up names, which may try other calls. The option has no effect with --sandbox none.
    #[arg(long, value_name = "ACTION")]
    pub(in crate::serve) seccomp: Option<Seccomp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sandbox {
    /// Give them mount, network, IPC and PID namespaces, with a root that has their sources alone;
    /// as root only
    ///
    /// A server with sources on other servers keeps the network and the root of the host.
    Namespace,
    /// Let Landlock refuse other files, TCP and signals
    ///
    /// It refuses files only without privileges, as root's file handles lead around the rules.
    Landlock,
    /// Serve in a single process, without confinement
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Processes {
    /// One for each source that is served by itself
    Share,
    /// One for all sources
    One,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Seccomp {
    /// Install no filter
    None,
    /// Kill the process
    Kill,
    /// Let the call fail with EPERM
    Errno,
    /// Carry the call out, with a line in the kernel's log
    Log,
    /// Send SIGSYS
    Trap,
}

impl From<Seccomp> for Action {
    fn from(action: Seccomp) -> Action {
        match action {
            Seccomp::None => Action::None,
            Seccomp::Kill => Action::Kill,
            Seccomp::Errno => Action::Errno,
            Seccomp::Log => Action::Log,
            Seccomp::Trap => Action::Trap,
        }
    }
}

impl Seccomp {
    /// Returns the action of the option `seccomp` in a process that connects to other hosts or
    /// does not (`network`).
    pub(crate) fn action(seccomp: Option<Seccomp>, network: bool) -> Action {
        let by_default = match network {
            true => Seccomp::Errno,
            false => Seccomp::Kill,
        };
        seccomp.unwrap_or(by_default).into()
    }
}
