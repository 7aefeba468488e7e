//! Random operations on one file, compared with a model in memory, like fsx.
//!
//! Every read, through a file descriptor or a mapping, must return the model's bytes; every size
//! must be the model's. Two file descriptors are open at a time, and the page cache is dropped now
//! and then so that reads reach the server. Operations that the file system does not support
//! (writable mappings, fallocate) are skipped and reported at the end.
//!
//! Not supported: several processes, several files, unaligned direct I/O.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use vm_memory::mmap::MmapRegionError;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

/// Checks random reads, writes, truncations and mappings of a file against a model.
#[derive(Parser)]
struct Args {
    /// Number of operations
    #[arg(short = 'n', long, default_value_t = 100_000)]
    ops: u64,
    /// Seed of the random numbers
    #[arg(short, long, default_value_t = 1)]
    seed: u64,
    /// Largest size of the file
    #[arg(short = 'l', long, default_value_t = 256 << 10)]
    max_size: usize,
    /// Largest single read or write
    #[arg(long, default_value_t = 64 << 10)]
    max_io: usize,
    /// Leave out a kind of operation, where a client is known to fail it
    #[arg(long, value_name = "KIND")]
    without: Vec<Kind>,
    /// Fail if the file system has no writable shared mappings
    #[arg(long)]
    require_mmap: bool,
    /// The file, which is made and removed
    #[arg(default_value = "randomops.data")]
    file: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("randomops: seed {}: {error:#}", args.seed);
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let mut subject = TestFile::new(args)?;
    let mut history = Vec::new();
    for number in 0..args.ops {
        let op = subject.next_op();
        if op.kind().is_some_and(|kind| args.without.contains(&kind)) {
            continue;
        }
        if history.len() == HISTORY_LENGTH {
            history.remove(0);
        }
        history.push(format!("{number}: {op:?}"));
        subject
            .apply(&op)
            .with_context(|| format!("after {}", history.join("\n  ")))?;
    }
    subject.apply(&Op::Reopen(0))?;
    subject.apply(&Op::DropPages)?;
    subject.apply(&Op::Read {
        fd: 0,
        at: 0,
        len: args.max_size,
    })?;
    std::fs::remove_file(&args.file)?;
    ensure!(
        !args.require_mmap || subject.has_shared_mmap,
        "no writable shared mappings"
    );
    let missing: Vec<_> = [
        (subject.has_shared_mmap, "writable shared mappings"),
        (subject.has_fallocate, "fallocate"),
    ]
    .iter()
    .filter(|(has, _)| !has)
    .map(|(_, name)| *name)
    .collect();
    println!(
        "randomops: {} operations agree{}{}",
        args.ops,
        if missing.is_empty() { "" } else { "; without " },
        missing.join(", ")
    );
    Ok(())
}

/// Number of operations shown on a failure: enough to see the last change of a page.
const HISTORY_LENGTH: usize = 25;

/// Kinds of operations that can be disabled.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Kind {
    Append,
    MapRead,
    MapWrite,
    Truncate,
    Allocate,
    Punch,
    DropPages,
}

#[derive(Debug)]
enum Op {
    Read { fd: usize, at: usize, len: usize },
    Write { fd: usize, at: usize, len: usize },
    Append { both: bool, len: usize },
    MapRead { at: usize, len: usize },
    MapWrite { at: usize, len: usize },
    Truncate { fd: usize, size: usize },
    Allocate { at: usize, len: usize },
    Punch { at: usize, len: usize },
    Sync { fd: usize },
    Reopen(usize),
    DropPages,
    Size { fd: usize },
}

impl Op {
    fn kind(&self) -> Option<Kind> {
        Some(match self {
            Self::Append { .. } => Kind::Append,
            Self::MapRead { .. } => Kind::MapRead,
            Self::MapWrite { .. } => Kind::MapWrite,
            Self::Truncate { .. } => Kind::Truncate,
            Self::Allocate { .. } => Kind::Allocate,
            Self::Punch { .. } => Kind::Punch,
            Self::DropPages => Kind::DropPages,
            Self::Read { .. }
            | Self::Write { .. }
            | Self::Sync { .. }
            | Self::Reopen(_)
            | Self::Size { .. } => return None,
        })
    }
}

