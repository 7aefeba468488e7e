//! The tables `9p`, `nfs` and `virtiofs`: one client, several servers of the same directory. The
//! rows are data, a file `table.toml` for each protocol; this module measures any of them.

use std::time::Duration;

use command::Failure;
use serde::Deserialize;

use crate::context::Context;
use crate::data;
use crate::hardware_limit::{BASE_MESSAGE_SIZE, Exchange, HardwareLimit};
use crate::report::results::Results;
use crate::rounds::{self, Measurement, measure_all};
use crate::workspace::Workspace;

/// The bytes of the small operations, and of the large ones.
pub(crate) const SMALL: u32 = 4096;
pub(crate) const LARGE: u32 = 1 << 20;

/// An operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Operation {
    /// Reads 4 KiB at a random offset of a cached file.
    ReadSmall,
    /// Writes 4 KiB at a random offset of a file.
    WriteSmall,
    /// Reads the next 1 MiB of a cached file, in as few requests as the server allows.
    ReadLarge,
    /// Writes 1 MiB of a file: the next, or over virtiofs at a random offset with direct I/O.
    WriteLarge,
    /// Gets the attributes of a file.
    Attributes,
    /// Looks up a name, over 9P with its attributes.
    LookUp,
    /// Looks up a small file, gets its attributes, opens, reads and closes it.
    SmallFile,
    /// Creates a file, and removes it; over 9P also writes 1 KiB.
    Create,
    /// Lists the directory of many files.
    List,
}

/// The cell of a table.
pub(crate) struct Cell {
    name: String,
    pub(crate) operation: Operation,
    /// The transport or the version of the protocol.
    pub(crate) variant: String,
    /// Connections or queues, each with a thread of its own.
    pub(crate) connections: usize,
    /// Operations in flight on each.
    pub(crate) depth: usize,
    /// Whether the client sleeps for each reply and does not poll.
    pub(crate) interrupts: bool,
}

/// The path of the data between client and server.
pub(crate) enum Medium {
    Memory,
    Tcp,
    Unix,
}

/// A server, or the message that it is missing.
pub(crate) enum Started<S> {
    /// The name for reports, and the server.
    Running(String, S),
    Missing(String),
}

/// A protocol, with the servers and the client to measure.
pub(crate) trait Protocol: Sync {
    /// A server, or its command line.
    type Server: Sync;
    /// A connection with everything that the operations need.
    type Client: Send;

    /// The file with the rows.
    const TABLE: &str;

    /// Starts the server of this name in the table.
    fn start(&self, workspace: &Workspace, server: &str) -> Result<Started<Self::Server>, Failure>;

    /// Connects all clients of a cell.
    fn connect(&self, server: &Self::Server, cell: &Cell) -> Result<Vec<Self::Client>, String>;

    /// Returns the id of the process that serves a client.
    fn pid(&self, server: &Self::Server, client: &Self::Client) -> u32;

    /// Repeats the operation for about `time` or `most` times; returns the count and the time
    /// taken.
    fn run(
        &self,
        client: &mut Self::Client,
        cell: &Cell,
        time: Duration,
        most: usize,
    ) -> Measurement;

    /// Returns the number of sequential requests in an operation; `None` if there is no such
    /// operation.
    fn steps(&self, cell: &Cell) -> Option<usize>;

    fn medium(&self, cell: &Cell) -> Medium;
}

/// The table of a protocol.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    title: String,
    notes: Vec<String>,
    /// The transports or versions over which all rows are measured.
    over: Vec<String>,
    /// The servers, of which those that are not barge are its peers.
    servers: Vec<String>,
    /// The servers with `--with-statistics`.
    servers_with_statistics: Option<Vec<String>>,
    rows: Vec<RowGroup>,
}

/// Rows of one operation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RowGroup {
    operation: Operation,
    /// The name: `{over}`, `{connections}`, `{queues}` and `{depth}` are replaced.
    name: String,
    /// Connections, and operations in flight on each.
    cells: Vec<(usize, usize)>,
    /// Whether cells of one connection are also measured, before, with a client that does not poll.
    #[serde(default)]
    interrupts: bool,
}

impl Table {
    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for over in &self.over {
            for row in &self.rows {
                for &(connections, depth) in &row.cells {
                    let both = row.interrupts && connections == 1;
                    let drivers: &[bool] = if both { &[true, false] } else { &[false] };
                    cells.extend(drivers.iter().map(|&interrupts| Cell {
                        name: name(&row.name, over, (connections, depth), interrupts),
                        operation: row.operation,
                        variant: over.clone(),
                        connections,
                        depth,
                        interrupts,
                    }));
                }
            }
        }
        cells
    }
}

