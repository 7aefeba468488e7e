//! The table `image`: a runtime starts from an image and runs a program, timed from before the
//! mount until after the unmount. Compares barge with the same tree in memory and on a disk, and
//! with images mounted by the kernel and by other programs.

mod disk;
mod mounts;
pub(super) mod object_store;
pub(super) mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rustix::mount::{UnmountFlags, unmount};

use self::disk::Disk;
use self::mounts::{Column, MountSources, Mounted, Storage};
use self::tree::{Program, Runtime};
use crate::context::Context;
use crate::process::{require_root, run_command};
use crate::report::results::{Results, Row, Summary};
use crate::rounds::Rotation;
use crate::workspace::Workspace;
use command::Failure;

/// A program and the storage of the image that it starts from.
struct Cell {
    runtime: Runtime,
    program: Program,
    stored: Storage,
}

/// The disk and the directories of the bench.
struct Fixture {
    disk: Disk,
    /// A directory in memory.
    tmpfs: PathBuf,
    /// The mount point.
    mount_point: PathBuf,
    barge: PathBuf,
}

/// The figures of one mount, run and unmount.
struct PassFigures {
    ms: f64,
    requests: f64,
    mib: f64,
    /// MiB in use at the end, if measured: by the page cache, and by the server.
    memory: Option<[f64; 2]>,
}

/// The rows of a cell with their units; "cold" starts with empty caches, "warm" with all of the
/// image cached.
const FIGURES: [(&str, &str); 6] = [
    ("cold", "ms"),
    ("warm", "ms"),
    ("cold, requests", "number"),
    ("cold, read", "MiB"),
    ("page cache", "MiB"),
    ("server's own memory, most", "MiB"),
];

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    let args = &args.with_default_runs(3);
    require_root("bench image makes a file system on a loop device, and mounts")?;
    let workspace = Workspace::new_in(args, std::env::temp_dir())?;
    let mut notes = vec![format!(
        "{} runs each, alternating, after one warm-up run; the images and the tree of 'disk' are on an ext4 on a loop device below {}; \
         before a cold run all caches are empty, and before a warm one the page cache has the whole image",
        args.runs(),
        workspace.parent()
    )];
    notes.push(
        "ratios are to the kernel's EROFS; requests and MiB are the disk's; page cache: its pages of the files and of the image after a cold run; \
         the server's own memory: its peak until then without the pages of its program; barge's cache may use 256 MiB of it"
            .into(),
    );
    let fixture = Fixture::make(&workspace).map_err(Failure::new)?;
    let mut columns = Vec::from(Column::ALL);
    let cells_of_all = Runtime::ALL.into_iter().flat_map(cells);
    let selected = cells_of_all.filter(|cell| args.selects(&cell.name()));
    args.plan(selected.count(), columns.len());
    let mut missing = Vec::new();
    let mut rows = Vec::new();
    let mut short = Vec::new();
    for runtime in Runtime::ALL {
        let cells: Vec<_> = cells(runtime)
            .filter(|cell| args.selects(&cell.name()))
            .collect();
        if cells.is_empty() {
            continue;
        }
        if let Err(why) = fixture.fill(runtime) {
            missing.push(format!("{} is missing: {why}", runtime.name()));
            continue;
        }
        if rows.is_empty() {
            columns.retain(
                |&column| match fixture.pass(&cells[0], column, (false, false)) {
                    Ok(_) => true,
                    Err(why) => {
                        missing.push(format!("{} is missing: {why}", column.name()));
                        false
                    }
                },
            );
        }
        for cell in cells {
            let measured = fixture.measure(&cell, &columns, args)?;
            short.extend(missed_targets(&cell.name(), &columns, &measured));
            rows.extend(measured);
        }
    }
    if !short.is_empty() {
        notes.push(format!("below target: {}", short.join("; ")));
    }
    let kernel = columns.iter().position(|&column| column == Column::Erofs);
    Ok(Results {
        title: "Start of a runtime from an image, from before the mount until after the unmount"
            .into(),
        notes,
        missing,
        servers: columns
            .iter()
            .map(|column| column.name().to_owned())
            .collect(),
        peers: kernel.into_iter().collect(),
        limit: columns.iter().position(|&column| column == Column::Tmpfs),
        rows,
    })
}

fn cells(runtime: Runtime) -> impl Iterator<Item = Cell> {
    let cell = move |program, stored| Cell {
        runtime,
        program,
        stored,
    };
    let of = move |program| Storage::ALL.map(|stored| cell(program, stored));
    Program::ALL.into_iter().flat_map(of)
}

impl Cell {
    fn name(&self) -> String {
        let (runtime, program) = (self.runtime.name(), self.program.name());
        format!("{runtime} {program}, {}", self.stored.name())
    }

    /// Returns the name of an image.
    fn image(&self, kind: &str) -> String {
        format!("{}-{}.{kind}", self.runtime.name(), self.stored.name())
    }
}

impl Fixture {
    fn make(workspace: &Workspace) -> Result<Fixture, String> {
        let [tmpfs, at] = ["tmpfs", "mounted"].map(|name| workspace.run_dir.join(name));
        for dir in [&tmpfs, &at] {
            fs::create_dir_all(dir).map_err(|error| error.to_string())?;
        }
        let mut mount = Command::new("mount");
        run_command(mount.args(["-t", "tmpfs", "none"]).arg(&tmpfs))?;
        let disk = Disk::make(&workspace.run_dir).inspect_err(|_| unmount_lazily(&tmpfs))?;
        let barge = workspace.barge.clone();
        Ok(Fixture {
            disk,
            tmpfs,
            mount_point: at,
            barge,
        })
    }

