//! File systems of a kind, each in a file of its own: for user 0, where there are loop devices.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, Weak};

use tempfile::TempDir;

/// A mounted file system.
pub(super) struct Disk {
    dir: TempDir,
}

/// How large it is: what mkfs.xfs wants at least. Little of it is ever there.
const SIZE: u64 = 1 << 30;

impl Disk {
    /// The one of this kind (`ext4`, `xfs`, `btrfs`) that is mounted, made if there is none; or why it cannot be.
    pub(super) fn get(kind: &'static str) -> Result<Arc<Disk>, String> {
        static DISKS: Mutex<Vec<(&str, Weak<Disk>)>> = Mutex::new(Vec::new());
        let mut disks = DISKS.lock().unwrap_or_else(|broken| broken.into_inner());
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
