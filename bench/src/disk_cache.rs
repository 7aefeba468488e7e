//! The table `disk-cache`: `barge mount` of a 9P server 1 ms away, with a disk cache (`cache_dir=`)
//! and without, compared with the local file system that is served. Each reads a large file and a
//! tree of small ones, over a mount with an empty cache and then over a second one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::context::Context;
use crate::mounted::Mounted;
use crate::process::{Process, free_port, require_root};
use crate::relay::Relay;
use crate::report::results::{Results, Row};
use crate::rounds::Rotation;
use crate::workspace::{SMALL_FILES_DIR, Workspace, drop_cache, file_name, read_file, write_data};
use command::Failure;

/// The data to read.
#[derive(Clone, Copy)]
enum Dataset {
    File,
    Tree,
}

/// The way to read it, in the order of the table.
#[derive(Clone, Copy, PartialEq)]
enum Column {
    DiskCache,
    Uncached,
    Local,
}

const COLUMNS: [Column; 3] = [Column::DiskCache, Column::Uncached, Column::Local];

/// The rows for each kind of data.
const MOUNTS: [&str; 2] = ["first mount", "next mount"];

/// Longer than the 10 s during which the disk cache does not store a changed file
/// (`docs/design/disk-cache.md`).
const SETTLE_TIME: Duration = Duration::from_secs(11);

/// Bytes in each file of the tree, and (below) files in each directory.
const FILE_SIZE: usize = 16 << 10;
const FILES_PER_DIR: usize = 50;

/// A 9P server, reached through a relay that adds the delay, and the directories of the bench.
struct Fixture {
    workspace: Workspace,
    url: String,
    _server: Process,
}

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    require_root("bench disk-cache mounts")?;
    let args = &args.with_default_runs(3);
    let workspace = Workspace::new_in(args, std::env::temp_dir())?;
    let size = u64::from(
        args.options
            .size
            .unwrap_or(if args.options.quick { 32 } else { 128 }),
    ) << 20;
    let files = if args.options.quick { 200 } else { 1000 };
    fill(&workspace.share, size, files)
        .map_err(|error| Failure::new(format!("{}: {error}", workspace.share.display())))?;
    sleep(SETTLE_TIME);
    let notes = vec![
        format!(
            "{} runs each, alternating, below {}; before each all caches in memory are empty, and the disk cache of the first mount is empty too",
            args.runs(),
            workspace.parent()
        ),
        format!(
            "file: {} MiB, read 1 MiB at a time; tree: {files} files of {} KiB, {FILES_PER_DIR} in a directory, listed and read one after the other",
            size >> 20,
            FILE_SIZE >> 10
        ),
        "9P over TCP through a relay on loopback that delays data by half a millisecond in each direction; ro,cache=mmap, without and with cache_dir=, \
         whose first mount ends before the next begins; local: the file system that is served, twice"
            .into(),
    ];
    let fixture = Fixture::start(workspace)?;
    let mut rows = Vec::new();
    for what in [Dataset::File, Dataset::Tree] {
        let name = |mount: &str| format!("{}, {mount}", what.name());
        if !MOUNTS.iter().any(|mount| args.selects(&name(mount))) {
            continue;
        }
        args.progress.plan(args.runs() * COLUMNS.len());
        let row = |mount| Row::new(name(mount), "MB/s", vec![Vec::new(); COLUMNS.len()]);
        let mut both = MOUNTS.map(row);
        let mut rotation = Rotation::of(COLUMNS.len());
        for round in 0..args.runs() {
            rotation.round(args, round, &mut both, |rows, column| {
                let rates = fixture.measure(what, COLUMNS[column]);
                let failed = |why| format!("{}, {}: {why}", COLUMNS[column].name(), what.name());
                for (row, rate) in rows.iter_mut().zip(rates.map_err(failed)?) {
                    row.runs[column].push(rate);
                }
                Ok(())
            })?;
        }
        rows.extend(both);
    }
    Ok(Results {
        title: "barge mount with and without a disk cache".into(),
        notes,
        missing: Vec::new(),
        servers: COLUMNS.map(|column| column.name().to_owned()).into(),
        peers: vec![1],
        limit: Some(2),
        rows,
    })
}

