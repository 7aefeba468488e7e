//! File systems of given types, each in a file: for user 0, where loop devices are available.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tempfile::TempDir;

/// A mounted file system.
pub(super) struct Disk {
    dir: TempDir,
}

/// The size of the sparse file, in bytes: the minimum of mkfs.xfs.
const SIZE: u64 = 1 << 30;

impl Disk {
    /// Returns the mounted file system of this type (`ext4`, `xfs`, `btrfs`), creating it if there
    /// is none, or the reason why that is impossible.
    pub(super) fn get(kind: &'static str) -> Result<Arc<Disk>, String> {
        static DISKS: Mutex<Vec<(&str, Weak<Disk>)>> = Mutex::new(Vec::new());
        let mut disks = DISKS.lock();
        let there = disks.iter().filter(|(name, _)| *name == kind);
        if let Some(disk) = there.filter_map(|(_, disk)| disk.upgrade()).next() {
            return Ok(disk);
        }
        let disk = Arc::new(Disk::make(kind)?);
        disks.retain(|(_, disk)| disk.strong_count() > 0);
        disks.push((kind, Arc::downgrade(&disk)));
        Ok(disk)
    }

    fn make(kind: &str) -> Result<Disk, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("mounting needs root".into());
        }
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let image = dir.path().join("image");
        let made = std::fs::File::create(&image).and_then(|file| file.set_len(SIZE));
        made.map_err(|error| error.to_string())?;
        run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image))?;
        let disk = Disk { dir };
        std::fs::create_dir(disk.path()).map_err(|error| error.to_string())?;
        let mount = ["-t", kind, "-o", "loop"];
        run(Command::new("mount")
            .args(mount)
            .arg(image)
            .arg(disk.path()))?;
        Ok(disk)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg("-l").arg(self.path()));
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = Path::new(command.get_program()).display().to_string();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{name}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{name}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}
