//! The table `readplus`: barge's server read by barge's client over loopback TCP, in each version
//! of NFS, with and without READ_PLUS, from files of data and holes on several file systems.

mod disk;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use remote::nfs::{Mount, Options, mount};
use vfs::{Call, Caller, Cx, Errno, File, FileSystem, Name, OpenFlags};
use wire::payload::SliceSink;

use self::disk::{Disk, KINDS, LAYOUTS, Layout};
use crate::context::Context;
use crate::hardware_limit::{BASE_MESSAGE_SIZE, Exchange, HardwareLimit};
use crate::network::Network;
use crate::nfs::servers::{self, Server};
use crate::process::require_root;
use crate::report::results::{Results, Row};
use crate::rounds::{self, Measurement, count_syscalls, measure_alternating};
use crate::workspace::Workspace;
use command::Failure;

/// The bytes of a read by the program; the client splits it into calls of 1 MiB, all in flight at
/// once.
const READ_SIZE: usize = 8 << 20;

const MIB: usize = 1 << 20;

/// The columns: the version, and whether READ_PLUS is used. The first is compared with the second.
const COLUMNS: [(&str, (u32, u32), bool); 5] = [
    ("4.2 READ_PLUS", (4, 2), true),
    ("4.2 READ", (4, 2), false),
    ("3", (3, 0), false),
    ("4.0", (4, 0), false),
    ("4.1", (4, 1), false),
];

/// A client of the server, in one version.
struct Column {
    tree: Arc<dyn FileSystem>,
    /// The directory of the files on this host.
    share: PathBuf,
    pid: u32,
}

struct Cell {
    kind: &'static str,
    layout: Layout,
    cached: bool,
    /// Whether system calls are counted.
    traced: bool,
}

struct Reader {
    file: Arc<dyn File>,
    buffer: Vec<u8>,
    cached: bool,
}

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    require_root("bench readplus makes file systems on loop devices, and a network")?;
    let workspace = Workspace::new(args)?;
    let size = u64::from(
        args.options
            .size
            .unwrap_or(if args.options.quick { 8 } else { 32 }),
    ) << 20;
    let network = Network::loopback_only().map(Arc::new);
    let network = network
        .ok_or_else(|| Failure::new("no network can be made: Debian's iproute2 and util-linux"))?;
    let mut notes = vec![
        format!(
            "{} runs each, alternating, after one warm-up run; files of {} MiB on loop devices below {}",
            args.runs(),
            size >> 20,
            workspace.parent()
        ),
        "ratios are of READ_PLUS to READ, both with 4.2; on the wire: MB transferred for a whole file, with all headers"
            .into(),
        "uncached: the server's page cache has no page of the file".into(),
    ];
    let mut missing = Vec::new();
    let mut rows = Vec::new();
    let of_kinds = KINDS.map(|kind| (kind, cells(args, kind)));
    let all = of_kinds.iter().map(|(_, cells)| cells.len()).sum();
    args.plan(all, COLUMNS.len());
    for (kind, cells) in of_kinds {
        if cells.is_empty() {
            continue;
        }
        let disk = match Disk::make(kind, &workspace.run_dir, size) {
            Ok(disk) => disk,
            Err(why) => {
                missing.push(format!("{kind} is missing: {why}"));
                continue;
            }
        };
        match measure(args, &disk, &cells, (&workspace, &network)) {
            Ok((measured, counted)) => {
                rows.extend(measured);
                notes.extend((!counted).then(|| crate::syscalls::STRACE_MISSING.into()));
            }
            Err(stopped) if args.progress.is_stopped() => return Err(stopped),
            Err(failure) => args
                .progress
                .report_failure(format!("{kind}: {}", failure.message)),
        }
    }
    Ok(Results {
        title: "NFS READ and READ_PLUS of files with data and holes".into(),
        notes,
        missing,
        servers: COLUMNS.map(|(name, ..)| name.to_owned()).into(),
        peers: vec![1],
        limit: None,
        rows,
    })
}

/// Measures the rows of a file system; returns them, and whether all requested system calls could
/// be counted.
fn measure(
    args: &Context,
    disk: &Disk,
    cells: &[Cell],
    (workspace, network): (&Workspace, &Arc<Network>),
) -> Result<(Vec<Row>, bool), Failure> {
    // The server is dropped before its file system is unmounted.
    let (_, server) = servers::barge(
        workspace.barge(),
        (&disk.path(), &workspace.run_dir),
        Some(network),
        &[],
    )?;
    let columns = columns(&server, disk)?;
    let mut rows = measure_alternating(args, &columns, cells)?;
    let log = workspace.run_dir.join("strace");
    let counted = args.options.quick || count_syscalls(args, &columns, cells, &mut rows, &log);
    for cell in cells.iter().filter(|cell| cell.cached) {
        match measure_wire_bytes(cell, &columns, network) {
            Ok(row) => rows.push(row),
            Err(failure) => args.progress.report_failure(failure.message),
        }
    }
    Ok((rows, counted))
}

