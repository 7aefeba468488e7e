//! The table `pack`: sizes and build times of images of a tree, made by `barge pack`, mkfs.erofs
//! and mksquashfs, each with the same codec, level and cluster size (squashfs: block size).
//!
//! Trees and images are in memory, so that the table does not measure a disk. A peer without a
//! codec is listed, and has no figures in that codec's rows.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::context::Context;
use crate::image::tree::Runtime;
use crate::process::{children_time, run_command};
use crate::report::results::{Results, Row};
use crate::workspace::Workspace;
use command::Failure;
use command::tools::{Tool, find};

/// The tree to pack.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tree {
    /// Python's standard library: many small files, some of them equal.
    Python,
    /// One large program and a hundred small files.
    Node,
    /// Large archives, some of them compressed already.
    Java,
}

/// The storage of contents, in the order of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Storage {
    Plain,
    /// Uncompressed, with equal chunks of 64 KiB stored once.
    Chunks,
    Lz4,
    Zstd,
}

/// The program that packs, in the order of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Barge,
    Erofs,
    /// mkfs.erofs that also packs ends of files and small files together (tail packing and
    /// fragments).
    ErofsDense,
    Squashfs,
}

/// The rows of a cell, with their units.
const FIGURES: [(&str, &str); 3] = [("size", "MiB"), ("time", "ms"), ("processors", "ms")];

/// The figures of an image: its size, the time to make it, and the processor time.
struct PackFigures {
    bytes: u64,
    wall_time: Duration,
    cpu_time: Duration,
}

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    let args = &args.with_default_runs(3);
    let workspace = Workspace::new(args)?;
    let trees: Vec<_> = (Tree::ALL.into_iter())
        .filter(|&tree| !args.options.quick || tree == Tree::Python)
        .filter(|tree| {
            Storage::ALL
                .iter()
                .any(|stored| args.selects(&stored.row_name(*tree)))
        })
        .collect();
    let mut missing = Vec::new();
    let mut columns = Vec::from(Column::ALL);
    columns.retain(|column| match column.program(&args.barge) {
        Ok(_) => true,
        Err(why) => {
            missing.push(format!("{}: {why}", column.name()));
            false
        }
    });
    let mut rows = Vec::new();
    for tree in trees {
        let at = workspace.share.join(tree.name());
        if let Err(why) = tree.make(&at) {
            missing.push(format!("{} is missing: {why}", tree.name()));
            continue;
        }
        for stored in Storage::ALL {
            if args.selects(&stored.row_name(tree)) {
                let image = workspace.run_dir.join("image");
                rows.extend(measure(
                    args,
                    &columns,
                    (tree, stored),
                    (&at, &image),
                    &mut missing,
                )?);
            }
        }
        fs::remove_dir_all(&at).map_err(Failure::new)?;
    }
    missing.sort();
    missing.dedup();
    Ok(Results {
        title: "Images of a tree: sizes and build times".into(),
        notes: vec![
            format!(
                "{} runs each, alternating; trees and images below {}, all in caches; processors: processor time of all threads",
                args.runs(),
                workspace.parent()
            ),
            "lz4: high compression, level 9 (mksquashfs has only level 12); zstd: level 3; clusters and blocks of 64 KiB; no hashes; dense: \
             -Eztailpacking,fragments"
                .into(),
        ],
        missing,
        servers: columns.iter().map(|column| column.name().into()).collect(),
        peers: (1..columns.len()).collect(),
        limit: None,
        rows,
    })
}

/// Measures the rows of a tree with one kind of storage.
fn measure(
    args: &Context,
    columns: &[Column],
    (tree, stored): (Tree, Storage),
    (at, image): (&Path, &Path),
    missing: &mut Vec<String>,
) -> Result<Vec<Row>, Failure> {
    let mut figures = vec![vec![Vec::new(); columns.len()]; FIGURES.len()];
    let mut able: Vec<_> = (0..columns.len()).collect();
    able.retain(|&column| columns[column].options(stored).is_some());
    args.plan(1, able.len());
    for round in 0..=args.runs() {
        let first = round % able.len().max(1);
        for position in 0..able.len() {
            let column = able[(position + first) % able.len()];
            let made = columns[column].pack(&args.barge, stored, at, image);
            args.progress.advance()?;
            match made {
                // The first round warms up, and finds the programs that lack the codec.
                Ok(_) if round == 0 => {}
                Ok(made) => {
                    let of_run = [
                        made.bytes as f64 / f64::from(1 << 20),
                        made.wall_time.as_secs_f64() * 1e3,
                        made.cpu_time.as_secs_f64() * 1e3,
                    ];
                    for (row, figure) in figures.iter_mut().zip(of_run) {
                        row[column].push(figure);
                    }
                }
                Err(why) if column == 0 => {
                    args.progress
                        .report_failure(format!("{}: {why}", stored.row_name(tree)));
                    return Ok(Vec::new());
                }
                Err(why) if round == 0 => {
                    let why = why.lines().next().unwrap_or_default().to_owned();
                    missing.push(format!(
                        "{}, {}: {why}",
                        columns[column].name(),
                        stored.name()
                    ));
                }
                // The first round has reported it.
                Err(_) => {}
            }
        }
    }
    let row =
        |((what, unit), runs)| Row::new(format!("{}, {what}", stored.row_name(tree)), unit, runs);
    Ok(FIGURES.into_iter().zip(figures).map(row).collect())
}

impl Tree {
    const ALL: [Tree; 3] = [Tree::Python, Tree::Node, Tree::Java];

