//! The table `mount`: `barge mount` of a directory compared with bindfs, another FUSE mount of one.
//! The kernel caches no names and attributes and requests them each time, so the table shows the
//! cost of a request. The kernel itself reads the contents of barge's files (passthrough), and
//! requests those of bindfs.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};

use crate::context::Context;
use crate::hardware_limit::HardwareLimit;
use crate::mounted::Mounted;
use crate::process::{Process, require_root};
use crate::report::results::Results;
use crate::rounds::{Cell, Measurement, measure_all};
use crate::workspace::{
    DATA_FILE, FILE_COUNT, SMALL_FILE_SIZE, SMALL_FILES_DIR, Workspace, file_name,
};
use command::Failure;
use command::tools::Tool;

/// The operations, with the numbers of concurrent programs.
const OPERATIONS: [(Operation, &[usize]); 5] = [
    (Operation::Stat, &[1, 2, 4]),
    (Operation::SmallFile, &[1, 4]),
    (Operation::Create, &[1, 4]),
    (Operation::ReadSmall, &[1, 2, 4]),
    (Operation::ReadLarge, &[1, 4]),
];

/// An operation that a program repeats.
#[derive(Clone, Copy)]
enum Operation {
    Stat,
    /// Opens a small file, reads it and closes it.
    SmallFile,
    /// Creates a file, writes, closes and removes it.
    Create,
    /// Reads 4 KiB at a scattered offset of a file.
    ReadSmall,
    /// Reads the next 1 MiB of a file.
    ReadLarge,
}

struct Workload {
    operation: Operation,
    programs: usize,
}

/// The state of a program.
struct Client {
    root: PathBuf,
    /// The program's index among `programs`: each has pages and files of its own.
    number: usize,
    programs: usize,
    file: File,
    buffer: Vec<u8>,
    /// Operations so far.
    count: usize,
}

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    require_root("bench mount mounts")?;
    let workspace = Workspace::with_files(args)?;
    let mut notes = vec![
        workspace.note(args),
        "barge: cache=none; bindfs: --multithreaded, with names and attributes that expire at once. The kernel reads contents itself from barge's files \
         (passthrough), and requests them from bindfs"
            .into(),
    ];
    let mut missing = Vec::new();
    let mut servers = vec![("barge".to_owned(), barge(&workspace)?)];
    let bindfs = bindfs(&workspace)?;
    let peers = bindfs.iter().map(|_| servers.len()).collect();
    match bindfs {
        Some(bindfs) => servers.push(("bindfs".into(), bindfs)),
        None => missing.push(Tool::BINDFS.missing_message()),
    }
    let loads: Vec<_> = workloads(args).collect();
    let rows = measure_all(args, &servers, &loads, &workspace.run_dir, &mut notes)?;
    Ok(Results {
        title: "A directory mounted with FUSE".into(),
        notes,
        missing,
        servers: servers.into_iter().map(|(name, _)| name).collect(),
        peers,
        limit: None,
        rows,
    })
}

fn barge(workspace: &Workspace) -> Result<Mounted, Failure> {
    let (source, at) = (
        workspace.share.display().to_string(),
        workspace.run_dir.join("barge"),
    );
    Mounted::new(workspace.barge(), &source, "cache=none", at).map_err(Failure::new)
}

/// Returns `None` if bindfs is not installed.
fn bindfs(workspace: &Workspace) -> Result<Option<Mounted>, Failure> {
    let at = workspace.run_dir.join("bindfs");
    fs::create_dir_all(&at).map_err(Failure::new)?;
    let mut command = Command::new(Tool::BINDFS.name);
    command
        .args(["-f", "--multithreaded", "-o"])
        .arg("attr_timeout=0,entry_timeout=0,negative_timeout=0")
        .args([&workspace.share, &at]);
    let Some(process) = Process::start(&mut command) else {
        return Ok(None);
    };
    Mounted::wait_for(process, at)
        .map(Some)
        .map_err(Failure::new)
}

