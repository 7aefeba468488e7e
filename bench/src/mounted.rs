//! A mount for the duration of a measurement.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};

use crate::process::{Process, wait_until};

/// A mount; dropping it unmounts it.
pub(super) struct Mounted {
    at: PathBuf,
    process: Process,
}

impl Mounted {
    /// Mounts `source` at the directory `at` with this program; `command` is the start of its
    /// command line.
    pub(super) fn new(
        mut command: Command,
        source: &str,
        options: &str,
        at: PathBuf,
    ) -> Result<Mounted, String> {
        std::fs::create_dir_all(&at).map_err(|error| format!("{}: {error}", at.display()))?;
        command
            .args(["mount", "-f", source, "-o", options])
            .arg(&at);
        let process = Process::start_barge(&mut command)?;
        Ok(Mounted { at, process })
    }

    /// Waits until `process`, a FUSE server of another project, has mounted its file system at the
    /// directory `at`. Returns an error after 5 s.
    pub(super) fn wait_for(process: Process, at: PathBuf) -> Result<Mounted, String> {
        let mounted = Mounted { at, process };
        let device = |path: &Path| Some(path.metadata().ok()?.dev());
        let above = mounted.at.parent().and_then(device);
        let is_there =
            || device(&mounted.at).is_some_and(|own| above.is_some_and(|above| own != above));
        match wait_until(Duration::from_secs(5), is_there) {
            true => Ok(mounted),
            false => Err(format!("{}: nothing is mounted", mounted.at.display())),
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Unmounts and waits until the process has ended, after it has written its cache.
    pub(super) fn unmount(mut self) -> Result<(), String> {
        unmount(&self.at, UnmountFlags::empty())
            .map_err(|errno| format!("{}: {errno}", self.at.display()))?;
        self.process.wait()
    }

    pub(super) fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // An error means that it is already unmounted.
        let _ = unmount(&self.at, UnmountFlags::DETACH);
    }
}
