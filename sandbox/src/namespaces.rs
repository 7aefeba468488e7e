//! Namespaces (namespaces(7)).

use std::fs;

use rustix::thread::{CapabilitySet, UnshareFlags};

use crate::{Error, at};

/// The kind of namespaces that confine a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// Those that the super-user creates: mount, network, IPC and PID.
    Privileged,
    /// The same, in a user namespace that maps this user to itself.
    User,
}

/// The capabilities to leave the first root, and to give up all others.
const SETUP: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::SETPCAP);

impl Namespaces {
    /// Returns the namespaces for this process. The super-user gets no user namespace, where it
    /// could act as no other user.
    pub fn for_this_process() -> Namespaces {
        match rustix::process::geteuid().is_root() || sys::caps::have_all(SETUP) {
            true => Namespaces::Privileged,
            false => Namespaces::User,
        }
    }

    /// Prepares the next child: it is in a PID namespace of its own, and may create the others. In
    /// a user namespace, this process enters that as well, and keeps access to all its files.
    pub fn prepare(self) -> Result<(), Error> {
        match self {
            Namespaces::Privileged => sys::namespaces::unshare(UnshareFlags::NEWPID)
                .map_err(at("creating a PID namespace")),
            Namespaces::User => {
                let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
                sys::namespaces::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWPID)
                    .map_err(at("creating a user namespace"))?;
                let write = |file: &str, text: String| {
                    fs::write(format!("/proc/self/{file}"), text).map_err(at(file))
                };
                write("setgroups", "deny".into())?;
                write("uid_map", format!("{uid} {uid} 1"))?;
                write("gid_map", format!("{gid} {gid} 1"))?;
                // A program that another user than 0 executes keeps no others.
                sys::caps::pass_on(SETUP).map_err(at("passing capabilities on"))
            }
        }
    }
}

/// Enters the namespaces that [`Namespaces::prepare`] permits.
pub(crate) fn enter() -> Result<(), Error> {
    sys::namespaces::unshare(UnshareFlags::NEWNS | UnshareFlags::NEWNET | UnshareFlags::NEWIPC)
        .map_err(at("creating namespaces"))
}
