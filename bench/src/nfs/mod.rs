//! The table `nfs`: barge and nfs-ganesha on the same directory over loopback TCP, and barge over
//! TLS, driven by the same client.

mod calls;
mod prepared;
pub(super) mod servers;
pub(super) mod work;

use std::sync::Arc;
use std::time::Duration;

use self::servers::Server;
use self::work::{Client, Version, Work};
use crate::context::Context;
use crate::network::Network;
use crate::physical::{Exchange, Physical};
use crate::place::Place;
use crate::report::results::Results;
use crate::rounds::{self, Done, measure_all};
use command::Failure;
use command::tools::Tool;

/// The cells: numbers of connections, and of operations in flight on each.
const CELLS: &[(Work, &[(usize, usize)])] = &[
    (
        Work::ReadSmall,
        &[(1, 1), (1, 16), (1, 64), (8, 1), (8, 16), (8, 64)],
    ),
    (Work::WriteSmall, &[(1, 1), (1, 16), (1, 64)]),
    (Work::ReadLarge, &[(1, 4), (8, 4)]),
    (Work::WriteLarge, &[(1, 4)]),
    (Work::Attributes, &[(1, 1), (1, 16)]),
    (Work::LookUp, &[(1, 1), (1, 16)]),
    (Work::Create, &[(1, 1), (1, 16)]),
    (Work::List, &[(1, 1)]),
];

struct Cell {
    version: Version,
    work: Work,
    connections: usize,
    depth: usize,
}

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    let place = Place::make(args)?;
    let mut notes = vec![place.note(args)];
    let mut missing = Vec::new();
    let network = match servers::has_ganesha() {
        true => Network::make().map(Arc::new),
        false => None,
    };
    let mut servers = vec![servers::barge(
        place.barge(),
        (&place.share, &place.run),
        network.as_ref(),
        &[],
    )?];
    let ganesha = match &network {
        Some(network) => servers::ganesha(&place, network)?,
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
        place.barge(),
        (&place.share, &place.run),
        network.as_ref(),
        &["--poll-us", "0"],
    )?);
    match servers::secure(&place, network.as_ref())? {
        Some(secure) => servers.push(secure),
        None => missing.push(format!(
            "{} for the TLS certificate",
            Tool::OPENSSL.is_missing()
        )),
    }
    let cells = cells(args);
    let rows = measure_all(args, &servers, &cells, &place.run, &mut notes)?;
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
        for &(work, sizes) in CELLS {
            cells.extend(sizes.iter().map(|&(connections, depth)| Cell {
                version,
                work,
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
        let work = self.work.name();
        match self.work {
            Work::List => format!("{version}, {connections} conn., {work}"),
            _ => format!("{version}, {connections} conn., {work}, depth {depth}"),
        }
    }

    fn unit(&self) -> (&'static str, f64) {
        self.work.unit()
    }

    fn connect(&self, server: &Server) -> Result<Vec<Client>, String> {
        let connected = |number| Client::connect(server, self.version, self.work, number);
        (0..self.connections).map(connected).collect()
    }

    fn pid(&self, server: &Server, _: &Client) -> u32 {
        server.process.pid()
    }

    fn run(&self, client: &mut Client, time: Duration, most: usize) -> Done {
        client.run(self.depth, time, most)
    }

    fn counted(&self) -> Option<usize> {
        let times = if self.work == Work::List { 5 } else { 500 };
        (self.connections == 1).then_some(times)
    }

    fn is_paced(&self) -> bool {
        (self.connections, self.depth) == (1, 1) && self.work != Work::List
    }

    fn limit(&self) -> Option<Physical> {
        let (bytes, steps) = self.work.exchange(self.version)?;
        Some(Physical::Exchange(Exchange {
            tcp: true,
            bytes,
            depth: self.depth,
            steps,
            connections: self.connections,
        }))
    }
}
