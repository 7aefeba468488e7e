//! The file systems to read from, each in a file on a loop device, and their contents.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::run_command;
use crate::workspace::{drop_cache, read_file};

/// The types of the file systems.
pub(super) const KINDS: [&str; 3] = ["ext4", "xfs", "btrfs"];

const KIB: u64 = 1 << 10;

/// The data and holes of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Data,
    Hole,
    /// Data and holes in alternation, each of so many bytes, and the kind of the first.
    Mixed(u64, First),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    Data,
    Hole,
}

/// All layouts.
pub(super) const LAYOUTS: [Layout; 10] = [
    Layout::Data,
    Layout::Hole,
    Layout::Mixed(4 * KIB, First::Data),
    Layout::Mixed(4 * KIB, First::Hole),
    Layout::Mixed(8 * KIB, First::Data),
    Layout::Mixed(8 * KIB, First::Hole),
    Layout::Mixed(16 * KIB, First::Data),
    Layout::Mixed(16 * KIB, First::Hole),
    Layout::Mixed(32 * KIB, First::Data),
    Layout::Mixed(32 * KIB, First::Hole),
];

impl Layout {
    pub(super) fn name(self) -> String {
        match self {
            Layout::Data => "whole data".into(),
            Layout::Hole => "whole hole".into(),
            Layout::Mixed(chunk, First::Data) => format!("{}K data first", chunk / KIB),
            Layout::Mixed(chunk, First::Hole) => format!("{}K hole first", chunk / KIB),
        }
    }

    /// Creates a file of this layout.
    fn make(self, path: &Path, size: u64) -> std::io::Result<()> {
        let file = File::create(path)?;
        file.set_len(size)?;
        let (chunk, first) = match self {
            Layout::Hole => return Ok(()),
            Layout::Data => (1 << 20, First::Data),
            Layout::Mixed(chunk, first) => (chunk, first),
        };
        let step = match self {
            Layout::Data => chunk,
            _ => 2 * chunk,
        };
        let begin = if first == First::Data { 0 } else { chunk };
        let block: Vec<u8> = (0..chunk).map(|at| (at | 1) as u8).collect();
        for at in (begin..size).step_by(step as usize) {
            file.write_all_at(&block, at)?;
        }
        file.sync_all()
    }
}

/// A mounted file system, unmounted on drop.
pub(super) struct Disk {
    top: PathBuf,
}

impl Disk {
    /// Makes a file system of `kind` below `run` with a file of `size` bytes of every layout;
    /// returns the reason if that is impossible.
    pub(super) fn make(kind: &str, run: &Path, size: u64) -> Result<Disk, String> {
        let top = run.join(kind);
        let describe = |error: std::io::Error| error.to_string();
        fs::create_dir_all(top.join("mounted")).map_err(describe)?;
        let image = top.join("image");
        // At least the minimum of each file system; the image file is sparse.
        let capacity = (2 * LAYOUTS.len() as u64 * size).max(1 << 30);
        let made = File::create(&image).and_then(|file| file.set_len(capacity));
        made.map_err(describe)?;
        run_command(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image))?;
        let mount = ["-t", kind, "-o", "loop"];
        let disk = Disk { top };
        run_command(
            Command::new("mount")
                .args(mount)
                .arg(&image)
                .arg(disk.path()),
        )?;
        // The kernel removes a loop device after its last user.
        fs::remove_file(&image).map_err(describe)?;
        for layout in LAYOUTS {
            let path = disk.path().join(layout.name());
            layout.make(&path, size).map_err(describe)?;
        }
        Ok(disk)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.top.join("mounted")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // An error means that it is not mounted.
        let _ = run_command(Command::new("umount").arg("-l").arg(self.path()));
    }
}

/// Loads all of a file into the page cache, or drops it from there.
pub(super) fn set_cached(path: &Path, cached: bool) -> std::io::Result<()> {
    match cached {
        true => read_file(path).map(drop),
        false => drop_cache(path),
    }
}
