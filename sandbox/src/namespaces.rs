//! Namespaces (namespaces(7)).

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::thread::{CapabilitySet, LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

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
    /// Returns an error without effect if the child could not leave the root: it is that of a
    /// chroot(2), which pivot_root(2) refuses.
    pub fn prepare(self) -> Result<(), Error> {
        check_root().map_err(at("a root of its own"))?;
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

/// Returns an error if the root is no mount point. Linux before 5.8 does not report that.
fn check_root() -> io::Result<()> {
    let root = statx(CWD, "/", AtFlags::empty(), StatxFlags::empty())?;
    let is_mount = StatxAttributes::MOUNT_ROOT;
    if root.stx_attributes_mask.contains(is_mount) && !root.stx_attributes.contains(is_mount) {
        return Err(io::Error::other("/ is no mount point, as in a chroot"));
    }
    Ok(())
}

/// Enters the namespaces that [`Namespaces::prepare`] permits, without those for mounts and the
/// network if the process connects to other hosts (`network`).
pub(crate) fn enter(network: bool) -> Result<(), Error> {
    let mut all = UnshareFlags::NEWIPC;
    all.set(UnshareFlags::NEWNS | UnshareFlags::NEWNET, !network);
    sys::namespaces::unshare(all).map_err(at("creating namespaces"))
}

/// The PID namespace of the children of the calling thread, which [`Namespaces::prepare`] replaces
/// by a new one for the next child.
#[derive(Debug)]
pub struct ChildNamespace(OwnedFd);

impl ChildNamespace {
    /// Returns the current one.
    pub fn current() -> io::Result<ChildNamespace> {
        let path = "/proc/thread-self/ns/pid_for_children";
        Ok(ChildNamespace(fs::File::open(path)?.into()))
    }

    /// Returns an error if it could not be [restored](Self::restore): it belongs to another user
    /// namespace.
    pub fn check(&self) -> Result<(), Error> {
        self.restore().map_err(at("returning to the PID namespace"))
    }

    /// Makes it that of later children again. Until then, the calling thread can start no threads.
    pub fn restore(&self) -> io::Result<()> {
        let kind = Some(LinkNameSpaceType::ProcessID);
        Ok(move_into_link_name_space(self.0.as_fd(), kind)?)
    }
}
