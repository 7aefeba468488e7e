//! Where a bench has its files, and which.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};

use super::BenchArgs;
use crate::Failure;

/// Files in the directory to look up, each of [`CONTENTS`] bytes.
pub(super) const FILES: usize = 10_000;
/// How much is in each of them.
pub(super) const CONTENTS: usize = 1024;
/// The file to read, and its size: well within the page cache.
pub(super) const DATA: (&str, u64) = ("data", 64 << 20);
/// How much of a file is written, over and over: little enough for a disk not to be what is measured.
pub(super) const OUT: u64 = 16 << 20;
/// The directory of the files.
pub(super) const MANY: &str = "many";

/// The files' names.
pub(super) fn file_name(number: usize) -> String {
    format!("file-{number:05}")
}

/// The next of some numbers that look random.
pub(super) fn next_random(mut x: u64) -> u64 {
    x ^= x << 13;
    x ^= x >> 7;
    x ^ (x << 17)
}

/// Where the bench has its files. Removed at the end.
pub(super) struct Place {
    top: PathBuf,
    /// What is served.
    pub(super) share: PathBuf,
    /// For sockets and logs.
    pub(super) run: PathBuf,
}

impl Place {
    /// One with files to measure with.
    pub(super) fn make(args: &BenchArgs) -> Result<Place, Failure> {
        let place = Place::empty(args)?;
        fill(&place.share)
            .map_err(|error| Failure::new(format!("{}: {error}", place.share.display())))?;
        Ok(place)
    }

    /// One of nothing but directories.
    pub(super) fn empty(args: &BenchArgs) -> Result<Place, Failure> {
        Place::below(args.dir.clone().unwrap_or_else(memory))
    }

    /// The same, below `parent`.
    pub(super) fn below(parent: PathBuf) -> Result<Place, Failure> {
        let top = parent.join(format!("barge-bench-{}", std::process::id()));
        let place = Place {
            share: top.join("share"),
            run: top.join("run"),
            top,
        };
        let failed =
            |error: std::io::Error| Failure::new(format!("{}: {error}", place.top.display()));
        fs::create_dir_all(place.share.join(MANY)).map_err(failed)?;
        fs::create_dir_all(&place.run).map_err(failed)?;
        Ok(place)
    }

    /// What all its files are below, for people.
    pub(super) fn parent(&self) -> std::path::Display<'_> {
        self.top.parent().unwrap_or(&self.top).display()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.top);
    }
}

/// What a disk is busy with is not what is measured.
fn memory() -> PathBuf {
    let shm = Path::new("/dev/shm");
    match shm.is_dir() {
        true => shm.into(),
        false => std::env::temp_dir(),
    }
}

/// Makes a file of `size` bytes, whole MiB, without a hole.
pub(super) fn write_data(path: &Path, size: u64) -> std::io::Result<File> {
    let mut data = File::create(path)?;
    let block: Vec<u8> = (0..1 << 20).map(|at: u32| (at ^ (at >> 8)) as u8).collect();
    for _ in 0..size / block.len() as u64 {
        data.write_all(&block)?;
    }
    Ok(data)
}

/// Reads a file, and says how many bytes it has.
pub(super) fn read(path: &Path) -> std::io::Result<u64> {
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

/// Has the kernel forget what it has of a file, which is read before: a virtual machine may give back to its host what is free for two seconds, and then each page of
/// it costs microseconds again. What is forgotten now is what the kernel takes next, if that is soon.
pub(super) fn forget(path: &Path) -> std::io::Result<()> {
    read(path)?;
    let file = File::open(path)?;
    // Only what is on the disk can be forgotten.
    file.sync_all()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

fn fill(share: &Path) -> std::io::Result<()> {
    write_data(&share.join(DATA.0), DATA.1)?;
    for number in 0..FILES {
        fs::write(share.join(MANY).join(file_name(number)), [7; CONTENTS])?;
    }
    Ok(())
}
