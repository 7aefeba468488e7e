//! The table `objects`: a runtime starts from an image in an object store over a slow link, packed
//! in the order of a read trace of the same program. Compares barge's own mounts with the same
//! image on a local disk, mounted by the kernel.

mod store;

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use rustix::mount::{MountFlags, mount};

use self::store::{LATENCY, Store};
use super::mounts::Mounted;
use super::tree::{Program, Runtime};
use crate::context::Context;
use crate::process::{require_root, run_command, wait_until};
use crate::report::results::{Results, Row};
use crate::rounds::Rotation;
use crate::workspace::Workspace;
use command::Failure;

/// The way to mount, in the order of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    /// `barge mount`: the kernel's EROFS, from a local file that is filled when it is read.
    Lazy,
    /// `barge mount --fuse`.
    Fuse,
    /// The kernel's EROFS, with the image on the disk.
    Local,
}

impl Column {
    const ALL: [Column; 3] = [Column::Lazy, Column::Fuse, Column::Local];

    fn name(self) -> &'static str {
        match self {
            Column::Lazy => "barge mount",
            Column::Fuse => "barge mount --fuse",
            Column::Local => "kernel EROFS, local image",
        }
    }
}

/// The image: the storage of contents, with hashes unless it says otherwise.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Packing {
    Hashes,
    /// Without hashes, in the order of the tree: a read-ahead list needs hashes.
    Plain,
    Lz4,
    Zstd,
}

impl Packing {
    const ALL: [Packing; 4] = [Packing::Hashes, Packing::Lz4, Packing::Zstd, Packing::Plain];

    fn name(self) -> &'static str {
        match self {
            Packing::Hashes => "hashes",
            Packing::Plain => "plain, no trace",
            Packing::Lz4 => "lz4",
            Packing::Zstd => "zstd",
        }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Packing::Hashes => &[],
            Packing::Plain => &["--no-hashes"],
            Packing::Lz4 => &["--compress", "lz4"],
            Packing::Zstd => &["--compress", "zstd"],
        }
    }
}

/// A program, and the image that it starts from.
#[derive(Clone, Copy)]
struct Cell {
    runtime: Runtime,
    program: Program,
    packing: Packing,
}

impl Cell {
    fn name(&self) -> String {
        let (runtime, program) = (self.runtime.name(), self.program.name());
        format!("{runtime} {program}, {}", self.packing.name())
    }
}

/// The rows of a cell, with their units.
const FIGURES: [(&str, &str); 5] = [
    ("cold", "ms"),
    ("again", "ms"),
    ("warm", "ms"),
    ("requests", "number"),
    ("fetched", "KiB"),
];

struct Fixture {
    store: Store,
    run: PathBuf,
    barge: PathBuf,
}

pub(crate) fn run(args: &Context) -> Result<Results, Failure> {
    let args = &args.with_default_runs(3);
    require_root("bench objects mounts images with the kernel's EROFS")?;
    let workspace = Workspace::new_in(args, std::env::temp_dir())?;
    let fixture = Fixture::make(&workspace).map_err(Failure::new)?;
    let mut notes = vec![format!(
        "{} runs each, alternating, after one warm-up run, from before the mount until the program has ended; the store is in this process, \
         over a simulated link of {} ms and 1 Gbit/s; the local image and files of 'cache_dir' below {}",
        args.runs(),
        LATENCY.as_millis(),
        workspace.parent()
    )];
    notes.push(
        "cold: nothing of the image is on this host, or of the local image in memory; again: it is mounted again, with the files of 'cache_dir' \
         not in memory; warm: the program runs again in the same mount; requests and fetched: of the cold start"
            .into(),
    );
    let cells: Vec<Cell> = cells().filter(|cell| args.selects(&cell.name())).collect();
    args.plan(cells.len(), Column::ALL.len());
    let mut missing = Vec::new();
    let mut rows = Vec::new();
    for runtime in Runtime::ALL {
        let cells = cells.iter().filter(|cell| cell.runtime == runtime);
        let cells: Vec<_> = cells.collect();
        if cells.is_empty() {
            continue;
        }
        let tree = workspace.run_dir.join(runtime.name());
        if let Err(why) = runtime.make(&tree) {
            missing.push(format!("{} is missing: {why}", runtime.name()));
            continue;
        }
        for cell in cells {
            rows.extend(fixture.measure(&tree, cell, args)?);
        }
    }
    let local = Column::ALL
        .iter()
        .position(|&column| column == Column::Local);
    Ok(Results {
        title: "Start of a runtime from an image in an object store 20 ms away".into(),
        notes,
        missing,
        servers: Column::ALL.map(|column| column.name().to_owned()).into(),
        peers: local.into_iter().collect(),
        limit: None,
        rows,
    })
}

fn cells() -> impl Iterator<Item = Cell> {
    let runs = Runtime::ALL.into_iter().flat_map(|runtime| {
        let of = move |program| (runtime, program);
        Program::ALL.map(of)
    });
    runs.flat_map(|(runtime, program)| {
        Packing::ALL.map(|packing| Cell {
            runtime,
            program,
            packing,
        })
    })
}

impl Fixture {
    fn make(workspace: &Workspace) -> Result<Fixture, String> {
        let describe = |error: std::io::Error| error.to_string();
        let listener = TcpListener::bind("127.0.0.1:0").map_err(describe)?;
        let at = workspace.run_dir.join("mounted");
        fs::create_dir_all(&at).map_err(describe)?;
        Ok(Fixture {
            store: Store::at(listener).map_err(describe)?,
            run: workspace.run_dir.clone(),
            barge: workspace.barge.clone(),
        })
    }

