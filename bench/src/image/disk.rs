//! A disk for the bench alone: its reads are counted, and its page cache can be dropped without
//! affecting other users'.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::{Advice, fadvise};
use rustix::mount::{UnmountFlags, unmount};

use crate::process::{run_command, wait_until};

/// The size in bytes, enough for the trees and all their images; the file is sparse.
const SIZE: u64 = 4 << 30;

/// A mounted ext4 on a loop device over a file, removed on drop.
pub(super) struct Disk {
    device: String,
    at: PathBuf,
}

/// The reads of a disk.
#[derive(Clone, Copy)]
pub(super) struct Reads {
    pub(super) requests: f64,
    pub(super) mib: f64,
}

impl Disk {
    /// Makes an empty disk below `run`; returns the reason if that is impossible.
    pub(super) fn make(run: &Path) -> Result<Disk, String> {
        let describe = |error: std::io::Error| error.to_string();
        let (file, at) = (run.join("disk.img"), run.join("disk"));
        fs::create_dir_all(&at).map_err(describe)?;
        let made = File::create(&file).and_then(|file| file.set_len(SIZE));
        made.map_err(describe)?;
        // Complete initialization now, so that the kernel does not write during the measurements.
        let now = ["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
        run_command(Command::new("mkfs.ext4").args(now).arg(&file))?;
        // Direct I/O avoids a second copy in the host's page cache; not every file system supports
        // it.
        let direct = losetup(&file, &["--direct-io=on"]);
        let device = direct.or_else(|_| losetup(&file, &[]))?;
        let disk = Disk { device, at };
        disk.mount("noatime")?;
        fs::remove_file(&file).map_err(describe)?;
        Ok(disk)
    }

    pub(super) fn path(&self) -> &Path {
        &self.at
    }

    /// Drops the disk from the kernel's caches, and leaves it mounted read-only.
    pub(super) fn drop_caches(&self) -> Result<(), String> {
        const LONG: Duration = Duration::from_secs(20);
        // A server of an image on it may not have exited yet.
        let left = || unmount(&self.at, UnmountFlags::empty()).is_ok();
        if !wait_until(LONG, left) {
            return Err(format!("{} is still in use", self.at.display()));
        }
        self.mount("ro,noatime")?;
        // If another mount namespace has a copy of the mount, the unmount has dropped no caches.
        drop_caches_below(&self.at).map_err(|error| error.to_string())
    }

    /// Makes the disk writable again.
    pub(super) fn remount_writable(&self) -> Result<(), String> {
        self.mount("remount,rw,noatime")
    }

    fn mount(&self, options: &str) -> Result<(), String> {
        let mut mount = Command::new("mount");
        run_command(mount.args(["-o", options, &self.device]).arg(&self.at))
    }

    /// Returns the reads of the disk so far (Documentation/block/stat.rst).
    pub(super) fn reads(&self) -> Result<Reads, String> {
        const SECTORS_PER_MIB: f64 = 2048.0;
        let name = self.device.trim_start_matches("/dev/");
        let stat = fs::read_to_string(format!("/sys/block/{name}/stat"));
        let stat = stat.map_err(|error| format!("{name}: {error}"))?;
        let mut fields = stat.split_whitespace().map(|field| field.parse::<f64>());
        let (requests, sectors) = (fields.next(), fields.nth(1));
        match (requests, sectors) {
            (Some(Ok(requests)), Some(Ok(sectors))) => Ok(Reads {
                requests,
                mib: sectors / SECTORS_PER_MIB,
            }),
            _ => Err(format!("expected figures of {name}, got '{stat}'")),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Errors mean that it is already removed. The kernel removes a loop device after its last
        // user.
        let _ = unmount(&self.at, UnmountFlags::DETACH);
        let _ = run_command(Command::new("losetup").args(["--detach", &self.device]));
    }
}

fn drop_caches_below(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() {
            drop_caches_below(&path)?;
        } else if kind.is_file() {
            fadvise(&File::open(path)?, 0, None, Advice::DontNeed)?;
        }
    }
    Ok(())
}

fn losetup(file: &Path, options: &[&str]) -> Result<String, String> {
    let mut losetup = Command::new("losetup");
    let losetup = losetup.args(["--find", "--show"]).args(options).arg(file);
    let output = losetup.output();
    let output = output.map_err(|error| format!("losetup: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}
