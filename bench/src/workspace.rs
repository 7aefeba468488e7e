//! The files and directories of a bench.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Advice, fadvise};

use crate::context::Context;
use command::Failure;

/// The number of files in the directory for lookups, each of [`SMALL_FILE_SIZE`] bytes.
pub(super) const FILE_COUNT: usize = 10_000;
/// The size of each of them in bytes.
pub(super) const SMALL_FILE_SIZE: usize = 1024;
/// The name and size of the file to read: well within the page cache.
pub(super) const DATA_FILE: (&str, u64) = ("data", 64 << 20);
/// The bytes of a file that are written over and over: few enough that the bench does not measure a
/// disk.
pub(super) const OUT_SIZE: u64 = 16 << 20;
/// The directory of the small files.
pub(super) const SMALL_FILES_DIR: &str = "many";

/// Returns the name of a small file.
pub(super) fn file_name(number: usize) -> String {
    format!("file-{number:05}")
}

/// Returns the next pseudorandom number after `x` (xorshift).
pub(super) fn next_random(mut x: u64) -> u64 {
    x ^= x << 13;
    x ^= x >> 7;
    x ^ (x << 17)
}

/// The directories of a bench, removed on drop.
pub(super) struct Workspace {
    top: PathBuf,
    /// The directory that is served.
    pub(super) share: PathBuf,
    /// The directory for sockets and logs.
    pub(super) run_dir: PathBuf,
    /// The program to measure.
    pub(super) barge: PathBuf,
}

impl Workspace {
    /// Creates the directories, and the files to measure with.
    pub(super) fn with_files(args: &Context) -> Result<Workspace, Failure> {
        let workspace = Workspace::new(args)?;
        create_files(&workspace.share)
            .map_err(|error| Failure::new(format!("{}: {error}", workspace.share.display())))?;
        Ok(workspace)
    }

    /// Creates the directories only.
    pub(super) fn new(args: &Context) -> Result<Workspace, Failure> {
        Workspace::new_in(args, memory_dir())
    }

    /// Creates the directories only, below the requested directory or else below `parent`.
    pub(super) fn new_in(args: &Context, parent: PathBuf) -> Result<Workspace, Failure> {
        let parent = args.options.dir.clone().unwrap_or(parent);
        let top = parent.join(format!("barge-bench-{}", std::process::id()));
        let workspace = Workspace {
            share: top.join("share"),
            run_dir: top.join("run"),
            top,
            barge: args.barge.clone(),
        };
        let failed =
            |error: std::io::Error| Failure::new(format!("{}: {error}", workspace.top.display()));
        fs::create_dir_all(workspace.share.join(SMALL_FILES_DIR)).map_err(failed)?;
        fs::create_dir_all(&workspace.run_dir).map_err(failed)?;
        Ok(workspace)
    }

    /// Returns a command for the program to measure, without arguments.
    pub(super) fn barge(&self) -> Command {
        Command::new(&self.barge)
    }

    /// Returns the note on how the table is measured.
    pub(super) fn note(&self, args: &Context) -> String {
        format!(
            "{} runs of {} ms each, alternating, after one warm-up run; all files below {}",
            args.runs(),
            args.run_time().as_millis(),
            self.parent()
        )
    }

    /// Returns the parent of all the files, for reports.
    pub(super) fn parent(&self) -> std::path::Display<'_> {
        self.top.parent().unwrap_or(&self.top).display()
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.top);
    }
}

/// Returns a directory in memory if there is one, so that other users of a disk do not disturb the
/// bench.
fn memory_dir() -> PathBuf {
    let shm = Path::new("/dev/shm");
    match shm.is_dir() {
        true => shm.into(),
        false => std::env::temp_dir(),
    }
}

/// Writes a file of `size` bytes, a multiple of 1 MiB, without holes.
pub(super) fn write_data(path: &Path, size: u64) -> std::io::Result<File> {
    let mut data = File::create(path)?;
    let block: Vec<u8> = (0..1 << 20).map(|at: u32| (at ^ (at >> 8)) as u8).collect();
    for _ in 0..size / block.len() as u64 {
        data.write_all(&block)?;
    }
    Ok(data)
}

/// Reads a file to its end; returns its size in bytes.
pub(super) fn read_file(path: &Path) -> std::io::Result<u64> {
    let mut file = File::open(path)?;
    let mut block = vec![0; 1 << 20];
    let mut sum = 0;
    loop {
        match file.read(&mut block)? {
            0 => return Ok(sum),
            got => sum += got as u64,
        }
    }
}

/// Drops a file from the kernel's page cache, after reading it. A virtual machine may return memory
/// to its host after it is free for two seconds, and then each page of it costs microseconds again;
/// the pages freed here are the next that the kernel allocates, if that is soon.
pub(super) fn drop_cache(path: &Path) -> std::io::Result<()> {
    read_file(path)?;
    let file = File::open(path)?;
    // Only clean pages can be dropped.
    file.sync_all()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

fn create_files(share: &Path) -> std::io::Result<()> {
    write_data(&share.join(DATA_FILE.0), DATA_FILE.1)?;
    for number in 0..FILE_COUNT {
        fs::write(
            share.join(SMALL_FILES_DIR).join(file_name(number)),
            [7; SMALL_FILE_SIZE],
        )?;
    }
    Ok(())
}
