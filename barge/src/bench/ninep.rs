//! The table `9p`: barge and diod on the same directory, driven by the same client.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use transports::Addr;

use super::report::{Results, Row};
use super::servers::{self, Server};
use super::work::{Client, DATA, FILES, MANY, Work, file_name};
use super::{BenchArgs, syscalls};
use crate::Failure;

/// What is measured: over each transport, by so many connections.
const CELLS: &[(&str, Work, usize, &[usize])] = &[
    ("4 KiB random read, depth 1", Work::ReadSmall, 1, &[1, 8]),
    ("4 KiB random read, depth 16", Work::ReadSmall, 16, &[1, 8]),
    ("4 KiB random read, depth 64", Work::ReadSmall, 64, &[1, 8]),
    ("1 MiB sequential read", Work::ReadLarge, 1, &[1, 8]),
    ("1 MiB sequential write", Work::WriteLarge, 1, &[1, 8]),
    ("walk+getattr+clunk, depth 1", Work::LookUp, 1, &[1, 8]),
    ("walk+getattr+clunk, depth 16", Work::LookUp, 16, &[1, 8]),
    ("create+write+unlink, depth 1", Work::Create, 1, &[1, 8]),
    ("create+write+unlink, depth 16", Work::Create, 16, &[1]),
    ("readdir of 10,000 entries", Work::List, 1, &[1, 8]),
];

struct Cell {
    name: String,
    work: Work,
    depth: usize,
    connections: usize,
    tcp: bool,
}

pub(super) fn run(args: &BenchArgs) -> Result<Results, Failure> {
    let place = Place::make(args)?;
    let mut notes = vec![format!(
        "{} runs of {} ms each, alternating, after one to warm up; all files below {}",
        args.runs(),
        args.time().as_millis(),
        place.top.parent().unwrap_or(&place.top).display()
    )];
    let mut servers = vec![servers::barge(&place.share, &place.run, &[])?];
    let diod = servers::diod(&place.share, &place.run)?;
    let peer = diod.as_ref().map(|_| servers.len());
    if peer.is_none() {
        notes.push("diod is missing: Debian's package diod brings it".into());
    }
    servers.extend(diod);
    servers.push(servers::barge(
        &place.share,
        &place.run,
        &["--poll-us", "0"],
    )?);
    let cells = cells(args);
    let mut rows: Vec<Row> = cells.iter().map(|cell| row(cell, servers.len())).collect();
    let bar = progress(((args.runs() + 1) * cells.len() * servers.len()) as u64);
    for round in 0..=args.runs() {
        for (cell, row) in cells.iter().zip(&mut rows) {
            for (server, runs) in servers.iter().zip(&mut row.runs) {
                let rate = measure(server, cell, args.time())?;
                // The first round warms up.
                if round > 0 {
                    runs.push(rate);
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    let counted = count_calls(&cells, &servers, &place, &mut rows)?;
    if !counted {
        notes.push(
            "system calls are not counted: Debian's package strace brings what it takes".into(),
        );
    }
    notes.push("8 connections: each of a thread of its own, together".into());
    notes.push(
        "the client, the same for all, looks for a reply for up to 50 µs before it sleeps, where a \
         processor is to spare"
            .into(),
    );
    let servers = servers.iter().map(|server| server.name.clone()).collect();
    Ok(Results {
        title: "9P, one client, two servers".into(),
        notes,
        servers,
        peer,
        rows,
    })
}

fn cells(args: &BenchArgs) -> Vec<Cell> {
    let mut cells = Vec::new();
    for tcp in [false, true] {
        for &(what, work, depth, counts) in CELLS {
            for &connections in counts {
                let transport = if tcp { "tcp" } else { "unix" };
                let name = format!("{transport}, {connections} conn., {what}");
                if args
                    .only
                    .as_ref()
                    .is_none_or(|only| name.contains(only.as_str()))
                {
                    cells.push(Cell {
                        name,
                        work,
                        depth,
                        connections,
                        tcp,
                    });
                }
            }
        }
    }
    cells
}

fn row(cell: &Cell, servers: usize) -> Row {
    Row {
        name: cell.name.clone(),
        unit: cell.work.unit().0,
        runs: vec![Vec::new(); servers],
        calls: vec![None; servers],
    }
}

/// Operations, or megabytes, per second.
fn measure(server: &Server, cell: &Cell, time: Duration) -> Result<f64, Failure> {
    let mut clients = connect(server, cell)?;
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(format!("{}, {}: {error}", server.name, cell.name))
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter_mut()
            .map(|client| scope.spawn(|| client.run(cell.work, cell.depth, time, usize::MAX / 64)))
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let mut rate = 0.0;
    for result in results {
        let result = result.map_err(|_| failed(&"a client panicked"))?;
        let (done, took) = result.map_err(|errno| failed(&errno))?;
        rate += done as f64 * cell.work.unit().1 / took.as_secs_f64();
    }
    Ok(rate)
}

fn connect(server: &Server, cell: &Cell) -> Result<Vec<Client>, Failure> {
    let addr: &Addr = if cell.tcp { &server.tcp } else { &server.unix };
    (0..cell.connections)
        .map(|number| Client::connect(addr, &server.aname, number).map_err(Failure::new))
        .collect()
}

/// Fills in the rows' system calls, of cells with one connection; says whether that was possible.
fn count_calls(
    cells: &[Cell],
    servers: &[Server],
    place: &Place,
    rows: &mut [Row],
) -> Result<bool, Failure> {
    const TIMES: usize = 2000;
    let mut counted = true;
    for (cell, row) in cells
        .iter()
        .zip(rows)
        .filter(|(cell, _)| cell.connections == 1)
    {
        let times = if cell.work == Work::List { 5 } else { TIMES };
        for (server, calls) in servers.iter().zip(&mut row.calls) {
            let mut clients = connect(server, cell)?;
            let mut done = Ok((0, Duration::ZERO));
            let long = Duration::from_secs(10);
            let log = place.run.join("strace");
            let total = syscalls::count(server.pid(), &log, || {
                done = clients[0].run(cell.work, cell.depth, long, times);
            });
            let (done, _) =
                done.map_err(|errno| Failure::new(format!("{}: {errno}", cell.name)))?;
            *calls = total
                .filter(|_| done > 0)
                .map(|total| total as f64 / done as f64);
            counted &= calls.is_some();
        }
    }
    Ok(counted)
}

/// Where the bench has its files. Removed at the end.
struct Place {
    top: PathBuf,
    share: PathBuf,
    run: PathBuf,
}

impl Place {
    fn make(args: &BenchArgs) -> Result<Place, Failure> {
        let parent = args.dir.clone().unwrap_or_else(memory);
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
        fill(&place.share).map_err(failed)?;
        Ok(place)
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

fn fill(share: &Path) -> std::io::Result<()> {
    let mut data = File::create(share.join(DATA.0))?;
    let block: Vec<u8> = (0..1 << 20).map(|at: u32| (at ^ (at >> 8)) as u8).collect();
    for _ in 0..DATA.1 / block.len() as u64 {
        data.write_all(&block)?;
    }
    for number in 0..FILES {
        File::create(share.join(MANY).join(file_name(number)))?;
    }
    Ok(())
}

fn progress(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {percent}% {eta} left") {
        bar.set_style(style);
    }
    bar
}
