//! The table `9p`: barge and diod on the same directory, driven by the same client.

pub(super) mod operation;
mod servers;

use std::time::Duration;

use self::operation::{Client, Operation};
use self::servers::Server;
use crate::context::Context;
use crate::hardware_limit::{Exchange, HardwareLimit};
use crate::report::results::Results;
use crate::rounds::{self, Done, measure_all};
use crate::workspace::Workspace;
use command::Failure;
use command::tools::Tool;

/// The cells: each over both transports, with the numbers of connections.
const CELLS: &[(&str, Operation, usize, &[usize])] = &[
    (
        "4 KiB random read, depth 1",
        Operation::ReadSmall,
        1,
        &[1, 8],
    ),
    (
        "4 KiB random read, depth 16",
        Operation::ReadSmall,
        16,
        &[1, 8],
    ),
    (
        "4 KiB random read, depth 64",
        Operation::ReadSmall,
        64,
        &[1, 8],
    ),
    ("1 MiB sequential read", Operation::ReadLarge, 1, &[1, 8]),
    ("1 MiB sequential write", Operation::WriteLarge, 1, &[1, 8]),
    ("walk+getattr+clunk, depth 1", Operation::LookUp, 1, &[1, 8]),
    (
        "walk+getattr+clunk, depth 16",
        Operation::LookUp,
        16,
        &[1, 8],
    ),
    (
        "create+write+unlink, depth 1",
        Operation::Create,
        1,
        &[1, 8],
    ),
    ("create+write+unlink, depth 16", Operation::Create, 16, &[1]),
    ("readdir of 10,000 entries", Operation::List, 1, &[1, 8]),
];

struct Cell {
    name: String,
    operation: Operation,
    depth: usize,
    connections: usize,
    tcp: bool,
}

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    let workspace = Workspace::make(args)?;
    let mut notes = vec![workspace.note(args)];
    let mut missing = Vec::new();
    let (share, run) = (&workspace.share, &workspace.run);
    let mut servers = vec![servers::barge(&workspace, &[])?];
    let diod = servers::diod(share, run)?;
    let peers: Vec<usize> = diod.iter().map(|_| servers.len()).collect();
    if peers.is_empty() {
        missing.push(Tool::DIOD.is_missing());
    }
    servers.extend(diod);
    let other = match args.options.counted {
        true => ["--http", "0"],
        false => ["--poll-us", "0"],
    };
    servers.push(servers::barge(&workspace, &other)?);
    let cells = cells(args);
    let rows = measure_all(args, &servers, &cells, run, &mut notes)?;
    notes.push("8 connections: each with a thread of its own, all at once".into());
    notes.push(
        "the client, the same for all servers, polls for a reply for up to 50 µs before it sleeps, if a \
         processor is idle"
            .into(),
    );
    Ok(Results {
        title: "9P: one client for all servers".into(),
        notes,
        missing,
        servers: servers.into_iter().map(|(name, _)| name).collect(),
        peers,
        limit: None,
        rows,
    })
}

fn cells(args: &Context) -> Vec<Cell> {
    let mut cells = Vec::new();
    for tcp in [false, true] {
        for &(what, operation, depth, counts) in CELLS {
            for &connections in counts {
                let transport = if tcp { "tcp" } else { "unix" };
                let name = format!("{transport}, {connections} conn., {what}");
                if args.wants(&name) {
                    cells.push(Cell {
                        name,
                        operation,
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

impl rounds::Cell<Server> for Cell {
    type Client = Client;

    fn name(&self) -> String {
        self.name.clone()
    }

    fn unit(&self) -> (&'static str, f64) {
        self.operation.unit()
    }

    fn connect(&self, server: &Server) -> Result<Vec<Client>, String> {
        let addr = if self.tcp { &server.tcp } else { &server.unix };
        let connected = |number| Client::connect(addr, &server.aname, number);
        (0..self.connections).map(connected).collect()
    }

    fn pid(&self, server: &Server, _: &Client) -> u32 {
        server.process.pid()
    }

    fn run(&self, client: &mut Client, time: Duration, most: usize) -> Done {
        client.run(self.operation, self.depth, time, most)
    }

    fn counted(&self) -> Option<usize> {
        let times = if self.operation == Operation::List {
            5
        } else {
            500
        };
        (self.connections == 1).then_some(times)
    }

    fn is_measured_at_rates(&self) -> bool {
        (self.connections, self.depth) == (1, 1) && self.operation != Operation::List
    }

    fn limit(&self) -> Option<HardwareLimit> {
        let (bytes, steps) = self.operation.exchange()?;
        Some(HardwareLimit::Exchange(Exchange {
            tcp: self.tcp,
            bytes,
            depth: self.depth,
            steps,
            connections: self.connections,
        }))
    }
}
