//! Confinement of a process that serves: it reaches the paths that it serves, and nothing else.
//!
//! Two processes take part. The first one prepares namespaces and starts the second one
//! ([`Namespaces::prepare`]). The second one calls [`Confinement::enter`] before it starts a
//! thread; all barriers hold for its later threads, and none can be removed:
//!
//! | barrier | holds back |
//! |---|---|
//! | root of its own ([`root`]) | other files, devices, the kernel's settings |
//! | network, IPC and PID namespaces | other hosts and processes |
//! | capabilities, `no_new_privs` | privileges that serving does not take |
//! | Landlock ([`landlock`]) | TCP, signals, abstract sockets; without a root of its own, files |
//! | system calls ([`seccomp`]) | parts of the kernel that serving does not use |

pub mod landlock;
mod namespaces;
pub mod root;
pub mod seccomp;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::thread::CapabilitySet;

pub use namespaces::{ChildNamespace, Namespaces};

/// A path that stays reachable, with everything below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisiblePath {
    /// The path as the process names it before and after; it may lead through symbolic links, and
    /// be relative.
    pub path: PathBuf,
    /// Whether files may be created, changed and removed.
    pub writable: bool,
}

impl VisiblePath {
    /// A path below which files may change.
    pub fn writable(path: PathBuf) -> VisiblePath {
        VisiblePath {
            path,
            writable: true,
        }
    }
}

/// An object of the host that stays reachable, with everything below it if it is a directory,
/// wherever its path leads by now.
#[derive(Debug)]
pub struct Object {
    /// Its number, which no other object of the process has. In a root of its own the object is at
    /// [`root::object_path`].
    pub number: u32,
    /// For a process that gets a root of its own a [copy](root::copy_object) of the object's mount,
    /// otherwise the object, opened with `O_PATH`.
    pub descriptor: OwnedFd,
    /// Whether files may be created, changed and removed.
    pub writable: bool,
}

/// The barriers around a process.
#[derive(Debug)]
pub struct Confinement {
    /// The paths that the process uses.
    pub paths: Vec<VisiblePath>,
    /// The objects that it uses.
    pub objects: Vec<Object>,
    /// Whether this process is the child that [`Namespaces::prepare`] has prepared. It then gets
    /// namespaces and, unless it connects to other hosts, a root that consists of the paths and
    /// objects.
    pub namespaces: bool,
    /// Whether Landlock's rules apply.
    pub landlock: bool,
    /// Whether files are opened by kernel file handles (open_by_handle_at(2)), which Landlock's
    /// rules for paths refuse at times.
    pub kernel_handles: bool,
    /// The capabilities to keep.
    pub capabilities: CapabilitySet,
    /// Whether the process connects to other hosts. It then has the network and the files of its
    /// parent, and may open sockets and load libraries, as looking up names takes.
    pub network: bool,
    /// Whether the process changes directories, or writes files. Otherwise it opens files to read
    /// them only.
    pub directories: bool,
    /// Whether the process watches directories for changes (fanotify(7)).
    pub changes: bool,
    /// The reaction to a system call that serving does not use.
    pub seccomp: seccomp::Action,
}

/// The reason why a barrier could not be put up.
#[derive(Debug)]
pub struct Error {
    step: String,
    source: io::Error,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sandbox: {}: {}", self.step, self.source)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Returns a function that adds the step to its error.
pub(crate) fn at<E: Into<io::Error>>(step: impl Into<String>) -> impl FnOnce(E) -> Error {
    let step = step.into();
    |source| Error {
        step,
        source: source.into(),
    }
}

impl Confinement {
    fn uses(&self) -> seccomp::Uses {
        seccomp::Uses {
            network: self.network,
            directories: self.directories,
            changes: self.changes,
        }
    }

    /// Confines the calling thread, which has to be the only one. Returns an error if a requested
    /// barrier cannot be put up; the process is then partly confined, and should end.
    pub fn enter(&self) -> Result<(), Error> {
        if self.namespaces {
            namespaces::enter(self.network)?;
            if !self.network {
                root::enter(&self.paths, &self.objects)?;
            }
        }
        sys::caps::limit(self.capabilities).map_err(at("dropping capabilities"))?;
        rustix::thread::set_no_new_privs(true).map_err(at("no_new_privs"))?;
        if self.landlock {
            let by_path = !self.namespaces && !self.kernel_handles;
            let reachable = by_path.then_some((&self.paths[..], &self.objects[..]));
            landlock::restrict(reachable, self.network).map_err(at("Landlock"))?;
        }
        seccomp::install(self.seccomp, self.uses()).map_err(at("seccomp"))
    }
}
