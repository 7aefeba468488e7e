//! Control groups of Linux for the processes that a test starts.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A control group with a random name. Dropping it ends its processes, and removes it.
#[derive(Debug)]
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Creates a control group in `hierarchy`, a directory. Returns `None` if this process cannot.
    pub fn new(hierarchy: &Path) -> Option<ControlGroup> {
        let random = RandomState::new().build_hasher().finish();
        let dir = hierarchy.join(format!("barge-test-{random:016x}"));
        fs::create_dir(&dir).ok()?;
        Some(ControlGroup(dir))
    }

    /// Creates a control group whose processes have at most `limit` bytes of memory, of the
    /// system's cgroup version. Returns `None` if this process cannot.
    pub fn with_memory(limit: usize) -> Option<ControlGroup> {
        let versions = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        versions.iter().find_map(|(hierarchy, file)| {
            let group = ControlGroup::new(Path::new(hierarchy))?;
            fs::write(group.0.join(file), limit.to_string()).ok()?;
            Some(group)
        })
    }

    /// Returns its directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // A failed test may leave processes. Version 1 has no such file.
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        let deadline = Instant::now() + Duration::from_secs(20);
        while let Err(error) = fs::remove_dir(&self.0) {
            // A panic here would hide the failure of the test, or abort all tests.
            if error.kind() != ErrorKind::ResourceBusy || Instant::now() > deadline {
                return eprintln!("{} is left: {error}", self.0.display());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_group_is_removed_after_a_failure_also_with_a_process_in_it() {
        let groups = [(); 2].map(|()| ControlGroup::with_memory(64 << 20));
        let [Some(group), Some(other)] = groups else {
            return eprintln!("skipped: no writable control groups");
        };
        assert_ne!(group.path(), other.path());
        let path = group.path().to_owned();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("starts");
        let joined = fs::write(path.join("cgroup.procs"), child.id().to_string());
        joined.expect("joined");
        if !path.join("cgroup.kill").exists() {
            child.kill().expect("killed");
        }
        let failure = std::panic::AssertUnwindSafe(move || {
            let _group = group;
            panic!("a failure");
        });
        assert!(std::panic::catch_unwind(failure).is_err());
        let ended = child.try_wait();
        let _ = (child.kill(), child.wait());
        assert!(!path.exists());
        assert!(ended.expect("a child").is_some(), "it still runs");
    }
}
