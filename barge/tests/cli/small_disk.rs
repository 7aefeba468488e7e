//! Small file systems on loop devices.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// A mounted file system in a file, which is unmounted and removed when it is dropped.
pub(crate) struct SmallDisk(TempDir);

impl SmallDisk {
    /// Makes the file system with the command `mkfs`.
    pub(crate) fn new(mkfs: &[&str], bytes: u64) -> SmallDisk {
        let disk = SmallDisk::mounted_by(mkfs, bytes, &["mount", "-o", "loop"]);
        disk.expect("mounted")
    }

    /// Does the same with a command that mounts a file at a directory. Returns `None` if it fails.
    pub(crate) fn mounted_by(mkfs: &[&str], bytes: u64, mount: &[&str]) -> Option<SmallDisk> {
        let disk = SmallDisk(tempfile::tempdir().expect("a directory"));
        let file = disk.0.path().join("disk");
        let made = fs::File::create(&file).and_then(|file| file.set_len(bytes));
        made.expect("made");
        fs::create_dir(disk.path()).expect("made");
        let mut make = Command::new(mkfs[0]);
        make.args(&mkfs[1..]).arg(&file);
        assert!(make.output().expect("runs").status.success(), "{make:?}");
        let mut mount_it = Command::new(mount[0]);
        mount_it.args(&mount[1..]).args([&file, &disk.path()]);
        let mounted = mount_it.output().expect("runs");
        mounted.status.success().then_some(disk)
    }

    /// Returns the directory on which it is mounted.
    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("mounted")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}
