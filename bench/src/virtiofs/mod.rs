//! The table `virtiofs`: barge and virtiofsd on the same directory, driven by barge's own driver
//! without a virtual machine.

mod operation;
mod servers;

use std::time::Duration;

use remote::virtiofs::WaitMode;

use self::operation::{Operation, Prepared};
use self::servers::{Running, Server};
use crate::context::Context;
use crate::hardware_limit::HardwareLimit;
use crate::report::results::Results;
use crate::rounds::{self, Done, measure_all};
use crate::workspace::Workspace;
use command::Failure;

/// The cells to measure: numbers of queues, and of operations in flight in each. Cells with one
/// queue are measured both with a driver that polls and with one that waits for interrupts.
const CELLS: &[(Operation, &[(usize, usize)])] = &[
    (
        Operation::ReadSmall,
        &[(1, 1), (1, 16), (1, 64), (4, 1), (4, 16)],
    ),
    (
        Operation::WriteSmall,
        &[(1, 1), (1, 16), (1, 64), (4, 1), (4, 16)],
    ),
    (Operation::WriteLarge, &[(1, 1)]),
    (Operation::ReadLarge, &[(1, 1), (1, 4)]),
    (Operation::Attributes, &[(1, 1), (1, 16), (1, 64)]),
    (Operation::LookUp, &[(1, 1), (1, 16)]),
    (Operation::SmallFile, &[(1, 1), (1, 16)]),
    (Operation::Create, &[(1, 1), (1, 16), (1, 64)]),
    (Operation::List, &[(1, 1)]),
];

struct Cell {
    operation: Operation,
    queues: usize,
    depth: usize,
    waiting: WaitMode,
}

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    let workspace = Workspace::make(args)?;
    let mut notes = vec![workspace.note(args)];
    let mut missing = Vec::new();
    let mut servers = vec![servers::barge(&workspace, &[])];
    let mut peers = Vec::new();
    for (peer, why) in servers::peers(&workspace) {
        match peer {
            Some(peer) => {
                peers.push(servers.len());
                servers.push(peer);
            }
            None => missing.push(why),
        }
    }
    servers.push(servers::barge(&workspace, &["--poll-us", "0"]));
    let cells = cells(args);
    let rows = measure_all(args, &servers, &cells, &workspace.run, &mut notes)?;
    notes.push(
        "interrupts: the driver sleeps in read(2) of its eventfd for each reply; otherwise it polls for \
         up to 200 µs before it sleeps"
            .into(),
    );
    notes.push("4 queues: a thread for each; virtiofsd has one queue, which they share".into());
    Ok(Results {
        title: "virtiofs without a virtual machine: one driver for all servers".into(),
        notes,
        missing,
        servers: servers.into_iter().map(|(name, _)| name).collect(),
        peers,
        limit: None,
        rows,
    })
}

/// A driver that polls for up to 200 µs before it sleeps.
const POLLING: WaitMode = WaitMode::Polling(Duration::from_micros(200));

fn cells(args: &Context) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &(operation, sizes) in CELLS {
        for &(queues, depth) in sizes {
            let ways: &[WaitMode] = match queues == 1 && operation != Operation::List {
                true => &[WaitMode::Interrupts, POLLING],
                false => &[POLLING],
            };
            cells.extend(ways.iter().map(|&waiting| Cell {
                operation,
                queues,
                depth,
                waiting,
            }));
        }
    }
    cells.retain(|cell| args.wants(&rounds::Cell::name(cell)));
    cells
}

impl rounds::Cell<Server> for Cell {
    /// The state of a thread, and the server that it uses.
    type Client = (Prepared, Running);

    fn name(&self) -> String {
        let (queues, depth) = (self.queues, self.depth);
        let queues = if queues == 1 { "1 queue" } else { "4 queues" };
        let how = match self.waiting {
            WaitMode::Interrupts => ", interrupts",
            WaitMode::Adaptive(_) | WaitMode::Polling(_) => "",
        };
        format!("{queues}, {}, depth {depth}{how}", self.operation.name())
    }

    fn unit(&self) -> (&'static str, f64) {
        self.operation.unit()
    }

    /// Starts a server for each connection: virtiofsd serves one client and exits.
    fn connect(&self, server: &Server) -> Result<Vec<Self::Client>, String> {
        let running = server.start(self.queues, self.waiting)?;
        let connected = |number| {
            let prepared = Prepared::new(running.channel.clone(), number)
                .map_err(|errno| format!("getting ready: {errno}"))?;
            Ok((prepared, running.clone()))
        };
        (0..self.queues).map(connected).collect()
    }

    fn pid(&self, _: &Server, (_, running): &Self::Client) -> u32 {
        running.process.pid()
    }

    fn run(&self, (prepared, _): &mut Self::Client, time: Duration, most: usize) -> Done {
        prepared.run(self.operation, self.depth, time, most)
    }

    fn counted(&self) -> Option<usize> {
        let times = if self.operation == Operation::List {
            5
        } else {
            500
        };
        (self.queues == 1 && self.waiting == POLLING).then_some(times)
    }

    fn is_measured_at_rates(&self) -> bool {
        (self.queues, self.depth) == (1, 1) && self.operation != Operation::List
    }

    /// Returns the cost of one copy of the payload: the memory is shared.
    fn limit(&self) -> Option<HardwareLimit> {
        self.operation.payload().map(HardwareLimit::Copy)
    }
}
