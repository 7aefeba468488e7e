//! `--sandbox` and `--seccomp`: the process that serves is confined.
//!
//! There are two processes. The first one opens the socket, starts itself again as the second one,
//! waits for it, passes signals on and removes the socket. The second one confines itself and
//! serves; it ends if the first one does. With `--sandbox none` there is one process.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::ExitCode;

use rustix::process::Signal;
use rustix::thread::CapabilitySet;
use sandbox::{Confinement, Namespaces, VisiblePath};
use transports::Listener;

use super::args::{Handles, Sandbox, VirtiofsdArgs};
use crate::child::{self, End};
use crate::confinement::log_missing_barriers;
use crate::{CommandResult, Failure, signals};

impl VirtiofsdArgs {
    /// Confines this process, which serves `dir`.
    pub(super) fn confine(&self, dir: &Path, capabilities: CapabilitySet) -> Result<(), Failure> {
        if self.sandbox != Some(Sandbox::None) {
            log_missing_barriers();
        }
        // Opens a file of /proc that a root of its own does not have.
        let _ = sys::usage::running_threads();
        let confinement = Confinement {
            paths: vec![VisiblePath {
                path: dir.to_owned(),
                writable: !self.readonly,
            }],
            objects: Vec::new(),
            namespaces: self.in_namespaces(),
            landlock: self.sandbox != Some(Sandbox::None),
            kernel_handles: self.inode_file_handles != Handles::Never,
            capabilities,
            network: false,
            directories: true,
            changes: false,
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
        let child = child::command().args(more).spawn();
        let mut child = child.map_err(Failure::new)?;
        drop(socket);
        sys::caps::limit(CapabilitySet::empty()).map_err(Failure::new)?;
        let status = signals::wait_for_child(&mut child).map_err(Failure::new)?;
        match End::of(status) {
            End::Exit(code) => Ok(ExitCode::from(code)),
            End::Crash(why) => Err(Failure::new(format!("the serving process {why}"))),
        }
    }
}

/// Ends this process, the second one, when the first one ends.
pub(super) fn end_with_parent() -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).map_err(Failure::new)
}
