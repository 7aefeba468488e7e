//! Facts about a host: this one, or a directory that a test has prepared.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use hostdir::HostDir;
use rustix::process::{Resource, geteuid, getrlimit};
use rustix::thread::CapabilitySet;
use sandbox::landlock::Support;

use crate::tools;

/// A host as a process sees it.
pub(super) struct Machine {
    /// Root directory.
    pub(super) root: PathBuf,
    /// Directories of programs.
    pub(super) program_dirs: Vec<PathBuf>,
    pub(super) is_root: bool,
    /// Effective capabilities of the process.
    pub(super) capabilities: CapabilitySet,
    /// The restrictions that Landlock can enforce.
    pub(super) landlock: Support,
    /// Hard limit of open files.
    pub(super) open_files: u64,
    /// Result of listening on the loopback address.
    pub(super) loopback: Result<(), String>,
    /// Result of opening a directory to serve.
    pub(super) directory: Result<(), String>,
}

impl Machine {
    pub(super) fn this() -> Machine {
        let listened = TcpListener::bind(("127.0.0.1", 0));
        let opened = HostDir::open(Path::new("."), hostdir::Options::default());
        Machine {
            root: "/".into(),
            program_dirs: tools::program_dirs(),
            is_root: geteuid().is_root(),
            capabilities: sys::caps::effective(),
            landlock: sandbox::landlock::support(),
            open_files: getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX),
            loopback: listened.map(drop).map_err(|error| error.to_string()),
            directory: opened.map(drop).map_err(|error| error.to_string()),
        }
    }

    /// Returns the contents of a file without surrounding white space, or `None` if it cannot be
    /// read.
    pub(super) fn read(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join(path)).ok()?;
        Some(text.trim().to_owned())
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Returns whether a device exists and can be opened.
    pub(super) fn device(&self, path: &str) -> Device {
        let path = self.root.join(path);
        match fs::OpenOptions::new().read(true).write(true).open(&path) {
            Ok(_) => Device::Accessible,
            Err(_) if path.exists() => Device::Inaccessible,
            Err(_) => Device::Missing,
        }
    }

    /// Returns the kernel release, as uname -r prints it.
    pub(super) fn kernel(&self) -> String {
        self.read("proc/sys/kernel/osrelease").unwrap_or_default()
    }

    /// Returns whether the kernel version is at least `least`.
    pub(super) fn kernel_at_least(&self, least: (u32, u32)) -> bool {
        let kernel = self.kernel();
        let mut numbers = kernel.split(|c: char| !c.is_ascii_digit());
        let mut next = || numbers.next().and_then(|number| number.parse().ok());
        (next().unwrap_or(0), next().unwrap_or(0)) >= least
    }

    /// Returns whether the kernel has a file system, registered or as a loadable module.
    pub(super) fn file_system(&self, name: &str) -> bool {
        let there = self.read("proc/filesystems").unwrap_or_default();
        let is_it = |line: &str| line.split_whitespace().next_back() == Some(name);
        there.lines().any(is_it) || self.module(name)
    }

    /// Returns whether the kernel has a module, built in or loadable (modules.dep(5)).
    pub(super) fn module(&self, name: &str) -> bool {
        let dir = format!("lib/modules/{}", self.kernel());
        let file = format!("/{name}.ko");
        let has = |list| {
            let list = self.read(&format!("{dir}/{list}")).unwrap_or_default();
            let first = |line: &str| {
                let path = line.split(':').next().unwrap_or_default();
                let end = path.find(".ko").map_or(path.len(), |at| at + 3);
                path[..end].ends_with(&file)
            };
            list.lines().any(first)
        };
        has("modules.builtin") || has("modules.dep")
    }
}

/// The state of a device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Device {
    Accessible,
    /// It exists, but this user may not open it.
    Inaccessible,
    Missing,
}