impl Dataset {
    fn name(self) -> &'static str {
        match self {
            Dataset::File => "file",
            Dataset::Tree => "tree",
        }
    }

    /// Reads the data below `root`; returns MB/s.
    fn read(self, root: &Path) -> io::Result<f64> {
        let started = Instant::now();
        let bytes = match self {
            Dataset::File => read_file(&root.join(DATA))?,
            Dataset::Tree => paths(&root.join(SMALL_FILES_DIR))?
                .iter()
                .try_fold(0, |sum, path| Ok::<_, io::Error>(sum + read_file(path)?))?,
        };
        Ok(bytes as f64 / 1e6 / started.elapsed().as_secs_f64())
    }
}

/// The large file.
const DATA: &str = "data";

impl Column {
    fn name(self) -> &'static str {
        match self {
            Column::DiskCache => "cache_dir",
            Column::Uncached => "without",
            Column::Local => "local",
        }
    }
}

impl Fixture {
    fn start(workspace: Workspace) -> Result<Fixture, Failure> {
        let port = free_port()?;
        let server = Process::serve(
            workspace.barge(),
            &workspace.share,
            &["--9p", &format!("tcp:127.0.0.1:{port}")],
        )?;
        let relay = Relay::start(([127, 0, 0, 1], port).into());
        let relay = relay.map_err(|error| Failure::new(format!("no relay: {error}")))?;
        Ok(Fixture {
            url: format!("9p://127.0.0.1:{}/", relay.port),
            workspace,
            _server: server,
        })
    }

    /// Reads over a mount with an empty disk cache, then over a second mount; returns MB/s of each.
    fn measure(&self, what: Dataset, column: Column) -> Result<[f64; 2], String> {
        let describe = |error: io::Error| error.to_string();
        let copies = self.workspace.run_dir.join("copies");
        match fs::remove_dir_all(&copies) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(describe(error)),
            _ => {}
        }
        let mut rates = [0.0; 2];
        for rate in &mut rates {
            drop_caches(&self.workspace.share).map_err(describe)?;
            if copies.exists() {
                drop_caches(&copies).map_err(describe)?;
            }
            let options = match column {
                Column::Local => {
                    *rate = what.read(&self.workspace.share).map_err(describe)?;
                    continue;
                }
                Column::Uncached => "ro,cache=mmap".into(),
                Column::DiskCache => format!("ro,cache=mmap,cache_dir={}", copies.display()),
            };
            let barge = self.workspace.barge();
            let mounted = Mounted::new(
                barge,
                &self.url,
                &options,
                self.workspace.run_dir.join("mounted"),
            )?;
            *rate = what.read(mounted.path()).map_err(describe)?;
            mounted.unmount()?;
        }
        Ok(rates)
    }
}

fn fill(share: &Path, size: u64, files: usize) -> io::Result<()> {
    write_data(&share.join(DATA), size)?;
    for number in 0..files {
        let dir = share
            .join(SMALL_FILES_DIR)
            .join((number / FILES_PER_DIR).to_string());
        fs::create_dir_all(&dir)?;
        let contents: Vec<u8> = (0..FILE_SIZE).map(|at| (at ^ number) as u8).collect();
        fs::write(dir.join(file_name(number)), contents)?;
    }
    Ok(())
}

/// Returns the files below `top`, directory by directory.
fn paths(top: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(top)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => files.extend(paths(&entry.path())?),
            false => files.push(entry.path()),
        }
    }
    Ok(files)
}

/// Drops the files below `top` from the kernel's page cache.
fn drop_caches(top: &Path) -> io::Result<()> {
    paths(top)?.iter().try_for_each(|path| drop_cache(path))
}