fn workloads(args: &Context) -> impl Iterator<Item = Workload> {
    let all = OPERATIONS.into_iter().flat_map(|(operation, counts)| {
        counts.iter().map(move |&programs| Workload {
            operation,
            programs,
        })
    });
    all.filter(|load| args.selects(&load.name()))
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Operation::Stat => "stat",
            Operation::SmallFile => "open+read+close",
            Operation::Create => "create+write+close+unlink",
            Operation::ReadSmall => "4 KiB random read",
            Operation::ReadLarge => "1 MiB sequential read",
        }
    }
}

impl Cell<Mounted> for Workload {
    type Client = Client;

    fn name(&self) -> String {
        match self.programs {
            1 => self.operation.name().into(),
            many => format!("{}, {many} programs", self.operation.name()),
        }
    }

    fn unit(&self) -> (&'static str, f64) {
        match self.operation {
            Operation::ReadLarge => ("MB/s", LARGE as f64 / 1e6),
            _ => ("op/s", 1.0),
        }
    }

    fn connect(&self, mounted: &Mounted) -> Result<Vec<Client>, String> {
        let clients = (0..self.programs)
            .map(|number| Client::new(mounted.path(), number, self.programs))
            .collect::<io::Result<Vec<_>>>();
        clients.map_err(|error| format!("{}: {error}", mounted.path().display()))
    }

    fn pid(&self, mounted: &Mounted, _: &Client) -> u32 {
        mounted.pid()
    }

    fn run(&self, client: &mut Client, time: Duration, most: usize) -> Measurement {
        let began = Instant::now();
        let mut done = 0;
        while done < most && began.elapsed() < time {
            let step = client.step(self.operation);
            step.map_err(|error| vfs::Errno::from_raw(error.raw_os_error().unwrap_or(0)))?;
            done += 1;
        }
        Ok((done, began.elapsed()))
    }

    fn traced_operations(&self) -> Option<usize> {
        (self.programs == 1).then_some(500)
    }

    fn is_measured_at_rates(&self) -> bool {
        self.programs == 1 && !matches!(self.operation, Operation::ReadLarge)
    }

    fn limit(&self) -> Option<HardwareLimit> {
        None
    }
}

const SMALL: usize = 4 << 10;
const LARGE: usize = 1 << 20;

/// Distance in pages between successive small reads: too far for the kernel's read-ahead.
const STRIDE: usize = 7919;

impl Client {
    fn new(root: &Path, number: usize, programs: usize) -> io::Result<Client> {
        let file = File::open(root.join(DATA_FILE.0))?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
        Ok(Client {
            root: root.to_owned(),
            number,
            programs,
            file,
            buffer: vec![0; LARGE],
            count: 0,
        })
    }

    /// Does the next operation.
    fn step(&mut self, operation: Operation) -> io::Result<()> {
        let next = self.count * self.programs + self.number;
        self.count += 1;
        let small = || {
            self.root
                .join(SMALL_FILES_DIR)
                .join(file_name(next % FILE_COUNT))
        };
        match operation {
            Operation::Stat => small().symlink_metadata().map(drop),
            Operation::SmallFile => {
                let got = File::open(small())?.read_at(&mut self.buffer, 0)?;
                check(got, SMALL_FILE_SIZE)
            }
            Operation::Create => {
                let path = self.root.join(format!("made-{}", self.number));
                File::create_new(&path)?.write_all(&self.buffer[..SMALL_FILE_SIZE])?;
                fs::remove_file(path)
            }
            Operation::ReadSmall => self.read(next * STRIDE, SMALL),
            Operation::ReadLarge => self.read(next, LARGE),
        }
    }

    /// Reads the `number`th piece of `size` bytes; wraps to the first after the last.
    fn read(&mut self, number: usize, size: usize) -> io::Result<()> {
        let pieces = DATA_FILE.1 as usize / size;
        if size == LARGE && number % pieces < self.programs {
            fadvise(&self.file, 0, None, Advice::DontNeed)?;
        }
        let at = (number % pieces * size) as u64;
        let got = self.file.read_at(&mut self.buffer[..size], at)?;
        check(got, size)
    }
}

fn check(got: usize, wanted: usize) -> io::Result<()> {
    match got == wanted {
        true => Ok(()),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
