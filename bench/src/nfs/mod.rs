//! The table `nfs`: barge and nfs-ganesha on the same directory over loopback TCP, and barge over
//! TLS, driven by the same client.

mod calls;
pub(super) mod operation;
mod prepared;
pub(super) mod servers;

use std::sync::Arc;
use std::time::Duration;

use self::operation::{Client, Operation, Version};
use self::servers::Server;
use crate::context::Context;
use crate::hardware_limit::{Exchange, HardwareLimit};
use crate::network::Network;
use crate::report::results::Results;
use crate::rounds::{self, Done, measure_all};
use crate::workspace::Workspace;
use command::Failure;
use command::tools::Tool;

/// The cells: numbers of connections, and of operations in flight on each.
const CELLS: &[(Operation, &[(usize, usize)])] = &[
    (
        Operation::ReadSmall,
        &[(1, 1), (1, 16), (1, 64), (8, 1), (8, 16), (8, 64)],
    ),
    (Operation::WriteSmall, &[(1, 1), (1, 16), (1, 64)]),
    (Operation::ReadLarge, &[(1, 4), (8, 4)]),
    (Operation::WriteLarge, &[(1, 4)]),
    (Operation::Attributes, &[(1, 1), (1, 16)]),
    (Operation::LookUp, &[(1, 1), (1, 16)]),
    (Operation::Create, &[(1, 1), (1, 16)]),
    (Operation::List, &[(1, 1)]),
];

struct Cell {
    version: Version,
    operation: Operation,
    connections: usize,
    depth: usize,
}

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    let workspace = Workspace::make(args)?;
    let mut notes = vec![workspace.note(args)];
    let mut missing = Vec::new();
    let network = match servers::has_ganesha() {
        true => Network::make().map(Arc::new),
        false => None,
    };
    let mut servers = vec![servers::barge(
        workspace.barge(),
        (&workspace.share, &workspace.run),
        network.as_ref(),
        &[],
    )?];
    let ganesha = match &network {
        Some(network) => servers::ganesha(&workspace, network)?,
        None => None,
    };
    let peers: Vec<usize> = ganesha.iter().map(|_| servers.len()).collect();
    if peers.is_empty() {
        let gone = Tool::GANESHA.is_missing();
        missing.push(format!(
            "{gone}; it also needs root, for a network namespace of its own"
        ));
    }
    servers.extend(ganesha);
    servers.push(servers::barge(
        workspace.barge(),
        (&workspace.share, &workspace.run),
        network.as_ref(),
        &["--poll-us", "0"],
    )?);
    match servers::secure(&workspace, network.as_ref())? {
        Some(secure) => servers.push(secure),
        None => missing.push(format!(
            "{} for the TLS certificate",
            Tool::OPENSSL.is_missing()
        )),
    }
    let cells = cells(args);
    let rows = measure_all(args, &servers, &cells, &workspace.run, &mut notes)?;
    notes.push("8 connections: each with a client and a thread of its own, all at once".into());
    notes.push(
        "writes: unstable, within 16 MiB of a file, without COMMIT; reads: of a cached file".into(),
    );
    notes.push(
        "create+remove in v4: OPEN, CLOSE and REMOVE, which also looks up the removed file".into(),
    );
    Ok(Results {
        title: "NFS: one client for all servers".into(),
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
    let four = (0..=2).map(Version::Four);
    for version in std::iter::once(Version::Three).chain(four) {
        for &(operation, sizes) in CELLS {
            cells.extend(sizes.iter().map(|&(connections, depth)| Cell {
                version,
                operation,
                connections,
                depth,
            }));
        }
    }
    cells.retain(|cell| args.wants(&rounds::Cell::name(cell)));
    cells
}

impl rounds::Cell<Server> for Cell {
    type Client = Client;

    fn name(&self) -> String {
        let (version, connections, depth) = (self.version, self.connections, self.depth);
        let operation = self.operation.name();
        match self.operation {
            Operation::List => format!("{version}, {connections} conn., {operation}"),
            _ => format!("{version}, {connections} conn., {operation}, depth {depth}"),
        }
    }

    fn unit(&self) -> (&'static str, f64) {
        self.operation.unit()
    }

    fn connect(&self, server: &Server) -> Result<Vec<Client>, String> {
        let connected = |number| Client::connect(server, self.version, self.operation, number);
        (0..self.connections).map(connected).collect()
    }

    fn pid(&self, server: &Server, _: &Client) -> u32 {
        server.process.pid()
    }

    fn run(&self, client: &mut Client, time: Duration, most: usize) -> Done {
        client.run(self.depth, time, most)
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
        let (bytes, steps) = self.operation.exchange(self.version)?;
        Some(HardwareLimit::Exchange(Exchange {
            tcp: true,
            bytes,
            depth: self.depth,
            steps,
            connections: self.connections,
        }))
    }
}
