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
        let disk = SmallDisk(tempfile::tempdir().expect("a directory"));
        let file = disk.0.path().join("disk");
        let made = fs::File::create(&file).and_then(|file| file.set_len(bytes));
        made.expect("made");
        fs::create_dir(disk.path()).expect("made");
        for command in [
            Command::new(mkfs[0]).args(&mkfs[1..]).arg(&file),
            Command::new("mount")
                .args(["-o", "loop"])
                .args([&file, &disk.path()]),
        ] {
            assert!(command.status().expect("runs").success(), "{command:?}");
        }
        disk
    }

    /// Returns the directory on which it is mounted.
    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("mounted")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
