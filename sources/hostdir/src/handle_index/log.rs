//! A log of the locations of a handle index: appended when they change, never synchronised. A
//! killed program loses none, because the kernel has the data; after a power failure data that the
//! kernel had not written may be missing, and torn records are rejected.
//!
//! ```text
//! "barge names 1\n" | records: len u16 | number u64 | parent u64 | incarnation u64 | name | sum u32
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use vfs::{NodeId, siphash};

use super::Location;

/// The log file, locked against other writers.
pub(super) struct Log {
    file: File,
    path: PathBuf,
    records: usize,
}

const MAGIC: &[u8] = b"barge names 1\n";

/// An arbitrary constant key: the checksum detects accidents only.
const KEY: siphash::Key = *b"barge names sum ";

const HEAD: usize = 2 + 3 * 8;
const SUM: usize = 4;

impl Log {
    /// Opens the log at `path`, and returns it with its locations from the oldest to the newest. A
    /// file that is not a log is overwritten.
    pub(super) fn open(path: &Path) -> io::Result<(Log, Vec<(NodeId, Location)>)> {
        let mut file = open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let (locations, valid) = read(&bytes);
        file.set_len(valid as u64)?;
        file.seek(io::SeekFrom::End(0))?;
        if valid == 0 {
            file.write_all(MAGIC)?;
        }
        let log = Log {
            file,
            path: path.into(),
            records: locations.len(),
        };
        Ok((log, locations))
    }

    /// Returns the number of records in the log.
    pub(super) fn records(&self) -> usize {
        self.records
    }

    /// Appends locations.
    pub(super) fn append<'a>(
        &mut self,
        locations: impl Iterator<Item = (NodeId, &'a Location)>,
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        self.records += put(&mut bytes, locations);
        self.file.write_all(&bytes)
    }

    /// Replaces the contents with these locations.
    pub(super) fn rewrite<'a>(
        &mut self,
        locations: impl Iterator<Item = (NodeId, &'a Location)>,
    ) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let _ = std::fs::remove_file(&new);
        let mut file = open(&new)?;
        let mut bytes = MAGIC.to_vec();
        let records = put(&mut bytes, locations);
        let written = file
            .write_all(&bytes)
            .and_then(|()| std::fs::rename(&new, &self.path));
        if let Err(error) = written {
            // A part of it would take space on a full disk.
            let _ = std::fs::remove_file(&new);
            return Err(error);
        }
        (self.file, self.records) = (file, records);
        Ok(())
    }

    /// Makes writes fail with `ENOSPC` until the log is rewritten.
    #[cfg(test)]
    pub(super) fn fill_disk(&mut self) {
        let full = OpenOptions::new().write(true).open("/dev/full");
        self.file = full.expect("opened");
    }
}

/// Opens and locks the file at `path`.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    // The previous holder of the lock may have replaced the file.
    match std::fs::metadata(path)?.ino() == file.metadata()?.ino() {
        true => Ok(file),
        false => Err(io::ErrorKind::WouldBlock.into()),
    }
}

fn put<'a>(bytes: &mut Vec<u8>, locations: impl Iterator<Item = (NodeId, &'a Location)>) -> usize {
    let mut count = 0;
    for (id, location) in locations {
        let start = bytes.len();
        bytes.extend((location.name.len() as u16).to_le_bytes());
        for number in [id, location.parent, location.incarnation] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend_from_slice(&location.name);
        let sum = sum(&bytes[start..]);
        bytes.extend(sum);
        count += 1;
    }
    count
}

fn sum(record: &[u8]) -> [u8; SUM] {
    (siphash::hash(&KEY, record) as u32).to_le_bytes()
}

/// Returns the records in `bytes`, and the length of the valid prefix.
fn read(bytes: &[u8]) -> (Vec<(NodeId, Location)>, usize) {
    let mut locations = Vec::new();
    let Some(mut rest) = bytes.strip_prefix(MAGIC) else {
        return (locations, 0);
    };
    while let Some((location, after)) = record(rest) {
        locations.push(location);
        rest = after;
    }
    (locations, bytes.len() - rest.len())
}

fn record(bytes: &[u8]) -> Option<((NodeId, Location), &[u8])> {
    let len = u16::from_le_bytes(*bytes.first_chunk()?);
    let (body, rest) = bytes.split_at_checked(HEAD + usize::from(len))?;
    let (found, rest) = rest.split_first_chunk::<SUM>()?;
    let (head, name) = body.split_at(HEAD);
    if *found != sum(body) {
        return None;
    }
    let mut numbers = head[2..].chunks_exact(8).map(|bytes| {
        let bytes = bytes.try_into().expect("eight");
        u64::from_le_bytes(bytes)
    });
    let mut next = || numbers.next().expect("three");
    let (id, parent, incarnation) = (next(), next(), next());
    let name = name.into();
    Some((
        (
            id,
            Location {
                parent,
                name,
                incarnation,
            },
        ),
        rest,
    ))
}
