//! `--sandbox` and `--seccomp`: the process that serves is confined.
//!
//! There are two processes. The first one opens the socket, starts itself again as the second one,
//! waits for it, passes signals on and removes the socket. The second one confines itself and
//! serves; it ends if the first one does. With `--sandbox none` there is one process.

use std::env;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};

use rustix::process::Signal;
use rustix::thread::CapabilitySet;
use sandbox::landlock::{self, Support};
use sandbox::{Confinement, Namespaces, VisiblePath};
use transports::Listener;

use super::args::{Handles, Sandbox, VirtiofsdArgs};
use crate::{CommandResult, Failure, signals};

impl VirtiofsdArgs {
    /// Confines this process, which serves `dir`.
    pub(super) fn confine(&self, dir: &Path, capabilities: CapabilitySet) -> Result<(), Failure> {
        if self.sandbox != Some(Sandbox::None) {
            let missing = match landlock::support() {
                Support::None => Some("files, TCP, signals and abstract sockets"),
                Support::Files => Some("TCP, signals and abstract sockets"),
                Support::Tcp => Some("signals and abstract sockets"),
                Support::Signals => None,
            };
            if let Some(missing) = missing {
                tracing::info!("this kernel has no Landlock for {missing}");
            }
        }
        // Opens a file of /proc that a root of its own does not have.
        let _ = sys::usage::running_threads();
        let confinement = Confinement {
            paths: vec![VisiblePath {
                path: dir.to_owned(),
                writable: !self.readonly,
            }],
            namespaces: self.in_namespaces(),
            landlock: self.sandbox != Some(Sandbox::None),
            kernel_handles: self.inode_file_handles != Handles::Never,
            capabilities,
            network: false,
            directories: true,
            seccomp: self.seccomp.into(),
        };
        confinement.enter().map_err(Failure::new)
    }

    /// Returns whether this process is the second one and was started in namespaces.
    pub(super) fn in_namespaces(&self) -> bool {
        self.confined_fd.is_some() && self.sandbox != Some(Sandbox::Chroot)
    }

    /// Serves the monitor of `listener` in a second process, and returns its exit status.
    pub(super) fn serve_in_child(&self, listener: &Listener) -> CommandResult {
        let mut more = Vec::new();
        if self.sandbox != Some(Sandbox::Chroot)
            && let Err(error) = Namespaces::for_this_process().prepare()
        {
            if self.sandbox.is_some() {
                return Err(Failure::new(error));
            }
            tracing::warn!("{error}: confined by Landlock alone, as with --sandbox chroot");
            more.push("--sandbox=chroot".to_owned());
        }
        let socket = listener.inheritable().map_err(Failure::new)?;
        more.push(format!("--confined-fd={}", socket.as_raw_fd()));
        let mut arguments = env::args_os();
        let mut command = Command::new("/proc/self/exe");
        if let Some(name) = arguments.next() {
            command.arg0(name);
        }
        let mut child = command
            .args(arguments)
            .args(more)
            // Signals of the terminal reach it through this process.
            .process_group(0)
            .spawn()
            .map_err(Failure::new)?;
        drop(socket);
        sys::caps::limit(CapabilitySet::empty()).map_err(Failure::new)?;
        let status = signals::wait_for_child(&mut child).map_err(Failure::new)?;
        exit_code(status)
    }
}

/// Returns the exit status of the first process after the second one has ended.
fn exit_code(status: ExitStatus) -> CommandResult {
    if let Some(code) = status.code() {
        return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
    }
    let signal = status.signal().unwrap_or_default();
    let hint = match signal == Signal::SYS.as_raw() {
        true => " after a system call that --seccomp does not permit",
        false => "",
    };
    Err(Failure::new(format!(
        "the serving process was ended by signal {signal}{hint}"
    )))
}

/// Ends this process, the second one, when the first one ends.
pub(super) fn end_with_parent() -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).map_err(Failure::new)
}