fn name(
    template: &str,
    over: &str,
    (connections, depth): (usize, usize),
    interrupts: bool,
) -> String {
    let queues = match connections {
        1 => "1 queue".to_owned(),
        many => format!("{many} queues"),
    };
    let name = template
        .replace("{over}", over)
        .replace("{connections}", &connections.to_string())
        .replace("{queues}", &queues)
        .replace("{depth}", &depth.to_string());
    name + if interrupts { ", interrupts" } else { "" }
}

/// Measures the table of a protocol.
pub(crate) fn run<P: Protocol>(args: &Context, protocol: &P) -> Result<Results, Failure> {
    let table: Table = data::parse(P::TABLE).expect("a test checks the table");
    let workspace = Workspace::with_files(args)?;
    let mut notes = vec![workspace.note(args)];
    let (mut servers, mut peers, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    let named = match (args.options.with_statistics, &table.servers_with_statistics) {
        (true, Some(servers)) => servers,
        _ => &table.servers,
    };
    for server in named {
        match protocol.start(&workspace, server)? {
            Started::Running(name, running) => {
                if !server.starts_with("barge") {
                    peers.push(servers.len());
                }
                servers.push((name, running));
            }
            Started::Missing(why) => missing.push(why),
        }
    }
    missing.dedup();
    let mut cells = table.cells();
    cells.retain(|cell| args.selects(&cell.name));
    let cells = cells
        .into_iter()
        .map(|cell| ProtocolCell { protocol, cell });
    let cells: Vec<_> = cells.collect();
    let rows = measure_all(args, &servers, &cells, &workspace.run_dir, &mut notes)?;
    notes.extend(table.notes);
    Ok(Results {
        title: table.title,
        notes,
        missing,
        servers: servers.into_iter().map(|(name, _)| name).collect(),
        peers,
        limit: None,
        rows,
    })
}

/// A cell with its protocol.
struct ProtocolCell<'p, P> {
    protocol: &'p P,
    cell: Cell,
}

impl<P: Protocol> rounds::Cell<P::Server> for ProtocolCell<'_, P> {
    type Client = P::Client;

    fn name(&self) -> String {
        self.cell.name.clone()
    }

    fn unit(&self) -> (&'static str, f64) {
        match self.cell.operation {
            Operation::ReadLarge | Operation::WriteLarge => ("MB/s", f64::from(LARGE) / 1e6),
            _ => ("op/s", 1.0),
        }
    }

    fn connect(&self, server: &P::Server) -> Result<Vec<P::Client>, String> {
        self.protocol.connect(server, &self.cell)
    }

    fn pid(&self, server: &P::Server, client: &P::Client) -> u32 {
        self.protocol.pid(server, client)
    }

    fn run(&self, client: &mut P::Client, time: Duration, most: usize) -> Measurement {
        self.protocol.run(client, &self.cell, time, most)
    }

    fn traced_operations(&self) -> Option<usize> {
        let is_list = self.cell.operation == Operation::List;
        let times = if is_list { 5 } else { 500 };
        (self.cell.connections == 1 && !self.cell.interrupts).then_some(times)
    }

    fn is_measured_at_rates(&self) -> bool {
        let is_single = (self.cell.connections, self.cell.depth) == (1, 1);
        is_single && self.cell.operation != Operation::List
    }

    /// Returns bare messages of the same sizes, or the copy of the payload if memory is shared;
    /// `None` if the server decides the sizes.
    fn limit(&self) -> Option<HardwareLimit> {
        let cell = &self.cell;
        let (sent, received) = match cell.operation {
            Operation::ReadSmall => (0, SMALL),
            Operation::WriteSmall => (SMALL, 0),
            Operation::ReadLarge => (0, LARGE),
            Operation::WriteLarge => (LARGE, 0),
            Operation::Attributes | Operation::LookUp | Operation::Create => (0, 0),
            Operation::SmallFile | Operation::List => return None,
        };
        let tcp = match self.protocol.medium(cell) {
            Medium::Memory => {
                let payload = (sent + received) as usize;
                return (payload > 0).then_some(HardwareLimit::Copy(payload));
            }
            Medium::Tcp => true,
            Medium::Unix => false,
        };
        Some(HardwareLimit::Exchange(Exchange {
            tcp,
            bytes: (
                BASE_MESSAGE_SIZE + sent as usize,
                BASE_MESSAGE_SIZE + received as usize,
            ),
            depth: cell.depth,
            steps: self.protocol.steps(cell)?,
            connections: cell.connections,
        }))
    }
}

/// Returns the names of the rows of a protocol, and checks that it has all their operations.
#[cfg(test)]
pub(crate) fn names<P: Protocol>(protocol: &P) -> Vec<String> {
    let table: Table = data::parse(P::TABLE).expect("a table");
    let cells = table.cells();
    for cell in &cells {
        assert!(protocol.steps(cell).is_some(), "{}", cell.name);
        assert!(!cell.name.contains('{'), "{}", cell.name);
    }
    cells.into_iter().map(|cell| cell.name).collect()
}
