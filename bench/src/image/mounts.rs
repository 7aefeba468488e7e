//! The ways to mount an image, or a tree, at a directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};

use crate::process::{peak_memory, run_command};
use command::tools::{Tool, find};

/// The way to mount, in the order of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    /// `barge mount --fuse`.
    Barge,
    /// `barge mount`, which uses the kernel's EROFS.
    Default,
    /// `barge mount --fuse` without caches in the kernel.
    Uncached,
    /// A bind mount of the tree in memory.
    Tmpfs,
    /// A bind mount of the tree on the disk.
    Disk,
    Erofs,
    Squashfs,
    Erofsfuse,
    Squashfuse,
}

/// The storage of an image's contents.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    Plain,
    /// Uncompressed, and verified with hashes.
    Hashed,
    Lz4,
}

/// The trees and images to mount.
pub(super) struct MountSources<'a> {
    /// The program that packs and mounts.
    pub(super) barge: &'a Path,
    /// The tree in memory.
    pub(super) tmpfs: &'a Path,
    /// The tree on the disk.
    pub(super) tree: &'a Path,
    pub(super) erofs: &'a Path,
    pub(super) squashfs: &'a Path,
}

impl Column {
    pub(super) const ALL: [Column; 9] = [
        Column::Barge,
        Column::Default,
        Column::Uncached,
        Column::Tmpfs,
        Column::Disk,
        Column::Erofs,
        Column::Squashfs,
        Column::Erofsfuse,
        Column::Squashfuse,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Column::Barge => "barge mount --fuse",
            Column::Default => "barge mount",
            Column::Uncached => "--fuse, cache=none",
            Column::Tmpfs => "tmpfs",
            Column::Disk => "disk",
            Column::Erofs => "kernel EROFS",
            Column::Squashfs => "kernel squashfs",
            Column::Erofsfuse => "erofsfuse",
            Column::Squashfuse => "squashfuse",
        }
    }

    /// Mounts at `at`; a server, if any, runs in the background on return.
    pub(super) fn mount(self, what: &MountSources<'_>, at: &Path) -> Result<(), String> {
        match self {
            Column::Barge => barge(what, at, &["--fuse"]),
            Column::Default => barge(what, at, &[]),
            Column::Uncached => barge(what, at, &["--fuse", "-o", "cache=none"]),
            Column::Tmpfs => mount_bind(what.tmpfs, at).map_err(|error| error.to_string()),
            Column::Disk => mount_bind(what.tree, at).map_err(|error| error.to_string()),
            Column::Erofs => {
                // Since Linux 6.12 EROFS mounts a file without a loop device.
                let flags = MountFlags::RDONLY;
                let mounted = mount(what.erofs, at, "erofs", flags, None);
                mounted.or_else(|_| mount_loop("erofs", what.erofs, at))
            }
            Column::Squashfs => mount_loop("squashfs", what.squashfs, at),
            Column::Erofsfuse => mount_fuse(&Tool::EROFSFUSE, what.erofs, at),
            Column::Squashfuse => mount_fuse(&Tool::SQUASHFUSE, what.squashfs, at),
        }
    }

    /// Returns the image on the disk, if this column mounts one.
    pub(super) fn image<'a>(self, what: &MountSources<'a>) -> Option<&'a Path> {
        match self {
            Column::Barge
            | Column::Default
            | Column::Uncached
            | Column::Erofs
            | Column::Erofsfuse => Some(what.erofs),
            Column::Squashfs | Column::Squashfuse => Some(what.squashfs),
            // The tree itself is mounted.
            Column::Tmpfs | Column::Disk => None,
        }
    }

    /// Returns whether a user-space process serves the mount.
    pub(super) fn is_served(self) -> bool {
        match self {
            Column::Barge | Column::Uncached | Column::Erofsfuse | Column::Squashfuse => true,
            Column::Default | Column::Tmpfs | Column::Disk | Column::Erofs | Column::Squashfs => {
                false
            }
        }
    }
}

impl Storage {
    pub(super) const ALL: [Storage; 3] = [Storage::Plain, Storage::Hashed, Storage::Lz4];