    /// Measures the rows of a cell.
    fn measure(&self, tree: &Path, cell: &Cell, args: &Context) -> Result<Vec<Row>, Failure> {
        let trace = self.run.join("trace");
        let image = match cell.packing {
            Packing::Plain => self.pack(tree, cell.packing, None),
            packing => self
                .record(tree, cell, &trace)
                .and_then(|()| self.pack(tree, packing, Some(&trace))),
        };
        let image = image.map_err(|why| Failure::new(format!("{}: {why}", cell.name())))?;
        let nothing = vec![Vec::new(); Column::ALL.len()];
        let row =
            |(what, unit)| Row::new(format!("{}, {what}", cell.name()), unit, nothing.clone());
        let mut rows = Vec::from(FIGURES.map(row));
        let mut rotation = Rotation::of(Column::ALL.len());
        for round in 0..=args.runs() {
            rotation.round(args, round, &mut rows, |rows, slot| {
                let column = Column::ALL[slot];
                let figures = self.passes(cell, column, &image);
                let figures =
                    figures.map_err(|why| format!("{}, {}: {why}", column.name(), cell.name()))?;
                // The first round warms up.
                if round > 0 {
                    for (row, figure) in rows.iter_mut().zip(figures) {
                        row.runs[slot].push(figure);
                    }
                }
                Ok(())
            })?;
        }
        Ok(rows)
    }

    /// Records the reads of a program in the tree into `trace`.
    fn record(&self, tree: &Path, cell: &Cell, trace: &Path) -> Result<(), String> {
        let at = self.run.join("mounted");
        let image = self.run.join("image");
        run_command(
            Command::new(&self.barge)
                .args(["pack", "--quiet"])
                .arg(tree)
                .arg(&image),
        )?;
        let mut mount = Command::new(&self.barge);
        mount.args(["mount", "--fuse", "--record-trace"]).arg(trace);
        run_command(mount.arg(&image).arg(&at))?;
        let mounted = Mounted::adopt(&at);
        cell.runtime.run(cell.program, &at)?;
        mounted.unmount()?;
        const LONG: Duration = Duration::from_secs(20);
        // The mount process completes the trace when it exits, after the unmount.
        let whole = wait_until(LONG, || {
            fs::read_to_string(trace).is_ok_and(|lines| lines.ends_with('\n'))
        });
        fs::remove_file(&image).map_err(|error| error.to_string())?;
        match whole {
            true => Ok(()),
            false => Err("expected a trace, got none".into()),
        }
    }

    /// Packs the tree into the local image, and returns its bytes.
    fn pack(&self, tree: &Path, packing: Packing, trace: Option<&Path>) -> Result<Vec<u8>, String> {
        let image = self.run.join("image");
        let mut pack = Command::new(&self.barge);
        pack.args(["pack", "--quiet"]).args(packing.options());
        if let Some(trace) = trace {
            pack.arg("--trace").arg(trace);
        }
        run_command(pack.arg(tree).arg(&image))?;
        fs::read(&image).map_err(|error| error.to_string())
    }

    /// Mounts, runs and unmounts, twice; returns the figures.
    fn passes(
        &self,
        cell: &Cell,
        column: Column,
        image: &[u8],
    ) -> Result<[f64; FIGURES.len()], String> {
        let (at, kept) = (self.run.join("mounted"), self.run.join("kept"));
        if column != Column::Local {
            // An empty cache, also for the kernel.
            if let Err(error) = fs::remove_dir_all(&kept)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                return Err(error.to_string());
            }
            self.store.put(image.to_vec());
        }
        let ms = |began: Instant| began.elapsed().as_secs_f64() * 1e3;
        let mut figures = [0.0; FIGURES.len()];
        for figure in 0..2 {
            drop_from_memory(&self.run.join("image"))?;
            if let Ok(files) = fs::read_dir(&kept) {
                for file in files.flatten() {
                    drop_from_memory(&file.path())?;
                }
            }
            self.store.take_counts();
            let began = Instant::now();
            self.mount(column, &at, &kept)?;
            let mounted = Mounted::adopt(&at);
            cell.runtime.run(cell.program, &at)?;
            figures[figure] = ms(began);
            let counts = self.store.take_counts();
            if figure == 0 {
                figures[3] = f64::from(counts.requests);
                figures[4] = counts.bytes as f64 / 1024.0;
                let began = Instant::now();
                cell.runtime.run(cell.program, &at)?;
                figures[2] = ms(began);
            }
            mounted.unmount()?;
        }
        Ok(figures)
    }

    fn mount(&self, column: Column, at: &Path, kept: &Path) -> Result<(), String> {
        if column == Column::Local {
            let mounted = mount(
                self.run.join("image"),
                at,
                "erofs",
                MountFlags::RDONLY,
                None,
            );
            return mounted.map_err(|error| error.to_string());
        }
        let mut command = Command::new(&self.barge);
        command.arg("mount");
        if column == Column::Fuse {
            command.arg("--fuse");
        }
        let option = format!("cache_dir={}", kept.display());
        command.args(["-o", &option]).arg(self.store.url()).arg(at);
        run_command(&mut command)?;
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let expected = match column {
            Column::Fuse => " fuse",
            _ => " erofs ",
        };
        let shown = at.display().to_string();
        let is_expected = |line: &str| line.contains(&shown) && line.contains(expected);
        match mounts.lines().any(is_expected) {
            true => Ok(()),
            false => {
                drop(Mounted::adopt(at));
                Err("barge has mounted it in another way".into())
            }
        }
    }
}

/// Writes a file to its disk and drops it from the page cache.
fn drop_from_memory(path: &Path) -> Result<(), String> {
    let dropped = File::open(path).and_then(|file| {
        file.sync_all()?;
        Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
    });
    dropped.map_err(|error| format!("{}: {error}", path.display()))
}