struct TestFile<'a> {
    args: &'a Args,
    path: &'a Path,
    model: Vec<u8>,
    files: [Arc<File>; 2],
    random: u64,
    last_pattern: u8,
    has_shared_mmap: bool,
    has_fallocate: bool,
}

impl<'a> TestFile<'a> {
    fn new(args: &'a Args) -> Result<Self> {
        ensure!(
            args.max_size > 0 && args.max_io > 0,
            "sizes must be above zero"
        );
        File::create(&args.file).with_context(|| format!("cannot make {}", args.file.display()))?;
        let files = [open(&args.file)?, open(&args.file)?];
        let random = args.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Ok(Self {
            args,
            path: &args.file,
            model: Vec::new(),
            files,
            random,
            last_pattern: 0,
            has_shared_mmap: true,
            has_fallocate: true,
        })
    }

    /// Draws the next operation. Weights favour data operations over expensive ones.
    fn next_op(&mut self) -> Op {
        let fd = self.random_below(2);
        let len = 1 + self.random_below(self.args.max_io);
        let at = self.random_below(self.args.max_size);
        // A range inside the file, for operations that must not reach beyond its end.
        let inside = |subject: &mut Self| {
            let at = subject.random_below(subject.model.len());
            (at, len.min(subject.model.len() - at))
        };
        match self.random_below(100) {
            0..30 => Op::Read { fd, at, len },
            30..55 => Op::Write {
                fd,
                at,
                len: len.min(self.args.max_size - at),
            },
            55..58 if self.model.len() + len <= self.args.max_size => Op::Append {
                both: self.random_below(2) == 1,
                len,
            },
            58..68 if !self.model.is_empty() => {
                let (at, len) = inside(self);
                Op::MapRead { at, len }
            }
            68..78 if !self.model.is_empty() && self.has_shared_mmap => {
                let (at, len) = inside(self);
                Op::MapWrite { at, len }
            }
            78..84 => Op::Truncate { fd, size: at },
            84..86 if self.has_fallocate => Op::Allocate {
                at,
                len: len.min(self.args.max_size - at),
            },
            86..88 if self.has_fallocate => Op::Punch { at, len },
            88..90 => Op::Sync { fd },
            90..93 => Op::Reopen(fd),
            93..95 => Op::DropPages,
            _ => Op::Size { fd },
        }
    }

    fn apply(&mut self, op: &Op) -> Result<()> {
        match *op {
            Op::Read { fd, at, len } => {
                let mut got = vec![0; len];
                let mut count = 0;
                while count < len {
                    match self.files[fd].read_at(&mut got[count..], (at + count) as u64)? {
                        0 => break,
                        more => count += more,
                    }
                }
                let end = self.model.len().min(at + len);
                compare("read", at, &self.model[at.min(end)..end], &got[..count])?;
            }
            Op::Write { fd, at, len } => {
                let bytes = self.new_data(len);
                self.files[fd].write_all_at(&bytes, at as u64)?;
                self.update_model(at, &bytes);
            }
            Op::Append { both, len } => {
                let bytes = self.new_data(len);
                // Clients may also cache pages of a file open for reading, and write them back
                // whole.
                OpenOptions::new()
                    .read(both)
                    .append(true)
                    .open(self.path)?
                    .write_all(&bytes)?;
                self.update_model(self.model.len(), &bytes);
            }
            Op::MapRead { at, len } => {
                // Programs and libraries are mapped like this, in every cache mode.
                let (map, skip) = self
                    .map(at, len, ProtFlags::READ, MapFlags::PRIVATE)
                    .context("a private mapping")?;
                let mut got = vec![0; len];
                map.get_slice(skip, len)?.copy_to(&mut got[..]);
                compare("mapped read", at, &self.model[at..at + len], &got)?;
            }
            Op::MapWrite { at, len } => match self.map(
                at,
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            ) {
                Ok((map, skip)) => {
                    let bytes = self.new_data(len);
                    map.get_slice(skip, len)?.copy_from(&bytes[..]);
                    self.update_model(at, &bytes);
                }
                // The error of v9fs without a cache; a supported mapping must not fail.
                Err(MmapRegionError::Mmap(error))
                    if matches!(
                        Errno::from_io_error(&error),
                        Some(Errno::NODEV | Errno::INVAL)
                    ) =>
                {
                    self.has_shared_mmap = false
                }
                Err(error) => return Err(error).context("a shared mapping"),
            },
            Op::Truncate { fd, size } => {
                self.files[fd].set_len(size as u64)?;
                self.model.resize(size, 0);
            }
            Op::Allocate { at, len } => {
                if self.fallocate(FallocateFlags::empty(), at, len)? {
                    self.model.resize(self.model.len().max(at + len), 0);
                }
            }
            Op::Punch { at, len } => {
                if self.fallocate(
                    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    at,
                    len,
                )? {
                    let end = self.model.len().min(at + len);
                    self.model[at.min(end)..end].fill(0);
                }
            }
            Op::Sync { fd } => self.files[fd].sync_all()?,
            Op::Reopen(fd) => self.files[fd] = open(self.path)?,
            Op::DropPages => {
                self.files[0].sync_data()?;
                fadvise(&*self.files[0], 0, None, Advice::DontNeed)?;
            }
            Op::Size { fd } => {
                for (how, size) in [
                    ("fstat", self.files[fd].metadata()?.size()),
                    ("stat", self.path.metadata()?.size()),
                ] {
                    ensure!(
                        size == self.model.len() as u64,
                        "{how} says {size} bytes, expected {}",
                        self.model.len()
                    );
                }
            }
        }
        Ok(())
    }