fn cells(args: &Context, kind: &'static str) -> Vec<Cell> {
    let mut cells = Vec::new();
    for cached in [false, true] {
        cells.extend(LAYOUTS.map(|layout| Cell {
            kind,
            layout,
            cached,
            traced: kind == KINDS[0] && cached,
        }));
    }
    cells.retain(|cell| args.selects(&rounds::Cell::name(cell)));
    cells
}

fn columns(server: &Server, disk: &Disk) -> Result<Vec<(String, Column)>, Failure> {
    let column = |(name, version, plus): (&str, (u32, u32), bool)| {
        let [nfs, other] = [false, true].map(|mount| server.dial(mount, version.0));
        let (tree, _) = mount(&Mount {
            dial: Arc::new(move |port| port.map_or_else(&nfs, |_| other())),
            path: "",
            require_full_path: true,
            options: Options {
                version: Some(version),
                // Any port will do: `dial` connects to MOUNT regardless.
                mount_port: Some(1),
                no_read_plus: !plus,
                ..Options::default()
            },
        })
        .map_err(Failure::new)?;
        let column = Column {
            tree,
            share: disk.path(),
            pid: server.process.pid(),
        };
        Ok((name.to_owned(), column))
    };
    COLUMNS.into_iter().map(column).collect()
}

/// Returns the megabytes on the network, in both directions and with all headers, while a file is
/// read once.
fn measure_wire_bytes(
    cell: &Cell,
    columns: &[(String, Column)],
    network: &Network,
) -> Result<Row, Failure> {
    let mut runs = Vec::new();
    for (name, column) in columns {
        let (kind, layout) = (cell.kind, cell.layout.name());
        let failed =
            |error: String| Failure::new(format!("{name}, {kind}, {layout}, on the wire: {error}"));
        let mut readers = rounds::Cell::connect(cell, column).map_err(failed)?;
        let before = network.received().map_err(Failure::new)?;
        let read = readers[0].read_all();
        read.map_err(|errno| failed(errno.to_string()))?;
        let after = network.received().map_err(Failure::new)?;
        runs.push(vec![(after - before) as f64 / 1e6]);
    }
    let name = format!("{}, {}, on the wire", cell.kind, cell.layout.name());
    Ok(Row::new(name, "MB", runs))
}

fn with_cx<T>(act: impl FnOnce(&Cx<'_>) -> T) -> T {
    let call = Call::detached();
    act(&Cx::new(&Caller::ROOT, &call))
}

impl Reader {
    /// Reads the whole file; returns its size in bytes.
    fn read_all(&mut self) -> vfs::Result<usize> {
        let mut at = 0;
        loop {
            let mut sink = SliceSink::new(&mut self.buffer);
            let got = with_cx(|cx| self.file.read(cx, at as u64, READ_SIZE, &mut sink))?;
            at += got;
            if got == 0 {
                return Ok(at);
            }
        }
    }
}

impl rounds::Cell<Column> for Cell {
    type Client = Reader;

    fn name(&self) -> String {
        let cached = if self.cached { "cached" } else { "uncached" };
        format!("{} {cached}, {}", self.kind, self.layout.name())
    }

    fn unit(&self) -> (&'static str, f64) {
        ("MB/s", MIB as f64 / 1e6)
    }

    fn connect(&self, column: &Column) -> Result<Vec<Reader>, String> {
        let name = self.layout.name();
        let open = |cx: &Cx<'_>| {
            let name = Name::new(name.as_bytes())?;
            let entry = column.tree.root(cx)?.lookup(cx, name)?;
            entry.node.open(cx, OpenFlags::READ)
        };
        let file = with_cx(open).map_err(|errno| errno.to_string())?;
        let cached = disk::set_cached(&column.share.join(&name), self.cached);
        cached.map_err(|error| error.to_string())?;
        Ok(vec![Reader {
            file,
            buffer: vec![7; READ_SIZE],
            cached: self.cached,
        }])
    }

    fn pid(&self, column: &Column, _: &Reader) -> u32 {
        column.pid
    }

    /// Reads an uncached file once, and a cached one for at least 40 ms.
    fn run(&self, reader: &mut Reader, _: Duration, most: usize) -> Measurement {
        const LONG_ENOUGH: Duration = Duration::from_millis(40);
        let began = Instant::now();
        let mut bytes = 0;
        loop {
            let got = reader.read_all()?;
            bytes += got;
            if got == 0 {
                return Err(Errno::EIO);
            }
            if !reader.cached || began.elapsed() >= LONG_ENOUGH || bytes / MIB >= most {
                return Ok((bytes / MIB, began.elapsed()));
            }
        }
    }

    fn traced_operations(&self) -> Option<usize> {
        self.traced.then_some(1)
    }

    /// Returns the cost of all bytes over a connection, including those of holes.
    fn limit(&self) -> Option<HardwareLimit> {
        Some(HardwareLimit::Exchange(Exchange {
            tcp: true,
            bytes: (BASE_MESSAGE_SIZE, BASE_MESSAGE_SIZE + MIB),
            depth: READ_SIZE / MIB,
            steps: 1,
            connections: 1,
        }))
    }
}
