//! The table `objects`: Node.js starts from an image in an object store over a slow link, with and
//! without a read trace, and with the disk cache of an earlier start.

mod store;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use self::store::{LATENCY, Store};
use super::mounts::Mounted;
use super::tree::{Program, Runtime};
use crate::context::Context;
use crate::process::{run_command, wait_until};
use crate::report::results::{Results, Row};
use crate::workspace::Workspace;
use command::Failure;

/// The packing of the image and the state of the disk cache, in the order of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    /// Packed in the order of the tree.
    Plain,
    /// Packed in the order of a read trace of the same program.
    Ordered,
    /// Like [`Column::Ordered`], compressed.
    OrderedLz4,
    /// Like [`Column::Ordered`], with an empty disk cache.
    ColdCache,
    /// A start after that one, with its disk cache.
    WarmCache,
}

impl Column {
    const ALL: [Column; 5] = [
        Column::Plain,
        Column::Ordered,
        Column::OrderedLz4,
        Column::ColdCache,
        Column::WarmCache,
    ];

    fn name(self) -> &'static str {
        match self {
            Column::Plain => "no trace",
            Column::Ordered => "trace",
            Column::OrderedLz4 => "trace, lz4",
            Column::ColdCache => "trace, cache_dir",
            Column::WarmCache => "trace, cache_dir, again",
        }
    }

    fn has_disk_cache(self) -> bool {
        matches!(self, Column::ColdCache | Column::WarmCache)
    }
}

/// The rows of a program, with their units.
const FIGURES: [(&str, &str); 3] = [
    ("until its output", "ms"),
    ("requests", "number"),
    ("fetched", "KiB"),
];

/// The runs of each column, for each figure.
type Figures = Vec<Vec<Vec<f64>>>;

struct Fixture {
    store: Store,
    run: PathBuf,
    barge: PathBuf,
}

pub(crate) fn run(args: &Context) -> Result<Results, Failure> {
    let args = &args.with_default_runs(3);
    let workspace = Workspace::new_in(args, std::env::temp_dir())?;
    let fixture = Fixture::make(&workspace).map_err(Failure::new)?;
    let mut notes = vec![format!(
        "{} runs each, alternating, after one warm-up run, from before the mount until the program has ended; the store is in this process, \
         over a simulated link of {} ms and 1 Gbit/s; files of 'cache_dir' below {}",
        args.runs(),
        LATENCY.as_millis(),
        workspace.parent()
    )];
    let tree = workspace.run_dir.join("tree");
    Runtime::Node.make(&tree).map_err(Failure::new)?;
    let named = |program: Program| format!("{} {}", Runtime::Node.name(), program.name());
    let names = Program::ALL.map(named);
    args.plan(
        names.iter().filter(|name| args.selects(name)).count(),
        Column::ALL.len(),
    );
    let mut rows = Vec::new();
    for program in Program::ALL {
        let name = named(program);
        if args.selects(&name) {
            let (needed, measured) = match fixture.measure(&tree, program, args) {
                Ok(measured) => measured,
                Err(why) => {
                    args.progress.report_failure(format!("{name}: {why}"));
                    continue;
                }
            };
            notes.push(format!("{name} reads {} KiB of files", needed >> 10));
            let row = |((what, unit), runs)| Row::new(format!("{name}, {what}"), unit, runs);
            rows.extend(FIGURES.into_iter().zip(measured).map(row));
        }
    }
    Ok(Results {
        title: "Start of Node.js from an image in an object store 20 ms away".into(),
        notes,
        missing: Vec::new(),
        servers: Column::ALL.map(|column| column.name().to_owned()).into(),
        peers: Vec::new(),
        limit: None,
        rows,
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

    /// Returns the bytes of the tree at `tree` that a program reads, and the figures.
    fn measure(
        &self,
        tree: &Path,
        program: Program,
        args: &Context,
    ) -> Result<(u64, Figures), String> {
        let trace = self.run.join("trace");
        let needed = self.record(tree, program, &trace)?;
        let mut figures = vec![vec![Vec::new(); Column::ALL.len()]; FIGURES.len()];
        let mut images = Vec::new();
        for column in Column::ALL {
            images.push(self.pack(tree, column, &trace)?);
        }
        for round in 0..=args.runs() {
            for (column, image) in Column::ALL.into_iter().zip(&images) {
                args.progress.advance().map_err(|stopped| stopped.message)?;
                let describe = |why| format!("{}: {why}", column.name());
                let figure = self.pass(program, column, image).map_err(describe)?;
                // The first round warms up.
                for (row, figure) in figures.iter_mut().zip(figure).filter(|_| round > 0) {
                    let at = Column::ALL.iter().position(|&other| other == column);
                    row[at.expect("one of all")].push(figure);
                }
            }
        }
        Ok((needed, figures))
    }

    /// Records the reads of a program in the tree into `trace`; returns their total size in bytes.
    fn record(&self, tree: &Path, program: Program, trace: &Path) -> Result<u64, String> {
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
        Runtime::Node.run(program, &at)?;
        mounted.unmount()?;
        const LONG: Duration = Duration::from_secs(20);
        // The mount process completes the trace when it exits, after the unmount.
        let describe = |error: std::io::Error| error.to_string();
        let mut lines = String::new();
        let whole = wait_until(LONG, || {
            lines = fs::read_to_string(trace).unwrap_or_default();
            lines.ends_with('\n')
        });
        fs::remove_file(&image).map_err(describe)?;
        if !whole {
            return Err("expected a trace, got none".into());
        }
        let len = |line: &str| line.split(' ').nth(1)?.parse::<u64>().ok();
        Ok(lines.lines().filter_map(len).sum())
    }

    fn pack(&self, tree: &Path, column: Column, trace: &Path) -> Result<Vec<u8>, String> {
        let image = self.run.join("image");
        let mut pack = Command::new(&self.barge);
        pack.args(["pack", "--quiet"]);
        if column != Column::Plain {
            pack.arg("--trace").arg(trace);
        }
        if column == Column::OrderedLz4 {
            pack.args(["--compress", "lz4"]);
        }
        run_command(pack.arg(tree).arg(&image))?;
        let describe = |error: std::io::Error| error.to_string();
        let bytes = fs::read(&image).map_err(describe)?;
        fs::remove_file(&image).map_err(describe)?;
        Ok(bytes)
    }

    /// Mounts, runs and unmounts; returns the figures.
    fn pass(
        &self,
        program: Program,
        column: Column,
        image: &[u8],
    ) -> Result<[f64; FIGURES.len()], String> {
        let (at, cache_dir) = (self.run.join("mounted"), self.run.join("kept"));
        // A new version of the object makes the disk cache stale.
        if column != Column::WarmCache {
            self.store.put(image.to_vec());
        }
        let mut mount = Command::new(&self.barge);
        mount.args(["mount", "--fuse"]);
        if column.has_disk_cache() {
            let dir = cache_dir.display();
            mount.args(["-o", &format!("cache_dir={dir}")]);
        }
        mount.arg(self.store.url()).arg(&at);
        self.store.take_counts();
        let began = Instant::now();
        run_command(&mut mount)?;
        let mounted = Mounted::adopt(&at);
        Runtime::Node.run(program, &at)?;
        let ms = began.elapsed().as_secs_f64() * 1e3;
        let counts = self.store.take_counts();
        mounted.unmount()?;
        Ok([ms, f64::from(counts.requests), counts.bytes as f64 / 1024.0])
    }
}