    pub(super) fn name(self) -> &'static str {
        match self {
            Storage::Plain => "plain",
            Storage::Hashed => "hashes",
            Storage::Lz4 => "lz4",
        }
    }

    /// Packs `tree` into two images: barge's, and mksquashfs's if that is installed.
    pub(super) fn pack(
        self,
        barge: &Path,
        tree: &Path,
        erofs: &Path,
        squashfs: &Path,
    ) -> Result<(), String> {
        let plain: &[&str] = &["-noI", "-noD", "-noF", "-noX"];
        let codec: (&[&str], &[&str]) = match self {
            Storage::Plain => (&["--no-hashes"], plain),
            Storage::Hashed => (&[], plain),
            Storage::Lz4 => (
                &["--no-hashes", "--compress", "lz4"],
                &["-comp", "lz4", "-Xhc", "-b", "64K"],
            ),
        };
        let mut pack = Command::new(barge);
        run_command(pack.arg("pack").args(codec.0).arg(tree).arg(erofs))?;
        if find("mksquashfs").is_some() {
            let mut command = Command::new("mksquashfs");
            let options = ["-quiet", "-no-progress", "-noappend"];
            run_command(command.arg(tree).arg(squashfs).args(options).args(codec.1))?;
        }
        Ok(())
    }
}

fn barge(what: &MountSources<'_>, at: &Path, options: &[&str]) -> Result<(), String> {
    let mut command = Command::new(what.barge);
    command.arg("mount").args(options);
    run_command(command.arg(what.erofs).arg(at))
}

fn mount_loop(kind: &str, image: &Path, at: &Path) -> Result<(), String> {
    let mut command = Command::new("mount");
    run_command(
        command
            .args(["-t", kind, "-o", "loop,ro"])
            .arg(image)
            .arg(at),
    )
}

fn mount_fuse(tool: &Tool, image: &Path, at: &Path) -> Result<(), String> {
    match find(tool.name) {
        Some(program) => run_command(Command::new(program).arg(image).arg(at)),
        None => Err(format!("{} brings it", tool.install_command)),
    }
}

/// A mount, unmounted on drop.
pub(super) struct Mounted<'a> {
    at: &'a Path,
    unmounted: bool,
}

impl<'a> Mounted<'a> {
    pub(super) fn new(
        column: Column,
        what: &MountSources<'_>,
        at: &'a Path,
    ) -> Result<Mounted<'a>, String> {
        column.mount(what, at)?;
        Ok(Mounted::adopt(at))
    }

    /// Takes over the mount at `at`.
    pub(super) fn adopt(at: &'a Path) -> Mounted<'a> {
        Mounted {
            at,
            unmounted: false,
        }
    }

    pub(super) fn unmount(mut self) -> Result<(), String> {
        self.unmounted = true;
        let ended = unmount(self.at, UnmountFlags::empty());
        ended.map_err(|error| format!("umount: {error}"))
    }

    /// Returns the MiB used: by the page cache of the mount's files and of `image`, and by the
    /// server's own memory at its peak.
    pub(super) fn memory(&self, column: Column, image: Option<&Path>) -> Result<[f64; 2], String> {
        let mut find = Command::new("find");
        find.arg(self.at).args(image).args(["-type", "f", "-exec"]);
        find.args([
            "fincore",
            "--bytes",
            "--noheadings",
            "--output",
            "RES",
            "{}",
            "+",
        ]);
        let output = find.output().map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let cached: u64 = text.split_whitespace().flat_map(str::parse::<u64>).sum();
        let own = match column.is_served() {
            true => server(self.at).map_or(0, |pid| peak_memory(&pid)),
            false => 0,
        };
        Ok([cached, own].map(|bytes| bytes as f64 / f64::from(1 << 20)))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if !self.unmounted {
            // The caller reports the earlier error.
            let _ = unmount(self.at, UnmountFlags::DETACH);
        }
    }
}

/// Returns the directory in /proc of the process that serves the mount at `at`: it has `at` as an
/// argument.
fn server(at: &Path) -> Option<PathBuf> {
    let at = at.as_os_str().as_encoded_bytes();
    let ours = std::process::id().to_string();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let is_server = |process: &PathBuf| {
        let words = fs::read(process.join("cmdline")).unwrap_or_default();
        words.split(|&byte| byte == 0).any(|word| word == at)
    };
    processes
        .map(|process| process.path())
        .find(|process| !process.ends_with(&ours) && is_server(process))
}