    fn name(self) -> &'static str {
        match self {
            Tree::Python => "python",
            Tree::Node => Runtime::Node.name(),
            Tree::Java => Runtime::Java.name(),
        }
    }

    /// Makes the tree at `top`; returns the reason if that is impossible.
    fn make(self, top: &Path) -> Result<(), String> {
        match self {
            Tree::Python => {
                // The system's Python: another one may have installed packages below its library.
                let python = Path::new("/usr/bin/python3");
                if !python.exists() {
                    return Err("Debian's package python3 brings it".into());
                }
                let which = "import sysconfig; print(sysconfig.get_path('stdlib'))";
                let output = Command::new(python).args(["-c", which]).output();
                let output = output.map_err(|error| format!("python3: {error}"))?;
                let library = String::from_utf8_lossy(&output.stdout);
                run_command(Command::new("cp").arg("-a").arg(library.trim()).arg(top))
            }
            Tree::Node => Runtime::Node.make(top),
            Tree::Java => Runtime::Java.make(top),
        }
    }
}

impl Storage {
    const ALL: [Storage; 4] = [Storage::Plain, Storage::Chunks, Storage::Lz4, Storage::Zstd];

    fn name(self) -> &'static str {
        match self {
            Storage::Plain => "plain",
            Storage::Chunks => "chunks",
            Storage::Lz4 => "lz4",
            Storage::Zstd => "zstd",
        }
    }

    fn row_name(self, tree: Tree) -> String {
        format!("{} {}", tree.name(), self.name())
    }
}

impl Column {
    const ALL: [Column; 4] = [
        Column::Barge,
        Column::Erofs,
        Column::ErofsDense,
        Column::Squashfs,
    ];

    fn name(self) -> &'static str {
        match self {
            Column::Barge => "barge",
            Column::Erofs => "mkfs.erofs",
            Column::ErofsDense => "mkfs.erofs, dense",
            Column::Squashfs => "mksquashfs",
        }
    }

    /// Returns the program, or the hint to install it; `barge` is barge's. `BARGE_MKFS_EROFS` may
    /// name another mkfs.erofs, such as a newer one than the system's.
    fn program(self, barge: &Path) -> Result<PathBuf, String> {
        let tool = match self {
            Column::Barge => {
                return Ok(barge.into());
            }
            Column::Erofs | Column::ErofsDense => {
                if let Some(program) = std::env::var_os("BARGE_MKFS_EROFS") {
                    return Ok(program.into());
                }
                Tool::MKFS_EROFS
            }
            Column::Squashfs => Tool::MKSQUASHFS,
        };
        find(tool.name).ok_or_else(|| tool.missing_message())
    }

    /// Returns the options for this storage; `None` if the program does not support it.
    fn options(self, stored: Storage) -> Option<&'static [&'static str]> {
        Some(match (self, stored) {
            (Column::Barge, Storage::Plain) => &[],
            (Column::Barge, Storage::Chunks) => &["--dedupe", "--chunksize=64K"],
            (Column::Barge, Storage::Lz4) => &["--compress=lz4", "--level=9"],
            (Column::Barge, Storage::Zstd) => &["--compress=zstd", "--level=3"],
            (Column::Erofs, Storage::Plain) => &[],
            (Column::Erofs, Storage::Chunks) => &["--chunksize=65536"],
            (Column::Erofs, Storage::Lz4) => &["-zlz4hc,9", "-C65536"],
            (Column::Erofs, Storage::Zstd) => &["-zzstd,3", "-C65536"],
            (Column::ErofsDense, Storage::Lz4) => {
                &["-zlz4hc,9", "-C65536", "-Eztailpacking,fragments"]
            }
            (Column::ErofsDense, Storage::Zstd) => {
                &["-zzstd,3", "-C65536", "-Eztailpacking,fragments"]
            }
            (Column::Squashfs, Storage::Plain) => &["-noI", "-noD", "-noF", "-noX"],
            (Column::Squashfs, Storage::Lz4) => &["-comp", "lz4", "-Xhc", "-b", "64K"],
            (Column::Squashfs, Storage::Zstd) => {
                &["-comp", "zstd", "-Xcompression-level", "3", "-b", "64K"]
            }
            (Column::ErofsDense, Storage::Plain | Storage::Chunks)
            | (Column::Squashfs, Storage::Chunks) => return None,
        })
    }

    /// Packs `tree` into `image`, and removes the image afterwards.
    fn pack(
        self,
        barge: &Path,
        stored: Storage,
        tree: &Path,
        image: &Path,
    ) -> Result<PackFigures, String> {
        let options = self.options(stored).unwrap_or_default();
        let [tree, to] = [tree, image].map(OsString::from);
        let mut command = Command::new(self.program(barge)?);
        match self {
            Column::Barge => command
                .args(["pack", "--no-hashes"])
                .args(options)
                .args([tree, to]),
            Column::Erofs | Column::ErofsDense => command.args(options).args([to, tree]),
            Column::Squashfs => command
                .args([tree, to])
                .args(["-quiet", "-no-progress", "-noappend"])
                .args(options),
        };
        let (before, began) = (children_time(), Instant::now());
        let called = run_command(&mut command);
        let (took, worked) = (began.elapsed(), children_time().saturating_sub(before));
        let bytes = fs::metadata(image).map(|image| image.len());
        // A failed run may leave no image.
        let _ = fs::remove_file(image);
        called?;
        Ok(PackFigures {
            bytes: bytes.map_err(|error| error.to_string())?,
            wall_time: took,
            cpu_time: worked,
        })
    }
}
