//! Ways to have an image, or a tree, at a directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};

use super::super::process::{call, own_memory, this_program};
use crate::tools::{Tool, find};

/// By what a tree is mounted, in the order of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    /// `barge mount --fuse`
    Barge,
    /// `barge mount`, which has the kernel mount it
    Default,
    /// The same, and the kernel keeps nothing of it.
    Uncached,
    /// The tree itself, in memory.
    Tmpfs,
    /// The tree itself, on the disk.
    Disk,
    Erofs,
    Squashfs,
    Erofsfuse,
    Squashfuse,
}

/// How an image's contents are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    Plain,
    /// As they are, and verified.
    Hashed,
    Lz4,
}

/// What is mounted.
pub(super) struct What<'a> {
    /// In memory.
    pub(super) tmpfs: &'a Path,
    /// On the disk.
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

    /// Mounts it at `at`; a server is in the background by then.
    pub(super) fn mount(self, what: &What<'_>, at: &Path) -> Result<(), String> {
        match self {
            Column::Barge => barge(what.erofs, at, &["--fuse"]),
            Column::Default => barge(what.erofs, at, &[]),
            Column::Uncached => barge(what.erofs, at, &["--fuse", "-o", "cache=none"]),
            Column::Tmpfs => mount_bind(what.tmpfs, at).map_err(|error| error.to_string()),
            Column::Disk => mount_bind(what.tree, at).map_err(|error| error.to_string()),
            Column::Erofs => {
                // From 6.12 on no loop device is needed.
                let flags = MountFlags::RDONLY;
                let mounted = mount(what.erofs, at, "erofs", flags, None);
                mounted.or_else(|_| by_loop("erofs", what.erofs, at))
            }
            Column::Squashfs => by_loop("squashfs", what.squashfs, at),
            Column::Erofsfuse => fuse(&Tool::EROFSFUSE, what.erofs, at),
            Column::Squashfuse => fuse(&Tool::SQUASHFUSE, what.squashfs, at),
        }
    }

    /// What of it is on the disk.
    pub(super) fn image<'a>(self, what: &What<'a>) -> Option<&'a Path> {
        match self {
            Column::Barge
            | Column::Default
            | Column::Uncached
            | Column::Erofs
            | Column::Erofsfuse => Some(what.erofs),
            Column::Squashfs | Column::Squashfuse => Some(what.squashfs),
            // It is what is mounted.
            Column::Tmpfs | Column::Disk => None,
        }
    }

    /// Whether a process serves it.
    pub(super) fn is_served(self) -> bool {
        match self {
            Column::Barge | Column::Uncached | Column::Erofsfuse | Column::Squashfuse => true,
            Column::Default | Column::Tmpfs | Column::Disk | Column::Erofs | Column::Squashfs => {
                false
            }
        }
    }
}

impl Stored {
    pub(super) const ALL: [Stored; 3] = [Stored::Plain, Stored::Hashed, Stored::Lz4];

    pub(super) fn name(self) -> &'static str {
        match self {
            Stored::Plain => "plain",
            Stored::Hashed => "hashes",
            Stored::Lz4 => "lz4",
        }
    }

    /// Packs `tree` into two images: barge's, and mksquashfs's if there is such a program.
    pub(super) fn pack(self, tree: &Path, erofs: &Path, squashfs: &Path) -> Result<(), String> {
        let plain: &[&str] = &["-noI", "-noD", "-noF", "-noX"];
        let codec: (&[&str], &[&str]) = match self {
            Stored::Plain => (&["--no-hashes"], plain),
            Stored::Hashed => (&[], plain),
            Stored::Lz4 => (
                &["--no-hashes", "--compress", "lz4"],
                &["-comp", "lz4", "-Xhc", "-b", "64K"],
            ),
        };
        let mut pack = this_program()?;
        call(pack.arg("pack").args(codec.0).arg(tree).arg(erofs))?;
        if find("mksquashfs").is_some() {
            let mut command = Command::new("mksquashfs");
            let options = ["-quiet", "-no-progress", "-noappend"];
            call(command.arg(tree).arg(squashfs).args(options).args(codec.1))?;
        }
        Ok(())
    }
}

fn barge(image: &Path, at: &Path, options: &[&str]) -> Result<(), String> {
    let mut command = this_program()?;
    command.arg("mount").args(options);
    call(command.arg(image).arg(at))
}

fn by_loop(kind: &str, image: &Path, at: &Path) -> Result<(), String> {
    let mut command = Command::new("mount");
    call(
        command
            .args(["-t", kind, "-o", "loop,ro"])
            .arg(image)
            .arg(at),
    )
}

fn fuse(tool: &Tool, image: &Path, at: &Path) -> Result<(), String> {
    match find(tool.name) {
        Some(program) => call(Command::new(program).arg(image).arg(at)),
        None => Err(format!("{} brings it", tool.bring)),
    }
}

/// Gone when dropped.
pub(super) struct Mounted<'a> {
    at: &'a Path,
    gone: bool,
}

impl<'a> Mounted<'a> {
    pub(super) fn new(
        column: Column,
        what: &What<'_>,
        at: &'a Path,
    ) -> Result<Mounted<'a>, String> {
        column.mount(what, at)?;
        Ok(Mounted::of(at))
    }

    /// What is mounted at `at`.
    pub(super) fn of(at: &'a Path) -> Mounted<'a> {
        Mounted { at, gone: false }
    }

    pub(super) fn end(mut self) -> Result<(), String> {
        self.gone = true;
        let ended = unmount(self.at, UnmountFlags::empty());
        ended.map_err(|error| format!("umount: {error}"))
    }

    /// MiB that are held for it: what the kernel keeps of its files and of `image`, and what whoever serves it has had of its own at most.
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
        let kept: u64 = text.split_whitespace().flat_map(str::parse::<u64>).sum();
        let own = match column.is_served() {
            true => server(self.at).map_or(0, |pid| own_memory(&pid)),
            false => 0,
        };
        Ok([kept, own].map(|bytes| bytes as f64 / f64::from(1 << 20)))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if !self.gone {
            // Whatever went wrong before is what is told.
            let _ = unmount(self.at, UnmountFlags::DETACH);
        }
    }
}

/// The directory in /proc of who serves the mount at `at`: a process in the background that was told so.
fn server(at: &Path) -> Option<PathBuf> {
    let at = at.as_os_str().as_encoded_bytes();
    let ours = std::process::id().to_string();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let told = |process: &PathBuf| {
        let words = fs::read(process.join("cmdline")).unwrap_or_default();
        words.split(|&byte| byte == 0).any(|word| word == at)
    };
    processes
        .map(|process| process.path())
        .find(|process| !process.ends_with(&ours) && told(process))
}