    /// Makes a runtime's tree, in memory and on the disk, and its images.
    fn fill(&self, runtime: Runtime) -> Result<(), String> {
        let name = runtime.name();
        self.disk.remount_writable()?;
        let tree = self.tmpfs.join(name);
        runtime.make(&tree)?;
        let mut copy = Command::new("cp");
        run_command(copy.arg("-a").arg(&tree).arg(self.disk.path().join(name)))?;
        for stored in Storage::ALL {
            let image = |kind| {
                self.disk
                    .path()
                    .join(format!("{name}-{}.{kind}", stored.name()))
            };
            stored.pack(&self.barge, &tree, &image("erofs"), &image("squashfs"))?;
        }
        Ok(())
    }

    /// Mounts, runs and unmounts; with empty caches if `cold`; measures memory if `weigh`.
    fn pass(
        &self,
        cell: &Cell,
        column: Column,
        (cold, weigh): (bool, bool),
    ) -> Result<PassFigures, String> {
        if cold {
            self.disk.drop_caches()?;
        }
        let on_disk = |name: String| self.disk.path().join(name);
        let name = cell.runtime.name();
        let [erofs, squashfs] = ["erofs", "squashfs"].map(|kind| on_disk(cell.image(kind)));
        let what = MountSources {
            barge: &self.barge,
            tmpfs: &self.tmpfs.join(name),
            tree: &on_disk(name.into()),
            erofs: &erofs,
            squashfs: &squashfs,
        };
        let before = self.disk.reads()?;
        let began = Instant::now();
        let mounted = Mounted::new(column, &what, &self.mount_point)?;
        cell.runtime.run(cell.program, &self.mount_point)?;
        let held = weigh.then(|| mounted.memory(column, column.image(&what)));
        mounted.unmount()?;
        let ms = began.elapsed().as_secs_f64() * 1e3;
        let after = self.disk.reads()?;
        Ok(PassFigures {
            ms,
            requests: after.requests - before.requests,
            mib: after.mib - before.mib,
            memory: held.transpose()?,
        })
    }

    /// Measures the last two figures.
    fn measure_memory(&self, cell: &Cell, column: Column) -> Result<[f64; 2], String> {
        let cold = self.pass(cell, column, (true, true))?;
        cold.memory.ok_or_else(|| "nothing was weighed".into())
    }

    /// Measures the first four figures.
    fn measure_times(&self, cell: &Cell, column: Column) -> Result<[f64; 4], String> {
        let cold = self.pass(cell, column, (true, false))?;
        let warm = self.pass(cell, column, (false, false))?;
        Ok([cold.ms, warm.ms, cold.requests, cold.mib])
    }

    /// Measures the rows of a cell.
    fn measure(
        &self,
        cell: &Cell,
        columns: &[Column],
        args: &Context,
    ) -> Result<Vec<Row>, Failure> {
        let nothing = vec![Vec::new(); columns.len()];
        let row =
            |(what, unit)| Row::new(format!("{}, {what}", cell.name()), unit, nothing.clone());
        let mut rows = Vec::from(FIGURES.map(row));
        let mut rotation = Rotation::of(columns.len());
        for round in 0..=args.runs() {
            rotation.round(args, round, &mut rows, |rows, slot| {
                let column = columns[slot];
                // The first round warms up: it measures memory instead of time.
                let found = match round {
                    0 => self
                        .measure_memory(cell, column)
                        .map(|held| (4, held.to_vec())),
                    _ => self
                        .measure_times(cell, column)
                        .map(|figures| (0, figures.to_vec())),
                };
                let (first, found) =
                    found.map_err(|why| format!("{}, {}: {why}", column.name(), cell.name()))?;
                for (row, figure) in rows[first..].iter_mut().zip(found) {
                    row.runs[slot].push(figure);
                }
                Ok(())
            })?;
        }
        Ok(rows)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        unmount_lazily(&self.tmpfs);
    }
}

fn unmount_lazily(at: &Path) {
    // An error means that it is already unmounted.
    let _ = unmount(at, UnmountFlags::DETACH);
}

/// Returns the targets that a cell misses, as ratios to the peers.
fn missed_targets(name: &str, columns: &[Column], rows: &[Row]) -> Vec<String> {
    let median = |row: usize, column: Column| {
        let at = columns.iter().position(|&other| other == column)?;
        Some(Summary::of(&rows[row].runs[at])?.median)
    };
    const THIRD: f64 = 1.0 / 3.0;
    let targets = [
        (1, Column::Tmpfs, 1.3),
        (0, Column::Erofs, 1.5),
        (0, Column::Squashfuse, THIRD),
        (1, Column::Squashfuse, THIRD),
        (0, Column::Erofsfuse, THIRD),
        (1, Column::Erofsfuse, THIRD),
    ];
    let beyond = |ours: Column, (row, peer, most): (usize, Column, f64)| {
        let times = median(row, ours)? / median(row, peer)?;
        let (when, ours, peer) = (FIGURES[row].0, ours.name(), peer.name());
        let beyond = || format!("{name}, {when}: {ours} {times:.2} of {most:.2} times {peer}");
        (times > most).then(beyond)
    };
    let of = |ours| {
        targets
            .into_iter()
            .filter_map(move |target| beyond(ours, target))
    };
    [Column::Barge, Column::Default]
        .into_iter()
        .flat_map(of)
        .collect()
}