    /// Maps the pages around a range, which starts at the returned offset in the mapping.
    fn map(
        &self,
        at: usize,
        len: usize,
        access: ProtFlags,
        flags: MapFlags,
    ) -> Result<(MmapRegion, usize), MmapRegionError> {
        let skip = at % PAGE;
        let place = FileOffset::from_arc(Arc::clone(&self.files[0]), (at - skip) as u64);
        let map = MmapRegion::build(
            Some(place),
            len + skip,
            access.bits().cast_signed(),
            flags.bits().cast_signed(),
        )?;
        Ok((map, skip))
    }

    /// Returns `false`, and disables the operation, if the file system does not support it.
    fn fallocate(&mut self, flags: FallocateFlags, at: usize, len: usize) -> Result<bool> {
        match fallocate(&*self.files[0], flags, at as u64, len as u64) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP) => {
                self.has_fallocate = false;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns bytes that differ from all previous ones at this offset.
    fn new_data(&mut self, len: usize) -> Vec<u8> {
        self.last_pattern = if self.last_pattern == u8::MAX {
            1
        } else {
            self.last_pattern + 1
        };
        (0..len)
            .map(|index| self.last_pattern ^ (index / 256) as u8)
            .collect()
    }

    fn update_model(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.model.resize(self.model.len().max(end), 0);
        self.model[at..end].copy_from_slice(bytes);
    }

    /// Returns a random number below `limit` (xorshift64*).
    fn random_below(&mut self, limit: usize) -> usize {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let number = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((number * limit as u64) >> 32) as usize
    }
}

/// The page size of every kernel used.
const PAGE: usize = 4096;

fn open(path: &Path) -> Result<Arc<File>> {
    Ok(Arc::new(
        OpenOptions::new().read(true).write(true).open(path)?,
    ))
}

fn compare(how: &str, at: usize, expected: &[u8], got: &[u8]) -> Result<()> {
    ensure!(
        expected.len() == got.len(),
        "{how} at {at} gave {} bytes, expected {}",
        got.len(),
        expected.len()
    );
    if let Some(index) = expected
        .iter()
        .zip(got)
        .position(|(one, other)| one != other)
    {
        let wrong = expected
            .iter()
            .zip(got)
            .filter(|(one, other)| one != other)
            .count();
        bail!(
            "{how} at {at}: byte {} is {:#04x}, expected {:#04x} ({wrong} of {} bytes differ)",
            at + index,
            got[index],
            expected[index],
            got.len()
        );
    }
    Ok(())
}
